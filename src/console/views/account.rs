//! The page of an account.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::charges::{LineLinks, line_rows};
use super::chart;
use super::frame::token_field;
use super::parts::{Column, facts, field, state, table, time, time_s, usd};
use crate::catalogue::Catalogue;
use crate::console::state::SignedIn;
use crate::ledger::{
    AccountName, BudgetOwner, BudgetUse, JournalEntry, KeyRecord, TransferEntry, WindowKind,
};
use crate::management::accounts::AccountView;
use crate::management::grants::expiry_text;
use crate::management::key_search::{last_use, state_of};
use crate::operators::Role;
use crate::usage::{RollupSums, UsageGroup};

/// What an id of a payment is for.
const PAYMENT_ID_HINT: &str =
    "of the payment, such as the number of its invoice: the same id is never credited twice";

/// What the page shows.
pub(in crate::console) struct AccountPage {
    pub(in crate::console) view: AccountView,
    /// Oldest first.
    pub(in crate::console) keys: Vec<KeyRecord>,
    /// Newest first.
    pub(in crate::console) transfers: Vec<TransferEntry>,
    /// Newest first.
    pub(in crate::console) recent: Vec<JournalEntry>,
    /// The sums of each day and model.
    pub(in crate::console) usage: Vec<(UsageGroup, RollupSums)>,
    /// The name of the form for a key.
    pub(in crate::console) request: String,
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
            (chart::spend_by_day(&page.usage))
        }
        (keys(page, may_change, signed_in))
        (limits(page, catalogue, may_change, signed_in))
        (transfers(page, may_change, signed_in))
        section aria-labelledby="charges" {
            h2 #charges { "Newest charges" }
            (line_rows(LineLinks::Of(name), &page.recent, "Nothing was charged yet."))
            p { a href={ "/charges?account=" (name) } { "All charges" } }
        }
    }
}

/// Draws a key, which is shown this once.
pub(in crate::console) fn new_key(account: &AccountName, key: &str) -> Markup {
    html! {
        div.notice {
            p { "Copy the key now: no page shows it again." }
            code.secret #new-key tabindex="-1" autofocus { (key) }
        }
        p { a href={ "/accounts/" (account) } { "Back to the account " (account) } }
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
                form method="post" action={ "/accounts/" (view.name) "/suspension" } {
                    (token_field(&signed_in.form_token))
                    input type="hidden" name="suspended" value=(!settings.suspended);
                    @if settings.suspended {
                        button type="submit" { "Resume the account" }
                    } @else {
                        button.danger type="submit" { "Suspend the account" }
                        p.hint { "All its calls are refused at once, and running streams end." }
                    }
                }
            }
        }
    }
}

fn keys(page: &AccountPage, may_change: bool, signed_in: &SignedIn) -> Markup {
    let name = &page.view.name;
    let token = may_change.then_some(&*signed_in.form_token);
    let rows: Vec<_> = newest(&page.keys).map(|key| key_row(key, token)).collect();
    html! {
        section aria-labelledby="keys" {
            h2 #keys { "Keys" }
            (table("Keys, newest first", &key_columns(), &rows, "The account has no key yet."))
            (older_keys(&page.keys))
            @if may_change {
                form.card method="post" action={ "/accounts/" (name) "/keys" } {
                    (token_field(&signed_in.form_token))
                    input type="hidden" name="request" value=(page.request);
                    h3 { "Issue a key" }
                    (field("key-name", "name", "Name", Some("what people call it"), false))
                    (field(
                        "key-models",
                        "models",
                        "Models",
                        Some("patterns with commas between them, such as lmb-*; all if left empty"),
                        false,
                    ))
                    (field("key-day", "day_usd", "Most a day, USD", None, false))
                    (field("key-month", "month_usd", "Most a month, USD", None, false))
                    div.field {
                        label {
                            input type="checkbox" name="account" value="yes";
                            " For the account's own pages, not for calls"
                        }
                    }
                    button type="submit" { "Issue the key" }
                }
            }
        }
    }
}

/// At most this many keys are shown.
const KEYS_SHOWN: usize = 50;

/// Returns the newest of the keys, newest first: those that a page shows.
pub(in crate::console) fn newest(keys: &[KeyRecord]) -> impl Iterator<Item = &KeyRecord> {
    keys.iter().rev().take(KEYS_SHOWN)
}

/// Says how many keys are not shown, if any.
pub(in crate::console) fn older_keys(keys: &[KeyRecord]) -> Markup {
    let older = keys.len().saturating_sub(KEYS_SHOWN);
    html! { @if older > 0 { p.hint { (older) " older keys are not shown." } } }
}

/// Returns the columns of a table of keys. The last one is for those who may revoke them.
pub(in crate::console) fn key_columns() -> [Column; 7] {
    ["Key", "Name", "State", "Models", "Issued", "Last used", "Action"].map(Column::Text)
}

/// Draws a key. With the token of forms it can be revoked.
pub(in crate::console) fn key_row(key: &KeyRecord, form_token: Option<&str>) -> Vec<Markup> {
    let word = state_of(key);
    let models = &key.scope.models;
    vec![
        html! { code { (key.prefix) } },
        html! { (key.scope.name.as_deref().unwrap_or_default()) },
        state(word == "valid", &word),
        html! { @if models.is_empty() { "all" } @else { (models.join(", ")) } },
        time_s(Some(key.created_at)),
        time_s(last_use(key)),
        html! {
            @if let Some(token) = form_token && word != "revoked" {
                form method="post" action={ "/keys/" (key.prefix) "/revocation" } {
                    (token_field(token))
                    button.danger type="submit" aria-label={ "Revoke the key " (key.prefix) } {
                        "Revoke"
                    }
                }
            }
        },
    ]
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
            (budgets(&page.view, &page.keys))
            @if let Some(plan) = plan {
                p {
                    "The plan " strong { (plan.name.to_string()) } " allows "
                    (limit_text(plan.limits.requests_per_minute)) " requests and "
                    (limit_text(plan.limits.tokens_per_minute)) " tokens a minute, and "
                    (limit_text(plan.limits.calls)) " calls at a time."
                }
            } @else {
                p { "No plan limits the rate of its calls." }
            }
            @if may_change {
                form.card method="post" action={ "/accounts/" (page.view.name) "/budgets" } {
                    (token_field(&signed_in.form_token))
                    h3 { "Budgets of the account" }
                    (limit_field(&page.view, WindowKind::Day, "Most a day, USD"))
                    (limit_field(&page.view, WindowKind::Month, "Most a month, USD"))
                    button type="submit" { "Set the budgets" }
                }
            }
        }
    }
}

/// Draws the budgets of an account and of its keys, and how much of them is used.
pub(in crate::console) fn budgets(view: &AccountView, keys: &[KeyRecord]) -> Markup {
    let columns = [
        Column::Text("Of"),
        Column::Text("Each"),
        Column::Number("Limit, USD"),
        Column::Number("Spent, USD"),
        Column::Number("Held, USD"),
        Column::Text("Used"),
    ];
    let budgets = view.budgets.iter().filter(|budget| budget.limit.is_some());
    let rows: Vec<_> = budgets.map(|budget| budget_row(budget, keys)).collect();
    table("Budgets", &columns, &rows, "There is no budget.")
}

/// Draws a field with a limit of the account as it is now.
fn limit_field(view: &AccountView, kind: WindowKind, label: &str) -> Markup {
    let is_it = |budget: &&BudgetUse| budget.owner == BudgetOwner::Account && budget.kind == kind;
    let limit = view.budgets.iter().find(is_it).and_then(|budget| budget.limit);
    let limit = limit.map(|limit| limit.to_string()).unwrap_or_default();
    let name = kind.name();
    html! {
        div.field {
            label for=(name) { (label) }
            input id=(name) name={ (name) "_usd" } value=(limit) autocomplete="off"
                aria-describedby={ (name) "-hint" };
            p.hint id={ (name) "-hint" } { "no limit if left empty" }
        }
    }
}

fn limit_text(limit: Option<i64>) -> String {
    limit.map_or_else(|| "any number of".to_owned(), |limit| limit.to_string())
}

fn budget_row(budget: &BudgetUse, keys: &[KeyRecord]) -> Vec<Markup> {
    let owner = match budget.owner {
        BudgetOwner::Account => "the account".to_owned(),
        BudgetOwner::Key(id) => {
            let key = keys.iter().rfind(|key| key.id == id);
            key.map_or_else(|| id.0.to_string(), |key| key.prefix.clone())
        }
    };
    let limit = budget.limit.unwrap_or_default();
    let spent = budget.used.spent;
    vec![
        html! { (owner) },
        html! { (budget.kind.name()) },
        usd(limit),
        usd(spent),
        usd(budget.held()),
        html! {
            meter.used min="0" max=(limit.nano().max(1)) value=(spent.nano())
                aria-label={ "Spent of the limit of " (owner) } {}
        },
    ]
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
                form.card method="post" action={ "/accounts/" (page.view.name) "/payments" } {
                    (token_field(&signed_in.form_token))
                    h3 { "Add a payment" }
                    (field("amount", "amount_usd", "Amount, USD", Some("such as 25.00"), true))
                    (field(
                        "payment-id",
                        "id",
                        "Id",
                        Some(PAYMENT_ID_HINT),
                        true,
                    ))
                    button type="submit" { "Add the payment" }
                }
            }
        }
    }
}
