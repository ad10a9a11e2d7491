//! The list of charges.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::parts::{Column, encoded, next_page, table, time, usd};
use crate::console::charges::{ChargeSearch, FoundLines};
use crate::ledger::{AccountName, EntryKind, JournalEntry, JournalLine};

/// Draws the page. `found` is `None` if nothing was looked for.
pub(in crate::console) fn draw(search: &ChargeSearch, found: Option<&FoundLines>) -> Markup {
    let fields = [
        ("account", "Account", "text", &search.account),
        ("request", "Id of the request", "text", &search.request),
        ("reply", "Id of the vendor", "text", &search.reply),
        ("key", "Beginning of the key", "text", &search.key),
        ("until", "Until the day (UTC)", "date", &search.until),
    ];
    html! {
        form.row role="search" method="get" action="/charges" {
            @for (name, label, kind, value) in fields {
                div.field {
                    label for=(name) { (label) }
                    input #(name) name=(name) type=(kind) autocomplete="off"
                        value=(value.as_deref().unwrap_or_default())
                        aria-describedby=[(name == "request").then_some("request-hint")];
                }
            }
            div.field { button type="submit" { "Search" } }
        }
        p.hint #request-hint {
            "The id of a request is the x-request-id of an answer. Without an account, all are "
            "searched for it, one by one."
        }
        @if let Some(found) = found {
            @let address = found.next.map(|before| next_address(search, found, before));
            h2 { a href={ "/accounts/" (found.account) } { (found.account) } }
            (line_rows(LineLinks::Of(&found.account), &found.lines, "There is no such charge."))
            (next_page(address))
        }
    }
}

/// Returns the address of the lines before number `before`.
fn next_address(search: &ChargeSearch, found: &FoundLines, before: u64) -> String {
    let rest = [("key", &search.key), ("reply", &search.reply)];
    let rest = rest.iter().filter_map(|member| Some((member.0, member.1.as_deref()?)));
    let rest = rest.map(|(name, value)| format!("&{name}={}", encoded(value)));
    let rest = rest.collect::<Vec<_>>().concat();
    format!("/charges?account={}&before={before}{rest}", found.account)
}

/// Whether the numbers of lines lead to their pages.
#[derive(Clone, Copy)]
pub(in crate::console) enum LineLinks<'a> {
    /// To those of this account.
    Of(&'a AccountName),
    /// To those of a customer's own.
    Own,
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
                LineLinks::Own => a href={ "/my/charges/" (entry.seq) } { (entry.seq) },
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
