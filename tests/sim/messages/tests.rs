//! What the vendor accepts, and what it refuses.

use serde_json::json;

use super::*;

const CALL: &str = r#"{"model":"lma-sonnet-4-6","max_tokens":9,"messages":[
    {"role":"user","content":"How much is 2 + 2?"}]}"#;
const LOOP: &str = r#"{"model":"lma-opus-5","max_tokens":99,"tools":[
    {"name":"now","input_schema":{"type":"object"}}],"messages":[
    {"role":"user","content":"When?"},
    {"role":"assistant","content":[
        {"type":"text","text":"I look."},{"type":"tool_use","id":"t_1","name":"now","input":{}},
        {"type":"tool_use","id":"t_2","name":"now","input":{}}]},
    {"role":"user","content":[
        {"type":"tool_result","tool_use_id":"t_1","content":"12:00"},
        {"type":"tool_result","tool_use_id":"t_2"},{"type":"text","text":"And?"}]}]}"#;

fn terms() -> Terms {
    Terms { version: "2023-06-01".to_owned(), beta: false }
}

/// A request with other members; null takes one away. A name may be a pointer such as
/// `/messages/0/role`.
fn changed(request: &str, changes: &Value) -> Value {
    let mut request: Value = serde_json::from_str(request).expect("a request");
    for (name, value) in changes.as_object().expect("members") {
        let pointer = if name.starts_with('/') { name.clone() } else { format!("/{name}") };
        let (parent, last) = pointer.rsplit_once('/').expect("a pointer");
        match request.pointer_mut(parent).expect("a place") {
            Value::Array(items) => items[last.parse::<usize>().expect("an index")] = value.clone(),
            Value::Object(members) if value.is_null() => {
                members.remove(last);
            }
            parent => parent[last] = value.clone(),
        }
    }
    request
}

fn read(request: &Value) -> Result<Call, Refusal> {
    Call::read(request.to_string().as_bytes(), &terms())
}

/// The verdict on a changed request: empty if it is fine.
fn verdict(request: &str, changes: &Value) -> String {
    let refusal = read(&changed(request, changes)).err();
    refusal.and_then(|refusal| refusal.message).unwrap_or_default()
}

/// Every line: what is changed, and a part of what the vendor says to it; nothing if it is fine.
fn judge(request: &str, table: &[(Value, &str)]) {
    for (changes, expected) in table {
        let said = verdict(request, changes);
        let fits = if expected.is_empty() { said.is_empty() } else { said.contains(expected) };
        assert!(fits, "{changes} is answered with {said:?}");
    }
}

#[test]
fn fields_are_checked() {
    judge(
        CALL,
        &[
            (json!({}), ""),
            (json!({"model": null}), "model: Field required"),
            (json!({"max_tokens": null}), "max_tokens: Field required"),
            (json!({"messages": null}), "messages: Field required"),
            (json!({"max_tokens": 0}), ""),
            (json!({"max_tokens": -1}), "max_tokens: Input should be greater"),
            (json!({"max_tokens": 1.5}), "max_tokens: Input should be a valid integer"),
            (json!({"max_tokens": 128_001}), "the maximum allowed number"),
            (json!({"n": 1}), "n: Extra inputs are not permitted"),
            (json!({"fallbacks": []}), "fallbacks: Extra inputs are not permitted"),
            (json!({"stream": "yes"}), "stream: Input should be a valid boolean"),
            (json!({"system": "Be brief."}), ""),
            (json!({"system": [{"type": "text", "text": ""}]}), "system.0.text.text: text content"),
            (json!({"system": [{"type": "image"}]}), "`image` blocks are not permitted here"),
            (json!({"stop_sequences": ["END"]}), ""),
            (json!({"stop_sequences": ["\n"]}), "each stop sequence must contain non-whitespace"),
            (json!({"stop_sequences": "END"}), "stop_sequences: Input should be a valid list"),
            (json!({"metadata": {"user_id": "a"}}), ""),
            (json!({"metadata": {"user": "a"}}), "metadata.user: Extra inputs"),
            (json!({"service_tier": "priority"}), "service_tier: Input should be 'auto'"),
            (json!({"cache_control": {"type": "ephemeral", "ttl": "5m"}}), ""),
            (json!({"cache_control": {"type": "eternal"}}), "cache_control.type: Input should be"),
            (json!({"thinking": {"type": "adaptive", "display": "omitted"}}), ""),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 10}}), "equal to 1024"),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
                "must be greater than",
            ),
            (json!({"output_config": {"format": {"type": "json_schema", "schema": {}}}}), ""),
            (
                json!({"output_config": {"format": {"type": "json_schema"}}}),
                "schema: Field required",
            ),
            (json!({"output_config": {"verbosity": "low"}}), "output_config.verbosity: Extra"),
        ],
    );
    let beta = Terms { beta: true, ..terms() };
    let request = changed(CALL, &json!({"fallbacks": []})).to_string();
    assert!(Call::read(request.as_bytes(), &beta).is_ok());
    let broken = Call::read(b"{", &terms()).err().expect("no JSON");
    assert_eq!(broken.status, 400);
    let unknown = read(&changed(CALL, &json!({"model": "lma-opus-6"}))).err();
    assert_eq!(unknown, Some(Refusal::new(404, "model: lma-opus-6")));
}

#[test]
fn models_differ_in_what_they_take() {
    let newest = ["lma-fable-5", "lma-opus-5", "lma-sonnet-5", "x-opus-4-8", "x-opus-4-7"];
    let older = ["lma-opus-4-6", "lma-sonnet-4-6", "lma-haiku-4-5", "x-sonnet-4-5-20250929"];
    let tools = json!([{"name": "now", "input_schema": {"type": "object"}}]);
    let prefill = json!([{"role": "user", "content": "2 + 2 is"},
        {"role": "assistant", "content": "four"}]);
    for model in newest.into_iter().chain(older) {
        let is_new = newest.contains(&model);
        let oldest = ["haiku-4-5", "sonnet-4-5"].iter().any(|name| model.contains(name));
        let with = |field: &str, value: Value| {
            verdict(CALL, &json!({"model": model, field: value})).is_empty()
        };
        for (field, value) in
            [("temperature", json!(0.5)), ("top_p", json!(1)), ("top_k", json!(5))]
        {
            assert_eq!(with(field, value), !is_new, "{field} of {model}");
        }
        assert!(!with("temperature", json!(1.1)), "{model}");
        let both = json!({"model": model, "temperature": 1, "top_p": 0.5});
        assert_ne!(verdict(CALL, &both), "", "{model}");
        for effort in ["low", "medium", "high", "xhigh", "max"] {
            assert_eq!(with("output_config", json!({"effort": effort})), !oldest, "{model}");
        }
        assert!(!with("output_config", json!({"effort": "minimal"})), "{model}");
        assert_eq!(with("messages", prefill.clone()), oldest, "{model}");
        for (kind, fine) in [("auto", true), ("none", true), ("any", model != "lma-fable-5")] {
            let changes = json!({"model": model, "tools": tools, "tool_choice": {"type": kind}});
            assert_eq!(verdict(CALL, &changes).is_empty(), fine, "{kind} of {model}");
        }
    }
}

#[test]
fn the_assistant_may_begin_and_its_turns_hold_what_the_vendor_did() {
    let compacted = json!({"type": "compaction", "content": "They greeted."});
    let search = json!({"type": "server_tool_use", "id": "s_1", "name": "search", "input": {}});
    let found = json!({"type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "now"}]});
    let found = json!({"type": "tool_search_tool_result", "tool_use_id": "s_1", "content": found});
    let fetch = json!({"type": "server_tool_use", "id": "s_2", "name": "web_fetch", "input": {}});
    let page = json!({"type": "web_fetch_result", "url": "https://sums.example/"});
    let page = json!({"type": "web_fetch_tool_result", "tool_use_id": "s_2", "content": page});
    let hi = json!({"role": "user", "content": "Hi"});
    let turn = |content: Value| json!({"role": "assistant", "content": content});
    judge(
        CALL,
        &[
            (json!({"messages": [turn(json!("Hello.")), hi]}), ""),
            (json!({"messages": [turn(json!("Hello."))]}), "assistant message prefill"),
            (json!({"messages": [hi, turn(json!([compacted, search, found])), hi]}), ""),
            (json!({"messages": [hi, turn(json!([fetch, page])), hi]}), ""),
            (json!({"messages": [hi, turn(json!([{"type": "tool_reference"}])), hi]}), "here"),
        ],
    );
}

#[test]
fn the_newest_models_take_instructions_in_the_midst_of_a_conversation() {
    let said = |role: &str| json!({"role": role, "content": "Hi"});
    let [user, assistant, system] = ["user", "assistant", "system"].map(said);
    let search = json!({"type": "server_tool_use", "id": "s_1", "name": "search", "input": {}});
    let found = json!({"type": "tool_search_tool_result", "tool_use_id": "s_1", "content": {}});
    let searched = json!({"role": "assistant", "content": [search, found]});
    let of = |content: Value| json!({"role": "system", "content": content});
    let talk = |messages: &[&Value]| json!({"model": "lma-opus-5", "messages": messages});
    judge(
        CALL,
        &[
            (talk(&[&user, &system]), ""),
            (talk(&[&user, &system, &assistant, &user]), ""),
            (talk(&[&user, &searched, &system, &assistant, &user]), ""),
            (talk(&[&user, &of(json!([{"type": "text", "text": "Be brief."}]))]), ""),
            (talk(&[&system, &assistant, &user]), "must follow a `user` message"),
            (talk(&[&user, &assistant, &system]), "must follow a `user` message"),
            (talk(&[&user, &system, &system]), "must follow a `user` message"),
            (talk(&[&user, &system, &user]), "must follow a `user` message"),
            (talk(&[&user, &of(json!(""))]), "text content blocks must be non-empty"),
            (talk(&[&user, &of(json!([]))]), "must have content"),
            (talk(&[&user, &of(json!([{"type": "image", "source": {}}]))]), "not permitted here"),
        ],
    );
    for (model, is_taken) in [
        ("lma-fable-5", true),
        ("lma-opus-5", true),
        ("lma-sonnet-5", true),
        ("lma-opus-4-8", true),
        ("lma-opus-4-7", false),
        ("lma-sonnet-4-6", false),
        ("lma-haiku-4-5", false),
    ] {
        let changes = json!({"model": model, "messages": [user, system]});
        let expected = if is_taken { "" } else { "messages: Unexpected role \"system\"" };
        assert!(verdict(CALL, &changes).starts_with(expected), "{model}");
        assert_eq!(verdict(CALL, &changes).is_empty(), is_taken, "{model}");
    }
    // What the tools said stands before the instruction, and is answered.
    let mut told: Value = serde_json::from_str(LOOP).expect("a request");
    told["messages"].as_array_mut().expect("messages").push(system.clone());
    let call = read(&told).unwrap_or_else(|refusal| panic!("{refusal:?}"));
    assert_eq!(call.ask.tool_result.as_deref(), Some("12:00 "));
}

#[test]
fn messages_and_blocks_are_checked() {
    let content = |block: Value| json!({"/messages/0/content": [block]});
    let image = |source: Value| content(json!({"type": "image", "source": source}));
    let file = |source: Value| content(json!({"type": "document", "source": source}));
    let png = |data: &str| json!({"type": "base64", "media_type": "image/png", "data": data});
    judge(
        CALL,
        &[
            (json!({"messages": []}), "at least one message is required"),
            (json!({"/messages/0/role": "system"}), "Unexpected role \"system\""),
            (json!({"/messages/0/role": "tool"}), "messages.0.role: Input should be 'user'"),
            (json!({"/messages/0/name": "Ann"}), "messages.0.name: Extra inputs"),
            (json!({"/messages/0/content": ""}), "messages.0: all messages must have non-empty"),
            (json!({"/messages/0/content": []}), "messages.0: all messages must have non-empty"),
            (json!({"/messages/0/content": " \n"}), "must contain non-whitespace text"),
            (content(json!({"type": "text", "text": ""})), "text content blocks must be non-empty"),
            (content(json!({"type": "text"})), "messages.0.content.0.text.text: Field required"),
            (
                content(json!({"type": "text", "text": "a", "x": 1})),
                "content.0.text.x: Extra inputs",
            ),
            (content(json!({"text": "a"})), "messages.0.content.0.type: Field required"),
            (content(json!({"type": "image_url"})), "Input tag 'image_url' found"),
            (
                content(json!({"type": "tool_use", "id": "a", "name": "b", "input": {}})),
                "not permitted",
            ),
            (
                content(json!({"type": "thinking", "thinking": "", "signature": ""})),
                "not permitted",
            ),
            (image(png("iVBO")), ""),
            (image(png("iVB")), "base64.data: Invalid base64 data"),
            (image(png("")), "base64.data: Invalid base64 data"),
            (
                image(json!({"type": "base64", "media_type": "image/jpg", "data": "iVBO"})),
                "image/jpeg",
            ),
            (image(json!({"type": "url", "url": "https://a.example/b.png"})), ""),
            (image(json!({"type": "url", "url": "data:image/png;base64,iVBO"})), "Only HTTP URLs"),
            (file(json!({"type": "base64", "media_type": "application/pdf", "data": "iVBO"})), ""),
            (file(png("iVBO")), "media_type: Input should be 'application/pdf'"),
            (file(json!({"type": "text", "media_type": "text/plain", "data": "Hi"})), ""),
        ],
    );
    let marked = |life: &str| {
        let mark = json!({"type": "ephemeral", "ttl": life});
        json!({"type": "text", "text": "a", "cache_control": mark})
    };
    let many = |count: usize| json!({"/messages/0/content": vec![marked("5m"); count]});
    let order = |lives: [&str; 2]| json!({"/messages/0/content": lives.map(marked)});
    judge(
        CALL,
        &[
            (many(4), ""),
            (many(5), "A maximum of 4 blocks with cache_control may be provided. Found 5."),
            (order(["1h", "5m"]), ""),
            (order(["5m", "1h"]), "must not come after"),
        ],
    );
}

#[test]
fn prefill_must_not_end_blank() {
    let said = |text: Value| {
        json!({"model": "lma-haiku-4-5", "messages": [{"role": "user", "content": "2 + 2"},
            {"role": "assistant", "content": text}]})
    };
    judge(
        CALL,
        &[
            (said(json!("four")), ""),
            (said(json!("")), ""),
            (said(json!("four ")), "cannot end with trailing whitespace"),
            (
                said(json!([{"type": "text", "text": "four\n"}])),
                "cannot end with trailing whitespace",
            ),
        ],
    );
}

#[test]
fn tools_are_checked() {
    let tool = |tool: Value| json!({"tools": [tool]});
    let schema = json!({"type": "object"});
    let two = |name: &str| {
        let tools = ["now", name].map(|name| json!({"name": name, "input_schema": schema}));
        json!({"tools": tools})
    };
    let choose = |choice: Value| {
        let now = json!({"name": "now", "input_schema": schema});
        json!({"tools": [now], "tool_choice": choice})
    };
    judge(
        CALL,
        &[
            (json!({"tools": []}), ""),
            (tool(json!({"input_schema": schema})), "tools.0.custom.name: Field required"),
            (tool(json!({"name": "a.b", "input_schema": schema})), "match pattern"),
            (tool(json!({"name": "a".repeat(128), "input_schema": schema})), ""),
            (tool(json!({"name": "a".repeat(129), "input_schema": schema})), "match pattern"),
            (tool(json!({"name": "now"})), "tools.0.custom.input_schema: Field required"),
            (tool(json!({"name": "now", "input_schema": {}})), "input_schema.type: Field required"),
            (tool(json!({"name": "now", "input_schema": {"type": "string"}})), "be 'object'"),
            (tool(json!({"name": "now", "input_schema": schema, "function": 1})), "Extra inputs"),
            (tool(json!({"type": "function", "name": "now"})), "Input tag 'function'"),
            (tool(json!({"type": "bash_20250124", "name": "bash"})), ""),
            (two("then"), ""),
            (two("now"), "Tool names must be unique"),
            (json!({"tool_choice": {"type": "auto"}}), "while providing tools"),
            (choose(json!("auto")), "Field required"),
            (choose(json!({"type": "auto", "disable_parallel_tool_use": true})), ""),
            (choose(json!({"type": "none", "disable_parallel_tool_use": true})), "Extra inputs"),
            (choose(json!({"type": "required"})), "tool_choice.type: Input should be"),
            (choose(json!({"type": "tool", "name": "now"})), ""),
            (choose(json!({"type": "tool"})), "tool_choice.tool.name: Field required"),
            (choose(json!({"type": "tool", "name": "then"})), "Tool 'then' not found"),
        ],
    );
}

#[test]
fn calls_and_results_belong_together() {
    let text = json!({"type": "text", "text": "And?"});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "12:00"});
    let user = |blocks: &[Value]| json!({"/messages/2/content": blocks});
    judge(
        LOOP,
        &[
            (json!({}), ""),
            (json!({"tools": null}), "must define tools"),
            (
                user(std::slice::from_ref(&text)),
                "were found without `tool_result` blocks immediately after: t_1",
            ),
            (user(&[result("t_1")]), "immediately after: t_2"),
            (user(&[result("t_2"), result("t_1")]), ""),
            (user(&[result("t_1"), text.clone(), result("t_2")]), "immediately after: t_2"),
            (user(&[result("t_1"), result("t_2"), result("t_2")]), "must have a single result"),
            (
                user(&[result("t_1"), result("t_2"), result("t_3")]),
                "unexpected `tool_use_id` found",
            ),
            (json!({"/messages/0/content": [result("t_1")]}), "unexpected `tool_use_id` found"),
            (json!({"/messages/1/content/2/id": "t_1"}), "ids must be unique"),
            (json!({"/messages/1/content/2/id": "t.2"}), "pattern '^[a-zA-Z0-9_-]+$'"),
            (json!({"/messages/1/content/2/input": "{}"}), "input: Input should be a valid dict"),
            (json!({"/messages/2/content/1/content": [{"type": "text", "text": ""}]}), "non-empty"),
        ],
    );
    // Two messages of one role are one turn.
    let mut apart: Value = serde_json::from_str(LOOP).expect("a request");
    let second = apart["messages"][2]["content"].as_array_mut().expect("blocks").remove(1);
    let place = apart["messages"].as_array_mut().expect("messages");
    place.insert(2, json!({"role": "user", "content": [second]}));
    assert!(read(&apart).is_ok());
}

#[test]
fn a_thought_comes_back_as_it_was_or_not_at_all() {
    let thought = "Two and two.";
    let block = |thinking: &str, signature: &str| {
        let kind = "thinking";
        json!({"type": kind, "thinking": thinking, "signature": signature})
    };
    let said = |blocks: &[Value]| json!({"/messages/1/content": blocks});
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "now", "input": {}});
    let signed = turn::signature(thought);
    let calls = [call("t_1"), call("t_2")];
    let with = |first: Value| said(&[&[first][..], &calls].concat());
    let redacted = |data: &str| with(json!({"type": "redacted_thinking", "data": data}));
    judge(
        LOOP,
        &[
            (with(block(thought, &signed)), ""),
            (with(block("", &turn::signature(""))), ""),
            (with(block("Two and three.", &signed)), "Invalid `signature` in `thinking` block"),
            (with(block(thought, "")), "messages.1.content.0: Invalid `signature`"),
            (redacted(turn::REDACTED), ""),
            (redacted("b3RoZXI="), "Invalid `data`"),
        ],
    );
    // A loop of two turns, of which the vendor knows by their ids that it thought about them.
    let results = |id: &str| {
        json!({"role": "user",
        "content": [{"type": "tool_result", "tool_use_id": id}]})
    };
    let loops = |first: bool, second: bool| {
        let turn = |with: bool, id: &str| {
            let mut blocks = vec![call(id)];
            if with {
                blocks.insert(0, block(thought, &signed));
            }
            json!({"role": "assistant", "content": blocks})
        };
        let (one, two) = ("toolu_thought1_0", "toolu_thought2_0");
        json!({"messages": [{"role": "user", "content": "When?"}, turn(first, one), results(one),
            turn(second, two), results(two)]})
    };
    judge(
        LOOP,
        &[
            (loops(true, true), ""),
            (loops(false, false), ""),
            (loops(true, false), "messages.3: `thinking` blocks were removed"),
            (loops(false, true), "messages.1: `thinking` blocks were removed"),
        ],
    );
    let enabled = json!({"thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 2000});
    assert!(verdict(LOOP, &enabled).contains("Expected `thinking`"));
}

#[test]
fn headers_are_checked() {
    let read = |headers: &[(&str, &str)]| {
        let owned = headers.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Terms::of(&owned.collect::<Vec<(String, String)>>())
    };
    let version = ("vendor_a-version", "2023-06-01");
    let key = ("x-api-key", "vk-1");
    let fine: [&[_]; 3] = [
        &[key, version],
        &[("Authorization", "Bearer vk-1"), ("Brand-Version", "2023-06-01")],
        &[key, version, ("x-stainless-package-version", "1.2"), ("brand-beta", "")],
    ];
    for headers in fine {
        assert_eq!(read(headers), Ok(terms()), "{headers:?}");
    }
    let status = |headers: &[_]| read(headers).err().map(|refusal| refusal.status);
    let wrong: [(&[_], u16); 8] = [
        (&[version], 401),
        (&[version, ("x-api-key", "sk-1")], 401),
        (&[version, ("x-api-key", "")], 401),
        (&[version, key, ("authorization", "Bearer sk-1")], 401),
        (&[version, ("authorization", "vk-1")], 401),
        (&[key], 400),
        (&[key, ("x-other-version", "2023-06-01")], 400),
        (&[key, ("vendor_a-version", "latest")], 400),
    ];
    for (headers, expected) in wrong {
        assert_eq!(status(headers), Some(expected), "{headers:?}");
    }
    let terms = read(&[key, ("a-version", "2026-10-21"), ("a-beta", "b")]).expect("terms");
    assert!(terms.beta);
    for field in ["temperature", "top_p", "top_k"] {
        let request = changed(CALL, &json!({field: 1})).to_string();
        let said = Call::read(request.as_bytes(), &terms).err();
        let expected = format!("{field}: Extra inputs are not permitted");
        assert_eq!(said, Some(Refusal::new(400, expected)));
    }
}
