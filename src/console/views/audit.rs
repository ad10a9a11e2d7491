//! The page of the record of changes.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::parts::{Column, next_page, table};

/// The members of a line that have columns of their own, or say nothing to people.
const SHOWN_APART: [&str; 8] =
    ["at", "who", "who_role", "from", "action", "result", "id", "address"];

/// Draws a page of lines, each with its number. `next` is the number of the last one if there are
/// older ones.
pub(in crate::console) fn draw(lines: &[(u64, Map<String, Value>)], next: Option<u64>) -> Markup {
    let columns = ["When (UTC)", "Who", "From", "What", "About", "Result"].map(Column::Text);
    let rows: Vec<_> = lines.iter().map(|(_, line)| row(line)).collect();
    html! {
        p { "Every change that was made by the command line, the API or this console." }
        (table("Changes, newest first", &columns, &rows, "Nothing was changed yet."))
        (next_page(next.map(|next| format!("/audit?before={next}"))))
    }
}

fn row(line: &Map<String, Value>) -> Vec<Markup> {
    let text = |name: &str| line.get(name).map(shown).unwrap_or_default();
    let rest = line
        .iter()
        .filter(|(name, value)| !SHOWN_APART.contains(&name.as_str()) && !value.is_null());
    let who = ["who", "sudo_user", "user", "uid"].map(text).into_iter().find(|t| !t.is_empty());
    vec![
        html! { (text("at")) },
        html! {
            (who.unwrap_or_default())
            @if line.contains_key("who_role") { " (" (text("who_role")) ")" }
        },
        html! { (text("from")) " " span.hint { (text("address")) } },
        html! { code { (text("action")) } },
        html! {
            ul.plain {
                @for (name, value) in rest { li { (name) ": " code { (shown(value)) } } }
            }
        },
        html! { (text("result")) },
    ]
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
