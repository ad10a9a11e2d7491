//! The pages of a customer. They say nothing of costs, routes and price books.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::account::{balance, budgets, key_columns, key_row};
use super::charges::{LineLinks, line_rows};
use super::chart;
use super::parts::{next_page, table};
use crate::console::charges::FoundLines;
use crate::ledger::KeyRecord;
use crate::management::accounts::AccountView;
use crate::usage::{RollupSums, UsageGroup};

/// Draws the first page.
pub(in crate::console) fn draw_balance(
    view: &AccountView,
    keys: &[KeyRecord],
    usage: &[(UsageGroup, RollupSums)],
) -> Markup {
    let all = key_columns();
    let [columns @ .., _] = &all;
    let rows: Vec<_> = keys.iter().rev().map(|key| key_row(key, None)).collect();
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
        }
    }
}

/// Draws the charges.
pub(in crate::console) fn draw_charges(found: &FoundLines) -> Markup {
    html! {
        (line_rows(LineLinks::None, &found.lines, "Nothing was charged yet."))
        (next_page(found.next.map(|before| format!("/my/charges?before={before}"))))
    }
}
