//! Answers rendered beforehand, for benchmarks: the simulator shares its cores with what is
//! measured, so that it must cost next to nothing itself.

use std::io;
use std::sync::LazyLock;

use bytes::BytesMut;

use super::address::Address;
use super::delivery::After;
use super::vendor::Vendor;
use super::wire::{Framing, Glance, Wire};

const EVENTS: usize = 200;

const WHOLE_BODY: &str = concat!(
    r#"{"id":"chatcmpl-fast","object":"chat.completion","created":1795219200,"#,
    r#""model":"fast","choices":[{"index":0,"message":{"role":"assistant","content":"#,
    r#""The answer is four, and everybody in the room agrees that it has always been four."#,
    r#"","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"#,
    r#""usage":{"prompt_tokens":9,"completion_tokens":17,"total_tokens":26,"#,
    r#""prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":0,"audio_tokens":0},"#,
    r#""completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"#,
    r#""accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"#,
    r#""service_tier":"default","system_fingerprint":null}"#,
);

static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let length = WHOLE_BODY.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         x-request-id: req_vendor_fast\r\n\r\n{WHOLE_BODY}"
    )
    .into_bytes()
});

/// The head and the HTTP chunks of a stream, each to be written by itself.
static STREAM: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
        cache-control: no-cache\r\nx-request-id: req_vendor_fast\r\n\
        transfer-encoding: chunked\r\n\r\n";
    let mut frames = vec![head.as_bytes().to_vec()];
    for _ in 0..EVENTS {
        frames.push(frame(&event(
            r#"[{"index":0,"delta":{"content":" four"},"logprobs":null,"finish_reason":null}]"#,
            "null",
        )));
    }
    let usage = format!(
        r#"{{"prompt_tokens":9,"completion_tokens":{EVENTS},"total_tokens":{}}}"#,
        EVENTS + 9
    );
    frames.push(frame(&event("[]", &usage)));
    let mut end = frame("[DONE]");
    end.extend_from_slice(b"0\r\n\r\n");
    frames.push(end);
    frames
});

/// The vendor of a request for a fast answer.
pub(super) fn vendor(request: &httparse::Request<'_, '_>) -> Option<Vendor> {
    let address = Address::parse(request.path?)?;
    (address.faults == "fast").then_some(address.vendor)
}

/// Reads the rest of the request, and answers it.
pub(super) async fn answer(
    wire: &mut Wire,
    glance: &Glance,
    scratch: &mut BytesMut,
) -> io::Result<After> {
    wire.enter_body(glance.head_len, glance.waits).await?;
    let stream = match glance.framing {
        Framing::Length(length) => {
            let length = usize::try_from(length).expect("a bounded length");
            asks_for_stream(&wire.body_in_place(length).await?)
        }
        Framing::Chunked => {
            scratch.clear();
            wire.body_in_chunks(scratch).await?;
            asks_for_stream(scratch)
        }
    };
    if stream {
        for frame in STREAM.iter() {
            wire.write(frame).await?;
            tokio::task::yield_now().await;
        }
    } else {
        wire.write(&WHOLE).await?;
    }
    Ok(if glance.last { After::Close } else { After::Keep })
}

/// A search for the bytes only; a body that says so in a message's text escapes the quotes.
fn asks_for_stream(body: &[u8]) -> bool {
    const KEY: &[u8] = br#""stream":"#;
    let mut rest = body;
    while let Some(start) = rest.iter().position(|byte| *byte == b'"') {
        rest = &rest[start..];
        if let Some(value) = rest.strip_prefix(KEY) {
            return value.trim_ascii_start().starts_with(b"true");
        }
        rest = &rest[1..];
    }
    false
}

fn event(choices: &str, usage: &str) -> String {
    format!(
        "{{\"id\":\"chatcmpl-fast\",\"object\":\"chat.completion.chunk\",\"created\":1795219200,\
         \"model\":\"fast\",\"choices\":{choices},\"usage\":{usage},\
         \"service_tier\":\"default\",\"system_fingerprint\":null}}"
    )
}

fn frame(data: &str) -> Vec<u8> {
    let size = "data: ".len() + data.len() + 2;
    format!("{size:x}\r\ndata: {data}\n\n\r\n").into_bytes()
}
