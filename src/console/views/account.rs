//! The page of an account.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::charges::{LineLinks, line_rows};
use super::customer::usage_charts;
use super::form::FilledForm;
use super::keys::{budget_table, issue_form, key_table, limit_text};
use super::parts::{Column, facts, state, table, time, usd};
use crate::catalogue::Catalogue;
use crate::console::form_table::{
    ACCOUNT_BUDGETS, FormRule, PAYMENT, RESUMPTION, SIGN_IN_LINK, SUSPENSION,
};
use crate::console::forms::SentFields;
use crate::console::state::SignedIn;
use crate::console::usage::UsageSums;
use crate::ledger::{AccountName, BudgetOwner, JournalEntry, KeyPage, TransferEntry, WindowKind};
use crate::management::accounts::AccountView;
use crate::management::grants::expiry_text;
use crate::operators::Role;

/// What the page shows.
pub(in crate::console) struct AccountPage {
    pub(in crate::console) view: AccountView,
    /// Newest first.
    pub(in crate::console) keys: KeyPage,
    /// Newest first.
    pub(in crate::console) transfers: Vec<TransferEntry>,
    /// Newest first.
    pub(in crate::console) recent: Vec<JournalEntry>,
    pub(in crate::console) usage: UsageSums,
}

/// Draws the page.
pub(in crate::console) fn draw(
    page: &AccountPage,
    catalogue: &Catalogue,
    signed_in: &SignedIn,
) -> Markup {
    let (view, name) = (&page.view, &page.view.name);
    let may_change = signed_in.viewer.role() >= Some(Role::Operator) && view.deleted_at.is_none();
    html! {
        (balance(view))
        (settings(view, may_change, signed_in))
        section aria-labelledby="usage" {
            h2 #usage { "Usage of the last 30 days" }
            (usage_charts(&page.usage))
        }
        (keys(page, may_change, signed_in))
        @if may_change {
            section aria-labelledby="sign-in" {
                h2 #sign-in { (SIGN_IN_LINK.title) }
                p {
                    "By a link that works once, or with a key for the account's own pages, the \
                     customer sees the balance, the charges and the keys."
                }
                (form(&SIGN_IN_LINK, name, "links", &SentFields::default(), signed_in))
            }
        }
        (limits(page, catalogue, may_change, signed_in))
        (transfers(page, may_change, signed_in))
        section aria-labelledby="charges" {
            h2 #charges { "Newest charges" }
            (line_rows(LineLinks::Of(name), &page.recent, "Nothing was charged yet."))
            p {
                a href={ "/charges?account=" (name) } { "All charges" } ", "
                a href={ "/accounts/" (name) "/statements" } { "statements" }
            }
        }
    }
}

/// Draws the balance of an account, and its equation.
pub(in crate::console) fn balance(view: &AccountView) -> Markup {
    let balances = &view.balances;
    let word = if balances.is_balanced() { "adds up" } else { "does not add up" };
    html! {
        section aria-labelledby="balance" {
            h2 #balance { "Balance" }
            (facts(&[
                ("Available, USD", usd(balances.available)),
                ("Held for running calls, USD", usd(balances.held)),
                ("Charged, USD", usd(balances.posted)),
                ("Paid in and granted, USD", usd(balances.credit)),
                ("Written off, USD", usd(balances.written_off)),
            ]))
            p.equation {
                "paid in " (usd(balances.credit)) " + written off " (usd(balances.written_off))
                " = available " (usd(balances.available)) " + held " (usd(balances.held))
                " + charged " (usd(balances.posted)) " "
                (state(balances.is_balanced(), &word))
            }
            @if !view.lots.is_empty() {
                (table(
                    "Granted credit, in the order in which calls draw it",
                    &[
                        Column::Text("Source"), Column::Text("Expires"),
                        Column::Number("Available, USD"), Column::Number("Held, USD"),
                    ],
                    &view.lots.iter().map(|lot| vec![
                        html! { (lot.id.source.as_str()) },
                        html! { (expiry_text(lot.id).unwrap_or_else(|| "never".to_owned())) },
                        usd(lot.lot.available),
                        usd(lot.lot.held),
                    ]).collect::<Vec<_>>(),
                    "",
                ))
            }
        }
    }
}

fn settings(view: &AccountView, may_change: bool, signed_in: &SignedIn) -> Markup {
    let settings = &view.settings;
    let is_deleted = view.deleted_at.is_some();
    let plan = settings.plan.as_ref().map_or_else(|| "default".to_owned(), ToString::to_string);
    let book = settings.book.as_ref().map_or_else(|| "list prices".to_owned(), ToString::to_string);
    let word = match (is_deleted, settings.suspended) {
        (true, _) => "deleted",
        (false, true) => "suspended",
        (false, false) => "active",
    };
    html! {
        section aria-labelledby="settings" {
            h2 #settings { "Settings" }
            (facts(&[
                ("State", state(!is_deleted && !settings.suspended, &word)),
                ("Plan", html! { (plan) }),
                ("Price book", html! { (book) }),
            ]))
            @if may_change {
                @if settings.suspended {
                    (form(&RESUMPTION, &view.name, "resumption", &SentFields::default(), signed_in))
                } @else {
                    (form(&SUSPENSION, &view.name, "suspension", &SentFields::default(), signed_in))
                }
            }
        }
    }
}

/// Draws a link by which the customer signs in, which is shown this once.
pub(in crate::console) fn draw_link(account: &AccountName, link: &str) -> Markup {
    html! {
        div.notice {
            p {
                "Send this link to the customer " (account) ": it works once, within ten minutes. \
                 Whoever opens it first is signed in, and so is a program that opens it to show a \
                 preview."
            }
            code.secret #new-link tabindex="-1" autofocus { (link) }
        }
        p { a href={ "/accounts/" (account) } { "Back to " (account) } }
    }
}

/// Draws a form about the account. `last` is the end of the path that it is sent to.
fn form(
    rule: &FormRule,
    name: &AccountName,
    last: &str,
    fields: &SentFields,
    signed_in: &SignedIn,
) -> Markup {
    let (action, form_token) = (format!("/accounts/{name}/{last}"), &*signed_in.form_token);
    FilledForm { rule, action: &action, form_token, fields }.draw()
}

fn keys(page: &AccountPage, may_change: bool, signed_in: &SignedIn) -> Markup {
    let name = &page.view.name;
    html! {
        section aria-labelledby="keys" {
            h2 #keys { "Keys" }
            (key_table(&page.keys.keys, "/keys", "The account has no key yet."))
            p { a href={ "/accounts/" (name) "/keys" } { "All keys" } }
            @if may_change { (issue_form(name, signed_in)) }
        }
    }
}

fn limits(
    page: &AccountPage,
    catalogue: &Catalogue,
    may_change: bool,
    signed_in: &SignedIn,
) -> Markup {
    let plan = match &page.view.settings.plan {
        Some(name) => catalogue.plans.find(name),
        None => catalogue.plans.default_plan(),
    };
    html! {
        section aria-labelledby="limits" {
            h2 #limits { "Limits" }
            (budget_table(&page.view.budgets, &page.keys.keys))
            @if page.keys.next.is_some() {
                p.hint {
                    "Those of older keys are on the page of "
                    a href={ "/accounts/" (page.view.name) "/keys" } { "all keys" } "."
                }
            }
            @if let Some(plan) = plan {
                p {
                    "The plan " strong { (plan.name.to_string()) } " allows "
                    (rate_text(plan.limits.requests_per_minute)) " requests and "
                    (rate_text(plan.limits.tokens_per_minute)) " tokens a minute, and "
                    (rate_text(plan.limits.calls)) " calls at a time."
                }
            } @else {
                p { "No plan limits the rate of its calls." }
            }
            @if may_change {
                @let limit = |kind| limit_text(&page.view.budgets, BudgetOwner::Account, kind);
                @let fields = SentFields::of([
                    ("day_usd", limit(WindowKind::Day)),
                    ("month_usd", limit(WindowKind::Month)),
                ]);
                (form(&ACCOUNT_BUDGETS, &page.view.name, "budgets", &fields, signed_in))
            }
        }
    }
}

fn rate_text(limit: Option<i64>) -> String {
    limit.map_or_else(|| "any number of".to_owned(), |limit| limit.to_string())
}

fn transfers(page: &AccountPage, may_change: bool, signed_in: &SignedIn) -> Markup {
    let columns = [
        Column::Text("When (UTC)"),
        Column::Text("What"),
        Column::Text("Id"),
        Column::Number("Amount, USD"),
        Column::Text("Reason"),
    ];
    let row = |transfer: &TransferEntry| {
        vec![
            html! { @match transfer.at { Some(at) => (time(at)), None => "–" } },
            html! { (transfer.kind.as_str()) },
            html! { code { (transfer.tx) } },
            usd(transfer.moved.unwrap_or(transfer.amount)),
            html! { (transfer.reason) },
        ]
    };
    let rows: Vec<_> = page.transfers.iter().map(row).collect();
    html! {
        section aria-labelledby="payments" {
            h2 #payments { "Payments" }
            (table(
                "The newest payments, grants, refunds and corrections",
                &columns,
                &rows,
                "Nothing was paid in yet.",
            ))
            @if may_change {
                (form(&PAYMENT, &page.view.name, "payments", &SentFields::default(), signed_in))
            }
        }
    }
}
