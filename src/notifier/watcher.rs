//! Watches for events: looks at the accounts whose journals have grown, at all accounts once an
//! hour, and at the routes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::changed_accounts::{ChangedAccounts, Changes};
use super::route_watch::{RouteState, RouteTransition, RouteWatch};
use super::{EndpointPresence, report_noted};
use crate::clock::unix_ms;
use crate::ledger::{AccountName, Ledger, Unavailable};
use crate::webhooks::account_check::{CheckContext, subject_of};
use crate::webhooks::bounds::{ENDPOINTS_MAX, ENDPOINTS_OF_OPERATORS_MAX, ROUTE_LEVELS};
use crate::webhooks::endpoint::WebhookEndpoint;
use crate::webhooks::event::{EventKind, WebhookEvent};
use crate::webhooks::publish::{Rise, WatchedLevel, note_level};
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
/// After this many failures at a time the store is left alone for a while.
const FAILURES_MAX: u32 = 3;

/// Watches for events.
pub(crate) struct WebhookWatcher<'a> {
    webhooks: &'a dyn WebhookStore,
    ledger: &'a dyn Ledger,
    changed: &'a ChangedAccounts,
    presence: &'a EndpointPresence,
    /// Returns the states of all routes.
    routes: Box<dyn Fn() -> Vec<RouteState> + Send + Sync + 'a>,
    route_watch: RouteWatch,
    endpoints: Vec<WebhookEndpoint>,
    endpoints_read_at: Option<Instant>,
    /// The ids of endpoints that cannot be read, which was logged.
    broken: BTreeSet<String>,
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
        presence: &'a EndpointPresence,
        routes: impl Fn() -> Vec<RouteState> + Send + Sync + 'a,
    ) -> WebhookWatcher<'a> {
        WebhookWatcher {
            webhooks: &**webhooks,
            ledger: &**ledger,
            changed,
            presence,
            routes: Box::new(routes),
            route_watch: RouteWatch::default(),
            endpoints: Vec::new(),
            endpoints_read_at: None,
            broken: BTreeSet::new(),
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
        self.read_endpoints().await?;
        if self.endpoints.is_empty() {
            self.to_sweep.clear();
            self.changed.take();
            return Ok(());
        }
        let (states, now) = ((self.routes)(), unix_ms());
        for change in self.route_watch.observe(states, now) {
            self.note_route(&change, now).await?;
            self.route_watch.mark_noted(&change);
        }
        let is_due = self.swept_at.is_none_or(|at| at.elapsed() >= SWEEP_INTERVAL);
        // One sweep is finished before the next one begins: else the last accounts had no turn.
        if is_due && self.to_sweep.is_empty() {
            self.to_sweep = self.watched_accounts().await?;
            self.swept_at = Some(Instant::now());
        }
        // Nothing that is taken from here on is lost.
        let is_early = self.looked_at.is_some_and(|at| at.elapsed() < ACCOUNTS_INTERVAL);
        let changes = if is_early { Changes::default() } else { self.changed.take() };
        if !is_early {
            self.looked_at = Some(Instant::now());
        }
        if changes.is_cut {
            self.swept_at = None;
        }
        let swept = self.to_sweep.len().min(SWEEP_STEP);
        let swept: Vec<_> = self.to_sweep.drain(..swept).map(|account| (account, true)).collect();
        let grown = changes.accounts.into_iter().map(|account| (account, false));
        self.check_each(grown.chain(swept)).await
    }

    /// Looks at accounts. One that fails has its turn again, and the others go on meanwhile. If
    /// several fail, the store does.
    async fn check_each(
        &mut self,
        accounts: impl Iterator<Item = (AccountName, bool)>,
    ) -> Result<(), Unavailable> {
        let (mut failures, mut last) = (0, None);
        for (account, with_payments) in accounts {
            if failures < FAILURES_MAX {
                let Err(why) = self.check(&account, with_payments).await else { continue };
                failures += 1;
                last = Some(Unavailable(format!("account '{account}': {}", why.0)));
            }
            if with_payments {
                self.to_sweep.push_back(account);
            } else {
                self.changed.add([account]);
            }
        }
        last.map_or(Ok(()), Err)
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
                Err(why) if self.broken.insert(row.id.clone()) => log::warn!(
                    event = "webhooks_not_watched", endpoint = row.id, error:% = why;
                    "webhook endpoint broken"
                ),
                Err(_) => {}
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
        self.presence.set(!endpoints.is_empty());
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
    async fn note_route(&self, change: &RouteTransition, now: i64) -> Result<(), Unavailable> {
        let RouteState { vendor, route, down } = &change.state;
        let subject = subject_of(&["route", vendor, route]);
        let known = self.webhooks.find_row(WebhookRowKind::Crossing, &subject).await?;
        let watched = WatchedLevel { owner: "", bounds: ROUTE_LEVELS, subject, ends_at: None };
        let event = |rise: Rise| WebhookEvent {
            kind: EventKind::RouteDown,
            account: None,
            key: format!("{vendor} {route} {}", rise.name),
            at: change.since,
            data: json!({ "vendor": vendor, "route": route, "reason": down }),
        };
        let level = u32::from(down.is_some());
        let endpoints = &self.endpoints;
        let noting = note_level(self.webhooks, endpoints, &watched, known, level, now, event);
        report_noted(noting.await?);
        Ok(())
    }
}
