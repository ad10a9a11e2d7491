//! Active health check of a suspected route: requests the vendor's model list.
//!
//! No vendor bills for the list, and the request takes the same way as calls: it checks the host
//! name, TLS, the key, the path and the body. Nothing that a tenant does can make it fail. A vendor
//! need not have the list: a refusal by the vendor's API (such as a 404 with a JSON body) still
//! counts as healthy.

use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::join_all;
use http::header::CONTENT_ENCODING;
use pingora::ErrorType;
use pingora::protocols::http::client::HttpSession as Upstream;
use pingora::upstreams::peer::HttpPeer;

use crate::catalogue::{Catalogue, Vendor};
use crate::clock::unix_ms;
use crate::dialect::json::scan;
use crate::dialect::vendor_error::VendorError;
use crate::gateway::limits::Timeouts;
use crate::gateway::upstream;
use crate::gateway::upstream::failure;
use crate::gateway::upstream::health::{HealthFailure, ProbeOutcome};
use crate::gateway::upstream::pool::UpstreamPool;
use crate::gateway::upstream::routes::{RouteTable, VendorRoute, VendorRouteSet};

/// Timeout of a probe, including the connect.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// At most this many bytes of a vendor's model list are read.
const MODEL_LIST_BYTES_MAX: usize = 4 << 20;
/// Keeps connections of probes apart from those of calls (see [`HttpPeer::group_key`]).
const PROBE_GROUP_BIT: u64 = 1 << 63;

/// Probes routes over connections of a pool.
pub(crate) struct RouteProber<'a> {
    /// Makes the connections to vendors.
    pub pool: &'a UpstreamPool,
    /// The timeouts of these connections.
    pub timeouts: &'a Timeouts,
}

impl RouteProber<'_> {
    /// Probes all suspected routes whose probe is due, concurrently.
    pub(crate) async fn probe_suspected(&self, routes: &RouteTable, catalogue: &Catalogue) {
        let now_ms = unix_ms();
        let due = routes.all().filter(|route| route.health.try_start_probe(now_ms));
        join_all(due.map(|route| async {
            let of_vendor =
                |m: &&std::sync::Arc<crate::catalogue::Model>| m.vendor.name == route.vendor;
            let Some(model) = catalogue.models().iter().find(of_vendor) else { return };
            let vendor_routes = routes.for_vendor(&route.vendor);
            let probed = self.probe_route(&model.vendor, vendor_routes, route).await;
            let now_ms = unix_ms();
            let (vendor, name) = (&route.vendor, &route.name);
            match probed {
                ProbeOutcome::Healthy => {
                    let event = "probe_succeeded";
                    log::info!(event, vendor, route = name; "probe succeeded");
                }
                ProbeOutcome::Failed(HealthFailure { reason, .. }) => {
                    let event = "probe_failed";
                    log::warn!(event, vendor, route = name, reason; "probe failed");
                }
            }
            route.health.record_probe(probed, now_ms);
            route.report_state(now_ms);
        }))
        .await;
    }

    async fn probe_route(
        &self,
        vendor: &Vendor,
        vendor_routes: Option<&VendorRouteSet>,
        route: &VendorRoute,
    ) -> ProbeOutcome {
        let Some(mut peer) = upstream::build_peer(self.timeouts, route) else {
            return probe_failed(failure::DNS);
        };
        peer.group_key ^= PROBE_GROUP_BIT;
        let asked = self.connect_and_probe(vendor, vendor_routes, route, &peer);
        tokio::time::timeout(PROBE_TIMEOUT, asked)
            .await
            .unwrap_or_else(|_| probe_failed(failure::NO_RESPONSE))
    }

    async fn connect_and_probe(
        &self,
        vendor: &Vendor,
        vendor_routes: Option<&VendorRouteSet>,
        route: &VendorRoute,
        peer: &HttpPeer,
    ) -> ProbeOutcome {
        let Ok(head) = upstream::build_probe_head(vendor, vendor_routes, route) else {
            return ProbeOutcome::Healthy;
        };
        let mut up = match self.pool.connect(peer).await {
            Ok((mut up, _)) => {
                up.set_read_timeout(Some(self.timeouts.stall.min(PROBE_TIMEOUT)));
                up
            }
            Err(why) => {
                route.rotate_address();
                return probe_failed(failure::reason_for_connect(&why));
            }
        };
        let probed = match fetch_model_list(&mut up, head).await {
            Ok(answer) => classify_answer(&answer, vendor),
            Err(why) if *why.etype() == ErrorType::ReadTimedout => {
                probe_failed(failure::NO_RESPONSE)
            }
            Err(_) => probe_failed(failure::RESET),
        };
        up.shutdown().await;
        probed
    }
}

/// The response to a probe.
struct ProbeAnswer {
    status: u16,
    is_html: bool,
    is_uncompressed: bool,
    retry_after: Option<Duration>,
    body: Vec<u8>,
    is_complete: bool,
}

async fn fetch_model_list(
    up: &mut Upstream,
    head: pingora::http::RequestHeader,
) -> pingora::Result<ProbeAnswer> {
    up.write_request_header(Box::new(head)).await?;
    up.finish_request_body().await?;
    loop {
        up.read_response_header().await?;
        if !up.response_header().is_some_and(|head| head.status.is_informational()) {
            break;
        }
    }
    let none = || pingora::Error::new(ErrorType::InvalidHTTPHeader);
    let head = up.response_header().ok_or_else(none)?;
    let mut answer = ProbeAnswer {
        status: head.status.as_u16(),
        is_html: upstream::is_html_page(head),
        is_uncompressed: head
            .headers
            .get(CONTENT_ENCODING)
            .is_none_or(|coding| coding == "identity"),
        retry_after: upstream::retry_after(head),
        body: Vec::new(),
        is_complete: true,
    };
    let mut body = BytesMut::new();
    while let Some(piece) = up.read_response_body().await? {
        body.extend_from_slice(&piece);
        if body.len() > MODEL_LIST_BYTES_MAX {
            answer.is_complete = false;
            break;
        }
    }
    answer.body = body.to_vec();
    Ok(answer)
}

fn classify_answer(answer: &ProbeAnswer, vendor: &Vendor) -> ProbeOutcome {
    let ProbeAnswer { status, body, .. } = answer;
    let refused = ProbeOutcome::Failed(HealthFailure {
        reason: failure::reason_for_status(*status),
        is_lost: false,
        retry_after: answer.retry_after,
    });
    match status {
        200..=299 if answer.is_html => probe_failed(failure::HTML),
        200..=299 if !answer.is_uncompressed => probe_failed(failure::UNREADABLE),
        200..=299 => classify_model_list(body, answer.is_complete),
        // The vendor has no such list, or not for this key, or expects another request. A JSON or
        // empty body comes from the vendor's API, but an HTML page does not.
        400 | 403 | 404 | 405 | 501 => {
            let is_ours = vendor.failover.matches_body(*status, body);
            let is_said = body.is_empty() || scan::validate_value(body).is_ok();
            if is_ours {
                probe_failed(failure::reason_for_status(402))
            } else if is_said && !answer.is_html {
                ProbeOutcome::Healthy
            } else {
                refused
            }
        }
        _ => refused,
    }
}

fn classify_model_list(body: &[u8], is_whole: bool) -> ProbeOutcome {
    let body = body.trim_ascii();
    match body.first() {
        None => probe_failed(failure::EMPTY),
        Some(b'<') => probe_failed(failure::HTML),
        Some(b'{' | b'[') if !is_whole => ProbeOutcome::Healthy,
        Some(b'{' | b'[') if scan::validate_value(body).is_ok() => {
            let error = VendorError::parse(body);
            let is_error = error.message.is_some() || error.code.is_some();
            if is_error { probe_failed("error") } else { ProbeOutcome::Healthy }
        }
        Some(_) => probe_failed("garbage"),
    }
}

fn probe_failed(reason: &'static str) -> ProbeOutcome {
    ProbeOutcome::Failed(HealthFailure { reason, is_lost: false, retry_after: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::list(200, r#"{"object":"list","data":[]}"#, None)]
    #[case::bare_list(200, "[]", None)]
    #[case::page(200, "<html>", Some("html"))]
    #[case::nothing(200, "", Some("empty"))]
    #[case::half(200, r#"{"data":["#, Some("garbage"))]
    #[case::words(200, "ok", Some("garbage"))]
    #[case::an_error(200, r#"{"error":{"message":"busy"}}"#, Some("error"))]
    #[case::not_there(404, r#"{"detail":"Not Found"}"#, None)]
    #[case::not_there_without_words(404, "", None)]
    #[case::a_page_elsewhere(404, "<html>", Some("status"))]
    #[case::not_for_this_key(403, r#"{"error":{"message":"missing scopes"}}"#, None)]
    #[case::other_method(405, "", None)]
    #[case::bad_key(401, r#"{"error":{"message":"bad key"}}"#, Some("auth"))]
    #[case::no_money(402, "{}", Some("auth"))]
    #[case::limited(429, "{}", Some("rate_limit"))]
    #[case::moved(302, "", Some("redirect"))]
    #[case::teapot(418, "{}", Some("status"))]
    #[case::failing(500, "{}", Some("status"))]
    #[case::overloaded(503, "", Some("overloaded"))]
    fn what_a_probe_proves(#[case] status: u16, #[case] body: &str, #[case] reason: Option<&str>) {
        let body = body.as_bytes().to_vec();
        let (is_uncompressed, is_complete) = (true, true);
        let answer = ProbeAnswer {
            status,
            is_html: false,
            is_uncompressed,
            retry_after: None,
            body,
            is_complete,
        };
        let found = match classify_answer(&answer, &Vendor::default()) {
            ProbeOutcome::Healthy => None,
            ProbeOutcome::Failed(failure) => Some(failure.reason),
        };
        assert_eq!(found, reason);
    }
}
