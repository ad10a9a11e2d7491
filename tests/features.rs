//! The specification's table of features by route, a test for each of its cells: what reached the
//! vendor, and what came back.

use serde_json::{Value, json};

use crate::sim::Seen;
use crate::world::{Answer, Store, World, chat_of, messages_of, with};

const TEXT: &str = "The answer is four and everybody in the room agrees.";
const FIVE: [&str; 5] =
    ["lma-fable-5", "lma-opus-5", "lma-sonnet-5", "lma-opus-4-8", "lma-opus-4-7"];
const FOUR: [&str; 4] = ["lma-haiku-4-5", "lma-opus-4-6", "lma-sonnet-4-6", "lma-sonnet-4-5"];
/// A picture of one pixel.
const PIXEL: &str = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";

async fn world() -> World {
    World::start(Store::Sqlite).run().await
}

/// The bodies that reached the vendor since the last look.
fn sent(world: &World) -> Vec<Value> {
    world.sim.take_seen().iter().map(Seen::json).collect()
}

fn schema() -> Value {
    json!({ "type": "object", "properties": { "city": { "type": "string" } } })
}

fn chat_tools() -> Value {
    let function = json!({ "name": "weather", "description": "tells", "parameters": schema() });
    json!([{ "type": "function", "function": function }])
}

fn native_tools() -> Value {
    json!([{ "name": "weather", "description": "tells", "input_schema": schema() }])
}

/// The vendor must get the body as it was sent, and the client the vendor's reply.
async fn passes(world: &World, body: &Value) -> Answer {
    let text = body.to_string().replacen(':', " : ", 1);
    let answer = world.post_messages(text.clone()).await;
    let seen = world.sim.take_seen();
    assert_eq!((seen.len(), &seen[0].body[..]), (1, text.as_bytes()));
    assert_eq!(seen[0].path, "/vendor_a/v1/messages");
    let marks = ["x-gateway-thinking", "x-gateway-dropped-params"].map(|name| answer.header(name));
    assert_eq!(marks, [None, None], "nothing was changed");
    answer
}

#[tokio::test]
async fn streaming_works_through_chat() {
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &["chunk-delay=30;chunks=4"]);
    let world = builder.run().await;
    let mut stream = world.open_stream(chat_of("lma-opus-5")).await;
    stream.take(2).await;
    let seen = world.sim.seen().remove(0);
    assert!(!seen.completed, "the vendor has more to say");
    assert_eq!(seen.json()["stream"], true);
    let streamed = stream.rest().await;
    assert!(streamed.is_done(), "{streamed:?}");
    assert_eq!(streamed.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(streamed.text(), "The answer is four");
}

#[tokio::test]
async fn streaming_works_through_messages() {
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &["chunk-delay=30;chunks=4"]);
    let world = builder.run().await;
    let mut stream = world.open_messages(messages_of("lma-opus-5")).await;
    stream.take(2).await;
    let seen = world.sim.seen().remove(0);
    assert!(!seen.completed, "the vendor has more to say");
    assert_eq!(seen.json()["stream"], true);
    let streamed = stream.rest().await;
    assert!(streamed.is_stopped(), "{streamed:?}");
    assert_eq!(streamed.message_text(), "The answer is four");
}

#[tokio::test]
async fn tool_calls_work_through_chat() {
    let world = world().await;
    let mut call = with(chat_of("lma-sonnet-4-6"), &json!({ "tools": chat_tools() }));
    let answer = world.chat(call.clone()).await;
    let choice = &answer.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer:?}");
    let asked = &choice["message"]["tool_calls"][0];
    assert_eq!(
        (&asked["type"], &asked["function"]["name"]),
        (&json!("function"), &json!("weather"))
    );
    assert_eq!(asked["function"]["arguments"], r#"{"city":"Rome"}"#);
    assert_eq!(sent(&world)[0]["tools"], native_tools());
    let result = json!({ "role": "tool", "tool_call_id": asked["id"], "content": "21 degrees" });
    let messages = call["messages"].as_array_mut().expect("messages");
    messages.extend([choice["message"].clone(), result]);
    assert_eq!(world.chat(call).await.text(), "The tool said: 21 degrees");
    let input = json!({ "city": "Rome" });
    let using = json!({ "type": "tool_use", "id": asked["id"], "name": "weather", "input": input });
    let result =
        json!({ "type": "tool_result", "tool_use_id": asked["id"], "content": "21 degrees" });
    let turns = &sent(&world)[0]["messages"];
    assert_eq!(turns[1]["content"].as_array().and_then(|blocks| blocks.last()), Some(&using));
    assert_eq!(turns[2], json!({ "role": "user", "content": [result] }));
}

#[tokio::test]
async fn tool_calls_work_through_messages() {
    let world = world().await;
    let mut call = with(messages_of("lma-sonnet-4-6"), &json!({ "tools": native_tools() }));
    let reply = passes(&world, &call).await.json();
    assert_eq!(reply["stop_reason"], "tool_use", "{reply}");
    let blocks = reply["content"].as_array().expect("blocks");
    let using = blocks.iter().find(|b| b["type"] == "tool_use").expect("a use of a tool");
    assert_eq!((&using["name"], &using["input"]), (&json!("weather"), &json!({ "city": "Rome" })));
    let result =
        json!({ "type": "tool_result", "tool_use_id": using["id"], "content": "21 degrees" });
    let messages = call["messages"].as_array_mut().expect("messages");
    messages.push(json!({ "role": "assistant", "content": blocks }));
    messages.push(json!({ "role": "user", "content": [result] }));
    assert_eq!(passes(&world, &call).await.message_text(), "The tool said: 21 degrees");
}

#[tokio::test]
async fn image_input_works_through_chat() {
    let world = world().await;
    let image = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
    let inline = image(&format!("data:image/gif;base64,{PIXEL}"));
    let addresses = [image("https://pictures.example/a.jpg"), image("http://pictures.example/b")];
    let text = json!({ "type": "text", "text": "Compare" });
    let content = json!([text, inline, addresses[0], addresses[1]]);
    let messages = json!([{ "role": "user", "content": content }]);
    let answer = world.chat(with(chat_of("lma-opus-5"), &json!({ "messages": messages }))).await;
    assert_eq!(answer.text(), TEXT);
    let inline = json!({ "type": "base64", "media_type": "image/gif", "data": PIXEL });
    let block = |source: Value| json!({ "type": "image", "source": source });
    let content = json!([
        text,
        block(inline),
        block(json!({ "type": "url", "url": "https://pictures.example/a.jpg" })),
        block(json!({ "type": "url", "url": "http://pictures.example/b" })),
    ]);
    assert_eq!(sent(&world)[0]["messages"], json!([{ "role": "user", "content": content }]));
}

#[tokio::test]
async fn image_input_works_through_messages() {
    let world = world().await;
    let inline = json!({ "type": "base64", "media_type": "image/gif", "data": PIXEL });
    let url = json!({ "type": "url", "url": "https://pictures.example/a.jpg" });
    let content = json!([
        { "type": "image", "source": inline },
        { "type": "image", "source": url },
        { "type": "text", "text": "Compare" },
    ]);
    let messages = json!([{ "role": "user", "content": content }]);
    let call = with(messages_of("lma-opus-5"), &json!({ "messages": messages }));
    assert_eq!(passes(&world, &call).await.message_text(), TEXT);
}

#[tokio::test]
async fn thinking_effort_works_mapped_through_chat() {
    let world = world().await;
    for model in FIVE.iter().chain(&FOUR) {
        let listed = world.get(&format!("/v1/models/{model}")).await.json();
        let takes = listed["supports_effort"].as_bool().expect("yes or no");
        assert_eq!(takes, !["lma-haiku-4-5", "lma-sonnet-4-5"].contains(model), "{model}");
        for effort in ["low", "medium", "high"] {
            let call = with(chat_of(model), &json!({ "reasoning_effort": effort }));
            let answer = world.chat(call).await;
            assert_eq!(answer.text(), TEXT);
            let body = sent(&world).remove(0);
            let expected = takes.then(|| json!({ "effort": effort }));
            assert_eq!(body.get("output_config"), expected.as_ref(), "{model}");
            assert_eq!(body.get("reasoning_effort"), None);
            let dropped = (!takes).then_some("reasoning_effort");
            assert_eq!(answer.header("x-gateway-dropped-params"), dropped, "{model}");
        }
    }
}

#[tokio::test]
async fn thinking_effort_has_its_native_shape_through_messages() {
    let world = world().await;
    for effort in ["low", "medium", "high", "xhigh", "max"] {
        let members = json!({ "output_config": { "effort": effort } });
        let answer = passes(&world, &with(messages_of("lma-opus-5"), &members)).await;
        assert_eq!(answer.message_text(), TEXT);
    }
    let thinking = json!({ "thinking": { "type": "disabled" } });
    let answer = passes(&world, &with(messages_of("lma-sonnet-4-6"), &thinking)).await;
    assert_eq!(answer.message_text(), TEXT);
}

#[tokio::test]
async fn prompt_caching_works_through_chat() {
    let world = world().await;
    let mark = json!({ "type": "ephemeral" });
    let longer = json!({ "type": "ephemeral", "ttl": "5m" });
    let text =
        |text: &str, mark: &Value| json!({ "type": "text", "text": text, "cache_control": mark });
    let messages = json!([
        { "role": "system", "content": [text("Be brief.", &longer)] },
        { "role": "user", "content": [text("How much is 2 + 2?", &mark)] },
    ]);
    let mut tools = chat_tools();
    tools[0]["cache_control"] = longer.clone();
    let members = json!({ "messages": messages, "tools": tools, "tool_choice": "none" });
    assert_eq!(world.chat(with(chat_of("lma-opus-5"), &members)).await.text(), TEXT);
    let body = sent(&world).remove(0);
    assert_eq!(body["system"], json!([text("Be brief.", &longer)]));
    assert_eq!(body["messages"][0]["content"], json!([text("How much is 2 + 2?", &mark)]));
    assert_eq!(body["tools"][0]["cache_control"], longer);
}

#[tokio::test]
async fn prompt_caching_is_passed_through_messages() {
    let world = world().await;
    let mark = json!({ "type": "ephemeral", "ttl": "5m" });
    let members = json!({
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": mark }],
        "cache_control": { "type": "ephemeral" },
    });
    let answer = passes(&world, &with(messages_of("lma-opus-5"), &members)).await;
    let usage = &answer.json()["usage"];
    assert!(usage["cache_creation_input_tokens"].is_u64(), "{answer:?}");
    assert!(usage["cache_read_input_tokens"].is_u64(), "{answer:?}");
}

#[tokio::test]
async fn temperature_is_dropped_for_the_five_listed_models_through_chat() {
    let world = world().await;
    for model in FIVE {
        let members = json!({ "temperature": 0.5, "top_p": 0.9 });
        let answer = world.chat(with(chat_of(model), &members)).await;
        assert_eq!(answer.text(), TEXT);
        assert_eq!(answer.header("x-gateway-dropped-params"), Some("temperature,top_p"));
        let body = sent(&world).remove(0);
        assert_eq!((body.get("temperature"), body.get("top_p")), (None, None), "{model}");
    }
    for model in FOUR {
        for (given, arrived) in [(json!(0.5), json!(0.5)), (json!(1.7), json!(1))] {
            let call = with(chat_of(model), &json!({ "temperature": given }));
            let answer = world.chat(call).await;
            assert_eq!(answer.text(), TEXT);
            assert_eq!(answer.header("x-gateway-dropped-params"), None);
            assert_eq!(sent(&world)[0]["temperature"], arrived, "{model}");
        }
    }
}

#[tokio::test]
async fn temperature_is_passed_through_messages_and_may_give_400() {
    let world = world().await;
    for model in FIVE {
        let call = with(messages_of(model), &json!({ "temperature": 0.5 }));
        let refused = passes(&world, &call).await;
        assert_eq!(refused.messages_refusal(), (400, "invalid_request_error".to_owned()));
        assert!(refused.message().contains("temperature"), "{refused:?}");
    }
    for model in FOUR {
        let call = with(messages_of(model), &json!({ "temperature": 0.5 }));
        assert_eq!(passes(&world, &call).await.message_text(), TEXT);
    }
}

#[tokio::test]
async fn a_forced_tool_call_is_lowered_to_auto_on_the_fable_model_through_chat() {
    let world = world().await;
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for (choice, arrived) in [
        (json!("required"), json!({ "type": "any" })),
        (named, json!({ "type": "tool", "name": "weather" })),
    ] {
        let members = json!({ "tools": chat_tools(), "tool_choice": choice });
        for model in FIVE.iter().chain(&FOUR) {
            assert_eq!(world.chat(with(chat_of(model), &members)).await.status, 200, "{model}");
            let lowered = json!({ "type": "auto" });
            let expected = if *model == "lma-fable-5" { &lowered } else { &arrived };
            assert_eq!(sent(&world)[0]["tool_choice"], *expected, "{model}");
        }
    }
}

#[tokio::test]
async fn a_forced_tool_call_is_passed_through_messages() {
    let world = world().await;
    for model in FIVE.iter().chain(&FOUR) {
        for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "weather" })] {
            let members = json!({ "tools": native_tools(), "tool_choice": choice });
            let answer = passes(&world, &with(messages_of(model), &members)).await;
            let expected = if *model == "lma-fable-5" { 400 } else { 200 };
            assert_eq!(answer.status, expected, "{model}: {answer:?}");
        }
    }
}
