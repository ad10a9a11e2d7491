//! The admin address: metrics, and whether the process is alive and ready.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::Response;
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use pingora::services::listening::Service;
use pingora_prometheus::PrometheusHttpApp;
use rustix::fs::{Access, access};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::ready_check::ReadyCheck;
use crate::catalogue::Catalogue;
use crate::clock::unix_ms;
use crate::conf::{AdminAddress, Config};
use crate::gateway::budgets::overload::OverloadMonitor;
use crate::gateway::edge::connection_limits::ConnectionLimits;
use crate::gateway::edge::{EdgeConfig, EdgeService};
use crate::gateway::in_flight::InFlight;
use crate::gateway::limits::Timeouts;
use crate::gateway::upstream::vendor_key::read_key;
use crate::permissions;

/// A scraper must send its request within this time, and read the response within it.
const SCRAPER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an idle connection is kept for the next scrape.
const IDLE_TIMEOUT: Duration = Duration::from_secs(65);

/// Serves the admin address.
pub(super) struct AdminServer {
    check: ReadyCheck,
    /// The catalogue, whose vendors are listed.
    catalogue: Arc<ArcSwap<Catalogue>>,
    /// The digest of the token that requests must have; `None` if they need none.
    token: Option<TokenDigest>,
}

type TokenDigest = [u8; 32];

/// Builds the service. It has its own edge with its own connection limit, so that connections to it
/// take nothing from the clients.
pub(super) fn build(
    conf: &Config,
    check: ReadyCheck,
    catalogue: Arc<ArcSwap<Catalogue>>,
    connections_max: usize,
) -> anyhow::Result<Service<EdgeService<AdminServer>>> {
    let digest = conf.listen.admin_token.as_ref().map(|source| {
        let token = read_key(source).with_context(|| format!("listen.admin_token: no {source:?}"));
        token.map(|token| token_digest(&token))
    });
    let admin = AdminServer { check, catalogue, token: digest.transpose()? };
    let parts = EdgeConfig {
        app: admin,
        tls: None,
        connection_limits: ConnectionLimits::without_metrics(connections_max, 0),
        in_flight: InFlight::default(),
        overload: OverloadMonitor::new(Duration::ZERO),
        proxies: None,
        // It has no vendors, and few requests: it keeps all fields.
        is_unread_forwarded: Arc::new(|| true),
    };
    let timeouts = Timeouts {
        head: SCRAPER_TIMEOUT,
        client_write: SCRAPER_TIMEOUT,
        keepalive: IDLE_TIMEOUT,
        ..conf.timeouts
    };
    let edge = EdgeService::new(parts, &conf.limits, &timeouts);
    let mut service = Service::new("admin".to_owned(), edge);
    match &conf.listen.admin {
        AdminAddress::Tcp(address) => service.add_tcp(address),
        AdminAddress::Unix(path) => {
            let folder = Path::new(path).parent().filter(|f| !f.as_os_str().is_empty());
            if let Some(folder) = folder {
                let made = permissions::make_shared_folder(folder)
                    .and_then(|()| Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?));
                made.with_context(|| format!("listen.admin: no socket in {}", folder.display()))?;
            }
            service.add_uds(path, Some(Permissions::from_mode(0o600)));
        }
    }
    Ok(service)
}

fn token_digest(token: &str) -> TokenDigest {
    Sha256::digest(token).into()
}

#[async_trait]
impl ServeHttp for AdminServer {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        // The edge waits for the next request of the connection.
        session.set_keepalive(Some(IDLE_TIMEOUT.as_secs()));
        let is_authorized = self.is_authorized(session);
        match session.req_header().uri.path() {
            "/healthz" => json_response(200, &json!({ "alive": true })),
            "/readyz" => self.readiness(is_authorized).await,
            _ if !is_authorized => unauthorized(),
            "/metrics" => PrometheusHttpApp.response(session).await,
            _ => json_response(404, &json!({ "paths": ["/metrics", "/healthz", "/readyz"] })),
        }
    }
}

impl AdminServer {
    /// Whether a request has the token, or none is required.
    fn is_authorized(&self, session: &ServerSession) -> bool {
        let Some(token) = &self.token else { return true };
        let header = session.req_header().headers.get(http::header::AUTHORIZATION);
        let presented_token = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        // Digests are compared, so that the time of the comparison reveals nothing about the token.
        presented_token.is_some_and(|presented| token_digest(presented.trim()) == *token)
    }

    /// Returns whether the process is ready: it can reach the ledger, and has an address for at
    /// least one vendor. A request without the token gets only that result.
    async fn readiness(&self, is_authorized: bool) -> Response<Vec<u8>> {
        let ledger = match self.check.check_ledger().await {
            Ok(()) => "ok".to_owned(),
            Err(why) => why,
        };
        let now_ms = unix_ms();
        let mut vendors: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
        for vendor in self.check.routes.vendors() {
            vendors.entry(vendor).or_default();
        }
        // Vendors without a section in the configuration are listed too: their models are in the
        // list of models.
        let catalogue = self.catalogue.load();
        for vendor in catalogue.vendors() {
            vendors.entry(vendor).or_default();
        }
        let mut down = Vec::new();
        for route in self.check.routes.all() {
            let (state, reason) = route.state_at(now_ms);
            if state != "up" {
                down.push(json!({"vendor": route.vendor, "route": route.name, "reason": reason}));
            }
            vendors.entry(&route.vendor).or_default().insert(&route.name, state);
        }
        let ready = ledger == "ok" && self.check.has_address();
        let states_json = |states: &BTreeMap<&str, &str>| {
            if states.is_empty() { json!("no_route") } else { json!(states) }
        };
        let vendors: BTreeMap<_, _> = vendors.iter().map(|(v, s)| (v, states_json(s))).collect();
        let status = if ready { 200 } else { 503 };
        if !is_authorized {
            return json_response(status, &json!({ "ready": ready }));
        }
        let body = json!({ "ready": ready, "ledger": ledger, "vendors": vendors, "down": down });
        json_response(status, &body)
    }
}

fn unauthorized() -> Response<Vec<u8>> {
    let what = "this address asks for the token of listen.admin_token, as a bearer token";
    let mut response = json_response(401, &json!({ "error": what }));
    let challenge = http::HeaderValue::from_static("Bearer");
    response.headers_mut().insert(http::header::WWW_AUTHENTICATE, challenge);
    response
}

fn json_response(status: u16, body: &serde_json::Value) -> Response<Vec<u8>> {
    let body = body.to_string().into_bytes();
    let mut response = Response::new(body);
    *response.status_mut() =
        http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let length = response.body().len();
    let headers = response.headers_mut();
    headers.insert("content-type", http::HeaderValue::from_static("application/json"));
    headers.insert("content-length", http::HeaderValue::from(length));
    response
}
