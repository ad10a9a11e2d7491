//! The list of charges.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::parts::{Column, next_page, table, time, usd};
use crate::console::charges::{ChargeSearch, FoundLines};
use crate::ledger::{AccountName, EntryKind, JournalEntry, JournalLine};

/// Draws the page. `found` is `None` if nothing was looked for.
pub(in crate::console) fn draw(search: &ChargeSearch, found: Option<&FoundLines>) -> Markup {
    html! {
        form.row role="search" method="get" action="/charges" {
            div.field {
                label for="account" { "Account" }
                input #account name="account" value=(search.account()) autocomplete="off";
            }
            div.field {
                label for="request" { "Id of the request" }
                input #request name="request" value=(search.request()) autocomplete="off"
                    aria-describedby="request-hint";
            }
            div.field { button type="submit" { "Search" } }
        }
        p.hint #request-hint {
            "The x-request-id of an answer. Without an account, all accounts are searched, one by "
            "one."
        }
        @if let Some(found) = found {
            @let next = found.next.map(|before| {
                format!("/charges?account={}&before={before}", found.account)
            });
            h2 { a href={ "/accounts/" (found.account) } { (found.account) } }
            (line_rows(LineLinks::Of(&found.account), &found.lines, "There is no charge."))
            (next_page(
                next,
            ))
        }
    }
}

/// Whether the numbers of lines lead to their pages.
#[derive(Clone, Copy)]
pub(in crate::console) enum LineLinks<'a> {
    /// To those of this account.
    Of(&'a AccountName),
    /// They are numbers alone.
    None,
}

/// Draws lines of an account's journal.
pub(in crate::console) fn line_rows(
    links: LineLinks<'_>,
    entries: &[JournalEntry],
    empty: &str,
) -> Markup {
    let columns = [
        Column::Number("Line"),
        Column::Text("When (UTC)"),
        Column::Text("What"),
        Column::Text("Model"),
        Column::Text("Endpoint"),
        Column::Text("Key"),
        Column::Number("Amount, USD"),
    ];
    let rows: Vec<_> = entries.iter().map(|entry| row(links, entry)).collect();
    table("Journal lines, newest first", &columns, &rows, empty)
}

fn row(links: LineLinks<'_>, entry: &JournalEntry) -> Vec<Markup> {
    let line = serde_json::from_str::<JournalLine<'_>>(&entry.line).ok();
    let at = line.as_ref().map_or_else(|| time_of(&entry.line), |line| Some(line.at));
    let sign = if entry.kind == EntryKind::Correction { "−" } else { "" };
    vec![
        html! {
            @match links {
                LineLinks::Of(account) => a href={ "/charges/" (account) "/" (entry.seq) } {
                    (entry.seq)
                },
                LineLinks::None => (entry.seq),
            }
        },
        html! { @if let Some(at) = at { (time(at)) } },
        html! { (entry.kind.as_str()) },
        html! { @if let Some(line) = &line { (line.model) } },
        html! { @if let Some(line) = &line { (line.endpoint) } },
        html! { @if let Some(line) = &line { code { (line.key_prefix) } } },
        html! { (sign) (usd(entry.amount)) },
    ]
}

/// Returns the time of a line that is no charge, in unix ms.
fn time_of(line: &str) -> Option<i64> {
    let line = serde_json::from_str::<serde_json::Value>(line).ok()?;
    line.get("at")?.as_i64()
}
