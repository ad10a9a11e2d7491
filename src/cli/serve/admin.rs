//! The admin address: metrics, and whether the process lives and is ready.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::Response;
use pingora_core::apps::http_app::ServeHttp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::services::listening::Service;
use pingora_prometheus::PrometheusHttpApp;
use serde_json::json;

use crate::catalogue::Catalogue;
use crate::conf::Conf;
use crate::gateway::exchange::unix_ms;
use crate::gateway::routes::Routes;
use crate::ledger::Ledger;

/// Answers on the admin address.
pub(super) struct Admin {
    ledger: Arc<dyn Ledger>,
    routes: Arc<Routes>,
    /// Whose models are for sale.
    catalogue: Arc<ArcSwap<Catalogue>>,
    /// The ledger must answer within this.
    wait: Duration,
}

/// Puts it together.
pub(super) fn build(
    conf: &Conf,
    ledger: Arc<dyn Ledger>,
    routes: Arc<Routes>,
    catalogue: Arc<ArcSwap<Catalogue>>,
) -> Service<Admin> {
    let admin = Admin { ledger, routes, catalogue, wait: conf.timeouts.ledger };
    let mut service = Service::new("admin".to_owned(), admin);
    service.add_tcp(&conf.listen.admin);
    service
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        match session.req_header().uri.path() {
            "/metrics" => PrometheusHttpApp.response(session).await,
            "/healthz" => answer(200, &json!({ "alive": true })),
            "/readyz" => self.ready().await,
            _ => answer(404, &json!({ "paths": ["/metrics", "/healthz", "/readyz"] })),
        }
    }
}

impl Admin {
    /// Ready is who can reach the ledger and knows the way to some vendor.
    async fn ready(&self) -> Response<Vec<u8>> {
        let ledger = match tokio::time::timeout(self.wait, self.ledger.ping()).await {
            Ok(Ok(())) => "ok".to_owned(),
            Ok(Err(why)) => why.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        let now_ms = unix_ms();
        let mut vendors: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
        for vendor in self.routes.vendors() {
            vendors.entry(vendor).or_default();
        }
        // Those too that the configuration has no section for: their models are listed.
        let catalogue = self.catalogue.load();
        for vendor in catalogue.vendors() {
            vendors.entry(vendor).or_default();
        }
        for route in self.routes.all() {
            let state = match (route.address(), route.cooling(now_ms)) {
                (None, _) => "unresolved",
                (_, true) => "blocked",
                (_, false) => "up",
            };
            vendors.entry(&route.vendor).or_default().insert(&route.name, state);
        }
        let ready = ledger == "ok" && self.routes.all().any(|route| route.address().is_some());
        let told = |states: &BTreeMap<&str, &str>| {
            if states.is_empty() { json!("no_route") } else { json!(states) }
        };
        let vendors: BTreeMap<_, _> = vendors.iter().map(|(v, s)| (v, told(s))).collect();
        let status = if ready { 200 } else { 503 };
        answer(status, &json!({ "ready": ready, "ledger": ledger, "vendors": vendors }))
    }
}

fn answer(status: u16, body: &serde_json::Value) -> Response<Vec<u8>> {
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
