//! Looks at an account, and notes what its endpoints are to be told of its balance, its budgets and
//! its payments.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::bounds::{BALANCE_LEVELS, BUDGET_LEVELS};
use super::crossing::budget_level;
use super::endpoint::WebhookEndpoint;
use super::event::{EventKind, WebhookEvent, moment_text};
use super::publish::{NotedEvent, Rise, WatchedLevel, note_event, note_level};
use super::row::{WebhookRow, WebhookRowKind, WebhookStore};
use crate::hex::to_hex;
use crate::ledger::{AccountName, BudgetOwner, BudgetUse, Ledger, TransferType, Unavailable};
use crate::money::Money;

/// The level of a window of a budget is kept for this long after its end, in ms: a gateway whose
/// clock is behind may still count in it.
const LEVEL_KEPT_MS: i64 = 3_600_000;
/// Payments that were made in this time are looked at, in ms: two hours. All accounts are looked at
/// once an hour, so no payment is missed.
const PAYMENTS_BACK_MS: i64 = 2 * 3_600_000;
/// At most this many of them.
const PAYMENTS_MAX: u32 = 50;

/// The stores of a check, and its time (unix ms).
#[derive(Clone, Copy)]
pub(crate) struct CheckContext<'a> {
    pub(crate) webhooks: &'a dyn WebhookStore,
    pub(crate) ledger: &'a dyn Ledger,
    pub(crate) now: i64,
}

impl CheckContext<'_> {
    /// Notes what the endpoints are to be told of the balance and the budgets of an account. One
    /// that is deleted has nothing to tell.
    pub(crate) async fn check_account(
        self,
        endpoints: &[WebhookEndpoint],
        account: &AccountName,
    ) -> Result<NotedEvent, Unavailable> {
        let wanting = |kind| endpoints.iter().any(|endpoint| endpoint.wants(kind, Some(account)));
        let (balance, budgets) = (wanting(EventKind::BalanceLow), wanting(EventKind::KeyBudget));
        let mut noted = NotedEvent::default();
        if !balance && !budgets || self.ledger.account_deletion(account).await?.is_some() {
            return Ok(noted);
        }
        if balance {
            noted.add(self.check_balance(endpoints, account).await?);
        }
        if budgets {
            noted.add(self.check_budgets(endpoints, account).await?);
        }
        Ok(noted)
    }

    async fn check_balance(
        self,
        endpoints: &[WebhookEndpoint],
        account: &AccountName,
    ) -> Result<NotedEvent, Unavailable> {
        let (mut noted, mut known) = (NotedEvent::default(), Vec::new());
        // The levels are read before the balance: see `note_level`.
        for endpoint in endpoints {
            let Some(low) = endpoint.low_balance else { continue };
            if endpoint.wants(EventKind::BalanceLow, Some(account)) {
                let subject = balance_subject(&endpoint.id, account);
                let row = self.webhooks.find_row(WebhookRowKind::Crossing, &subject).await?;
                known.push((endpoint, low, subject, row));
            }
        }
        let Some(balances) = self.ledger.balances(account).await? else { return Ok(noted) };
        // What runs holds a part of the balance, and may give it back: that is no news.
        let balance = balances.available.checked_add(balances.held);
        let balance = balance.unwrap_or(balances.available);
        for (endpoint, low, subject, row) in known {
            let (owner, bounds) = (&*endpoint.id, BALANCE_LEVELS);
            let watched = WatchedLevel { owner, bounds, subject, ends_at: None };
            let level = u32::from(balance < low);
            let event = |rise: Rise| WebhookEvent {
                kind: EventKind::BalanceLow,
                account: Some(account.clone()),
                key: format!("{account} {}", rise.name),
                at: self.now,
                data: json!({
                    "balance_usd": balance.to_string(),
                    "threshold_usd": low.to_string(),
                }),
            };
            let only = std::slice::from_ref(endpoint);
            let noting = note_level(self.webhooks, only, &watched, row, level, self.now, event);
            noted.add(noting.await?);
        }
        Ok(noted)
    }

    async fn check_budgets(
        self,
        endpoints: &[WebhookEndpoint],
        account: &AccountName,
    ) -> Result<NotedEvent, Unavailable> {
        // The levels are read before the budgets: see `note_level`.
        let (kind, own) = (WebhookRowKind::Crossing, Some(account.as_str()));
        let rows = self.webhooks.list_rows(kind, own, None, BUDGET_LEVELS.of_owner).await?;
        let mut known: BTreeMap<_, _> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
        let mut noted = NotedEvent::default();
        for budget in self.ledger.list_budgets(account).await? {
            let row = known.remove(&budget_subject(account, &budget));
            noted.add(self.check_budget(endpoints, account, &budget, row).await?);
        }
        Ok(noted)
    }

    async fn check_budget(
        self,
        endpoints: &[WebhookEndpoint],
        account: &AccountName,
        budget: &BudgetUse,
        known: Option<WebhookRow>,
    ) -> Result<NotedEvent, Unavailable> {
        let Some(limit) = budget.limit else { return Ok(NotedEvent::default()) };
        let (spent, level) = (budget.used.spent, budget_level(budget.used.spent, limit));
        let key_id = match budget.owner {
            BudgetOwner::Account => None,
            BudgetOwner::Key(id) => Some(id),
        };
        let end = budget.window.end();
        let resets_at = (end < i64::MAX).then_some(end);
        let ends_at = resets_at.map(|end| end.saturating_add(LEVEL_KEPT_MS));
        let (owner, subject) = (account.as_str(), budget_subject(account, budget));
        let watched = WatchedLevel { owner, bounds: BUDGET_LEVELS, subject, ends_at };
        let event = |rise: Rise| WebhookEvent {
            kind: EventKind::KeyBudget,
            account: Some(account.clone()),
            key: format!("{} {}", watched.subject, rise.name),
            at: self.now,
            data: json!({
                // Many readers of JSON lose digits of a number as long as this one.
                "key_id": key_id.map(|id| id.0.to_string()),
                "window": budget.kind.name(),
                "percent": rise.level,
                "limit_usd": limit.to_string(),
                "spent_usd": spent.to_string(),
                "resets_at": resets_at.map(moment_text),
            }),
        };
        note_level(self.webhooks, endpoints, &watched, known, level, self.now, event).await
    }

    /// Notes the payments of the last hours, but for those that are older than an endpoint.
    pub(crate) async fn check_payments(
        self,
        endpoints: &[WebhookEndpoint],
        account: &AccountName,
    ) -> Result<NotedEvent, Unavailable> {
        let (mut noted, kind) = (NotedEvent::default(), EventKind::PaymentReceived);
        let wanting = endpoints.iter().filter(|endpoint| endpoint.wants(kind, Some(account)));
        let wanting: Vec<_> = wanting.cloned().collect();
        if wanting.is_empty() {
            return Ok(noted);
        }
        if self.ledger.account_deletion(account).await?.is_some() {
            return Ok(noted);
        }
        let newest = self.ledger.newest_transfers(account, None, PAYMENTS_MAX).await?;
        let back = self.now.saturating_sub(PAYMENTS_BACK_MS);
        for payment in newest.iter().filter(|entry| entry.kind == TransferType::Payment) {
            let Some(at) = payment.at.filter(|at| *at >= back) else { continue };
            let told = wanting.iter().filter(|endpoint| endpoint.created_at <= at);
            let told: Vec<_> = told.cloned().collect();
            let event = payment_event(account, &payment.tx, payment.amount, at);
            noted.add(note_event(self.webhooks, &told, &event, self.now).await?);
        }
        Ok(noted)
    }
}

/// Returns the event of a payment.
pub(crate) fn payment_event(
    account: &AccountName,
    tx: &str,
    amount: Money,
    at: i64,
) -> WebhookEvent {
    WebhookEvent {
        kind: EventKind::PaymentReceived,
        account: Some(account.clone()),
        key: format!("{account} {tx}"),
        at,
        data: json!({ "payment_id": tx, "amount_usd": amount.to_string() }),
    }
}

/// Returns the name of the window of a budget that runs now.
fn budget_subject(account: &AccountName, budget: &BudgetUse) -> String {
    let owner = match budget.owner {
        BudgetOwner::Account => "account".to_owned(),
        BudgetOwner::Key(id) => id.0.to_string(),
    };
    let start = budget.window.start.to_string();
    subject_of(&["budget", account.as_str(), &owner, budget.kind.name(), &start])
}

/// Returns the name of the balance of an account at an endpoint.
pub(crate) fn balance_subject(endpoint: &str, account: &AccountName) -> String {
    subject_of(&["balance", endpoint, account.as_str()])
}

/// Returns the name of a subject, which has no characters that a store could take for others.
pub(crate) fn subject_of(parts: &[&str]) -> String {
    let digest = to_hex(&Sha256::digest(parts.join("\n")));
    digest.get(..40).unwrap_or_default().to_owned()
}
