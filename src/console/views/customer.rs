//! The pages of a customer. They say nothing of costs, routes and price books.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::account::{balance, budgets, key_columns, key_row, newest, older_keys};
use super::charges::{LineLinks, line_rows};
use super::chart;
use super::parts::{Column, encoded, next_page, table, usd};
use crate::console::charges::FoundLines;
use crate::console::customer::UsageDays;
use crate::ledger::KeyRecord;
use crate::management::accounts::AccountView;
use crate::usage::{RollupSums, UsageGroup, date_text};

/// Draws the first page.
pub(in crate::console) fn draw_balance(
    view: &AccountView,
    keys: &[KeyRecord],
    usage: &[(UsageGroup, RollupSums)],
) -> Markup {
    let all = key_columns();
    let [columns @ .., _] = &all;
    let rows: Vec<_> = newest(keys).map(|key| key_row(key, None)).collect();
    html! {
        (balance(view))
        section aria-labelledby="usage" {
            h2 #usage { "Usage of the last 30 days" }
            (chart::spend_by_day(usage))
        }
        section aria-labelledby="limits" {
            h2 #limits { "Limits" }
            (budgets(view, keys))
        }
        section aria-labelledby="keys" {
            h2 #keys { "Keys" }
            (table("Keys, newest first", columns, &rows, "There is no key yet."))
            (older_keys(keys))
        }
    }
}

/// Draws the usage of some days.
pub(in crate::console) fn draw_usage(
    days: &UsageDays,
    by_day: &[(UsageGroup, RollupSums)],
    by_key: &[(UsageGroup, RollupSums)],
    keys: &[KeyRecord],
) -> Markup {
    let [from, to] = [&days.from, &days.to].map(|date| date.as_deref().unwrap_or_default());
    let file = format!("/my/usage.csv?from={}&to={}", encoded(from), encoded(to));
    let name_of = |id: &str| {
        let key = keys.iter().rfind(|key| key.id.0.to_string() == id);
        key.map_or_else(|| id.to_owned(), |key| key.prefix.clone())
    };
    let of_days: Vec<_> = by_day
        .iter()
        .rev()
        .map(|(group, sums)| {
            let day = group.start.and_then(date_text).unwrap_or_default();
            let model = group.model.as_deref().unwrap_or_default();
            sums_row([html! { (day) }, html! { (model) }], sums)
        })
        .collect();
    let of_keys: Vec<_> = by_key
        .iter()
        .map(|(group, sums)| {
            let id = group.key_id.as_deref().unwrap_or_default();
            sums_row([html! { code { (name_of(id)) } }, html! {}], sums)
        })
        .collect();
    let empty = "Nothing was charged in this time.";
    html! {
        form.row method="get" action="/my/usage" {
            div.field {
                label for="from" { "From" }
                input #from type="date" name="from" value=(from);
            }
            div.field {
                label for="to" { "Until" }
                input #to type="date" name="to" value=(to);
            }
            div.field { button type="submit" { "Show" } }
        }
        (chart::spend_by_day(by_day))
        (table("By day (UTC) and model", &sums_columns("Day", "Model"), &of_days, empty))
        (table("By key", &sums_columns("Key", ""), &of_keys, empty))
        p { a href=(file) download { "The same for spreadsheets (CSV), by day, model and key" } }
    }
}

fn sums_columns(first: &'static str, second: &'static str) -> Vec<Column> {
    let names = [first, second].into_iter().filter(|name| !name.is_empty()).map(Column::Text);
    let numbers = ["Calls", "Input tokens", "Cached", "Output tokens", "Charged, USD"];
    names.chain(numbers.map(Column::Number)).collect()
}

fn sums_row(names: [Markup; 2], sums: &RollupSums) -> Vec<Markup> {
    let [first, second] = names;
    let mut row = vec![first];
    if !second.0.is_empty() {
        row.push(second);
    }
    row.extend(
        [sums.calls, sums.prompt_tokens, sums.cached_tokens, sums.completion_tokens]
            .map(|count| html! { (count) }),
    );
    row.push(usd(sums.charged));
    row
}

/// Writes usage by day, model and key as CSV. Amounts are in nano-USD.
pub(in crate::console) fn write_usage(rows: &[(UsageGroup, RollupSums)]) -> String {
    let mut text = CSV_HEAD.to_owned();
    for (group, sums) in rows {
        let day = group.start.and_then(date_text).unwrap_or_default();
        let [model, key] = [&group.model, &group.key_id];
        let [model, key] = [model, key].map(|name| name.as_deref().unwrap_or_default());
        let counts = [sums.calls, sums.prompt_tokens, sums.cached_tokens, sums.completion_tokens];
        let counts = counts.map(|count| count.to_string()).join(",");
        let amounts = [sums.charged, sums.corrected].map(|amount| amount.nano().to_string());
        let line = [&day, &quoted(model), key, &counts, &amounts.join(",")];
        text.extend(line.join(",").chars().chain("\r\n".chars()));
    }
    text
}

const CSV_HEAD: &str = "day,model,key_id,calls,prompt_tokens,cached_tokens,completion_tokens,\
                        charged_nano,corrected_nano\r\n";

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Draws the charges.
pub(in crate::console) fn draw_charges(found: &FoundLines) -> Markup {
    html! {
        (line_rows(LineLinks::None, &found.lines, "Nothing was charged yet."))
        (next_page(found.next.map(|before| format!("/my/charges?before={before}"))))
    }
}
