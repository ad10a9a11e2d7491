//! Builds the response head for the client, and selects how the body is relayed.

use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, StatusCode};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use crate::dialect::call::RequestKind;
use crate::dialect::relay::RelayMode;
use crate::dialect::tokens::InputCount;
use crate::dialect::translate::reply::ReplyMetadata;
use crate::gateway::api_error::ErrorFormat;
use crate::gateway::context::{BodyTransform, MODEL_HEADER, PricedCall, RequestContext};
use crate::gateway::response_head::ResponseHead;
use crate::gateway::settlement::funding::Funding;
use crate::money::Money;

/// The content type of audio if the vendor sends none.
const DEFAULT_AUDIO_TYPE: HeaderValue = HeaderValue::from_static("audio/mpeg");

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");
const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MESSAGES_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
pub(crate) const FALLBACK_DEPTH: HeaderName = HeaderName::from_static("x-gateway-fallback-depth");
/// The charge of a whole answer, in nano-USD.
pub(crate) const CHARGED: HeaderName = HeaderName::from_static("x-gateway-charged-nano");
const SPEECH_CHARGED: HeaderName = HeaderName::from_static("x-service-charged-nano");
const CHARACTERS: HeaderName = HeaderName::from_static("x-service-characters");
const OUTPUT_LIMIT: HeaderName = HeaderName::from_static("x-gateway-output-limit");
const DROPPED_PARAMS: HeaderName = HeaderName::from_static("x-gateway-dropped-params");
const THINKING: HeaderName = HeaderName::from_static("x-gateway-thinking");

/// Returns how the response of an admitted call is relayed.
pub(crate) fn relay_mode(
    ctx: &RequestContext,
    priced: &PricedCall,
    input_count: &InputCount,
) -> RelayMode {
    let call = &priced.call;
    let created = ctx.arrived_ms / 1_000;
    match (&call.kind, &priced.body_transform) {
        (RequestKind::Chat { include_usage: usage_asked, .. }, BodyTransform::Translate { .. }) => {
            RelayMode::Translated(ReplyMetadata {
                model: call.model.clone(),
                created,
                input_tokens: input_count.clone(),
                include_usage: *usage_asked,
                save_thinking: priced.pricing.model.thinking,
            })
        }
        (RequestKind::Chat { include_usage: usage_asked, text }, _) => {
            RelayMode::Chat { include_usage: *usage_asked, choices: text.choices }
        }
        (RequestKind::Messages(_), _) => RelayMode::Messages { request_id: ctx.id.clone() },
        (RequestKind::Responses(_), _) => RelayMode::Responses,
        (RequestKind::Compaction(_), _) => RelayMode::Compaction,
        (RequestKind::Embeddings(inputs), _) => RelayMode::Embeddings(*inputs),
        (RequestKind::Image { .. }, _) => RelayMode::Image {
            created,
            uses_vendor_cost: priced.pricing.model.price.is_vendor_billed(),
        },
        // The gateway itself answers an order of a video, so its mode is never used.
        (RequestKind::Moderation | RequestKind::Video { .. }, _) => RelayMode::Moderation,
        (RequestKind::TokenCount { .. }, _) => RelayMode::TokenCount,
        (RequestKind::Speech { characters }, _) => RelayMode::Speech { characters: *characters },
    }
}

/// Builds the head of a successful response. Of the vendor's head only the content type of audio
/// is forwarded.
pub(crate) fn build_head(
    session: &mut Session,
    ctx: &RequestContext,
    priced: &PricedCall,
    vendor_head: &ResponseHeader,
) -> ResponseHeader {
    let stream = priced.call.stream;
    let mut head = ResponseHead::new(StatusCode::OK, 12 + ctx.rate_headers.len_max());
    match &priced.call.kind {
        RequestKind::Speech { characters } => {
            let kind = vendor_head.headers.get(CONTENT_TYPE).cloned();
            head.insert(CONTENT_TYPE, kind.unwrap_or(DEFAULT_AUDIO_TYPE));
            if let Funding::Held { hold, .. } = &priced.funding {
                // The hold of a speech call is exactly its price.
                head.insert(SPEECH_CHARGED, hold.held().nano());
                head.insert(CHARGED, hold.held().nano());
            }
            head.insert(CHARACTERS, *characters);
        }
        _ if stream => head.insert(CONTENT_TYPE, EVENT_STREAM),
        _ => head.insert(CONTENT_TYPE, JSON),
    }
    if stream {
        head.insert(CACHE_CONTROL, NO_CACHE);
    }
    if session.req_header().version == http::Version::HTTP_10 {
        // An HTTP/1.0 client cannot read chunked encoding, so the end of the connection ends the
        // response.
        session.set_keepalive(None);
    } else {
        head.insert(TRANSFER_ENCODING, CHUNKED);
    }
    add_request_id(&mut head, ctx);
    ctx.rate_headers.write_into(&mut head);
    head.insert(FALLBACK_DEPTH, ctx.access_log.fallback_depth);
    add_model_id(&mut head, ctx);
    if let Some(limit) = priced.output_limit {
        head.insert(OUTPUT_LIMIT, limit);
    }
    if let BodyTransform::Translate { body, reasoning: thinking } = &priced.body_transform {
        if !body.dropped_fields.is_empty() {
            head.insert_text(DROPPED_PARAMS, body.dropped_fields.join(","));
        }
        if let Some(thinking) = thinking {
            head.insert_text(THINKING, thinking.header_value());
        }
    }
    ctx.cors.add_headers(&mut head);
    head.build()
}

/// Adds the charge to the head of a whole answer that is complete, and to the headers that a page
/// may read.
///
/// # Errors
/// The head is full.
pub(crate) fn add_charge(head: &mut ResponseHeader, charge: Money) -> pingora::Result<()> {
    // That of speech is known from the beginning.
    if head.headers.contains_key(&CHARGED) {
        return Ok(());
    }
    head.insert_header(CHARGED, charge.nano())?;
    let exposed = head.headers.get(ACCESS_CONTROL_EXPOSE_HEADERS);
    if let Some(exposed) = exposed.and_then(|names| names.to_str().ok()) {
        let exposed = format!("{exposed}, {}", CHARGED.as_str());
        head.insert_header(ACCESS_CONTROL_EXPOSE_HEADERS, exposed)?;
    }
    Ok(())
}

/// Adds the header with the request id, and also the one that the messages format has for it if the
/// client uses that format.
pub(crate) fn add_request_id(head: &mut ResponseHead, ctx: &RequestContext) {
    head.insert_text(REQUEST_ID, ctx.id.as_str());
    if ctx.error_format == ErrorFormat::Messages {
        head.insert_text(MESSAGES_REQUEST_ID, ctx.id.as_str());
    }
}

/// Adds the header with the model's id if the client asked for the model by another name.
pub(crate) fn add_model_id(head: &mut ResponseHead, ctx: &RequestContext) {
    let id = ctx.access_log.aliased_model_id();
    // The rules may have an id that no header can carry.
    if let Some(id) = id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok()) {
        head.headers.insert(MODEL_HEADER, id);
    }
}

/// A vendor's request id of more than this many bytes is ignored.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Returns the vendor's request id, under either header name that vendors use. `None` if it is
/// missing or does not look like an id: it goes into the journal and the log, so it is checked.
pub(crate) fn vendor_request_id(head: &ResponseHeader) -> Option<String> {
    let value = head.headers.get("x-request-id").or_else(|| head.headers.get("request-id"))?;
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    let is_id = |id: &&str| (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(fits);
    value.to_str().ok().filter(is_id).map(str::to_owned)
}
