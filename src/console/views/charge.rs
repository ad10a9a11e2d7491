//! The page of one line of a journal, with its arithmetic.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};
use serde_json::Value;

use super::parts::{Column, facts, table, time, usd};
use crate::catalogue::Catalogue;
use crate::console::arithmetic::{Arithmetic, Step, explain};
use crate::ledger::{AccountName, EntryKind, JournalEntry, JournalLine};

/// The members of a line that the page shows in other ways.
const SHOWN_APART: [&str; 2] = ["amount_nano", "written_off_nano"];

/// Draws the page.
pub(in crate::console) fn draw(
    account: &AccountName,
    entry: &JournalEntry,
    line: &Value,
    catalogue: &Catalogue,
) -> Markup {
    let charge = serde_json::from_str::<JournalLine<'_>>(&entry.line).ok();
    let charge = charge.filter(|_| entry.kind == EntryKind::Charge);
    let usage = line.get("usage").map(ToString::to_string).unwrap_or_default();
    html! {
        p { a href={ "/charges?account=" (account) } { "All charges of " (account) } }
        (facts(&[
            ("What", html! { (entry.kind.as_str()) }),
            ("Amount, USD", usd(entry.amount)),
            ("Written off, USD", usd(entry.written_off)),
        ]))
        @if let Some(charge) = &charge {
            (facts(&[
                ("When (UTC)", time(charge.at)),
                ("Model", html! { (charge.model) }),
                ("Key", html! { code { (charge.key_prefix) } }),
                ("Request", html! { code { (charge.request_id) } }),
            ]))
            section aria-labelledby="arithmetic" {
                h2 #arithmetic { "How the amount came about" }
                @match explain(charge, entry.amount, catalogue) {
                    Some(steps) => {
                        (arithmetic(&steps, charge))
                        (circumstances(charge))
                    }
                    None if *charge.price_version == *catalogue.version => p.error {
                        "The prices of the version in force do not lead to this amount. "
                        "The usage was "
                        code { (usage) } "."
                    },
                    None => p {
                        "The prices of version " code { (charge.price_version) }
                        " are no longer in force here, so the steps cannot be shown. The usage was "
                        code { (usage) } "."
                    },
                }
            }
        }
        section aria-labelledby="line" {
            h2 #line { "The line" }
            (members(line))
        }
    }
}

/// Draws the page of a line of a customer's own journal. It says nothing of costs and routes.
pub(in crate::console) fn draw_own(entry: &JournalEntry, catalogue: &Catalogue) -> Markup {
    let charge = serde_json::from_str::<JournalLine<'_>>(&entry.line).ok();
    let charge = charge.filter(|_| entry.kind == EntryKind::Charge);
    html! {
        p { a href="/my/charges" { "All charges" } }
        (facts(&[
            ("What", html! { (entry.kind.as_str()) }),
            ("Amount, USD", usd(entry.amount)),
        ]))
        @if let Some(charge) = &charge {
            (facts(&[
                ("When (UTC)", time(charge.at)),
                ("Model", html! { (charge.model) }),
                ("Endpoint", html! { (charge.endpoint) }),
                ("Key", html! { code { (charge.key_prefix) } }),
                ("Request", html! { code { (charge.request_id) } }),
                ("Basis", html! { (charge.basis.name()) }),
                ("Price version", html! { code { (charge.price_version) } }),
            ]))
            @if let Some(steps) = explain(charge, entry.amount, catalogue)
                && steps.factor.is_none()
            {
                section aria-labelledby="arithmetic" {
                    h2 #arithmetic { "How the amount came about" }
                    (arithmetic(&steps, charge))
                }
            }
        }
    }
}

fn arithmetic(explained: &Arithmetic, line: &JournalLine<'_>) -> Markup {
    let columns = [
        Column::Text("What"),
        Column::Number("Units"),
        Column::Number("Each, nano-USD"),
        Column::Number("Nano-USD"),
    ];
    let mut rows: Vec<_> = explained.steps.iter().map(step).collect();
    rows.extend(line.fees.iter().map(|fee| {
        vec![
            html! { "uses of " (fee.name) },
            html! { (fee.uses) },
            html! {},
            html! { (fee.amount.nano()) },
        ]
    }));
    rows.push(vec![
        html! { strong { "sum" } },
        html! {},
        html! {},
        html! { strong { (explained.sum.nano()) } },
    ]);
    if let Some(factor) = explained.factor {
        rows.push(vec![
            html! { "× " (factor.to_string()) ", rounded up" },
            html! {},
            html! {},
            html! { strong { (explained.amount.nano()) } },
        ]);
    }
    html! {
        (table("Units times price", &columns, &rows, ""))
    }
}

/// Draws what else the amount and the route depended on.
fn circumstances(line: &JournalLine<'_>) -> Markup {
    html! {
        p {
            "Basis: " code { (line.basis.name()) } ". "
            "Price version: " code { (line.price_version) } "."
            @if let Some(book) = &line.book { " Price book: " code { (book) } "." }
            @if line.depth > 0 { " Routes that failed before: " (line.depth) "." }
        }
    }
}

fn step(step: &Step) -> Vec<Markup> {
    vec![
        html! { (step.what) },
        html! { (step.count) },
        html! { @match step.each_nano { Some(each) => (each), None => "the vendor's bill" } },
        html! { (step.amount.nano()) },
    ]
}

fn members(line: &Value) -> Markup {
    let members = line.as_object().into_iter().flatten();
    let rows: Vec<_> = members
        .filter(|(name, _)| !SHOWN_APART.contains(&name.as_str()))
        .map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            vec![html! { (name) }, html! { code { (text) } }]
        })
        .collect();
    table("Members", &["Member", "Value"].map(Column::Text), &rows, "The line cannot be read.")
}
