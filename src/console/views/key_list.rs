//! The lists of keys.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::keys::{budget_table, issue_form, key_table};
use super::parts::{encoded, next_page};
use crate::console::key_list::KeyListPage;
use crate::console::state::{SignedIn, Viewer};

/// Draws a page of the list of keys.
pub(in crate::console) fn draw(found: &KeyListPage, signed_in: &SignedIn) -> Markup {
    let name = &found.account;
    let wanted = found.wanted.as_deref().unwrap_or_default();
    let list = match &signed_in.viewer {
        Viewer::Operator { .. } => format!("/accounts/{name}/keys"),
        Viewer::Customer(_) => "/my/keys".to_owned(),
    };
    let next = found.next.as_ref().map(|place| {
        let after = encoded(&place.to_string());
        format!("{list}?q={}&after={after}", encoded(wanted))
    });
    let empty = match (wanted.is_empty(), next.is_some()) {
        (true, _) => "There is no key here yet.",
        (false, true) => "None of these keys has that in its name. There are older ones.",
        (false, false) => "No key here begins so, or has that in its name.",
    };
    html! {
        @if let Viewer::Operator { .. } = &signed_in.viewer {
            p { a href={ "/accounts/" (name) } { "Back to the account " (name) } }
        }
        form.row role="search" method="get" action=(list) {
            div.field {
                label for="q" { "The beginning of the key, or a part of its name" }
                input #q name="q" value=(wanted) type="search" autocomplete="off";
            }
            div.field { button type="submit" { "Search" } }
        }
        (key_table(&found.keys, signed_in.viewer.keys_path(), empty))
        @if found.is_cut {
            p.hint { "Of the keys that are older than these, none was looked at yet." }
        }
        (next_page(next))
        @if let Viewer::Customer(account) = &signed_in.viewer && signed_in.may_change() {
            (issue_form(account, signed_in))
        }
        section aria-labelledby="limits" {
            h2 #limits { "Limits" }
            (budget_table(&found.budgets, &found.keys))
        }
    }
}
