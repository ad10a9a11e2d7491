//! Responses: the body goes to the vendor and the reply to the client as they are.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    Answer, CHAT, Canned, Opened, RESPONSES, Sent, Store, World, chat_of, events, http,
};

/// A reply with nothing in it but what it cost.
const REPLY: &str = r#"{"id":"resp_1","object":"response","status":"completed","output":[ ],
    "usage":{"input_tokens":10,"output_tokens":2,"total_tokens":12}, "error":null }"#;
const REPLY_NANO: i64 = 10 * 5_000 + 2 * 30_000;

fn body(model: &str) -> String {
    let rest = r#""input" : "\u0041 \"model\"","metadata":{"model":"x"},"store":true"#;
    format!(r#"{{ {rest}, "reasoning":{{"effort":"low"}}, "model":"{model}","top_p":1.0 }}"#)
}

#[tokio::test]
async fn a_body_reaches_the_vendor_unchanged_but_for_the_models_name() {
    let names = "[vendor.vendor_b.names]\n\"lmb-*\" = \"brand-*\"";
    let world = World::start(Store::Sqlite).credit("100").conf(names).run().await;
    for (ours, theirs) in [("lmb-5.5", "brand-5.5"), ("o1-pro", "o1-pro")] {
        let answer = Answer::read(world.request(RESPONSES.path).body(body(ours))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(world.sim.take_seen()[0].body, body(theirs).as_bytes());
    }
    let charges = world.settled(2).await;
    assert_eq!([&*charges[0].model, &*charges[1].model], ["lmb-5.5", "o1-pro"]);
}

#[tokio::test]
async fn a_reply_reaches_the_client_byte_for_byte() {
    let vendor = Canned::start(http(REPLY), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.ask(RESPONSES).await;
    assert_eq!((answer.status, answer.body.as_ref()), (200, REPLY.as_bytes()));
    assert_eq!(world.charge().await.amount_nano, REPLY_NANO);
}

#[rstest]
#[case::line_feeds("\n")]
#[case::carriage_returns("\r\n")]
#[tokio::test]
async fn a_stream_reaches_the_client_byte_for_byte(#[case] line_end: &str) {
    let reply = REPLY.replace('\n', "");
    let told = format!(
        ": hello\n\nevent: response.created\ndata: {{\"type\":\"response.created\", \
         \"sequence_number\":0,\"response\":{{\"id\":\"resp_1\",\"usage\":null}}}}\n\n\
         event: response.new_thing\ndata: {{\"type\":\"response.new_thing\",\"a\" : 1e2}}\n\n\
         event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\
         \"sequence_number\":1,\"delta\":\"fo\\u0075r\",\"obfuscation\":\"xyz\"}}\n\n\
         event: response.completed\ndata: {{\"type\":\"response.completed\",\
         \"sequence_number\":2,\"response\":{reply}}}\n\n"
    );
    let told = told.replace('\n', line_end);
    let vendor = Canned::start(events(&told), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let streamed = world.open_call(RESPONSES, json!({})).await.rest().await;
    assert!(!streamed.broken, "{streamed:?}");
    assert_eq!(String::from_utf8_lossy(&streamed.raw), told);
    let media = streamed.header("content-type").unwrap_or_default();
    assert!(media.starts_with("text/event-stream"), "{media}");
    let charge = world.charge().await;
    assert_eq!((charge.amount_nano, charge.basis.as_str()), (REPLY_NANO, "reported"));
}

#[rstest]
#[tokio::test]
async fn events_come_whole_however_they_are_cut(
    #[values("split-utf8", "crlf", "comments", "crlf;comments;split-utf8", "tools=3")] faults: &str,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[faults]).run().await;
    let tools = json!([{ "type": "function", "name": "now", "parameters": {} }]);
    let members = if faults.starts_with("tools") { json!({ "tools": tools }) } else { json!({}) };
    let streamed = world.open_call(RESPONSES, members).await.rest().await;
    assert!(!streamed.broken, "{streamed:?}");
    let events = streamed.events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let last = events.last().expect("an event");
    assert_eq!(last["type"], "response.completed");
    assert_eq!(streamed.raw.windows(2).any(|pair| pair == b"\r\n"), faults.contains("crlf"));
    assert_eq!(streamed.raw.starts_with(b": "), faults.contains("comments"));
    let charge = world.charge().await;
    let usage = &last["response"]["usage"];
    assert_eq!(json!([usage["input_tokens"], usage["output_tokens"]]), {
        json!([charge.usage["prompt_tokens"], charge.usage["completion_tokens"]])
    });
}

#[tokio::test]
async fn another_vendors_model_is_told_where_it_is_served() {
    let world = World::start(Store::Sqlite).run().await;
    for (model, path) in [
        ("lma-opus-5", "/v1/chat/completions"),
        ("lmc-3.5-flash", "/v1/chat/completions"),
        ("lmd-4.6", "/v1/chat/completions"),
        ("orgA/famA-V3.2", "/v1/chat/completions"),
        ("lmb-image-1", "/v1/images/generations"),
        ("omni-moderation-latest", "/v1/moderations"),
    ] {
        let answer = world.call(RESPONSES, json!({ "model": model })).await;
        assert_eq!(answer.refusal_of(model), (400, "wrong_endpoint".to_owned()), "{model}");
        assert!(answer.message().contains(path), "{model}: {}", answer.message());
        assert_eq!(world.sim.seen().len(), 0, "{model}");
    }
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn a_pro_model_is_served_here_and_nowhere_else(
    #[values("o1-pro", "o3-pro", "lmb-5-pro", "lmb-5.5-pro")] model: &str,
) {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.chat(chat_of(model)).await;
    assert_eq!(answer.refusal(), (400, "wrong_endpoint".to_owned()));
    assert!(answer.message().contains("/v1/responses"), "{}", answer.message());
    assert_eq!(world.call(RESPONSES, json!({ "model": model })).await.status, 200);
    assert_eq!(world.charge().await.endpoint, "responses");
}

#[tokio::test]
async fn a_pro_models_long_input_is_repriced_as_a_whole() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["prompt=272001;completion=10"]);
    let world = world.credit("50").run().await;
    assert_eq!(
        world
            .call(RESPONSES, json!({ "model": "lmb-5.5-pro", "input": "a ".repeat(40_000) }))
            .await
            .status,
        200
    );
    assert_eq!(world.charge().await.amount_nano, 272_001 * 60_000 + 10 * 270_000);
}

/// Calls for what has no price.
fn unpriced() -> [Value; 9] {
    let file = json!({ "type": "input_file", "file_id": "f" });
    [
        json!({ "background": true }),
        json!({ "tools": [{ "type": "web_search" }] }),
        json!({ "tools": [{ "type": "web_search_preview" }] }),
        json!({ "tools": [{ "type": "function", "name": "f" }, { "type": "file_search" }] }),
        json!({ "tools": [{ "type": "code_interpreter", "container": { "type": "auto" } }] }),
        json!({ "tools": [{ "type": "image_generation" }] }),
        json!({ "service_tier": "priority" }),
        json!({ "prompt": { "id": "pmpt_1" } }),
        json!({ "input": [{ "role": "user", "content": [file] }] }),
    ]
}

#[tokio::test]
async fn what_has_no_price_is_refused_and_no_vendor_hears_of_it() {
    let world = World::start(Store::Sqlite).run().await;
    for mut members in unpriced() {
        for stream in [false, true] {
            members["stream"] = stream.into();
            let what = members.to_string();
            let answer = world.call(RESPONSES, members.clone()).await;
            let expected = (400, "unsupported_parameter".to_owned());
            assert_eq!(answer.refusal_of(&what), expected, "{what}: {answer:?}");
            assert!(answer.json()["error"]["param"].is_string(), "{what}: {answer:?}");
            assert_eq!(world.sim.seen().len(), 0, "{what}");
        }
    }
    world.free_of_charge().await;
}

/// Calls that are refused, each with the place and the value that the message begins with.
fn unpriced_places() -> [(Value, &'static str, &'static str); 9] {
    let web = json!({ "type": "web_search" });
    let space = json!({ "type": "namespace", "name": "n", "description": "", "tools": [
        { "type": "function", "name": "f" }, web,
    ] });
    let mut tools = vec![json!({ "type": "function", "name": "f" }); 8];
    tools.push(web.clone());
    let said = json!({ "role": "user", "content": "hi" });
    let items = |kind: &str, tool: &Value| {
        let added = json!({ "type": kind, "tools": [tool] });
        json!({ "input": [said, added] })
    };
    let search = json!({ "type": "tool_search", "execution": "x\n'y" });
    let prompt = json!({ "prompt": { "id": "pmpt_1" }, "input": null });
    [
        (json!({ "tools": tools }), "tools[8].type", "'web_search'"),
        (json!({ "tools": [space] }), "tools[0].tools[1].type", "'web_search'"),
        (items("additional_tools", &web), "input[1].tools[0].type", "'web_search'"),
        (items("additional_tools", &space), "input[1].tools[0].tools[1].type", "'web_search'"),
        (items("tool_search_output", &web), "input[1].tools[0].type", "'web_search'"),
        (json!({ "tools": [search] }), "tools[0].execution", r"'x\n\'y'"),
        (json!({ "input": [{ "type": "web_search_call" }] }), "input[0].type", "'web_search_call'"),
        (json!({ "background": true }), "background", "true"),
        (prompt, "prompt", r#"{"id":"pmpt_1"}"#),
    ]
}

#[tokio::test]
async fn a_refusal_did_not_tell_which_of_many_tools_it_meant() {
    let world = World::start(Store::Sqlite).run().await;
    for (members, place, value) in unpriced_places() {
        let what = members.to_string();
        let answer = world.call(RESPONSES, members).await;
        let expected = (400, "unsupported_parameter".to_owned());
        assert_eq!(answer.refusal_of(&what), expected, "{what}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], place, "{what}");
        let begins = format!("{place} {value} is not available: ");
        assert!(answer.message().starts_with(&begins), "{what}: {}", answer.message());
    }
    let answer = world.call(RESPONSES, json!({ "tools": [{ "type": "web_search" }] })).await;
    assert!(answer.message().contains("switch it off in the client"), "{}", answer.message());
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

/// What a coding agent sends: its tools, and what was said before.
fn turn_of_an_agent(items: &[Value]) -> Value {
    let function = json!({ "type": "function", "name": "g", "parameters": {} });
    let space = json!({
        "type": "namespace", "name": "n", "description": "tools", "tools": [function],
    });
    let search = json!({
        "type": "tool_search", "execution": "client", "description": "find", "parameters": {},
    });
    let added = json!({
        "type": "additional_tools", "id": "at_1", "role": "developer", "tools": [space],
    });
    let said = json!({
        "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }],
    });
    let input: Vec<Value> = [added, said].iter().chain(items).cloned().collect();
    json!({
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "client_metadata": { "installation": "a" },
        "tools": [function, space, search, { "type": "local_shell" }, { "type": "apply_patch" }],
        "input": input,
    })
}

/// Items of earlier turns, which nobody but the client keeps.
fn items_of_an_agent() -> Vec<Value> {
    let action = json!({ "type": "exec", "command": ["ls"], "env": {} });
    let operation = json!({ "type": "delete_file", "path": "a" });
    let found = json!({ "type": "function", "name": "h", "parameters": {} });
    let part = json!({ "type": "encrypted_content", "encrypted_content": "gAA" });
    vec![
        json!({ "type": "compaction", "id": "cmp_1", "encrypted_content": "gAA" }),
        json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAA" }),
        json!({
            "type": "local_shell_call", "id": "lsh_1", "call_id": "c", "status": "completed",
            "action": action,
        }),
        json!({ "type": "local_shell_call_output", "id": "c", "output": "{}" }),
        json!({
            "type": "apply_patch_call", "id": "apc_1", "call_id": "d", "status": "completed",
            "operation": operation,
        }),
        json!({
            "type": "apply_patch_call_output", "id": "apo_1", "call_id": "d", "status": "completed",
        }),
        json!({
            "type": "tool_search_call", "id": "tsc_1", "call_id": "e", "execution": "client",
            "arguments": { "query": "h" },
        }),
        json!({
            "type": "tool_search_output", "id": "tso_1", "call_id": "e", "execution": "client",
            "tools": [found],
        }),
        json!({
            "type": "agent_message", "id": "am_1", "author": "a", "recipient": "b",
            "content": [part],
        }),
    ]
}

#[tokio::test]
async fn a_coding_agent_could_not_begin_a_conversation_nor_go_on_with_it() {
    let world = World::start(Store::Sqlite).run().await;
    let turns = [turn_of_an_agent(&[]), turn_of_an_agent(&items_of_an_agent())];
    for (number, turn) in turns.iter().enumerate() {
        for stream in [false, true] {
            let mut members = turn.clone();
            members["stream"] = stream.into();
            let answer = world.call(RESPONSES, members.clone()).await;
            assert_eq!(answer.status, 200, "turn {number}: {answer:?}");
            let seen = world.sim.take_seen();
            let body: Value = serde_json::from_slice(&seen[0].body).expect("JSON");
            assert_eq!((seen.len(), &body["input"]), (1, &members["input"]), "turn {number}");
            assert_eq!(body["tools"], members["tools"], "turn {number}");
        }
    }
    world.settled(4).await;
}

#[tokio::test]
async fn an_item_with_a_part_missing_is_still_looked_up() {
    let world = World::start(Store::Sqlite).run().await;
    let parts = ["action", "operation", "status", "arguments", "tools", "content"];
    for mut item in items_of_an_agent() {
        let kept = item.as_object().expect("an item").len();
        for name in parts.iter().chain(&["encrypted_content", "output"]) {
            item.as_object_mut().expect("an item").remove(*name);
        }
        assert!(item.as_object().expect("an item").len() < kept, "{item}");
        let answer = world.call(RESPONSES, turn_of_an_agent(std::slice::from_ref(&item))).await;
        assert_eq!(answer.refusal_of(&item.to_string()), (404, "not_found".to_owned()), "{item}");
        assert_eq!(answer.json()["error"]["param"], "input[2].id", "{item}");
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

/// What is wrong, the members that make it so, in the place of those of a good call, and the field
/// that is named.
fn wrong_fields() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("no items", json!({ "input": [] }), "input"),
        ("an input of another type", json!({ "input": 5 }), "input"),
        ("messages", json!({ "input": null, "messages": [] }), "input"),
        ("a limit of zero", json!({ "max_output_tokens": 0 }), "max_output_tokens"),
        ("a limit as text", json!({ "max_output_tokens": "9" }), "max_output_tokens"),
        ("a limit beyond all", json!({ "max_output_tokens": u64::MAX }), "max_output_tokens"),
        ("stream as text", json!({ "stream": "yes" }), "stream"),
    ]
}

#[tokio::test]
async fn a_wrong_field_is_named_and_no_vendor_hears_of_it() {
    let world = World::start(Store::Sqlite).run().await;
    for (what, members, param) in wrong_fields() {
        let answer = world.call(RESPONSES, members).await;
        assert_eq!(answer.refusal_of(what).0, 400, "{what}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{what}");
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_null_in_the_place_of_a_limit_is_none() {
    let world = World::start(Store::Sqlite).run().await;
    let mut call = RESPONSES.call();
    call["max_output_tokens"] = Value::Null;
    call["stream"] = Value::Null;
    let answer = world.send(RESPONSES.path, &Sent::json(&call)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    world.settled(1).await;
}

#[tokio::test]
async fn nothing_of_the_vendors_head_comes_back() {
    let world = World::start(Store::Sqlite).run().await;
    for stream in [false, true] {
        let answer = world.call(RESPONSES, json!({ "stream": stream })).await;
        let mut expected = vec!["content-type", "x-gateway-fallback-depth", "x-request-id"];
        if stream {
            expected.insert(0, "cache-control");
        } else {
            expected.insert(1, "x-gateway-charged-nano");
        }
        assert_eq!(answer.header_names(), expected);
    }
}

#[tokio::test]
async fn chat_and_responses_are_two_endpoints_of_one_model() {
    let world = World::start(Store::Sqlite).run().await;
    assert_eq!(CHAT.model, RESPONSES.model);
    assert_eq!(world.ask(CHAT).await.status, 200);
    assert_eq!(world.ask(RESPONSES).await.status, 200);
    let paths: Vec<_> = world.sim.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths, ["/vendor_b/v1/chat/completions", "/vendor_b/v1/responses"]);
}

#[tokio::test]
async fn the_first_events_come_before_the_last_are_made() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["chunk-delay=40"]).run().await;
    let mut opened: Opened = world.open_call(RESPONSES, json!({})).await;
    let moments = opened.take(8).await;
    assert!(moments[7].duration_since(moments[0]).as_millis() >= 100);
    opened.rest().await;
    world.settled(1).await;
}
