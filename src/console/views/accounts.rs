//! The list of accounts.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::form::FilledForm;
use super::parts::{Column, encoded, next_page, table, usd};
use crate::console::form_table::OPEN_ACCOUNT;
use crate::console::forms::SentFields;
use crate::console::state::SignedIn;
use crate::ledger::{AccountName, Balances};
use crate::operators::Role;

/// What the page shows.
pub(in crate::console) struct AccountList {
    pub(in crate::console) rows: Vec<(AccountName, Balances)>,
    /// The number of all accounts.
    pub(in crate::console) all: usize,
    /// The number of those whose names have what is looked for.
    pub(in crate::console) found: usize,
    /// What is looked for.
    pub(in crate::console) q: Option<String>,
    pub(in crate::console) has_more: bool,
}

/// Draws the page.
pub(in crate::console) fn draw(list: &AccountList, signed_in: &SignedIn) -> Markup {
    let wanted = list.q.as_deref().unwrap_or_default();
    let columns = [
        Column::Text("Account"),
        Column::Number("Available, USD"),
        Column::Number("Held, USD"),
        Column::Number("Charged, USD"),
        Column::Number("Paid in, USD"),
        Column::Number("Written off, USD"),
    ];
    let rows: Vec<_> = list.rows.iter().map(row).collect();
    let empty = if list.all == 0 {
        "There is no account yet. Open the first one below: then add a payment and issue a key."
    } else {
        "No account has that in its name."
    };
    let next = list
        .rows
        .last()
        .filter(|_| list.has_more)
        .map(|(name, _)| format!("/accounts?q={}&after={name}", encoded(wanted)));
    html! {
        form.row role="search" method="get" action="/accounts" {
            div.field {
                label for="q" { "A part of the name" }
                input #q name="q" value=(wanted) type="search";
            }
            div.field { button type="submit" { "Search" } }
        }
        p.hint { (list.found) " of " (list.all) " accounts" }
        (table("Accounts by name", &columns, &rows, empty))
        (next_page(next))
        @if signed_in.viewer.role() >= Some(Role::Operator) {
            section aria-labelledby="open" {
                h2 #open { "Open an account" }
                (FilledForm {
                    rule: &OPEN_ACCOUNT,
                    action: "/accounts",
                    form_token: &signed_in.form_token,
                    fields: &SentFields::default(),
                }.draw())
            }
        }
    }
}

fn row(account: &(AccountName, Balances)) -> Vec<Markup> {
    let (name, balances) = account;
    vec![
        html! { a href={ "/accounts/" (name) } { (name) } },
        usd(balances.available),
        usd(balances.held),
        usd(balances.posted),
        usd(balances.credit),
        usd(balances.written_off),
    ]
}
