//! Builds the body that a vendor takes for a video.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::request::VideoRequest;
use super::start_frame;
use crate::dialect::images::SourceImage;
use crate::dialect::json::{JsonDocument, JsonValue};
use crate::dialect::payload::RequestPayload;

/// Builds the vendor's body for a call that was parsed as `request`. The model, the prompt and the
/// address of the start frame are copied from the client's body as written.
#[must_use]
pub fn build_body(
    document: &JsonDocument,
    request: &VideoRequest,
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
    let ratio = request
        .aspect_ratio
        .map_or_else(String::new, |ratio| format!(r#""aspect_ratio":"{ratio}","#));
    let (seconds, resolution) = (request.seconds, request.resolution.name());
    let shape = format!(r#""duration":{seconds},{ratio}"resolution":"{resolution}""#);
    payload.push_bytes(Bytes::from(shape));
    // No error is possible here: a call with an invalid address, or with more than one frame, was
    // refused when it was parsed.
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
    let end: &[u8] = if request.audio { b"}" } else { br#","generate_audio":false}"# };
    payload.push_bytes(Bytes::from_static(end));
    let mut body = BytesMut::with_capacity(payload.length());
    payload.chunks().for_each(|chunk| body.extend_from_slice(&chunk));
    body.freeze()
}
