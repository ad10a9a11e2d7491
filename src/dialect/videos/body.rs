//! The body that a vendor takes for a video.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::request::VideoRequest;
use super::start_frame;
use crate::dialect::images::SourceImage;
use crate::dialect::json::{JsonDocument, JsonValue};
use crate::dialect::payload::RequestPayload;

/// The vendor's body for a call that was read as `ask`. The model, the prompt and an address stand
/// in it as the client wrote them.
#[must_use]
pub fn build_body(
    document: &JsonDocument,
    ask: &VideoRequest,
    file: Option<&SourceImage>,
) -> Bytes {
    let mut payload = RequestPayload::default();
    let as_written = |value: JsonValue<'_>| document.body().slice_ref(value.raw());
    payload.push_bytes(Bytes::from_static(b"{"));
    for name in ["model", "prompt"] {
        if let Some(value) = document.get(name) {
            payload.push_bytes(Bytes::from(format!("\"{name}\":")));
            payload.push_bytes(as_written(value));
            payload.push_bytes(Bytes::from_static(b","));
        }
    }
    let ratio =
        ask.aspect_ratio.map_or_else(String::new, |told| format!(r#""aspect_ratio":"{told}","#));
    let (seconds, resolution) = (ask.seconds, ask.resolution.name());
    let shape = format!(r#""duration":{seconds},{ratio}"resolution":"{resolution}""#);
    payload.push_bytes(Bytes::from(shape));
    // An address that is not sound, or one too many, is not in what was asked for.
    let address = start_frame::find_url(document, file).ok().flatten();
    if let Some(file) = file {
        payload.push_bytes(Bytes::from_static(br#","image":{"url":""#));
        file.append_data_uri(&mut payload);
        payload.push_bytes(Bytes::from_static(br#""}"#));
    } else if let Some(address) = address {
        payload.push_bytes(Bytes::from_static(br#","image":{"url":"#));
        payload.push_bytes(as_written(address));
        payload.push_bytes(Bytes::from_static(b"}"));
    }
    let end: &[u8] = if ask.audio { b"}" } else { br#","generate_audio":false}"# };
    payload.push_bytes(Bytes::from_static(end));
    let mut body = BytesMut::with_capacity(payload.length());
    payload.chunks().for_each(|chunk| body.extend_from_slice(&chunk));
    body.freeze()
}
