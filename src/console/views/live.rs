//! The calls that have just ended: as a table of the first page, and as the events that a script
//! adds to it. Both have the same texts.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use maud::{Markup, html};
use serde_json::json;

use super::parts::moment;
use crate::console::assets::LIVE_SCRIPT;
use crate::gateway::traffic::live_feed::{EndedCall, EventId, Happening, LiveEvent, RouteChange};

/// The number of calls that the page shows.
const ROWS: usize = 20;
/// The columns, and whether each has numbers.
const COLUMNS: [(&str, bool); 8] = [
    ("Time (UTC)", false),
    ("Account", false),
    ("Model", false),
    ("Endpoint", false),
    ("Status", true),
    ("Charged, USD", true),
    ("Took, ms", true),
    ("Route", false),
];
const CAPTION: &str = "Calls that have ended, the newest first";

/// What is known of the last events.
pub(in crate::console) struct LiveView {
    /// The events that are kept, the oldest first.
    pub(in crate::console) events: Vec<Arc<LiveEvent>>,
    /// The id of the newest event that there was.
    pub(in crate::console) newest: EventId,
    /// Whether events were noted before this look.
    pub(in crate::console) was_watched: bool,
}

/// Draws the section of the first page.
pub(in crate::console) fn draw(live: &LiveView) -> Markup {
    let rows: Vec<_> = live.events.iter().rev().filter_map(|event| cells(event)).collect();
    let changes: Vec<_> = live.events.iter().rev().filter_map(|event| change(event)).collect();
    html! {
        section #live aria-labelledby="live-title" data-after=(live.newest) {
            h2 #live-title { "Calls as they end" }
            p #live-status role="status" {
                @if live.was_watched {
                    "Reload the page to see newer calls."
                } @else {
                    "Calls are noted from now on, as long as somebody looks: reload the page to "
                    "see them."
                }
            }
            p { button #live-pause.plain type="button" hidden { "Pause" } }
            div.wide tabindex="0" role="region" aria-label=(CAPTION) {
                table {
                    caption { (CAPTION) }
                    thead {
                        tr {
                            @for (title, is_number) in COLUMNS {
                                th scope="col" class=[is_number.then_some("number")] { (title) }
                            }
                        }
                    }
                    tbody #live-calls aria-live="off" { (body(&rows)) }
                }
            }
            h3 { "Routes that have changed" }
            ul #live-routes.plain aria-live="off" {
                @if changes.is_empty() { li #live-no-route { "None." } }
                @for text in changes.iter().take(ROWS) { li { (text) } }
            }
            p.hint {
                "Only calls and routes of this gateway, and of calls those with a key that is "
                "known. What was asked and answered is not shown."
            }
            script src=(LIVE_SCRIPT.path) defer {}
        }
    }
}

fn body(rows: &[[String; COLUMNS.len()]]) -> Markup {
    html! {
        @if rows.is_empty() {
            tr #live-none { td colspan=(COLUMNS.len()) { "No call has ended since." } }
        }
        @for row in rows.iter().take(ROWS) {
            tr {
                @for (at, (cell, (_, is_number))) in row.iter().zip(COLUMNS).enumerate() {
                    @let class = is_number.then_some("number");
                    @if at == 0 {
                        th scope="row" { (cell) }
                    } @else {
                        td class=[class] { (cell) }
                    }
                }
            }
        }
    }
}

/// Returns the texts of a call's row; `None` for another event.
fn cells(event: &LiveEvent) -> Option<[String; COLUMNS.len()]> {
    let Happening::CallEnded(call) = &event.what else { return None };
    let EndedCall { account, model, endpoint, status, charged, took_ms, route } = call;
    let or_dash = |text: &str| if text.is_empty() { "–".to_owned() } else { text.to_owned() };
    Some([
        moment(event.at),
        account.as_str().to_owned(),
        or_dash(model),
        (*endpoint).to_owned(),
        if *status == 0 { "–".to_owned() } else { status.to_string() },
        charged.map_or_else(|| "–".to_owned(), |charged| charged.to_string()),
        took_ms.to_string(),
        or_dash(route),
    ])
}

/// Returns the text of a route's change; `None` for another event.
fn change(event: &LiveEvent) -> Option<String> {
    let Happening::RouteChanged(change) = &event.what else { return None };
    let RouteChange { vendor, route, state, reason } = change;
    let why = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    Some(format!("{}: {vendor} / {route} is {state}{why}", moment(event.at)))
}

/// Returns an event as a stream of server-sent events has it.
pub(in crate::console) fn event_text(event: &LiveEvent) -> String {
    let (name, data) = match (cells(event), change(event)) {
        (Some(cells), _) => ("call", json!({ "cells": cells })),
        (None, change) => ("route", json!({ "text": change.unwrap_or_default() })),
    };
    format!("id: {}\nevent: {name}\ndata: {data}\n\n", event.id)
}

/// Returns the event that says how many events a reader has lost.
pub(in crate::console) fn lost_text(lost: u64) -> String {
    format!("event: lost\ndata: {}\n\n", json!({ "lost": lost }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::traffic::live_feed::LiveFeed;
    use crate::ledger::AccountName;
    use crate::money::Money;

    #[test]
    fn a_call_is_one_event_whose_texts_are_those_of_its_row() {
        let feed = LiveFeed::new(7);
        feed.watch(0);
        let call = EndedCall {
            account: AccountName::parse("acme").expect("a name"),
            // No model has such a name, but an event would end at its line break.
            model: "<b>\n\ndata: x".to_owned(),
            endpoint: "chat",
            status: 200,
            charged: Money::from_nano(8_000_000).ok(),
            took_ms: 41,
            route: String::new(),
        };
        feed.note(0, Happening::CallEnded(call));
        let (events, newest) = feed.recent();
        let text = event_text(&events[0]);
        assert_eq!(text.matches('\n').count(), 4, "{text}");
        assert!(
            text.starts_with("id: 7-1\nevent: call\ndata: {\"cells\":[\"1970-01-01 00:00:00\"")
        );
        assert!(text.contains("\"acme\",\"<b>\\n\\ndata: x\",\"chat\",\"200\",\"0.008\",\"41\""));
        let page = draw(&LiveView { events, newest, was_watched: true }).into_string();
        assert!(page.contains("&lt;b&gt;") && page.contains("data-after=\"7-1\""), "{page}");
        assert!(!page.contains("live-none"));
    }
}
