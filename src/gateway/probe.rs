//! The gateway's own question to a route that is suspected: the list of the vendor's models.
//!
//! No vendor takes money for it, and it goes the way that calls go: the name, TLS, the key, the
//! path and the body are all looked at. What a tenant does cannot make it fail. A vendor need not
//! have the list: a plain no is the answer of a vendor that is well.

use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::join_all;
use http::header::CONTENT_ENCODING;
use pingora_core::ErrorType;
use pingora_core::protocols::http::client::HttpSession as Upstream;
use pingora_core::upstreams::peer::HttpPeer;

use super::dial::PlainPool;
use super::exchange::unix_ms;
use super::health::{HealthFailure, ProbeOutcome};
use super::limits::Timeouts;
use super::routes::{RouteTable, VendorReadiness, VendorRoute};
use super::{failure, upstream};
use crate::catalogue::{Catalogue, Vendor};
use crate::dialect::json::scan;
use crate::dialect::vendor_error::VendorError;

/// A probe has so long, connection and all.
const PROBE_WAIT: Duration = Duration::from_secs(5);
/// Of a list so many bytes are read.
const LIST_BYTES_MAX: usize = 4 << 20;
/// Connections of probes are no others' (see [`HttpPeer::group_key`]).
const OWN_CONNECTIONS: u64 = 1 << 63;

/// What a probe needs.
pub struct RouteProber<'a> {
    /// The way to vendors.
    pub dial: &'a PlainPool,
    /// How long they have.
    pub timeouts: &'a Timeouts,
}

impl RouteProber<'_> {
    /// Probes every route whose time it is, all at once.
    pub async fn probe_suspected(&self, routes: &RouteTable, catalogue: &Catalogue) {
        let now_ms = unix_ms();
        let due = routes.all().filter(|route| route.health.take_probe(now_ms));
        join_all(due.map(|route| async {
            let of_vendor =
                |m: &&std::sync::Arc<crate::catalogue::Model>| m.vendor.name == route.vendor;
            let Some(model) = catalogue.models().iter().find(of_vendor) else { return };
            let line = routes.of(&route.vendor);
            let probed = self.probe(&model.vendor, line, route).await;
            let now_ms = unix_ms();
            let (vendor, name) = (&route.vendor, &route.name);
            match probed {
                ProbeOutcome::Healthy => {
                    let event = "probe_succeeded";
                    log::info!(event, vendor, route = name; "route answers a probe");
                }
                ProbeOutcome::Failed(HealthFailure { reason, .. }) => {
                    let event = "probe_failed";
                    log::warn!(event, vendor, route = name, reason; "probe failed");
                }
            }
            route.health.probed(probed, now_ms);
            route.show(now_ms);
        }))
        .await;
    }

    async fn probe(
        &self,
        vendor: &Vendor,
        line: Option<&VendorReadiness>,
        route: &VendorRoute,
    ) -> ProbeOutcome {
        let Some(mut peer) = upstream::peer(self.timeouts, route) else {
            return failed(failure::DNS);
        };
        peer.group_key ^= OWN_CONNECTIONS;
        let asked = self.ask(vendor, line, route, &peer);
        tokio::time::timeout(PROBE_WAIT, asked).await.unwrap_or_else(|_| failed(failure::SILENT))
    }

    async fn ask(
        &self,
        vendor: &Vendor,
        line: Option<&VendorReadiness>,
        route: &VendorRoute,
        peer: &HttpPeer,
    ) -> ProbeOutcome {
        let Ok(head) = upstream::probe_head(vendor, line, route) else {
            return ProbeOutcome::Healthy;
        };
        let mut up = match self.dial.connect(peer).await {
            Ok((mut up, _)) => {
                up.set_read_timeout(Some(self.timeouts.stall.min(PROBE_WAIT)));
                up
            }
            Err(why) => {
                route.rotate();
                return failed(failure::of_connection(&why));
            }
        };
        let probed = match answer(&mut up, head).await {
            Ok(answer) => judge(&answer, vendor),
            Err(why) if *why.etype() == ErrorType::ReadTimedout => failed(failure::SILENT),
            Err(_) => failed(failure::RESET),
        };
        up.shutdown().await;
        probed
    }
}

/// What a route said to a probe.
struct ProbeAnswer {
    status: u16,
    is_page: bool,
    is_plain: bool,
    retry_after: Option<Duration>,
    body: Vec<u8>,
    is_whole: bool,
}

async fn answer(
    up: &mut Upstream,
    head: pingora_http::RequestHeader,
) -> pingora_core::Result<ProbeAnswer> {
    up.write_request_header(Box::new(head)).await?;
    up.finish_request_body().await?;
    loop {
        up.read_response_header().await?;
        if !up.response_header().is_some_and(|head| head.status.is_informational()) {
            break;
        }
    }
    let none = || pingora_core::Error::new(ErrorType::InvalidHTTPHeader);
    let head = up.response_header().ok_or_else(none)?;
    let mut answer = ProbeAnswer {
        status: head.status.as_u16(),
        is_page: upstream::is_page(head),
        is_plain: head.headers.get(CONTENT_ENCODING).is_none_or(|coding| coding == "identity"),
        retry_after: upstream::retry_after(head),
        body: Vec::new(),
        is_whole: true,
    };
    let mut body = BytesMut::new();
    while let Some(piece) = up.read_response_body().await? {
        body.extend_from_slice(&piece);
        if body.len() > LIST_BYTES_MAX {
            answer.is_whole = false;
            break;
        }
    }
    answer.body = body.to_vec();
    Ok(answer)
}

fn judge(answer: &ProbeAnswer, vendor: &Vendor) -> ProbeOutcome {
    let ProbeAnswer { status, body, .. } = answer;
    let refused = ProbeOutcome::Failed(HealthFailure {
        reason: failure::of_status(*status),
        is_lost: false,
        retry_after: answer.retry_after,
    });
    match status {
        200..=299 if answer.is_page => failed(failure::HTML),
        200..=299 if !answer.is_plain => failed(failure::UNREADABLE),
        200..=299 => of_list(body, answer.is_whole),
        // The list is not there, or not for this key, or is asked for in another way: the vendor
        // itself says so, and a page does not.
        400 | 403 | 404 | 405 | 501 => {
            let is_ours = vendor.failover.matches_body(*status, body);
            let is_said = body.is_empty() || scan::validate_value(body).is_ok();
            if is_ours {
                failed(failure::of_status(402))
            } else if is_said && !answer.is_page {
                ProbeOutcome::Healthy
            } else {
                refused
            }
        }
        _ => refused,
    }
}

fn of_list(body: &[u8], is_whole: bool) -> ProbeOutcome {
    let body = body.trim_ascii();
    match body.first() {
        None => failed(failure::EMPTY),
        Some(b'<') => failed(failure::HTML),
        Some(b'{' | b'[') if !is_whole => ProbeOutcome::Healthy,
        Some(b'{' | b'[') if scan::validate_value(body).is_ok() => {
            let error = VendorError::parse(body);
            let is_error = error.message.is_some() || error.code.is_some();
            if is_error { failed("error") } else { ProbeOutcome::Healthy }
        }
        Some(_) => failed("garbage"),
    }
}

fn failed(reason: &'static str) -> ProbeOutcome {
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
        let (is_plain, is_whole) = (true, true);
        let answer =
            ProbeAnswer { status, is_page: false, is_plain, retry_after: None, body, is_whole };
        let found = match judge(&answer, &Vendor::default()) {
            ProbeOutcome::Healthy => None,
            ProbeOutcome::Failed(failure) => Some(failure.reason),
        };
        assert_eq!(found, reason);
    }
}
