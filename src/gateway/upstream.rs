//! Builds the request to a vendor for one route (peer address, head and body), and judges the head
//! of the vendor's response.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::{ALPN, TcpKeepalive};
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{ErrorType, OrErr};

use super::call_trace;
use super::context::{
    AdmittedCall, BodyTransform, PricedCall, PricedModel, RequestContext, RouteAttempt,
};
use super::limits::Timeouts;
use super::state::Gateway;
use crate::catalogue::Vendor;
use crate::catalogue::vendor::{ImageEditFormat, TextApi, matches_header_rule};
use crate::dialect::call::{ModelCall, RequestKind};
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonPatch, JsonValue};
use crate::dialect::payload::RequestPayload;
use crate::dialect::{Endpoint, chat, images};
use crate::gateway::upstream::prepared_heads::add_common_headers;
use crate::gateway::upstream::routes::{VendorRoute, VendorRouteSet};

pub(crate) mod answer;
pub(crate) mod attempts;
pub(crate) mod failure;
pub(crate) mod health;
pub(crate) mod outcome;
pub(crate) mod pool;
mod prepared_heads;
pub(crate) mod probe;
pub(crate) mod route_calls;
pub(crate) mod route_tls;
pub(crate) mod routes;
pub(crate) mod vendor_key;
pub(crate) mod wrapped_stream;

/// A request body of at most this many bytes is sent to the vendor as one chunk; the chunks of a
/// spliced body are copied together for that.
const ONE_PIECE_BYTES_MAX: usize = 64 << 10;
/// Prefixes of the content types that are accepted for an audio response.
const AUDIO_TYPE_PREFIXES: [&str; 4] =
    ["audio/", "application/octet-stream", "application/ogg", "binary/octet-stream"];
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const ANY_TYPE: HeaderValue = HeaderValue::from_static("*/*");
/// At most this many concurrent HTTP/2 streams share one connection to a vendor.
const H2_STREAMS_MAX: u16 = 100;
/// HTTP/2 flow-control window of a stream: at most this many bytes of a response are received
/// before the gateway reads them. The window of the connection must hold the unread bytes of all
/// streams whose clients are slow, or these would stall the other streams on the connection.
const H2_STREAM_WINDOW: u32 = 256 << 10;
const H2_CONNECTION_WINDOW: u32 = (H2_STREAMS_MAX as u32 + 16) * H2_STREAM_WINDOW;

/// TCP keepalive: a connection without traffic is probed after this idle time, at this interval,
/// and at most this many times before it counts as dead. A vendor may compute for minutes, and a
/// dead connection must not look like a vendor that is still working. HTTP/2 pings are sent at the
/// interval of the idle time.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES_MAX: usize = 3;

/// Takes the next untried route that has a free slot and a resolved address, and makes an attempt
/// of it, with the request body for it. `None` if there is no such route.
pub(super) fn select_route(
    timeouts: &Timeouts,
    ctx: &mut RequestContext,
    admitted: &mut AdmittedCall,
) -> Option<RouteAttempt> {
    let AdmittedCall { priced, routes, .. } = admitted;
    let (peer, route, slot) = loop {
        let route = routes.untried.pop_front()?;
        let Some(slot) = route.acquire_slot() else {
            outcome::record_route_full(routes, &route);
            continue;
        };
        match build_peer(timeouts, &route) {
            Some(peer) => break (Box::new(peer), route, slot),
            None => outcome::record_unresolved(routes, &route),
        }
    };
    let body = build_body(priced, &route, &ctx.id)?;
    ctx.access_log.fallback_depth = routes.fallback_depth(&route);
    ctx.access_log.route = Some(route.clone());
    call_trace::begin_attempt(ctx, priced, &route);
    Some(RouteAttempt { route, slot, peer, body })
}

/// Returns the peer of a route, with its timeouts, keepalive and TLS. `None` while the host name of
/// the route has no resolved address.
fn build_peer(times: &Timeouts, route: &VendorRoute) -> Option<HttpPeer> {
    let host = if route.base.tls { route.base.host.clone() } else { String::new() };
    let mut peer = HttpPeer::new(route.address()?, route.base.tls, host);
    peer.options.connection_timeout = Some(times.connect);
    peer.options.total_connection_timeout = Some(times.connect);
    peer.options.idle_timeout = Some(times.idle);
    peer.options.tcp_keepalive = Some(TcpKeepalive {
        idle: KEEPALIVE_IDLE,
        interval: KEEPALIVE_INTERVAL,
        count: KEEPALIVE_PROBES_MAX,
        user_timeout: Duration::ZERO,
    });
    if route.base.tls {
        peer.options.h2_ping_interval = Some(KEEPALIVE_IDLE);
        peer.options.alpn = ALPN::H2H1;
        peer.options.max_h2_streams = usize::from(H2_STREAMS_MAX);
        peer.options.h2_stream_window_size = Some(H2_STREAM_WINDOW);
        peer.options.h2_connection_window_size = Some(H2_CONNECTION_WINDOW);
    }
    if let Some(tls) = &route.tls {
        tls.apply(&mut peer);
    }
    Some(peer)
}

/// Builds the request body for a route: the client's bytes with edits spliced in, or the translated
/// body. An image edit with a file becomes JSON or a new form with this boundary, as the vendor
/// expects.
fn build_body(priced: &PricedCall, route: &VendorRoute, boundary: &str) -> Option<RequestPayload> {
    let call = &priced.call;
    let PricedModel { model, endpoint, .. } = &priced.pricing;
    let name = route.upstream_model(&model.id);
    let mut patch = JsonPatch::new(&call.document);
    match &priced.body_transform {
        BodyTransform::Translate { body, .. } => {
            return Some(join_short(body.body_with_model(&name)).into());
        }
        BodyTransform::PassThrough => {}
        BodyTransform::Patch => {
            model.rewrite(*endpoint, &mut patch);
            if call.stream && matches!(call.kind, RequestKind::Chat { include_usage: false, .. }) {
                chat::set_include_usage(&mut patch);
            }
        }
    }
    if let (Some(limit), Some(rule)) = (priced.output_limit, model.output_limit(*endpoint)) {
        rule.apply(limit, &mut patch);
    }
    // This also adds the field to a call that names no model.
    if name != call.model || call.document.get("model").is_none_or(JsonValue::is_null) {
        patch.set("model", json_string(&name));
    }
    let pieces = join_short(patch.finish());
    let RequestKind::Image { file: Some(file) } = &call.kind else { return Some(pieces.into()) };
    let fields = JsonDocument::parse(Bytes::from(pieces.concat())).ok()?;
    Some(match model.vendor.image_edits {
        ImageEditFormat::Form => images::build_edit_form(&fields, file, boundary),
        ImageEditFormat::Json => images::build_edit_json(&fields, file),
    })
}

/// Joins chunks into one if they have at most [`ONE_PIECE_BYTES_MAX`] bytes in total.
fn join_short(pieces: Vec<Bytes>) -> Vec<Bytes> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    if pieces.len() == 1 || length > ONE_PIECE_BYTES_MAX {
        return pieces;
    }
    let mut joined = BytesMut::with_capacity(length);
    pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
    vec![joined.freeze()]
}

/// Builds the head of the request of an attempt: the prepared head of the route, with the headers
/// that are the call's own. Of the client's headers only those that the rules name are forwarded,
/// and the client's API key never is.
///
/// # Errors
/// The path or a header of the route, of the rules or of the client is invalid.
pub(super) fn build_request_head(
    gateway: &Gateway,
    session: &Session,
    ctx: &RequestContext,
    priced: &PricedCall,
    attempt: &RouteAttempt,
) -> pingora::Result<RequestHeader> {
    let endpoint = match priced.body_transform {
        BodyTransform::Translate { .. } => Endpoint::Messages,
        BodyTransform::Patch | BodyTransform::PassThrough => priced.pricing.endpoint,
    };
    let mut head = attempt.route.request_head(endpoint)?;
    let vendor = &priced.pricing.model.vendor;
    match &priced.call.kind {
        RequestKind::Speech { .. } => head.insert_header(ACCEPT, ANY_TYPE)?,
        _ if priced.call.stream => head.insert_header(ACCEPT, EVENT_STREAM)?,
        RequestKind::Image { file: Some(_) } if vendor.image_edits == ImageEditFormat::Form => {
            let form = format!("multipart/form-data; boundary={}", ctx.id);
            head.insert_header(CONTENT_TYPE, form)?;
        }
        _ => {}
    }
    head.insert_header(CONTENT_LENGTH, attempt.body.length())?;
    authorize(&mut head, vendor, &attempt.route)?;
    let vendor_routes = gateway.routes.for_vendor(&vendor.name);
    write_vendor_headers(session, &mut head, priced, vendor, vendor_routes)?;
    call_trace::write_header(ctx, &mut head)?;
    Ok(head)
}

/// Builds the head of a request for a vendor's model list, which the vendor does not bill.
pub(super) fn build_probe_head(
    vendor: &Vendor,
    vendor_routes: Option<&VendorRouteSet>,
    route: &VendorRoute,
) -> pingora::Result<RequestHeader> {
    let path = format!("{}/models", route.base.path);
    let mut head = RequestHeader::build_no_case(Method::GET, path.as_bytes(), Some(6))?;
    add_common_headers(&mut head, &route.authority)?;
    authorize(&mut head, vendor, route)?;
    write_version_header(&mut head, vendor, vendor_routes)?;
    Ok(head)
}

/// Adds the header with the vendor's API key to a request head.
fn authorize(
    head: &mut RequestHeader,
    vendor: &Vendor,
    route: &VendorRoute,
) -> pingora::Result<()> {
    let key = match &vendor.auth_scheme {
        Some(scheme) => format!("{scheme} {}", route.key.reveal()),
        None => route.key.reveal().to_string(),
    };
    let header = HeaderName::from_bytes(vendor.auth_header.as_bytes());
    let header = header.or_err(ErrorType::InvalidHTTPHeader, "invalid header of the key")?;
    let mut key = HeaderValue::try_from(key).or_err(ErrorType::InvalidHTTPHeader, "invalid key")?;
    key.set_sensitive(true);
    head.insert_header(header, key)
}

/// Writes the vendor's version header, if it has one, with the value of the rules.
fn write_version_header(
    head: &mut RequestHeader,
    vendor: &Vendor,
    vendor_routes: Option<&VendorRouteSet>,
) -> pingora::Result<()> {
    let Some((header, default_version)) = &vendor.version else { return Ok(()) };
    let real_name =
        vendor_routes.map_or(header.as_str(), |routes| routes.header_name(header)).to_owned();
    head.insert_header(real_name, default_version.as_str())
}

/// Writes the vendor's version header, with the value of the rules, and then the client's forwarded
/// headers, which may replace that value. A call that is translated to the vendor's dialect has no
/// forwarded headers: they do not exist in the client's dialect.
fn write_vendor_headers(
    session: &Session,
    head: &mut RequestHeader,
    priced: &PricedCall,
    vendor: &Vendor,
    vendor_routes: Option<&VendorRouteSet>,
) -> pingora::Result<()> {
    let forwarded =
        collect_forwarded_headers(session, vendor, priced.pricing.endpoint, vendor_routes);
    write_version_header(head, vendor, vendor_routes)?;
    for (name, value) in forwarded {
        let real_name =
            vendor_routes.map_or(name.as_str(), |routes| routes.header_name(&name)).to_owned();
        head.insert_header(real_name, value)?;
    }
    Ok(())
}

/// Returns the client's headers that are forwarded to the vendor of `model`, as pairs of neutral
/// name and value. Empty if the catalogue does not have the model.
pub(super) fn forwarded_headers(
    gateway: &Gateway,
    session: &Session,
    model: &str,
    endpoint: Endpoint,
) -> Vec<(String, Vec<u8>)> {
    let catalogue = gateway.catalogue.load();
    // The order of a video is sent to the vendor later, without the client's headers.
    let Some(model) = catalogue.find(model).filter(|_| endpoint != Endpoint::Videos) else {
        return Vec::new();
    };
    let vendor = &model.vendor;
    collect_forwarded_headers(session, vendor, endpoint, gateway.routes.for_vendor(&vendor.name))
}

/// Collects the client's headers that are forwarded to a vendor, under the names that the rules use
/// for them, and sorted by these names.
fn collect_forwarded_headers(
    session: &Session,
    vendor: &Vendor,
    endpoint: Endpoint,
    vendor_routes: Option<&VendorRouteSet>,
) -> Vec<(String, Vec<u8>)> {
    let mut collected: Vec<(String, Vec<u8>)> = Vec::new();
    if !(vendor.text_api == TextApi::Chat || endpoint != Endpoint::Chat) {
        return collected;
    }
    let client_headers = &session.req_header().headers;
    if let Some((header, _)) = &vendor.version {
        let real_name = vendor_routes.map_or(header.as_str(), |routes| routes.header_name(header));
        let named = [header, real_name].into_iter().filter_map(|name| client_headers.get(name));
        let version = named.into_iter().find(|version| !version.is_empty());
        collected.extend(version.map(|version| (header.clone(), version.as_bytes().to_vec())));
    }
    if vendor.forward_headers.is_empty() {
        return collected;
    }
    let versions = collected.len();
    // Several lines of the same header are joined into one list with commas; lines under its
    // neutral and its real name count as the same header.
    for (name, value) in client_headers {
        let neutral =
            vendor_routes.map_or(name.as_str(), |routes| routes.neutral_name(name.as_str()));
        let secret = matches!(name.as_str(), "authorization" | "x-api-key");
        let forwarded =
            vendor.forward_headers.iter().any(|rule| matches_header_rule(rule, neutral));
        if secret || !forwarded || value.is_empty() {
            continue;
        }
        match collected[versions..].iter_mut().find(|(name, _)| name == neutral) {
            Some((_, list)) => list.extend([b",", value.as_bytes()].concat()),
            None => collected.push((neutral.to_owned(), value.as_bytes().to_vec())),
        }
    }
    collected.sort();
    collected
}

/// Whether a response can be relayed: it is not compressed, and its content type fits the call.
/// Speech needs an audio type or none; of other calls a stream must be an event stream, and a
/// response that is not streamed must not be one.
pub(super) fn is_readable(head: &ResponseHeader, call: &ModelCall) -> bool {
    let plain = head.headers.get(CONTENT_ENCODING).is_none_or(|v| v == "identity");
    let kind = head.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.trim_start().to_ascii_lowercase();
    let is_one_of = |kinds: &[&str]| kinds.iter().any(|known| kind.starts_with(known));
    plain
        && match &call.kind {
            RequestKind::Speech { .. } => kind.is_empty() || is_one_of(&AUDIO_TYPE_PREFIXES),
            _ => is_one_of(&["text/event-stream"]) == call.stream,
        }
}

/// Whether the content type is that of an HTML page, which is no response of a vendor's API.
pub(super) fn is_html_page(head: &ResponseHeader) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let is = |page: &[u8]| kind.get(..page.len()).is_some_and(|k| k.eq_ignore_ascii_case(page));
    is(b"text/html") || is(b"application/xhtml")
}

/// Returns how long the vendor asks to wait before the next request. `None` without a `retry-after`
/// header; of its two forms only a number of seconds is understood.
pub(super) fn retry_after(head: &ResponseHeader) -> Option<Duration> {
    let seconds = head.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
