//! Watches for events: looks at the accounts whose journals have grown, at all accounts once an
//! hour, and at the routes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::changed_accounts::{ChangedAccounts, Changes};
use super::report_noted;
use super::route_watch::{RouteChange, RouteState, RouteWatch};
use crate::clock::unix_ms;
use crate::ledger::{AccountName, Ledger, Unavailable};
use crate::webhooks::account_check::{CheckContext, subject_of};
use crate::webhooks::bounds::{ENDPOINTS_MAX, ENDPOINTS_OF_OPERATORS_MAX, ROUTE_LEVELS};
use crate::webhooks::endpoint::WebhookEndpoint;
use crate::webhooks::event::{EventKind, WebhookEvent};
use crate::webhooks::publish::{WatchedLevel, note_level};
use crate::webhooks::row::{WebhookRowKind, WebhookStore};

/// How often it is looked.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The wait after a failure of the store, and the least time between two warnings of it.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How often the accounts are looked at whose journals have grown: one that is busy costs no more.
const ACCOUNTS_INTERVAL: Duration = Duration::from_secs(3);
/// How often the endpoints are read.
const ENDPOINTS_INTERVAL: Duration = Duration::from_secs(3);
/// How often all accounts are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3_600);
/// At most this many of them at a time.
const SWEEP_STEP: usize = 50;

/// Watches for events.
pub(crate) struct WebhookWatcher<'a> {
    webhooks: &'a dyn WebhookStore,
    ledger: &'a dyn Ledger,
    changed: &'a ChangedAccounts,
    /// Returns the states of all routes.
    routes: Box<dyn Fn() -> Vec<RouteState> + Send + Sync + 'a>,
    route_watch: RouteWatch,
    endpoints: Vec<WebhookEndpoint>,
    endpoints_read_at: Option<Instant>,
    /// The accounts that are looked at next because all are.
    to_sweep: VecDeque<AccountName>,
    looked_at: Option<Instant>,
    swept_at: Option<Instant>,
}

impl<'a> WebhookWatcher<'a> {
    /// Makes a watcher of the accounts of a store.
    pub(crate) fn new(
        webhooks: &'a Arc<dyn WebhookStore>,
        ledger: &'a Arc<dyn Ledger>,
        changed: &'a ChangedAccounts,
        routes: impl Fn() -> Vec<RouteState> + Send + Sync + 'a,
    ) -> WebhookWatcher<'a> {
        WebhookWatcher {
            webhooks: &**webhooks,
            ledger: &**ledger,
            changed,
            routes: Box::new(routes),
            route_watch: RouteWatch::default(),
            endpoints: Vec::new(),
            endpoints_read_at: None,
            to_sweep: VecDeque::new(),
            looked_at: None,
            swept_at: None,
        }
    }

    /// Watches. It never returns.
    pub(crate) async fn run(mut self) {
        loop {
            let wait = match self.look().await {
                Ok(()) => WATCH_INTERVAL,
                Err(why) => {
                    log::warn!(
                        event = "webhooks_not_watched", error:% = why;
                        "webhook events are late"
                    );
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Looks at what has changed.
    async fn look(&mut self) -> Result<(), Unavailable> {
        let is_early = self.looked_at.is_some_and(|at| at.elapsed() < ACCOUNTS_INTERVAL);
        let changes = if is_early { Changes::default() } else { self.changed.take() };
        if !is_early {
            self.looked_at = Some(Instant::now());
        }
        // What is taken and not looked at is looked at with all accounts.
        let looked = self.look_at(changes.accounts, changes.is_cut).await;
        if looked.is_err() {
            self.swept_at = None;
        }
        looked
    }

    async fn look_at(
        &mut self,
        changed: BTreeSet<AccountName>,
        is_cut: bool,
    ) -> Result<(), Unavailable> {
        self.read_endpoints().await?;
        if self.endpoints.is_empty() {
            self.to_sweep.clear();
            return Ok(());
        }
        let (states, now) = ((self.routes)(), unix_ms());
        for change in self.route_watch.observe(states, now) {
            self.note_route(&change, now).await?;
            self.route_watch.mark_noted(&change);
        }
        for account in &changed {
            self.check(account, false).await?;
        }
        let is_due = self.swept_at.is_none_or(|at| at.elapsed() >= SWEEP_INTERVAL);
        if is_due || is_cut {
            self.to_sweep = self.watched_accounts().await?;
            self.swept_at = Some(Instant::now());
        }
        for _ in 0..SWEEP_STEP {
            let Some(account) = self.to_sweep.pop_front() else { break };
            self.check(&account, true).await?;
        }
        Ok(())
    }

    /// Reads the endpoints, if that was not done just now. The accounts of new ones are looked at.
    async fn read_endpoints(&mut self) -> Result<(), Unavailable> {
        if self.endpoints_read_at.is_some_and(|at| at.elapsed() < ENDPOINTS_INTERVAL) {
            return Ok(());
        }
        let most = ENDPOINTS_MAX.saturating_add(ENDPOINTS_OF_OPERATORS_MAX);
        let rows = self.webhooks.list_rows(WebhookRowKind::Endpoint, None, None, most).await?;
        let mut endpoints = Vec::with_capacity(rows.len());
        for row in &rows {
            // One that is broken must not silence the others.
            match WebhookEndpoint::of_row(row) {
                Ok(endpoint) => endpoints.push(endpoint),
                Err(why) => log::warn!(
                    event = "webhooks_not_watched", endpoint = row.id, error:% = why;
                    "webhook endpoint broken"
                ),
            }
        }
        let known: BTreeSet<_> =
            self.endpoints.iter().map(|known| (known.id.clone(), known.version)).collect();
        for new in &endpoints {
            if known.contains(&(new.id.clone(), new.version)) {
                continue;
            }
            match &new.account {
                Some(account) => self.to_sweep.push_front(account.clone()),
                None => self.swept_at = None,
            }
        }
        self.endpoints = endpoints;
        self.endpoints_read_at = Some(Instant::now());
        Ok(())
    }

    /// Returns the accounts of which an endpoint may want to be told.
    async fn watched_accounts(&self) -> Result<VecDeque<AccountName>, Unavailable> {
        if self.endpoints.iter().any(|endpoint| endpoint.account.is_none()) {
            return Ok(self.ledger.list_accounts().await?.into());
        }
        let own: BTreeSet<_> =
            self.endpoints.iter().filter_map(|endpoint| endpoint.account.clone()).collect();
        Ok(own.into_iter().collect())
    }

    /// Looks at an account.
    async fn check(&self, account: &AccountName, with_payments: bool) -> Result<(), Unavailable> {
        let of_account = |endpoint: &&WebhookEndpoint| {
            endpoint.account.as_ref().is_none_or(|own| own == account)
        };
        let endpoints: Vec<_> = self.endpoints.iter().filter(of_account).cloned().collect();
        let context = CheckContext { webhooks: self.webhooks, ledger: self.ledger, now: unix_ms() };
        let mut noted = context.check_account(&endpoints, account).await?;
        if with_payments {
            noted.add(context.check_payments(&endpoints, account).await?);
        }
        report_noted(noted);
        Ok(())
    }

    /// Notes that a route is down, or up again.
    async fn note_route(&self, change: &RouteChange, now: i64) -> Result<(), Unavailable> {
        let RouteState { vendor, route, down } = &change.state;
        let subject = subject_of(&["route", vendor, route]);
        let watched = WatchedLevel { owner: "", bounds: ROUTE_LEVELS, subject, ends_at: None };
        let event = |rise: String| WebhookEvent {
            kind: EventKind::RouteDown,
            account: None,
            key: format!("{vendor} {route} {rise}"),
            at: change.since,
            data: json!({ "vendor": vendor, "route": route, "reason": down }),
        };
        let level = u32::from(down.is_some());
        let noting = note_level(self.webhooks, &self.endpoints, &watched, level, now, event);
        report_noted(noting.await?);
        Ok(())
    }
}
