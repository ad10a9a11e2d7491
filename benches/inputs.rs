//! What the rooms are given to do, by those who time them and by those who count.

use bytes::Bytes;
use tollgate::dialect::relay::RelayMode;
use tollgate::dialect::translate::reply::ReplyMetadata;
use tollgate::ledger::Operation;
use tollgate::money::Money;

/// A chat request of about so many bytes.
pub(super) fn request(bytes: usize) -> Bytes {
    let text = "Explain in a few plain words what a toll gate does. ".repeat(bytes / 52 + 1);
    let body = serde_json::json!({
        "model": "lmb-5.5", "stream": true, "max_tokens": 256,
        "messages": [{ "role": "user", "content": &text[..bytes] }],
    });
    Bytes::from(body.to_string())
}

/// A stream of 200 chunks with usage, as `vendor_b` sends it.
pub(super) fn stream() -> Bytes {
    let chunk = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word "},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"abcdef"}"#;
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":200,"total_tokens":209}}"#;
    Bytes::from(format!("{}{usage}\n\ndata: [DONE]\n\n", format!("{chunk}\n\n").repeat(200)))
}

/// The head of a call as official clients send it.
pub(super) const HEAD: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\
    Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nAccept: application/json\r\n\
    Content-Type: application/json\r\nUser-Agent: Client/Python 2.31.0\r\n\
    X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 2.31.0\r\nX-Stainless-OS: Linux\r\n\
    X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n\
    X-Stainless-Runtime-Version: 3.12.3\r\n\
    Authorization: Bearer sk-0123456789abcdef0123456789abcdef0123456789ab\r\n\
    X-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n\
    Content-Length: 1024\r\n\r\n";

/// A whole answer in the messages format.
pub(super) fn reply() -> Bytes {
    Bytes::from_static(
        br#"{"id":"msg_01","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"The answer is four and everybody in the room agrees."},{"type":"tool_use","id":"toolu_1","name":"f","input":{"city":"Oslo"}}],"stop_reason":"tool_use","usage":{"input_tokens":12,"output_tokens":5}}"#,
    )
}

/// How it is given to a client of the other format.
pub(super) fn translated() -> RelayMode {
    let metadata = ReplyMetadata {
        model: "m".to_owned(),
        created: 1,
        input_tokens: 0.into(),
        include_usage: true,
        save_thinking: false,
    };
    RelayMode::Translated(metadata)
}

/// A messages stream of 200 pieces of text.
pub(super) fn messages_stream() -> Bytes {
    let event =
        |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    let start = r#","message":{"id":"msg_01","usage":{"input_tokens":9,"output_tokens":1}}"#;
    let delta = r#","index":0,"delta":{"type":"text_delta","text":"word "}"#;
    let parts = [
        event("message_start", start),
        event("content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#),
        event("content_block_delta", delta).repeat(200),
        event("content_block_stop", r#","index":0"#),
        event(
            "message_delta",
            r#","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}"#,
        ),
        event("message_stop", ""),
    ];
    Bytes::from(parts.concat())
}

/// An account that never runs dry, and the operations of one call.
pub(super) fn call(n: u64) -> [Operation; 2] {
    let (id, key) = (format!("{n:016x}"), None);
    let amount = Money::from_nano(1_000).expect("not negative");
    [
        Operation::Hold {
            id: id.clone(),
            wanted: amount,
            least: amount,
            lease_ms: 60_000,
            key,
            rates: Vec::new(),
        },
        Operation::Settle { id, charge: amount, line: "{}".to_owned(), origin: None, tokens: None },
    ]
}

pub(super) fn credit() -> Operation {
    let amount = Money::parse_usd("1000000").expect("an amount");
    Operation::Credit { tx: "t".to_owned(), amount }
}
