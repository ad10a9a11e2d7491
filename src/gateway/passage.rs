//! The way of an answer to the client: its head, and what its body becomes.

use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use super::exchange::{Admitted, Exchange, Way};
use super::refusal::Tongue;
use crate::dialect::relay::Passage;
use crate::dialect::translate::reply::Stamp;

/// What the relay of an admitted call does.
pub(super) fn of(exchange: &Exchange, admitted: &Admitted) -> Passage {
    let call = &admitted.call;
    match &admitted.way {
        Way::Spliced => Passage::Chat { usage_asked: call.usage_asked, choices: call.choices },
        Way::Unchanged => Passage::Messages { request_id: exchange.id.clone() },
        Way::Translated { .. } => Passage::Translated(Stamp {
            model: call.model.clone(),
            created: exchange.arrived_ms / 1_000,
            input_bytes: admitted.terms.input_bytes,
            usage_asked: call.usage_asked,
            keep: admitted.terms.model.thinking,
        }),
    }
}

/// The head of a good answer. Nothing of the vendor's head goes on.
pub(super) fn head(
    session: &mut Session,
    exchange: &Exchange,
    admitted: &Admitted,
) -> pingora_core::Result<ResponseHeader> {
    let stream = admitted.call.stream;
    let kind = if stream { "text/event-stream; charset=utf-8" } else { "application/json" };
    let mut head = ResponseHeader::build_no_case(200, Some(10))?;
    head.insert_header("content-type", kind)?;
    if stream {
        head.insert_header("cache-control", "no-cache")?;
    }
    if session.req_header().version == http::Version::HTTP_10 {
        // It cannot read chunks, so the end of the connection is the end of the answer.
        session.set_keepalive(None);
    } else {
        head.insert_header("transfer-encoding", "chunked")?;
    }
    identify(&mut head, exchange)?;
    head.insert_header("x-gateway-fallback-depth", exchange.record.depth)?;
    if let Way::Translated { body, thinking } = &admitted.way {
        if !body.dropped.is_empty() {
            head.insert_header("x-gateway-dropped-params", body.dropped.join(","))?;
        }
        if let Some(thinking) = thinking {
            head.insert_header("x-gateway-thinking", thinking.name())?;
        }
    }
    Ok(head)
}

/// Names the request, as the client's format does too.
pub(super) fn identify(head: &mut ResponseHeader, exchange: &Exchange) -> pingora_core::Result<()> {
    head.insert_header("x-request-id", exchange.id.as_str())?;
    if exchange.tongue == Tongue::Messages {
        head.insert_header("request-id", exchange.id.as_str())?;
    }
    Ok(())
}

/// The vendor's id of a request, under either name that vendors have for it.
pub(super) fn vendor_request_id(head: &ResponseHeader) -> Option<String> {
    let value = head.headers.get("x-request-id").or_else(|| head.headers.get("request-id"))?;
    value.to_str().ok().map(str::to_owned)
}
