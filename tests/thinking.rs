//! Thoughts that a chat client cannot carry: kept for the loop of tool calls they belong to.
//!
//! The simulated vendor signs each thought and refuses one that is not the very same.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Answer, Opened, Process, Store, World, chat_of, with};

const THINKER: &str = "lma-opus-5";
const RESTORED: Option<&str> = Some("restored");
const DROPPED: Option<&str> = Some("dropped");

/// A conversation with tools, as a client of the chat format keeps it.
#[derive(Clone)]
struct Talk {
    call: Value,
    /// What the header said about the thoughts in the last turn.
    told: Option<String>,
}

impl Talk {
    fn with(model: &str) -> Talk {
        let city = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
        let tool = |name| {
            let function = json!({ "name": name, "parameters": city });
            json!({ "type": "function", "function": function })
        };
        let tools = json!([tool("weather"), tool("time")]);
        Talk { call: with(chat_of(model), &json!({ "tools": tools })), told: None }
    }

    /// Sends all that was said so far, and adds the reply and a result for each call in it.
    async fn turn(&mut self, world: &World, stream: bool) {
        self.turn_at(world, &world.gateway, stream).await;
    }

    /// The same at another gateway.
    async fn turn_at(&mut self, world: &World, gateway: &Process, stream: bool) {
        let call = with(self.call.clone(), &json!({ "stream": stream }));
        let request = world.url_of(gateway, "/v1/chat/completions").body(call.to_string());
        let (status, header, message) = if stream {
            let streamed = Opened::open(request).await.rest().await;
            assert!(streamed.is_done(), "{streamed:?}");
            let header = streamed.header("x-gateway-thinking").map(str::to_owned);
            (streamed.status, header, streamed.message())
        } else {
            let answer = Answer::read(request).await;
            let header = answer.header("x-gateway-thinking").map(str::to_owned);
            assert_eq!(answer.status, 200, "{answer:?}");
            (answer.status, header, answer.json()["choices"][0]["message"].clone())
        };
        assert_eq!(status, 200);
        self.told = header;
        let result =
            |call: &Value| json!({ "role": "tool", "tool_call_id": call["id"], "content": "21" });
        let results: Vec<_> =
            message["tool_calls"].as_array().into_iter().flatten().map(result).collect();
        let messages = self.call["messages"].as_array_mut().expect("messages");
        messages.push(message);
        messages.extend(results);
    }

    /// The last message of the assistant.
    fn last_words(&mut self) -> &mut Value {
        let messages = self.call["messages"].as_array_mut().expect("messages");
        let last = messages.iter_mut().rev().find(|m| m["role"] == "assistant");
        last.expect("the assistant has spoken")
    }

    fn told(&self) -> Option<&str> {
        self.told.as_deref()
    }
}

/// The blocks of each assistant turn in the last call that reached the vendor.
fn assistant_turns(world: &World) -> Vec<Value> {
    let body = world.sim.seen().pop().expect("a call").json();
    let turns = body["messages"].as_array().expect("messages").clone();
    turns.into_iter().filter(|t| t["role"] == "assistant").map(|t| t["content"].clone()).collect()
}

fn thoughts(turn: &Value) -> Vec<&Value> {
    let blocks = turn.as_array().expect("blocks").iter();
    blocks.filter(|b| ["thinking", "redacted_thinking"].iter().any(|t| b["type"] == *t)).collect()
}

async fn world_of(store: Store, faults: &str) -> World {
    World::start(store).vendor("vendor_a", &[faults]).run().await
}

#[rstest]
#[case::one("")]
#[case::parallel_calls("tools=3")]
#[case::with_text_before_them("text-too")]
#[case::redacted("redacted")]
#[case::signed_only("omitted")]
#[case::both("redacted;text-too;tools=2")]
#[tokio::test]
async fn thoughts_are_put_back_before_the_results_of_tools(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] faults: &str,
) {
    let world = world_of(store, faults).await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, stream).await;
    assert_eq!(talk.told(), None, "there was nothing to put back");
    talk.turn(&world, stream).await;
    assert_eq!(talk.told(), RESTORED);
    let turns = assistant_turns(&world);
    assert_eq!(turns.len(), 1);
    let kinds: Vec<_> = turns[0].as_array().expect("blocks").iter().map(|b| &b["type"]).collect();
    assert!(["thinking", "redacted_thinking"].iter().any(|kind| kinds[0] == kind), "{kinds:?}");
    assert_eq!(*kinds[kinds.len() - 1], "tool_use");
    assert!(
        thoughts(&turns[0]).iter().all(|b| b["signature"].is_string() || b["data"].is_string())
    );
}

#[rstest]
#[tokio::test]
async fn every_step_of_a_loop_gets_its_thoughts_back(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = world_of(store, "tools=2").await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, stream).await;
    let mut first = Value::Null;
    for steps in 1..=3 {
        talk.turn(&world, stream).await;
        assert_eq!(talk.told(), RESTORED, "step {steps}");
        let turns = assistant_turns(&world);
        assert_eq!(turns.len(), steps);
        assert!(turns.iter().all(|turn| thoughts(turn).len() == 1), "{turns:?}");
        if steps == 1 {
            first = turns[0].clone();
        }
        assert_eq!(turns[0], first, "the same bytes each time");
    }
}

#[tokio::test]
async fn a_new_question_ends_the_loop() {
    let world = world_of(Store::Sqlite, "").await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, false).await;
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), RESTORED);
    let question = json!({ "role": "user", "content": "And tomorrow?" });
    talk.call["messages"].as_array_mut().expect("messages").push(question);
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), None, "the last turn has no results");
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), RESTORED);
    let turns = assistant_turns(&world);
    let counts: Vec<_> = turns.iter().map(|turn| thoughts(turn).len()).collect();
    assert_eq!(counts, [0, 0, 1], "only what belongs to the loop");
}

fn other_text(talk: &mut Talk) {
    talk.last_words()["content"] = "What I never said.".into();
}

fn other_arguments(talk: &mut Talk) {
    let call = &mut talk.last_words()["tool_calls"][0];
    call["function"]["arguments"] = r#"{"city":"Oslo"}"#.into();
}

fn other_tool(talk: &mut Talk) {
    talk.last_words()["tool_calls"][0]["function"]["name"] = "time".into();
}

fn one_call_less(talk: &mut Talk) {
    let calls = talk.last_words()["tool_calls"].as_array_mut().expect("calls");
    calls.pop();
    talk.call["messages"].as_array_mut().expect("messages").pop();
}

fn other_id(talk: &mut Talk) {
    talk.last_words()["tool_calls"][0]["id"] = "toolu_mine".into();
    let messages = talk.call["messages"].as_array_mut().expect("messages");
    let at = messages.len() - 2;
    messages[at]["tool_call_id"] = "toolu_mine".into();
}

fn other_model(talk: &mut Talk) {
    talk.call["model"] = "lma-fable-5".into();
}

#[rstest]
#[case::text(other_text)]
#[case::arguments(other_arguments)]
#[case::tool(other_tool)]
#[case::one_call_less(one_call_less)]
#[case::id(other_id)]
#[case::model(other_model)]
#[tokio::test]
async fn thoughts_are_dropped_where_they_no_longer_belong(#[case] edit: fn(&mut Talk)) {
    let world = world_of(Store::Sqlite, "text-too;tools=2").await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, false).await;
    edit(&mut talk);
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), DROPPED);
    let turns = assistant_turns(&world);
    assert!(turns.iter().all(|turn| thoughts(turn).is_empty()), "{turns:?}");
}

#[tokio::test]
async fn of_two_steps_none_gets_its_thoughts_back_when_one_cannot() {
    let world = world_of(Store::Sqlite, "text-too;tools=2").await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, false).await;
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), RESTORED);
    other_text(&mut talk);
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), DROPPED);
    let turns = assistant_turns(&world);
    assert_eq!(turns.len(), 2);
    assert!(turns.iter().all(|turn| thoughts(turn).is_empty()), "{turns:?}");
}

#[rstest]
#[tokio::test]
async fn thoughts_of_one_account_are_not_given_to_another(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = world_of(store, "").await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, false).await;
    let mut stolen = talk.clone();
    world.command(&["account", "create", "other", "--credit", "1"]).await.done();
    let theirs = world.command(&["key", "issue", "other"]).await.done().trim().to_owned();
    let ours = std::mem::replace(&mut world.key, theirs);
    stolen.turn(&world, false).await;
    assert_eq!(stolen.told(), DROPPED);
    world.key = ours;
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), RESTORED);
}

#[rstest]
#[tokio::test]
async fn a_fleet_shares_its_thoughts(#[values(false, true)] stream: bool) {
    let world = world_of(Store::Redis, "tools=1").await;
    let second = world.second_gateway().await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, stream).await;
    for gateway in [&second, &world.gateway, &second] {
        talk.turn_at(&world, gateway, stream).await;
        assert_eq!(talk.told(), RESTORED);
    }
}

#[rstest]
#[case("lma-fable-5", true)]
#[case("lma-opus-5", true)]
#[case("lma-sonnet-5", true)]
#[case("lma-haiku-4-5", false)]
#[case("lma-opus-4-8", false)]
#[case("lma-sonnet-4-6", false)]
#[tokio::test]
async fn only_of_models_that_think_unasked_thoughts_are_kept(
    #[case] model: &str,
    #[case] thinks: bool,
) {
    let world = world_of(Store::Sqlite, "").await;
    let mut talk = Talk::with(model);
    talk.turn(&world, false).await;
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), thinks.then_some("restored"));
    assert!(world.chat(chat_of(model)).await.header("x-gateway-thinking").is_none());
}

#[rstest]
#[tokio::test]
async fn of_an_answer_too_large_to_keep_the_thoughts_are_dropped(
    #[values(false, true)] stream: bool,
) {
    let world = world_of(Store::Sqlite, "text-too;reply-bytes=270000;chunks=30").await;
    let mut talk = Talk::with(THINKER);
    talk.call["max_tokens"] = 100_000.into();
    talk.turn(&world, stream).await;
    talk.turn(&world, stream).await;
    assert_eq!(talk.told(), DROPPED);
}

#[rstest]
#[tokio::test]
async fn many_steps_in_haste_lose_no_thought(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = world_of(store, "tools=1").await;
    let talks = (0..8).map(|_| async {
        let mut talk = Talk::with(THINKER);
        talk.turn(&world, stream).await;
        for step in 1..=6 {
            talk.turn(&world, stream).await;
            assert_eq!(talk.told(), RESTORED, "step {step}");
        }
    });
    futures_util::future::join_all(talks).await;
}

#[tokio::test]
async fn results_of_calls_that_were_never_made_are_no_loop_of_ours() {
    let world = world_of(Store::Sqlite, "").await;
    let mut talk = Talk::with(THINKER);
    let function = json!({ "name": "weather", "arguments": "{}" });
    let calls = json!([{ "id": "call_1", "type": "function", "function": function }]);
    let messages = talk.call["messages"].as_array_mut().expect("messages");
    messages.push(json!({ "role": "assistant", "tool_calls": calls }));
    messages.push(json!({ "role": "tool", "tool_call_id": "call_1", "content": "21" }));
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), DROPPED);
}

#[rstest]
#[tokio::test]
async fn thoughts_outlive_the_gateway(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let mut world = world_of(store, "tools=1").await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, false).await;
    talk.turn(&world, true).await;
    world.settled(2).await;
    world.kill_and_start_again().await;
    talk.turn(&world, false).await;
    assert_eq!(talk.told(), RESTORED);
}

/// Forgets all thoughts in the first database; tells how long they would have lived, in ms.
const FORGET: &str = "redis.call('SELECT', 1) local life = -1 \
    for _, key in ipairs(redis.call('KEYS', '*:note:thinking:*')) do \
    life = redis.call('PTTL', key) redis.call('DEL', key) end return life";

#[rstest]
#[tokio::test]
async fn thoughts_are_kept_for_an_hour_and_when_they_are_lost_the_call_goes_on(
    #[values(false, true)] stream: bool,
) {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, stream).await;
    world.settled(1).await;
    let life = match world.redis().command(&["EVAL", FORGET, "0"]) {
        redis::Value::Int(life) => life,
        other => panic!("{other:?}"),
    };
    assert!((3_590_000..=3_600_000).contains(&life), "{life} ms");
    talk.turn(&world, stream).await;
    assert_eq!(talk.told(), DROPPED);
}

#[rstest]
#[case::enough("0.05", RESTORED)]
#[case::only_the_least("0.013", DROPPED)]
#[tokio::test]
async fn thoughts_that_the_balance_does_not_cover_do_not_come_back(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] credit: &str,
    #[case] told: Option<&str>,
) {
    let world = World::start(store).credit(credit).run().await;
    let mut talk = Talk::with(THINKER);
    talk.turn(&world, false).await;
    world.settled(1).await;
    talk.turn(&world, false).await;
    assert_eq!(talk.told.as_deref(), told);
    world.settled(2).await;
}
