//! The runtime state of the routes to each vendor: addresses, keys, health, and calls in flight.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use pingora::http::RequestHeader;

use crate::catalogue::route::{BaseUrl, RouteSection};
use crate::catalogue::{VendorKey, VendorModelNames, VendorRoutes};
use crate::clock::unix_ms;
use crate::dialect::{Endpoint, vendor_error};
use crate::fast_map::FastMap;
use crate::gateway::upstream::health::{HealthFailure, RouteHealth};
use crate::gateway::upstream::prepared_heads::PreparedHeads;
use crate::gateway::upstream::route_calls::{RouteCalls, RouteSlot};
use crate::gateway::upstream::route_tls::RouteTls;
use crate::gateway::upstream::vendor_key::{is_header_safe, read_key};
use crate::ledger::AccountName;
use crate::metrics::METRICS;
use crate::toml_reader::ConfigError;

/// One route to a vendor: its configuration and its runtime state.
pub(crate) struct VendorRoute {
    pub vendor: String,
    pub name: String,
    /// Its position in the order of preference; 0 is the most preferred.
    pub preference: usize,
    pub base: BaseUrl,
    /// The value of the `host` header.
    pub authority: String,
    /// The vendor's key.
    pub key: VendorKey,
    /// The CA that the route trusts and its client certificate; `None` for the defaults.
    pub tls: Option<RouteTls>,
    /// Its circuit breaker.
    pub health: RouteHealth,
    /// Whether the route was up when the metrics and the log were last updated.
    was_reported_up: AtomicBool,
    section: RouteSection,
    model_names: VendorModelNames,
    calls: Arc<RouteCalls>,
    addresses: ArcSwap<Vec<SocketAddr>>,
    next_address: AtomicUsize,
    heads: PreparedHeads,
}

impl VendorRoute {
    /// Returns whether calls may take this route at a time (unix ms), as `up`, `blocked` or
    /// `unresolved`, and why they may not; the reason is empty if they may.
    pub(crate) fn state_at(&self, now_ms: i64) -> (&'static str, &'static str) {
        match (self.address(), self.health.is_open(now_ms)) {
            (None, _) => ("unresolved", "dns"),
            (_, true) => ("blocked", self.health.reason()),
            (_, false) => ("up", ""),
        }
    }

    /// Returns the name of a model on this route.
    #[must_use]
    pub(crate) fn upstream_model<'a>(&self, id: &'a str) -> Cow<'a, str> {
        self.section.vendor_model_name(&self.model_names, id)
    }

    /// Returns the name of the vendor in traces.
    #[must_use]
    pub(crate) fn provider(&self) -> &str {
        self.model_names.provider()
    }

    /// Returns the head of a request to an endpoint, with all headers that are the same for every
    /// call.
    pub(super) fn request_head(&self, endpoint: Endpoint) -> pingora::Result<RequestHeader> {
        self.heads.head(endpoint, &self.base.path, &self.authority)
    }

    /// Returns the configuration of the route, and the vendor's names of models.
    #[must_use]
    pub(crate) fn section(&self) -> (&RouteSection, &VendorModelNames) {
        (&self.section, &self.model_names)
    }

    /// Removes the vendor key, and the key before the last reload, from bytes that the vendor sent.
    #[must_use]
    pub(crate) fn redact(&self, mut body: Bytes) -> Bytes {
        for key in self.key.secrets() {
            if let Cow::Owned(clean) = vendor_error::redact_key(&body, &key) {
                body = clean.into();
            }
        }
        body
    }

    /// Takes a slot for a call; `None` if as many calls are in flight as the route's limit allows.
    #[must_use]
    pub(crate) fn acquire_slot(&self) -> Option<RouteSlot> {
        RouteCalls::acquire(&self.calls, self.section.requests_max)
    }

    /// Returns how many calls have taken a slot so far. The number wraps.
    #[must_use]
    pub(crate) fn attempts(&self) -> u32 {
        self.calls.begun()
    }

    /// Returns the address to connect to; `None` while the host name is not resolved.
    #[must_use]
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let addresses = self.addresses.load();
        let at = self.next_address.load(Ordering::Relaxed);
        addresses.get(at % addresses.len().max(1)).copied()
    }

    /// Replaces the addresses. An empty list keeps the old ones: stale addresses are better than
    /// none.
    pub(crate) fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        if !addresses.is_empty() {
            self.addresses.store(Arc::new(addresses));
        }
    }

    /// Makes the next connection use another address, if there is one.
    pub(crate) fn rotate_address(&self) {
        self.next_address.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the route is tried in its normal order: it has an address, and its breaker is
    /// closed.
    #[must_use]
    pub(crate) fn is_up(&self, now_ms: i64) -> bool {
        self.address().is_some() && !self.health.is_open(now_ms)
    }

    /// Records a failure of an account's call, and reports the new state.
    pub(crate) fn record_failure(&self, account: Option<&AccountName>, failure: HealthFailure) {
        let now_ms = unix_ms();
        self.health.record_failure(account, failure, now_ms);
        self.report_state(now_ms);
    }

    /// Sets the metric of whether the route is up, and logs when that changes.
    pub(crate) fn report_state(&self, now_ms: i64) {
        let is_up = self.is_up(now_ms);
        METRICS.route_up.with_label_values(&[&self.vendor, &self.name]).set(i64::from(is_up));
        if self.was_reported_up.swap(is_up, Ordering::Relaxed) == is_up {
            return;
        }
        let (vendor, route) = (&self.vendor, &self.name);
        if is_up {
            log::info!(event = "route_up", vendor, route; "route is up");
        } else {
            let reason = if self.address().is_some() { self.health.reason() } else { "dns" };
            log::warn!(event = "route_down", vendor, route, reason; "route is down, tried last");
        }
    }
}

/// All routes of all vendors.
#[derive(Default)]
pub(crate) struct RouteTable {
    by_vendor: FastMap<String, VendorRouteSet>,
}

/// A vendor's routes in order of preference, and its header names as pairs of neutral and real
/// name.
#[derive(Default)]
pub(crate) struct VendorRouteSet {
    routes: Vec<Arc<VendorRoute>>,
    header_names: Vec<(String, String)>,
}

impl VendorRouteSet {
    /// Returns the routes in the order in which a call of an account tries them: first those that
    /// work for the account, by preference, then those that fail, by preference.
    #[must_use]
    pub(crate) fn attempt_order(
        &self,
        account: Option<&AccountName>,
        now_ms: i64,
    ) -> Vec<Arc<VendorRoute>> {
        let mut plan = self.routes.clone();
        plan.sort_by_cached_key(|route| {
            (route.health.is_avoided_by(account, now_ms), route.preference)
        });
        plan
    }

    /// Returns all routes of the vendor, in order of preference.
    #[must_use]
    pub(crate) fn routes(&self) -> &[Arc<VendorRoute>] {
        &self.routes
    }

    /// Returns the neutral name that the rules use for a header; `real` itself if they have none.
    #[must_use]
    pub(crate) fn neutral_name<'a>(&'a self, real: &'a str) -> &'a str {
        let known = self.header_names.iter().find(|(_, r)| r == real);
        known.map_or(real, |(neutral, _)| neutral)
    }

    /// Returns the real name of a header that has a neutral name in the rules; `neutral` itself if
    /// no real name is configured.
    #[must_use]
    pub(crate) fn header_name<'a>(&'a self, neutral: &'a str) -> &'a str {
        let known = self.header_names.iter().find(|(n, _)| n == neutral);
        known.map_or(neutral, |(_, real)| real)
    }

    /// Returns the real name of a header of an answer, of which the configuration may name a whole
    /// family: a neutral name with a `*` at its end stands for all that begin so, and the real name
    /// then ends in a `*`, too. `neutral` itself if no real name is configured.
    #[must_use]
    pub(crate) fn answer_header_name(&self, neutral: &str) -> String {
        let of_family = || {
            self.header_names.iter().find_map(|(family, real)| {
                let end = neutral.strip_prefix(family.strip_suffix('*')?)?;
                Some(format!("{}{end}", real.strip_suffix('*')?))
            })
        };
        match self.header_name(neutral) {
            real if real == neutral => of_family().unwrap_or_else(|| neutral.to_owned()),
            real => real.to_owned(),
        }
    }
}

impl RouteTable {
    /// Returns the real names of all headers for which a vendor's rules have neutral names.
    pub(crate) fn real_header_names(&self) -> impl Iterator<Item = &str> {
        let names = self.by_vendor.values().flat_map(|vendor| &vendor.header_names);
        names.map(|(_, real)| real.as_str())
    }

    /// Builds the routes of a configuration. A route whose key is not set is left out, with a
    /// warning.
    ///
    /// # Errors
    /// A TLS file of a route cannot be used.
    pub(crate) fn new(sections: &[VendorRoutes]) -> Result<RouteTable, ConfigError> {
        let mut routes = RouteTable::default();
        for section in sections {
            let vendor = &section.naming.vendor;
            let mut vendor_routes = VendorRouteSet {
                header_names: section.header_names.clone(),
                ..VendorRouteSet::default()
            };
            for route in &section.routes {
                let Some(key) = read_key(&route.key) else {
                    log::warn!(
                        event = "route_disabled", vendor, route = route.name;
                        "route disabled: vendor key is not set"
                    );
                    continue;
                };
                let tls = route.tls.as_ref().map(RouteTls::load).transpose()?;
                let rank = vendor_routes.routes.len();
                let route = VendorRoute {
                    tls,
                    ..VendorRoute::new(vendor, rank, route, &section.naming, key)
                };
                vendor_routes.routes.push(Arc::new(route));
            }
            routes.by_vendor.insert(vendor.clone(), vendor_routes);
        }
        Ok(routes)
    }

    /// Reads the keys of all routes again, from the sources in `sections`. A route keeps its old
    /// key if the new one is missing or has characters that no header can carry. Returns whether
    /// none is.
    pub(crate) fn reload_keys(&self, sections: &[VendorRoutes]) -> bool {
        let mut has_all = true;
        for route in self.all() {
            let (vendor, name) = (&route.vendor, &route.name);
            let section = sections.iter().find(|section| section.naming.vendor == *vendor);
            let found = section.and_then(|section| section.routes.iter().find(|r| r.name == *name));
            match found.and_then(|section| read_key(&section.key)).filter(|key| is_header_safe(key))
            {
                Some(key) if route.key.replace(&key) => {
                    let event = "vendor_key_reloaded";
                    log::info!(event, vendor, route = name; "vendor key reloaded");
                }
                Some(_) => {}
                None => {
                    has_all = false;
                    let event = "vendor_key_missing";
                    log::error!(
                        event, vendor, route = name;
                        "vendor key missing or unusable, keeping the old one"
                    );
                }
            }
        }
        has_all
    }

    /// Returns a vendor's routes; `None` if it has no route with a key.
    #[must_use]
    pub(crate) fn for_vendor(&self, vendor: &str) -> Option<&VendorRouteSet> {
        self.by_vendor.get(vendor).filter(|vendor_routes| !vendor_routes.routes.is_empty())
    }

    /// Returns the names of all configured vendors, with or without usable routes.
    pub(crate) fn vendors(&self) -> impl Iterator<Item = &str> {
        self.by_vendor.keys().map(String::as_str)
    }

    /// Returns every route of every vendor.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<VendorRoute>> {
        self.by_vendor.values().flat_map(|vendor_routes| &vendor_routes.routes)
    }
}

impl VendorRoute {
    fn new(
        vendor: &str,
        rank: usize,
        section: &RouteSection,
        naming: &VendorModelNames,
        key: String,
    ) -> VendorRoute {
        let literal: Option<std::net::IpAddr> = section.base_url.host.parse().ok();
        let address = literal.map(|ip| SocketAddr::new(ip, section.base_url.port));
        let route = VendorRoute {
            vendor: vendor.to_owned(),
            name: section.name.clone(),
            preference: rank,
            base: section.base_url.clone(),
            authority: section.base_url.authority(),
            key: VendorKey::new(key),
            tls: None,
            section: section.clone(),
            calls: Arc::default(),
            model_names: naming.clone(),
            addresses: ArcSwap::from_pointee(address.into_iter().collect()),
            next_address: AtomicUsize::new(0),
            heads: PreparedHeads::default(),
            health: RouteHealth::default(),
            was_reported_up: AtomicBool::new(true),
        };
        METRICS.route_up.with_label_values(&[vendor, &route.name]).set(1);
        route
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::route::{KeySource, ModelPatterns};

    fn test_vendor() -> VendorRouteSet {
        let section = |name: &str| RouteSection {
            name: name.to_owned(),
            base_url: BaseUrl::parse("http://127.0.0.1:1/v1").expect("an address"),
            key: KeySource::Literal("k".to_owned()),
            names: ModelPatterns::default(),
            requests_max: 0,
            tls: None,
        };
        let naming =
            VendorModelNames { vendor: "vendor_t".to_owned(), ..VendorModelNames::default() };
        let routes = vec![section("one"), section("two"), section("three")];
        let section = VendorRoutes { naming, routes, ..VendorRoutes::default() };
        RouteTable::new(&[section]).expect("no TLS").by_vendor.remove("vendor_t").expect("a vendor")
    }

    #[test]
    fn a_route_that_fails_an_account_is_tried_last_by_that_account_alone() {
        let line = test_vendor();
        let names = |account: Option<&AccountName>| {
            line.attempt_order(account, 0).iter().map(|r| r.name.clone()).collect::<Vec<_>>()
        };
        let [bad, good] = ["bad", "good"].map(AccountName::parse);
        let failure = HealthFailure { reason: "cut", is_lost: true, retry_after: None };
        line.routes[0].health.record_failure(bad.as_ref(), failure, 0);
        assert_eq!(names(bad.as_ref()), ["two", "three", "one"]);
        assert_eq!(names(good.as_ref()), ["one", "two", "three"]);
        line.routes[0].health.record_failure(good.as_ref(), failure, 0);
        assert_eq!(names(None), ["two", "three", "one"]);
        assert!(!line.routes[0].is_up(0) && line.routes[0].is_up(1_000));
    }

    #[test]
    fn a_header_of_an_answer_has_its_own_name_or_that_of_its_family() {
        let names = [("t-rate-*", "brand-limit-*"), ("t-rate-one", "first"), ("t-odd-*", "odd")];
        let header_names = names.map(|(neutral, real)| (neutral.to_owned(), real.to_owned()));
        let line = VendorRouteSet { header_names: header_names.to_vec(), ..test_vendor() };
        assert_eq!(line.answer_header_name("t-rate-one"), "first");
        assert_eq!(line.answer_header_name("t-rate-two"), "brand-limit-two");
        assert_eq!(line.answer_header_name("t-odd-one"), "t-odd-one");
        assert_eq!(line.answer_header_name("t-version"), "t-version");
    }

    #[test]
    fn a_route_has_as_many_places_as_it_is_given() {
        let mut route =
            Arc::into_inner(test_vendor().routes.remove(0)).expect("nobody else has it");
        let endless: Vec<_> = (0..100).map_while(|_| route.acquire_slot()).collect();
        assert_eq!(endless.len(), 100);
        drop(endless);
        route.section.requests_max = 2;
        let mut lanes: Vec<_> = (0..9).map_while(|_| route.acquire_slot()).collect();
        assert_eq!(lanes.len(), 2);
        lanes.pop();
        assert!(route.acquire_slot().is_some());
    }
}
