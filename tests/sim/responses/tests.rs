//! What is responded, at once and in events, and what is refused.

use serde_json::json;

use super::super::asked::{Target, judge};
use super::super::delivery;
use super::super::endpoint::Endpoint;
use super::super::faults::Faults;
use super::super::said::Words;
use super::super::script::Event;
use super::*;

const AT: Target = Target { vendor: Vendor::B, endpoint: Endpoint::Responses };
const TEXT: &str = "The answer is four and everybody in the room agrees.";

fn call() -> Value {
    json!({"model": "lmb-5.5", "input": "How much is 2 + 2?"})
}

/// A call with these members, too.
fn with(members: &Value) -> Value {
    let mut body = call();
    for (name, value) in members.as_object().expect("members") {
        body[name] = value.clone();
    }
    body
}

/// The tools of a server.
fn server() -> Value {
    json!({"type": "mcp", "server_label": "sums", "server_url": "https://sums.example"})
}

fn tools() -> Value {
    json!([{"type": "function", "name": "temp", "parameters": {"type": "object"}}])
}

fn at_once(body: &Value, faults: &str) -> (Value, Option<Billed>) {
    Asked::for_test(AT, faults, body).reply().expect("a response")
}

/// The events of a stream, its last one included, and what is billed for it all.
fn streamed(body: &Value, faults: &str) -> (Stream, Vec<Value>, Option<Billed>) {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let said = Asked::for_test(AT, faults, &body).say(&Record::default()).expect("a response");
    let Words::Streamed(stream) = said.words else { panic!("no stream") };
    let named = |event: &Event| (event.name, event.data.clone());
    let all = stream.events.iter().map(named).chain([stream.end.clone()]).enumerate();
    let json = all.map(|(at, (name, data))| {
        let data: Value = serde_json::from_str(&data).expect("JSON");
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(at)));
        data
    });
    let json = json.collect();
    (stream, json, said.billed)
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == name).collect()
}

#[test]
fn requests_are_checked() {
    let call_item = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": ""});
    let output = json!({"type": "function_call_output", "call_id": "c", "output": "4"});
    let message = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    judge(
        AT,
        &call(),
        &[
            (json!({}), ""),
            (json!({"model": "o3-pro", "reasoning": {"effort": "high"}, "store": false}), ""),
            (json!({"model": null}), "Missing required parameter: 'model'."),
            (json!({"model": "lmb-image-1"}), "cannot be used with the Responses API"),
            (json!({"model": "tts-1"}), "cannot be used with the Responses API"),
            (json!({"input": null}), "Missing required parameter: 'input'."),
            (json!({"input": ""}), "empty string"),
            (json!({"input": []}), "empty array"),
            (json!({"input": 4}), "expected an array"),
            (json!({"messages": []}), "moved to 'input'"),
            (json!({"max_tokens": 9}), "moved to 'max_output_tokens'"),
            (json!({"temprature": 1}), "Unknown parameter: 'temprature'."),
            (json!({"max_output_tokens": 15}), "Expected a value >= 16"),
            (json!({"temperature": 2.5}), "Invalid 'temperature'"),
            (json!({"stream": "yes"}), "expected a boolean"),
            (json!({"stream_options": {"include_obfuscation": false}}), "'stream' is enabled"),
            (json!({"stream": true, "stream_options": {"include_usage": true}}), "Unknown param"),
            (json!({"reasoning": {"effort": "huge"}}), "Invalid value: 'huge'"),
            (json!({"text": {"format": {"type": "json_schema"}}}), "'text.format.name'"),
            (json!({"tools": tools()}), ""),
            (json!({"tools": [{"type": "function", "function": {}}]}), "'tools[0].name'"),
            (json!({"tools": [{"type": "web_search"}, server()]}), ""),
            (json!({"tools": [{"type": "mcp"}]}), "'tools[0].server_label'"),
            (json!({"tools": [{"type": "mcp", "server_label": "a"}]}), "'tools[0].server_url'"),
            (json!({"input": [{"type": "mcp_call", "server_label": "a"}]}), "'input[0].name'"),
            (json!({"input": [{"type": "mcp_approval_response"}]}), "approval_request_id'"),
            (json!({"tools": [{"type": "telepathy"}]}), "Invalid value: 'telepathy'"),
            (json!({"tool_choice": {"type": "function", "name": "f"}}), "not found in 'tools'"),
            (json!({"previous_response_id": "resp_1"}), "'resp_1' not found"),
            (json!({"conversation": "conv_1"}), "Conversation with id 'conv_1' not found"),
            (json!({"prompt": {"id": "pmpt_1"}}), "Prompt with id 'pmpt_1' not found"),
            (message(json!({"type": "input_text", "text": "a"})), ""),
            (message(json!({"type": "text", "text": "a"})), "Invalid value: 'text'"),
            (message(json!({"type": "input_file", "file_id": "file-1"})), "'file-1' not found"),
            (json!({"input": [{"role": "tool", "content": "a"}]}), "Invalid value: 'tool'"),
            (json!({"input": [call_item, output]}), ""),
            (json!({"input": [call_item]}), "No tool output found for function call c."),
            (json!({"input": [output]}), "No tool call found"),
            (json!({"input": [{"content": "a"}]}), "'input[0].type'"),
        ],
    );
}

#[test]
fn what_coding_agents_send_is_checked() {
    let operation = json!({"type": "delete_file", "path": "a"});
    let patch = json!({
        "type": "apply_patch_call", "call_id": "c", "status": "completed", "operation": operation,
    });
    let patched =
        |id: &str| json!({"type": "apply_patch_call_output", "call_id": id, "status": "completed"});
    let action = json!({"type": "exec", "command": ["ls"], "env": {}});
    let shell = json!({
        "type": "local_shell_call", "call_id": "c", "status": "completed", "action": action,
    });
    let ran = |id: &str| json!({"type": "local_shell_call_output", "id": id, "output": "4"});
    let function = json!({"type": "function_call_output", "call_id": "c", "output": "4"});
    let trigger = json!({"type": "compaction_trigger"});
    judge(
        AT,
        &call(),
        &[
            (json!({"tools": [space("function"), space("custom")]}), ""),
            (json!({"tools": [space("web_search")]}), "Invalid value: 'web_search'"),
            (json!({"tools": [{"type": "namespace", "name": "n"}]}), "'tools[0].description'"),
            (json!({"tools": [{"type": "tool_search", "execution": "client"}]}), ""),
            (json!({"tools": [{"type": "tool_search", "execution": "x"}]}), "Invalid value: 'x'"),
            (json!({"client_metadata": {"a": "b"}, "include": []}), ""),
            (json!({"client_metadata": "a"}), "'client_metadata': expected an object"),
            (json!({"include": ["reasoning.encrypted_content"]}), ""),
            (json!({"include": ["reasoning.plain_content"]}), "'reasoning.plain_content'"),
            (json!({"include": "reasoning.encrypted_content"}), "'include': expected an array"),
            (json!({"input": [{"type": "reasoning"}]}), "'input[0].id'"),
            (json!({"input": [{"type": "reasoning", "encrypted_content": "a"}]}), ""),
            (json!({"input": [{"type": "compaction"}]}), "'input[0].encrypted_content'"),
            (json!({"input": [{"type": "agent_message"}]}), "'input[0].author'"),
            (json!({"input": [{"type": "additional_tools", "tools": [space("custom")]}]}), ""),
            (json!({"input": [{"type": "tool_search_output"}]}), "'input[0].tools'"),
            (json!({"input": [{"type": "local_shell_call"}]}), "'input[0].call_id'"),
            (json!({"input": [patch]}), ""),
            (json!({"input": [patch, patched("c")]}), ""),
            (json!({"input": [patch, patched("d")]}), "No tool call found for apply patch call"),
            (json!({"input": [shell, ran("c")]}), ""),
            (json!({"input": [shell, ran("d")]}), "No tool call found for local shell call"),
            (json!({"input": [shell, function]}), ""),
            (json!({"input": [ran("c")]}), "No tool call found for local shell call"),
            (json!({"input": [shell, trigger]}), ""),
            (json!({"input": [trigger, shell]}), "must be the final input item"),
        ],
    );
}

#[test]
fn agents_are_asked_to_run_the_tools_that_they_offer() {
    let offered = json!([{"type": "function", "name": "f"}, {"type": "local_shell"},
        {"type": "apply_patch"}]);
    let body = with(&json!({"store": false, "tools": offered}));
    let (whole, billed) = at_once(&body, "shell-calls=2;patch-calls=1");
    let output = whole["output"].as_array().expect("items").clone();
    let kinds: Vec<_> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["local_shell_call", "local_shell_call", "apply_patch_call"]);
    assert_eq!(billed.map(|billed| billed.completion), Some(24));
    let mut ids: Vec<_> = output.iter().map(|item| &item["call_id"]).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each call has an id of its own");
    let (_, events, _) = streamed(&body, "shell-calls=2;patch-calls=1");
    let done = named(&events, "response.output_item.done");
    assert_eq!(done.iter().map(|event| &event["item"]["type"]).collect::<Vec<_>>(), kinds);
    // What nobody offers is not called, and outputs are answered.
    let (plain, _) = at_once(&with(&json!({"tools": tools()})), "shell-calls=1");
    assert_eq!(plain["output"][0]["type"], "function_call");
    let output_of = |item: &Value| match item["type"].as_str() {
        Some("local_shell_call") => {
            json!({"type": "local_shell_call_output", "id": item["call_id"], "output": "4"})
        }
        _ => json!({"type": "apply_patch_call_output", "call_id": item["call_id"],
            "status": "completed", "output": "done"}),
    };
    let outputs: Vec<_> = output.iter().map(output_of).collect();
    let input: Vec<_> = output.iter().chain(&outputs).collect();
    let second = with(&json!({"store": false, "tools": offered, "input": input}));
    let (answer, _) = at_once(&second, "shell-calls=2;patch-calls=1");
    assert_eq!(answer["output"][0]["content"][0]["text"], "The tool said: done");
}

#[test]
fn a_trigger_makes_a_compaction_of_the_conversation() {
    let said = json!({"role": "user", "content": "Hi"});
    let trigger = json!({"type": "compaction_trigger"});
    let body = with(&json!({"input": [said, trigger], "tools": tools(), "store": false}));
    let (whole, billed) = at_once(&body, "completion=40");
    let output = whole["output"].as_array().expect("items");
    assert_eq!((output.len(), &output[0]["type"]), (1, &json!("compaction")));
    assert!(output[0]["encrypted_content"].is_string(), "{whole}");
    assert_eq!(billed.map(|billed| billed.completion), Some(40));
    let (_, events, _) = streamed(&body, "completion=40");
    let names = events.iter().map(|event| event["type"].as_str().expect("a type"));
    let expected = "created in_progress output_item.added compaction.compacting output_item.done \
        completed";
    let expected: Vec<_> = expected.split(' ').map(|name| format!("response.{name}")).collect();
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

#[test]
fn thoughts_are_sealed_where_the_request_wants_that() {
    let thoughtful = json!({"reasoning": {"effort": "low"}});
    let (plain, _) = at_once(&with(&thoughtful), "");
    assert_eq!(plain["output"][0].get("encrypted_content"), None);
    let included = json!({"reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"]});
    let (sealed, _) = at_once(&with(&included), "");
    assert!(sealed["output"][0]["encrypted_content"].is_string(), "{sealed}");
}

/// A namespace with one tool of a kind.
fn space(kind: &str) -> Value {
    let tool = json!({"type": kind, "name": "f"});
    json!({"type": "namespace", "name": "n", "description": "", "tools": [tool]})
}

#[test]
fn a_response_tells_what_it_cost() {
    for (members, faults, reasoning, output) in [
        (json!({}), "", 0, 10),
        (json!({"model": "lmb-5.5-pro"}), "", 64, 74),
        (json!({"reasoning": {"effort": "low"}}), "", 16, 26),
        (json!({}), "reasoning=5;prompt=80;cache-read=7", 5, 15),
        (json!({"tools": tools()}), "tools=2", 0, 16),
    ] {
        let body = with(&members);
        let (reply, billed) = at_once(&body, faults);
        let billed = billed.expect("a bill");
        let usage = &reply["usage"];
        assert_eq!((billed.reasoning, billed.completion), (reasoning, output), "{members}");
        assert_eq!(usage["input_tokens"], billed.prompt);
        assert_eq!(usage["output_tokens"], output);
        assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], reasoning);
        assert_eq!(usage["total_tokens"], billed.prompt + output);
        assert_eq!(reply["status"], "completed");
        let read = if faults.contains("cache-read") { 7 } else { 0 };
        assert_eq!(usage["input_tokens_details"]["cached_tokens"], read);
    }
    for (faults, usage) in [("no-usage", None), ("null-usage", Some(&Value::Null))] {
        assert_eq!(at_once(&call(), faults).0.get("usage"), usage);
    }
}

#[test]
fn a_stream_brings_the_same_as_a_response_at_once() {
    for (members, faults) in [
        (json!({}), ""),
        (json!({"model": "o1-pro", "max_output_tokens": 70}), ""),
        (json!({"tools": tools()}), "tools=3"),
        (json!({"tools": [{"type": "web_search"}, {"type": "image_generation"}]}), "searches=2"),
        (json!({}), "incomplete;chunks=4"),
        (json!({}), "failed"),
        (json!({"background": true}), ""),
        (json!({}), "bad-usage;split-utf8"),
    ] {
        let body = with(&members);
        let (stream, events, billed) = streamed(&body, faults);
        let last = &events.last().expect("an event")["response"];
        let done = named(&events, "response.output_item.done");
        let items: Vec<_> = done.iter().map(|event| event["item"].clone()).collect();
        if faults != "failed" {
            assert_eq!(last["output"], Value::from(items), "{members} {faults}");
            assert_eq!(stream.events.last().map(|event| event.billed), billed);
        }
        if members.get("background").is_none() {
            let (mut whole, billed_at_once) = at_once(&body, faults);
            // The body of the request is longer by the word that asks for events.
            let prompts = [billed_at_once, billed].map(|billed| billed.map_or(0, |b| b.prompt));
            for name in ["input_tokens", "total_tokens"] {
                if let Some(told) = whole["usage"][name].as_u64() {
                    whole["usage"][name] = json!(told + prompts[1] - prompts[0]);
                }
            }
            assert_eq!(*last, whole, "{members} {faults}");
        }
        let mut before = 0;
        for event in &stream.events {
            assert!(event.billed.total >= before, "{members} {faults}");
            before = event.billed.total;
        }
    }
}

#[test]
fn events_come_in_their_order() {
    let (_, events, _) = streamed(&call(), "chunks=2");
    let names: Vec<_> =
        events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    let expected = "created in_progress output_item.added content_part.added output_text.delta \
        output_text.delta output_text.done content_part.done output_item.done completed";
    let expected: Vec<_> = expected.split(' ').map(|name| format!("response.{name}")).collect();
    assert_eq!(names, expected);
    assert_eq!(events[0]["response"]["usage"], Value::Null);
    let deltas = named(&streamed(&call(), "").1, "response.output_text.delta")
        .iter()
        .map(|event| event["delta"].as_str().expect("a text").to_owned())
        .collect::<String>();
    assert_eq!(deltas, TEXT);
    let (_, events, _) = streamed(&with(&json!({"tools": tools()})), "");
    let deltas = named(&events, "response.function_call_arguments.delta");
    let pieces = deltas.iter().map(|event| event["delta"].as_str().expect("a text"));
    let item = &events.last().expect("an event")["response"]["output"][0];
    assert_eq!(item["type"], "function_call");
    assert_eq!(item["arguments"], pieces.collect::<String>());
}

#[test]
fn a_response_ends_in_its_way() {
    for (members, faults, status, reason) in [
        (json!({"max_output_tokens": 16}), "chunks=40", "incomplete", "max_output_tokens"),
        (json!({}), "incomplete", "incomplete", "content_filter"),
    ] {
        let (reply, _) = at_once(&with(&members), faults);
        assert_eq!(reply["status"], status);
        assert_eq!(reply["incomplete_details"]["reason"], reason);
    }
    let (reply, billed) = at_once(&call(), "failed");
    assert_eq!((&reply["status"], &reply["usage"], billed), (&json!("failed"), &Value::Null, None));
    assert_eq!(reply["error"]["code"], "server_error");
    let (reply, billed) = at_once(&with(&json!({"background": true})), "");
    assert_eq!((&reply["status"], &reply["usage"]), (&json!("queued"), &Value::Null));
    assert!(reply["output"].as_array().is_some_and(Vec::is_empty) && billed.is_some());
}

#[test]
fn hosted_tools_are_counted() {
    let members = json!({"tools": [{"type": "web_search_preview"}, {"type": "file_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "image_generation"}]});
    let (reply, billed) = at_once(&with(&members), "searches=3");
    assert_eq!(reply["tool_usage"]["web_search"]["num_requests"], 3);
    assert_eq!(reply["tool_usage"]["image_gen"]["output_tokens"], 1056);
    let billed = billed.expect("a bill");
    assert_eq!((billed.searches, billed.images), (3, 1));
    let kinds = reply["output"].as_array().expect("items").iter().map(|item| &item["type"]);
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(kinds.len(), 7);
    assert_eq!(kinds[3], "file_search_call");
    let (reply, _) = at_once(&with(&json!({"tools": [server()], "tool_choice": "none"})), "");
    assert_eq!(reply["tool_usage"]["web_search"]["num_requests"], 0);
}

#[test]
fn tools_of_a_server_are_listed_and_called_if_nobody_has_to_be_asked() {
    let kinds = |members: Value| {
        let (whole, _) = at_once(&with(&members), "");
        let (_, events, _) = streamed(&with(&members), "");
        let output = &events[events.len() - 1]["response"]["output"];
        assert_eq!(*output, whole["output"]);
        let items = output.as_array().expect("items").iter();
        items.map(|item| item["type"].as_str().expect("a type").to_owned()).collect::<Vec<_>>()
    };
    let mut free = server();
    free["require_approval"] = json!("never");
    let called = ["mcp_list_tools", "mcp_call", "message"];
    assert_eq!(kinds(json!({"tools": [free]})), called);
    let asked = ["mcp_list_tools", "mcp_approval_request", "message"];
    assert_eq!(kinds(json!({"tools": [server()]})), asked);
    let approval =
        json!({"type": "mcp_approval_response", "approval_request_id": "a", "approve": true});
    assert_eq!(kinds(json!({"tools": [server()], "input": [approval]})), called);
}

#[test]
fn a_conversation_is_made_shorter() {
    let at = Target { endpoint: Endpoint::Compact, ..AT };
    let said = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]);
    let compacted = |input: Value| {
        let body = json!({"model": "lmb-5.5", "input": input});
        Asked::for_test(at, "prompt=90;completion=40", &body).reply().expect("an object")
    };
    let (object, billed) = compacted(said.clone());
    assert_eq!(object["object"], "response.compaction");
    let kinds = |object: &Value| {
        let items = object["output"].as_array().expect("items").iter();
        items.map(|item| item["type"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(object["output"][0], said[0]);
    assert_eq!(kinds(&object), [Value::Null, json!("compaction")]);
    let usage = &object["usage"];
    assert_eq!(json!([usage["input_tokens"], usage["output_tokens"]]), json!([90, 40]));
    assert_eq!(billed.map(|billed| (billed.prompt, billed.completion)), Some((90, 40)));
    let (object, _) = compacted(json!("Hi"));
    assert_eq!(kinds(&object), ["message", "compaction"]);
    judge(
        at,
        &call(),
        &[
            (json!({}), ""),
            (json!({"instructions": "Be brief.", "service_tier": "flex"}), ""),
            (json!({"max_output_tokens": 99}), "Unknown parameter: 'max_output_tokens'."),
            (json!({"stream": true}), "Unknown parameter: 'stream'."),
            (json!({"input": null}), "Missing required parameter: 'input'."),
            (json!({"previous_response_id": "resp_1"}), "'resp_1' not found"),
        ],
    );
}

#[test]
fn only_responses_given_out_can_be_gone_on_from() {
    let record = Record::default();
    let said = Asked::for_test(AT, "", &call()).say(&record).expect("a response");
    let Words::Whole(text) = said.words else { panic!("no JSON") };
    let reply: Value = serde_json::from_str(&text).expect("JSON");
    let next = with(&json!({"previous_response_id": reply["id"]}));
    assert!(Asked::for_test(AT, "", &next).say(&record).is_ok());
    let elsewhere = Asked::for_test(AT, "", &next).say(&Record::default()).err();
    assert_eq!(elsewhere.and_then(|refusal| refusal.code), Some("previous_response_not_found"));
    let unkept = Record::default();
    let call = with(&json!({"store": false}));
    assert!(Asked::for_test(AT, "", &call).say(&unkept).is_ok());
    assert!(Asked::for_test(AT, "", &next).say(&unkept).is_err());
}

#[test]
fn a_stream_has_names_and_no_pings() {
    let (stream, events, _) = streamed(&call(), "");
    let joined = delivery::joined(&stream, &Faults::default());
    assert!(joined.starts_with("event: response.created\ndata: {\"type\":\"response.created\","));
    assert!(!joined.contains("ping") && !joined.contains("[DONE]"));
    assert_eq!(joined.matches("\n\n").count(), events.len());
    let unended = Faults::parse("no-done").expect("a known fault");
    assert!(!delivery::joined(&stream, &unended).contains("response.completed"));
    let (name, data) = stream.error(Vendor::B, 1, 3);
    let data: Value = serde_json::from_str(&data).expect("JSON");
    assert_eq!((name, &data["type"]), ("error", &json!("error")));
    assert_eq!((&data["sequence_number"], &data["code"]), (&json!(3), &json!("server_error")));
}
