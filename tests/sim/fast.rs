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

const CHAT_BODY: &str = concat!(
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

const MESSAGES_BODY: &str = concat!(
    r#"{"id":"msg_fast","type":"message","role":"assistant","model":"fast","content":"#,
    r#"[{"type":"text","text":"#,
    r#""The answer is four, and everybody in the room agrees that it has always been four."}],"#,
    r#""stop_reason":"end_turn","stop_sequence":null,"stop_details":null,"#,
    r#""usage":{"input_tokens":9,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"#,
    r#""cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0},"#,
    r#""output_tokens":17,"output_tokens_details":{"thinking_tokens":0},"#,
    r#""server_tool_use":null,"service_tier":"standard","speed":"standard","#,
    r#""inference_geo":"global"}}"#,
);

const MESSAGE_START: &str = concat!(
    r#"{"type":"message_start","message":{"id":"msg_fast","type":"message","role":"assistant","#,
    r#""model":"fast","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,"#,
    r#""usage":{"input_tokens":9,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"#,
    r#""output_tokens":1,"service_tier":"standard"}}}"#,
);
const BLOCK_START: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const BLOCK_DELTA: &str =
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" four"}}"#;
const BLOCK_STOP: &str = r#"{"type":"content_block_stop","index":0}"#;

/// The answers of one kind of vendor.
struct Rendered {
    whole: Vec<u8>,
    /// The head and the HTTP chunks of a stream, each to be written by itself.
    stream: Vec<Vec<u8>>,
}

static CHAT: LazyLock<Rendered> =
    LazyLock::new(|| Rendered::new(Vendor::B, CHAT_BODY, chat_frames()));
static MESSAGES: LazyLock<Rendered> =
    LazyLock::new(|| Rendered::new(Vendor::A, MESSAGES_BODY, messages_frames()));

impl Rendered {
    fn new(vendor: Vendor, body: &str, frames: Vec<Vec<u8>>) -> Rendered {
        let (id, length) = (vendor.request_id_header(), body.len());
        let whole = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             {id}: req_vendor_fast\r\n\r\n{body}"
        );
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
             cache-control: no-cache\r\n{id}: req_vendor_fast\r\n\
             transfer-encoding: chunked\r\n\r\n"
        );
        let mut stream = vec![head.into_bytes()];
        stream.extend(frames);
        stream.last_mut().expect("a head at least").extend_from_slice(b"0\r\n\r\n");
        Rendered { whole: whole.into_bytes(), stream }
    }
}

fn messages_frames() -> Vec<Vec<u8>> {
    let usage = format!(r#"{{"output_tokens":{EVENTS}}}"#);
    let delta = r#"{"stop_reason":"end_turn","stop_sequence":null}"#;
    let end = format!(r#"{{"type":"message_delta","delta":{delta},"usage":{usage}}}"#);
    let (stop_name, stop) = Vendor::A.last_event();
    let mut events = vec![
        ("message_start", MESSAGE_START),
        ("content_block_start", BLOCK_START),
        ("ping", r#"{"type":"ping"}"#),
    ];
    events.extend(std::iter::repeat_n(("content_block_delta", BLOCK_DELTA), EVENTS));
    events.extend([("content_block_stop", BLOCK_STOP), ("message_delta", &end)]);
    events.push((stop_name, stop));
    let named = events.iter();
    named.map(|(name, data)| frame(&format!("event: {name}\ndata: {data}"))).collect()
}

fn chat_frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..EVENTS {
        frames.push(chat_frame(&event(
            r#"[{"index":0,"delta":{"content":" four"},"logprobs":null,"finish_reason":null}]"#,
            "null",
        )));
    }
    let usage = format!(
        r#"{{"prompt_tokens":9,"completion_tokens":{EVENTS},"total_tokens":{}}}"#,
        EVENTS + 9
    );
    frames.push(chat_frame(&event("[]", &usage)));
    frames.push(chat_frame("[DONE]"));
    frames
}

/// The vendor of a request for a fast answer.
pub(super) fn vendor(request: &httparse::Request<'_, '_>) -> Option<Vendor> {
    let address = Address::parse(request.path?)?;
    (address.faults == "fast" && address.endpoint.has_fast_answers()).then_some(address.vendor)
}

/// Reads the rest of the request, and answers it.
pub(super) async fn answer(
    wire: &mut Wire,
    vendor: Vendor,
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
    let rendered: &Rendered = if vendor == Vendor::A { &MESSAGES } else { &CHAT };
    if stream {
        for frame in &rendered.stream {
            wire.write(frame).await?;
            tokio::task::yield_now().await;
        }
    } else {
        wire.write(&rendered.whole).await?;
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

fn chat_frame(data: &str) -> Vec<u8> {
    frame(&format!("data: {data}"))
}

/// The lines of an event as an HTTP chunk.
fn frame(lines: &str) -> Vec<u8> {
    let size = lines.len() + 2;
    format!("{size:x}\r\n{lines}\n\n\r\n").into_bytes()
}
