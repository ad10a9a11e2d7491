//! What vendors say of the operator's account in their errors, at every endpoint.

use rstest::rstest;
use serde_json::json;

use crate::world::{Canned, OFFERS, Store, World, chat_of, events, messages_of, with};

const SAID: &str = "Key sk-live0123456789 of ops@acme.example in organization org-Zy9Xw8Vu \
    (project proj_abc123def) failed at 10.1.2.3:8443, see https://console.vendor.test/keys; \
    db01.prod.internal has no more";
const SHOWN: &str = "Key [...] of [...] in organization [...] (project [...]) failed at [...], see \
    [...]; [...] has no more";
const SECRETS: [&str; 7] =
    ["sk-live", "acme", "org-Zy", "proj_", "10.1.2", "console.vendor", "db01.prod"];

fn clean(said: &str) {
    for secret in SECRETS {
        assert!(!said.contains(secret), "{secret} in {said}");
    }
}

#[tokio::test]
async fn the_operators_secrets_went_to_clients_in_whole_errors() {
    let error = json!({ "message": SAID, "type": "invalid_request_error", "code": "odd_call",
        "param": "org-Zy9Xw8Vu", "details": { "host": "10.1.2.3", "why": SAID } });
    let body = json!({ "type": "error", "error": error }).to_string();
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json";
    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let vendor = Canned::start(answer, usize::MAX).await;
    let names = ["vendor_a", "vendor_b", "vendor_c", "vendor_d", "vendor_e"];
    let builder = names
        .iter()
        .fold(World::start(Store::Sqlite), |builder, name| builder.vendor(name, &[&vendor.url]));
    let world = builder.run().await;
    for offer in OFFERS {
        let answer = world.ask(offer).await;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, 400, "{} {body}", offer.path);
        assert!(answer.message().starts_with(SHOWN), "{} {body}", offer.path);
        clean(&body);
    }
}

#[rstest]
#[case::chat("/v1/chat/completions", "lmb-5.5")]
#[case::messages("/v1/messages", "lma-haiku-4-5")]
#[case::translated("/v1/chat/completions", "lma-haiku-4-5")]
#[case::responses("/v1/responses", "lmb-5.5")]
#[tokio::test]
async fn the_operators_secrets_went_to_clients_in_streams(#[case] path: &str, #[case] model: &str) {
    let error = json!({ "message": SAID, "type": "server_error", "code": "rate_limit_exceeded",
        "details": { "host": "10.1.2.3" } });
    let response = json!({ "id": "resp_1", "object": "response", "status": "in_progress" });
    let failed = json!({ "id": "resp_1", "object": "response", "status": "failed",
        "output": [], "error": { "code": "rate_limit_exceeded", "message": SAID } });
    let named = |name: &str, data: &serde_json::Value| format!("event: {name}\ndata: {data}\n\n");
    let stream = match (path, model) {
        ("/v1/responses", _) => {
            let of = |kind: &str, number: u8, response: &serde_json::Value| {
                let event =
                    json!({ "type": kind, "sequence_number": number, "response": response });
                named(kind, &event)
            };
            let told = json!({ "type": "error", "code": "x", "message": SAID, "param": null });
            of("response.created", 0, &response)
                + &named("error", &told)
                + &of("response.failed", 2, &failed)
        }
        (_, "lmb-5.5") => {
            let chunk = json!({ "choices": [{ "index": 0, "delta": { "content": "a" } }] });
            format!("data: {chunk}\n\ndata: {}\n\n", json!({ "error": error }))
        }
        _ => {
            let usage = json!({ "input_tokens": 3, "output_tokens": 1 });
            let message =
                json!({ "id": "msg_1", "role": "assistant", "content": [], "usage": usage });
            let start = json!({ "type": "message_start", "message": message });
            let block = json!({ "type": "text", "text": "a" });
            let block =
                json!({ "type": "content_block_start", "index": 0, "content_block": block });
            named("message_start", &start)
                + &named("content_block_start", &block)
                + &named("error", &json!({ "type": "error", "error": error }))
        }
    };
    let vendor = Canned::start(events(&stream), usize::MAX).await;
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]);
    let world = builder.vendor("vendor_b", &[&vendor.url]).run().await;
    let call = match path {
        "/v1/messages" => messages_of(model),
        "/v1/responses" => json!({ "model": model, "input": "Hello." }),
        _ => chat_of(model),
    };
    let request = world.request(path).body(with(call, &json!({ "stream": true })).to_string());
    let answer = crate::world::Answer::read(request).await;
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.status, 200, "{said}");
    clean(&said);
    assert!(said.contains(SHOWN), "{said}");
    if path == "/v1/responses" {
        // Its own last event tells it, and no other.
        assert!(said.contains("event: response.failed\ndata: {\"response\""), "{said}");
        assert!(!said.contains("event: error"), "{said}");
    }
    assert!(path == "/v1/messages" || said.contains(r#""code":"rate_limit_exceeded""#), "{said}");
}

#[tokio::test]
async fn the_operators_secrets_went_to_clients_in_a_response_that_failed() {
    let body = json!({ "id": "resp_1", "object": "response", "status": "failed", "output": [],
        "error": { "code": "server_error", "message": SAID }, "usage": null });
    let vendor = Canned::start(crate::world::http(&body.to_string()), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let call = json!({ "model": "lmb-5.5", "input": "Hello." });
    let answer =
        crate::world::Answer::read(world.request("/v1/responses").body(call.to_string())).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    clean(&String::from_utf8_lossy(&answer.body));
    assert_eq!(
        (answer.json()["status"].as_str(), answer.message()),
        (Some("failed"), SHOWN.to_owned())
    );
    world.free_of_charge().await;
}
