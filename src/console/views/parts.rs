//! Parts that several pages have: amounts, times, tables, states.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, Render, html};

use crate::money::Money;

/// Draws an amount, to the nano-USD.
pub(in crate::console) fn usd(amount: Money) -> Markup {
    html! { span.usd { (amount) } }
}

/// Returns a moment as people read it, such as `2026-11-27 18:00:05` (UTC). `at` is in unix ms.
pub(in crate::console) fn moment(at: i64) -> String {
    let moment = jiff::Timestamp::from_millisecond(at).ok();
    moment.map_or_else(|| at.to_string(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Draws a moment. `at` is in unix ms.
pub(in crate::console) fn time(at: i64) -> Markup {
    let machine = jiff::Timestamp::from_millisecond(at).map(|at| at.to_string());
    html! { time datetime=[machine.ok()] { (moment(at)) } }
}

/// Draws a moment in unix seconds; a dash if there is none.
pub(in crate::console) fn time_s(at: Option<i64>) -> Markup {
    html! { @if let Some(at) = at { (time(at.saturating_mul(1_000))) } @else { "–" } }
}

/// A column of a table.
#[derive(Clone, Copy)]
pub(in crate::console) enum Column {
    /// Texts, which begin at the left.
    Text(&'static str),
    /// Numbers, which end at the right.
    Number(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Column::Text(title) | Column::Number(title) => title,
        }
    }

    fn class(self) -> Option<&'static str> {
        match self {
            Column::Text(_) => None,
            Column::Number(_) => Some("number"),
        }
    }
}

/// Draws a table. The first cell of each row names it. Without rows it says `empty` instead.
pub(in crate::console) fn table(
    caption: &str,
    columns: &[Column],
    rows: &[Vec<Markup>],
    empty: &str,
) -> Markup {
    if rows.is_empty() {
        return html! { p.empty { (empty) } };
    }
    html! {
        div.wide tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead {
                    tr {
                        @for column in columns {
                            th scope="col" class=[column.class()] { (column.title()) }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for (at, (cell, column)) in row.iter().zip(columns).enumerate() {
                                @if at == 0 {
                                    th scope="row" class=[column.class()] { (cell) }
                                } @else {
                                    td class=[column.class()] { (cell) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Draws a list of names and what they stand for.
pub(in crate::console) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in facts {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// Draws a link to the next page of a list, if there is one.
pub(in crate::console) fn next_page(address: Option<String>) -> Markup {
    html! {
        @if let Some(address) = address {
            nav aria-label="More" { a.next rel="next" href=(address) { "Next page" } }
        }
    }
}

/// Draws a state with a word and a shape, so that its colour is not all that tells it.
pub(in crate::console) fn state(is_good: bool, word: &impl Render) -> Markup {
    let (class, shape) = if is_good { ("state good", "●") } else { ("state bad", "▲") };
    html! { span class=(class) { span aria-hidden="true" { (shape) } " " (word) } }
}

/// Returns a text as it stands in the query of an address.
pub(in crate::console) fn encoded(text: &str) -> String {
    let query = serde_urlencoded::to_string([("", text)]).unwrap_or_default();
    query.strip_prefix('=').unwrap_or_default().to_owned()
}
