//! The vendor's side of a call: the address, head and body for one route, and the headers of the
//! answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER,
    TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderName, HeaderValue, Method};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::{ALPN, TcpKeepalive};
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;

use super::context::{
    AdmittedCall, BodyTransform, PricedCall, PricedModel, RequestContext, RequestStage,
    RouteAttempt,
};
use super::limits::Timeouts;
use super::state::Gateway;
use crate::catalogue::Vendor;
use crate::catalogue::vendor::{ImageEditFormat, TextApi};
use crate::dialect::call::{ModelCall, RequestKind};
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonPatch, JsonValue};
use crate::dialect::payload::RequestPayload;
use crate::dialect::{Endpoint, chat, images};
use crate::gateway::upstream::routes::{VendorRoute, VendorRouteSet};

pub(crate) mod answer;
pub(crate) mod attempts;
pub(crate) mod failure;
pub(crate) mod health;
pub(crate) mod outcome;
pub(crate) mod pool;
pub(crate) mod probe;
pub(crate) mod route_tls;
pub(crate) mod routes;
pub(crate) mod vendor_key;
pub(crate) mod wrapped_stream;

/// Bodies up to this size go to the vendor in one piece, spliced ones by a copy.
const ONE_PIECE_BYTES_MAX: usize = 64 << 10;
/// How the types of sound begin.
const AUDIO_TYPE_PREFIXES: [&str; 4] =
    ["audio/", "application/octet-stream", "application/ogg", "binary/octet-stream"];
/// What vendors are told that calls them.
const USER_AGENT_VALUE: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
/// HTTP/2 streams in one connection to a vendor.
const H2_STREAMS_MAX: u16 = 100;
/// Bytes of an answer that may lie about before they are read. All that may lie about of answers
/// that wait for their clients must fit into the window of their connection, or it would stop the
/// others on it.
const H2_STREAM_WINDOW: u32 = 256 << 10;
const H2_CONNECTION_WINDOW: u32 = (H2_STREAMS_MAX as u32 + 16) * H2_STREAM_WINDOW;

/// A silent connection is probed after so long, so often, so many times: vendors may think for
/// minutes, and a dead connection must not look like one that thinks.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES_MAX: usize = 3;

/// Takes the next route that has room and an address, and builds the body for it. `None` if there
/// is no such route.
pub(super) fn select_route(timeouts: &Timeouts, ctx: &mut RequestContext) -> Option<HttpPeer> {
    let RequestContext { id, stage, access_log, .. } = ctx;
    let RequestStage::Admitted(admitted) = stage else { return None };
    let AdmittedCall { priced, routes, attempt, .. } = &mut **admitted;
    *attempt = None;
    let (peer, route, slot) = loop {
        let route = routes.untried.pop_front()?;
        let Some(slot) = route.acquire_slot() else {
            outcome::record_route_full(routes, &route);
            continue;
        };
        match build_peer(timeouts, &route) {
            Some(peer) => break (peer, route, slot),
            None => outcome::record_unresolved(routes, &route),
        }
    };
    let body = build_body(priced, &route, id)?;
    access_log.fallback_depth = routes.fallback_depth(&route);
    access_log.route = Some(route.clone());
    *attempt = Some(RouteAttempt { route, slot, body });
    Some(peer)
}

/// The peer of a route. `None` while its name has no address.
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

/// The body for a route: the client's bytes with some spliced in, or what they were translated to.
/// A form is written anew, with this boundary.
fn build_body(priced: &PricedCall, route: &VendorRoute, boundary: &str) -> Option<RequestPayload> {
    let call = &priced.call;
    let PricedModel { model, endpoint, .. } = &priced.pricing;
    let name = route.upstream_model(&model.id);
    let mut draft = JsonPatch::new(&call.document);
    match &priced.body_transform {
        BodyTransform::Translate { body, .. } => {
            return Some(join_short(body.body_with_model(&name)).into());
        }
        BodyTransform::PassThrough => {}
        BodyTransform::Patch => {
            model.rewrite(*endpoint, &mut draft);
            if call.stream && matches!(call.kind, RequestKind::Chat { include_usage: false, .. }) {
                chat::set_include_usage(&mut draft);
            }
        }
    }
    // Of a call that names no model this adds it.
    if name != call.model || call.document.get("model").is_none_or(JsonValue::is_null) {
        draft.set("model", json_string(&name));
    }
    let pieces = join_short(draft.finish());
    let RequestKind::Image { file: Some(file) } = &call.kind else { return Some(pieces.into()) };
    let fields = JsonDocument::parse(Bytes::from(pieces.concat())).ok()?;
    Some(match model.vendor.image_edits {
        ImageEditFormat::Form => images::build_edit_form(&fields, file, boundary),
        ImageEditFormat::Json => images::build_edit_json(&fields, file),
    })
}

/// Short pieces go to the vendor as one.
fn join_short(pieces: Vec<Bytes>) -> Vec<Bytes> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    if pieces.len() == 1 || length > ONE_PIECE_BYTES_MAX {
        return pieces;
    }
    let mut joined = BytesMut::with_capacity(length);
    pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
    vec![joined.freeze()]
}

/// An empty request head for an attempt; [`fill_request_head`] adds the headers.
pub(super) fn empty_request_head(
    priced: &PricedCall,
    route: &VendorRoute,
) -> pingora::Result<RequestHeader> {
    let endpoint = match priced.body_transform {
        BodyTransform::Translate { .. } => Endpoint::Messages,
        BodyTransform::Patch | BodyTransform::PassThrough => priced.pricing.endpoint,
    };
    let path = format!("{}{}", route.base.path, endpoint.vendor_path());
    RequestHeader::build_no_case(Method::POST, path.as_bytes(), Some(12))
}

/// Writes the head for the attempt's route from nothing: no header of the client's goes on that the
/// rules do not name, and the client's key never does.
pub(super) fn fill_request_head(
    gateway: &Gateway,
    session: &Session,
    head: &mut RequestHeader,
    ctx: &RequestContext,
) -> pingora::Result<()> {
    let RequestStage::Admitted(admitted) = &ctx.stage else { return Err(internal_error(())) };
    let AdmittedCall { priced, attempt: Some(attempt), .. } = &**admitted else {
        return Err(internal_error(()));
    };
    let vendor = &priced.pricing.model.vendor;
    let accept = match &priced.call.kind {
        RequestKind::Speech { .. } => "*/*",
        _ if priced.call.stream => "text/event-stream",
        _ => "application/json",
    };
    head.insert_header(HOST, attempt.route.authority.as_str())?;
    match (&priced.call.kind, vendor.image_edits) {
        (RequestKind::Image { file: Some(_) }, ImageEditFormat::Form) => {
            let form = format!("multipart/form-data; boundary={}", ctx.id);
            head.insert_header(CONTENT_TYPE, form)?;
        }
        _ => head.insert_header(CONTENT_TYPE, "application/json")?,
    }
    head.insert_header(CONTENT_LENGTH, attempt.body.length())?;
    head.insert_header(ACCEPT, accept)?;
    // Compressed answers could not be metered as they pass.
    head.insert_header(ACCEPT_ENCODING, "identity")?;
    head.insert_header(USER_AGENT, USER_AGENT_VALUE)?;
    authorize(head, vendor, &attempt.route)?;
    let vendor_routes = gateway.routes.for_vendor(&vendor.name);
    write_vendor_headers(session, head, priced, vendor, vendor_routes)
}

/// The head of a question for the models of a vendor, which costs nothing.
pub(super) fn build_probe_head(
    vendor: &Vendor,
    vendor_routes: Option<&VendorRouteSet>,
    route: &VendorRoute,
) -> pingora::Result<RequestHeader> {
    let path = format!("{}/models", route.base.path);
    let mut head = RequestHeader::build_no_case(Method::GET, path.as_bytes(), Some(6))?;
    head.insert_header(HOST, route.authority.as_str())?;
    head.insert_header(ACCEPT, "application/json")?;
    head.insert_header(ACCEPT_ENCODING, "identity")?;
    head.insert_header(USER_AGENT, USER_AGENT_VALUE)?;
    authorize(&mut head, vendor, route)?;
    if let Some((header, ours)) = &vendor.version {
        let real = vendor_routes.map_or(header.as_str(), |l| l.header_name(header)).to_owned();
        head.insert_header(real, HeaderValue::from_str(ours).map_err(internal_error)?)?;
    }
    Ok(head)
}

/// Puts the vendor's key into a head.
fn authorize(
    head: &mut RequestHeader,
    vendor: &Vendor,
    route: &VendorRoute,
) -> pingora::Result<()> {
    let key = match &vendor.auth_scheme {
        Some(scheme) => format!("{scheme} {}", route.key.reveal()),
        None => route.key.reveal().to_string(),
    };
    let header = HeaderName::from_bytes(vendor.auth_header.as_bytes()).map_err(internal_error)?;
    let mut key = HeaderValue::try_from(key).map_err(internal_error)?;
    key.set_sensitive(true);
    head.insert_header(header, key)
}

/// Writes the headers of the vendor's own interface. A client that speaks another one says nothing
/// of these.
fn write_vendor_headers(
    session: &Session,
    head: &mut RequestHeader,
    priced: &PricedCall,
    vendor: &Vendor,
    vendor_routes: Option<&VendorRouteSet>,
) -> pingora::Result<()> {
    let forwarded =
        collect_forwarded_headers(session, vendor, priced.pricing.endpoint, vendor_routes);
    if let Some((header, ours)) = &vendor.version {
        let real = vendor_routes.map_or(header.as_str(), |l| l.header_name(header)).to_owned();
        head.insert_header(real, HeaderValue::from_str(ours).map_err(internal_error)?)?;
    }
    for (name, value) in forwarded {
        let real = vendor_routes.map_or(name.as_str(), |l| l.header_name(&name)).to_owned();
        head.insert_header(real, HeaderValue::from_bytes(&value).map_err(internal_error)?)?;
    }
    Ok(())
}

/// What a call for a model says in headers that its vendor is told.
pub(super) fn forwarded_headers(
    gateway: &Gateway,
    session: &Session,
    model: &str,
    endpoint: Endpoint,
) -> Vec<(String, Vec<u8>)> {
    let catalogue = gateway.catalogue.load();
    // A video is sent to its vendor later, without them.
    let Some(model) = catalogue.find(model).filter(|_| endpoint != Endpoint::Videos) else {
        return Vec::new();
    };
    let vendor = &model.vendor;
    collect_forwarded_headers(session, vendor, endpoint, gateway.routes.for_vendor(&vendor.name))
}

/// The client's headers that go on to a vendor, by the names that the rules have for them, in the
/// order of these.
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
        let real = vendor_routes.map_or(header.as_str(), |l| l.header_name(header));
        let named = [header, real].into_iter().filter_map(|name| client_headers.get(name));
        let version = named.into_iter().find(|version| !version.is_empty());
        collected.extend(version.map(|version| (header.clone(), version.as_bytes().to_vec())));
    }
    if vendor.forward_headers.is_empty() {
        return collected;
    }
    let versions = collected.len();
    // The same header on several lines is a list, and so it is under both of its names.
    for (name, value) in client_headers {
        let neutral = vendor_routes.map_or(name.as_str(), |l| l.neutral_name(name.as_str()));
        let secret = matches!(name.as_str(), "authorization" | "x-api-key");
        let forwarded = vendor.forward_headers.iter().any(|rule| matches_rule(rule, neutral));
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

fn matches_rule(rule: &str, name: &str) -> bool {
    rule.strip_suffix('*').map_or(rule == name, |start| name.starts_with(start))
}

#[expect(clippy::unnecessary_box_returns, reason = "pingora's results carry boxed errors")]
fn internal_error<E>(_: E) -> pingora::BError {
    pingora::Error::new(pingora::ErrorType::InternalError)
}

/// Copies the headers of a vendor's response that the gateway reads. None of the others is
/// forwarded.
pub(super) fn relevant_headers(theirs: &ResponseHeader) -> Option<Box<ResponseHeader>> {
    let ids = ["request-id", "x-request-id"].map(HeaderName::from_static);
    let read = [CONTENT_TYPE, CONTENT_ENCODING, RETRY_AFTER].into_iter().chain(ids);
    let mut head = ResponseHeader::build_no_case(theirs.status, Some(5)).ok()?;
    for name in read {
        if let Some(value) = theirs.headers.get(&name) {
            head.insert_header(name, value.clone()).ok()?;
        }
    }
    Some(Box::new(head))
}

/// Whether a response can be relayed: it is not compressed, and its content type is that of events,
/// JSON or audio as requested.
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

/// Whether the body is a page for people.
pub(super) fn is_html_page(head: &ResponseHeader) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let is = |page: &[u8]| kind.get(..page.len()).is_some_and(|k| k.eq_ignore_ascii_case(page));
    is(b"text/html") || is(b"application/xhtml")
}

/// Whether the head of an answer, as it came, says that nothing follows.
pub(super) fn has_no_body(head: &ResponseHeader) -> bool {
    head.status == 204 || head.headers.get(CONTENT_LENGTH).is_some_and(|length| length == "0")
}

/// Whether the end of a body can be told from one that was cut off.
pub(super) fn is_framed(head: &ResponseHeader) -> bool {
    let is_told = |name| head.headers.contains_key(name);
    head.status == 204
        || head.version == http::Version::HTTP_2
        || [CONTENT_LENGTH, TRANSFER_ENCODING].into_iter().any(is_told)
}

/// When the vendor wants to be asked again; only seconds are understood.
pub(super) fn retry_after(head: &ResponseHeader) -> Option<Duration> {
    let seconds = head.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
