//! The pages of keys: tables of keys, one key with its forms, and a new key.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::form::FilledForm;
use super::guide;
use super::parts::{Column, facts, state, table, time_s, usd};
use crate::console::form_table::{
    FormRule, ISSUE_KEY, KEY_CHANGE, KEY_REVOCATION, KEY_ROTATION, OWN_KEY, OWN_KEY_CHANGE,
    OWN_KEY_REVOCATION, OWN_KEY_ROTATION,
};
use crate::console::forms::SentFields;
use crate::console::guide::SetupGuide;
use crate::console::state::{SignedIn, Viewer};
use crate::ledger::{AccountName, BudgetOwner, BudgetUse, KeyRecord, WindowKind};
use crate::management::key_search::{last_use, state_of};

/// The forms of a key.
struct KeyForms {
    change: &'static FormRule,
    rotation: &'static FormRule,
    revocation: &'static FormRule,
}

/// The forms of operators.
static OPERATOR_FORMS: KeyForms =
    KeyForms { change: &KEY_CHANGE, rotation: &KEY_ROTATION, revocation: &KEY_REVOCATION };
/// The forms of customers.
static CUSTOMER_FORMS: KeyForms = KeyForms {
    change: &OWN_KEY_CHANGE,
    rotation: &OWN_KEY_ROTATION,
    revocation: &OWN_KEY_REVOCATION,
};

/// What the page of a key shows.
pub(in crate::console) struct KeyDetail {
    pub(in crate::console) key: KeyRecord,
    /// Those of the key.
    pub(in crate::console) budgets: Vec<BudgetUse>,
}

/// Draws the page of a key.
pub(in crate::console) fn draw(page: &KeyDetail, signed_in: &SignedIn) -> Markup {
    let KeyDetail { key, budgets } = page;
    let word = state_of(key);
    let is_alive = !matches!(word, "revoked" | "expired");
    let listed = match &signed_in.viewer {
        Viewer::Operator { .. } => format!("/accounts/{}", key.account),
        Viewer::Customer(_) => "/my/keys".to_owned(),
    };
    let ends = key.scope.expires_at;
    html! {
        p {
            a href=(listed) {
                @match &signed_in.viewer {
                    Viewer::Operator { .. } => { "The account " (key.account) }
                    Viewer::Customer(_) => { "All keys" }
                }
            }
        }
        (facts(&[
            ("Key", html! { code { (key.prefix) "…" } }),
            ("Name", html! { (key.scope.name.as_deref().unwrap_or("–")) }),
            ("State", state(word == "valid", &word)),
            ("Issued", time_s(Some(key.created_at))),
            ("Last used", time_s(last_use(key))),
            ("Ends", html! { @if ends.is_some() { (time_s(ends)) } @else { "never" } }),
            ("Models", list(&key.scope.models)),
            ("Endpoints", list(&key.scope.endpoints)),
            ("Networks", list(&texts(&key.scope.from))),
        ]))
        section aria-labelledby="limits" {
            h2 #limits { "Limits" }
            (budget_table(budgets, std::slice::from_ref(key)))
        }
        @if is_alive && signed_in.may_change() {
            (forms(page, signed_in))
        }
    }
}

fn forms(page: &KeyDetail, signed_in: &SignedIn) -> Markup {
    let key = &page.key;
    let forms = match &signed_in.viewer {
        Viewer::Operator { .. } => &OPERATOR_FORMS,
        Viewer::Customer(_) => &CUSTOMER_FORMS,
    };
    let path = format!("{}/{}", signed_in.viewer.keys_path(), key.prefix);
    let limit = |kind| limit_text(&page.budgets, BudgetOwner::Key(key.id), kind);
    let settings = SentFields::of([
        ("name", key.scope.name.clone().unwrap_or_default()),
        ("models", key.scope.models.join(", ")),
        ("from", texts(&key.scope.from).join(", ")),
        ("day_usd", limit(WindowKind::Day)),
        ("month_usd", limit(WindowKind::Month)),
        ("total_usd", limit(WindowKind::Total)),
    ]);
    let none = SentFields::default();
    let drawn = |rule: &FormRule, last: &str, fields: &SentFields| {
        let (action, form_token) = (format!("{path}{last}"), &*signed_in.form_token);
        FilledForm { rule, action: &action, form_token, fields }.draw()
    };
    html! {
        section aria-labelledby="change" {
            h2 #change { "Change" }
            (drawn(forms.change, "", &settings))
            (drawn(forms.rotation, "/rotation", &none))
            (drawn(forms.revocation, "/revocation", &none))
        }
    }
}

/// Draws the form for a new key.
pub(in crate::console) fn issue_form(account: &AccountName, signed_in: &SignedIn) -> Markup {
    let (rule, action) = match &signed_in.viewer {
        Viewer::Operator { .. } => (&ISSUE_KEY, format!("/accounts/{account}/keys")),
        Viewer::Customer(_) => (&OWN_KEY, "/my/keys".to_owned()),
    };
    let (form_token, fields) = (&*signed_in.form_token, &SentFields::default());
    FilledForm { rule, action: &action, form_token, fields }.draw()
}

/// Draws a key, which is shown this once, and how clients are set up with it. If it takes the place
/// of another one, that ends at `ends_at` (unix seconds). `setup` is `None` if it makes no calls.
pub(in crate::console) fn draw_new(
    account: &AccountName,
    key: &str,
    ends_at: Option<i64>,
    setup: Option<&SetupGuide>,
    signed_in: &SignedIn,
) -> Markup {
    let back = match &signed_in.viewer {
        Viewer::Operator { .. } => format!("/accounts/{account}"),
        Viewer::Customer(_) => "/my/keys".to_owned(),
    };
    html! {
        div.notice {
            p { "Copy the key now: no page shows it again." }
            code.secret #new-key tabindex="-1" autofocus { (key) }
            @if ends_at.is_some() { p { "The old key ends: " (time_s(ends_at)) " UTC." } }
        }
        p { a href=(back) { "Back to the keys of " (account) } }
        @if let Some(setup) = setup {
            section aria-labelledby="setup" {
                h2 #setup { "Set up a client with it" }
                (guide::draw(setup, Some(key)))
            }
        } @else {
            p {
                "It makes no calls. The customer signs in with it on the sign-in page, and "
                "programs read the account with it."
            }
        }
    }
}

/// Draws keys in the order in which they are given.
pub(in crate::console) fn key_table(keys: &[KeyRecord], path: &str, empty: &str) -> Markup {
    let names = ["Key", "Name", "State", "Endpoints", "Models", "Issued", "Last used"];
    let columns = names.map(Column::Text);
    let row = |key: &KeyRecord| {
        let word = state_of(key);
        vec![
            html! { a href={ (path) "/" (key.prefix) } { code { (key.prefix) } } },
            html! { (key.scope.name.as_deref().unwrap_or_default()) },
            state(word == "valid", &word),
            list(&key.scope.endpoints),
            list(&key.scope.models),
            time_s(Some(key.created_at)),
            time_s(last_use(key)),
        ]
    };
    let rows: Vec<_> = keys.iter().map(row).collect();
    table("Keys, newest first", &columns, &rows, empty)
}

/// Draws budgets, and how much of them is used. `keys` are those that they may be of, newest first.
pub(in crate::console) fn budget_table(budgets: &[BudgetUse], keys: &[KeyRecord]) -> Markup {
    let columns = [
        Column::Text("Of"),
        Column::Text("Each"),
        Column::Number("Limit, USD"),
        Column::Number("Spent, USD"),
        Column::Number("Held, USD"),
        Column::Text("Used"),
    ];
    let budgets = budgets.iter().filter(|budget| budget.limit.is_some());
    let rows: Vec<_> = budgets.map(|budget| budget_row(budget, keys)).collect();
    table("Budgets", &columns, &rows, "There is no budget.")
}

fn budget_row(budget: &BudgetUse, keys: &[KeyRecord]) -> Vec<Markup> {
    let owner = match budget.owner {
        BudgetOwner::Account => "the account".to_owned(),
        BudgetOwner::Key(id) => {
            let key = keys.iter().find(|key| key.id == id);
            key.map_or_else(|| format!("key {}", id.0), |key| key.prefix.clone())
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
            @if limit.nano() == 0 { "refuses all calls" }
            @else if spent.nano() >= limit.nano() { "used up " }
            @if limit.nano() > 0 { meter.used min="0" max=(limit.nano().max(1)) value=(spent.nano())
                aria-label={ "Spent of the limit of " (owner) } {} }
        },
    ]
}

/// Returns a limit as a form shows it; empty if there is none.
pub(in crate::console) fn limit_text(
    budgets: &[BudgetUse],
    owner: BudgetOwner,
    kind: WindowKind,
) -> String {
    let found = budgets.iter().find(|budget| budget.owner == owner && budget.kind == kind);
    let limit = found.and_then(|budget| budget.limit);
    limit.map(|limit| limit.to_string()).unwrap_or_default()
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn list(items: &[String]) -> Markup {
    html! { @if items.is_empty() { "all" } @else { (items.join(", ")) } }
}
