//! Tools of servers, which the vendor lists and calls: they cost tokens alone, and are taken as
//! long as the hold covers how often the vendor reads the conversation for them.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Offer, RESPONSES, Store, World, with};

/// A cheap model: 250 and 2,000 nano-USD a token, with a context of 400,000.
const CHEAP: Offer = Offer { model: "lmb-5-mini", ..RESPONSES };
const CONTEXT: i64 = 400_000;

fn server() -> Value {
    json!({
        "type": "mcp", "server_label": "sums", "server_url": "https://sums.example/mcp",
        "authorization": "token-of-the-client", "require_approval": "never",
        "allowed_tools": ["add"], "headers": { "x-a": "b" },
    })
}

fn call() -> Value {
    json!({ "tools": [server()], "max_tool_calls": 2, "max_output_tokens": 100 })
}

#[rstest]
#[tokio::test]
async fn tools_of_a_server_pass_as_they_came_and_their_tokens_are_charged(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    // So many tokens are read only if the input is read several times.
    let world = World::start(store).vendor("vendor_b", &["prompt=1500000"]).run().await;
    let connector = json!({
        "type": "mcp", "server_label": "mail", "connector_id": "connector_mail",
        "authorization": "t", "require_approval": { "never": { "tool_names": ["find"] } },
    });
    let tools = json!([server(), connector, { "type": "function", "name": "f" }]);
    let members = with(call(), &json!({ "tools": tools, "stream": stream }));
    let answer = world.call(CHEAP, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = String::from_utf8_lossy(&answer.body);
    assert!(text.contains("mcp_list_tools") && text.contains("mcp_call"), "{text}");
    assert_eq!(world.sim.seen()[0].json()["tools"], tools);
    let charge = world.charge().await;
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!((charge.tokens().0, charge.basis.as_str()), (1_500_000, "reported"));
    let output = i64::try_from(billed.total - billed.prompt).expect("few");
    assert_eq!(charge.amount_nano, 1_500_000 * 250 + output * 2_000);
    assert_eq!(charge.written_off_nano, 0);
}

#[rstest]
#[case::one_call(1)]
#[case::several(5)]
#[tokio::test]
async fn every_reading_of_the_whole_context_is_held(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] calls: i64,
) {
    let world = World::start(store).vendor("vendor_b", &["delay=800"]).run().await;
    let members = with(call(), &json!({ "max_tool_calls": calls }));
    let (answer, held) = world.held_during(CHEAP, members).await;
    // The vendor reads before the first call, after each, and after one that it does not make.
    assert_eq!((answer.status, held), (200, (calls + 2) * CONTEXT * 250 + 100 * 2_000));
    world.settled(1).await;
}

#[tokio::test]
async fn who_cannot_pay_for_the_readings_is_refused_before_the_vendor_hears_of_it() {
    let least = 4 * CONTEXT * 250 + 16 * 2_000;
    let credit = format!("0.{:09}", least - 1);
    let world = World::start(Store::Sqlite).credit(&credit).run().await;
    let answer = world.call(CHEAP, call()).await;
    assert_eq!(answer.refusal(), (402, "insufficient_credits".to_owned()), "{answer:?}");
    assert_eq!(world.sim.seen().len(), 0);
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    assert_eq!(world.call(CHEAP, call()).await.status, 200);
    world.settled(1).await;
}

#[tokio::test]
async fn what_nothing_bounds_or_belongs_to_nobody_is_refused_by_its_place() {
    let world = World::start(Store::Sqlite).run().await;
    let two = json!([{ "type": "function", "name": "f" }, server()]);
    let added = json!([
        { "role": "user", "content": "hi" }, { "type": "additional_tools", "tools": [server()] },
    ]);
    for (members, code, said) in [
        (json!({ "max_tool_calls": null }), "missing_required_parameter", "tools[0].type is 'mcp'"),
        (
            json!({ "max_tool_calls": null, "tools": two }),
            "missing_required_parameter",
            "tools[1].type is 'mcp'",
        ),
        (json!({ "max_tool_calls": 0 }), "invalid_value", "from 1 to"),
        (json!({ "max_tool_calls": 129 }), "invalid_value", "from 1 to 128"),
        (json!({ "max_tool_calls": "2" }), "invalid_value", "from 1 to"),
    ] {
        let what = members.to_string();
        let answer = world.call(CHEAP, with(call(), &members)).await;
        assert_eq!(answer.refusal_of(&what), (400, code.to_owned()), "{what}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], "max_tool_calls", "{what}");
        assert!(answer.message().contains(said), "{what}: {}", answer.message());
    }
    let tunnel = json!({ "type": "mcp", "server_label": "sums", "tunnel_id": "tunnel_1" });
    let answer = world.call(CHEAP, with(call(), &json!({ "tools": [server(), tunnel] }))).await;
    assert_eq!(answer.refusal(), (400, "unsupported_parameter".to_owned()), "{answer:?}");
    let begins = "tools[1].tunnel_id 'tunnel_1' is not available: ";
    assert!(answer.message().starts_with(begins), "{}", answer.message());
    // Inside the input they are refused, whatever the limit is.
    let answer = world.call(CHEAP, json!({ "input": added, "max_tool_calls": 2 })).await;
    assert_eq!(answer.refusal(), (400, "unsupported_parameter".to_owned()), "{answer:?}");
    let begins = "input[1].tools[0].type 'mcp' is not available: ";
    assert!(answer.message().starts_with(begins), "{}", answer.message());
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

/// A limit on the calls of no tools is the vendor's to judge.
#[tokio::test]
async fn a_limit_of_calls_is_needed_by_tools_of_servers_only() {
    let world = World::start(Store::Sqlite).run().await;
    let function = json!([{ "type": "function", "name": "f" }]);
    assert_eq!(world.call(CHEAP, json!({ "tools": function })).await.status, 200);
    let answer = world.call(CHEAP, json!({ "max_tool_calls": 0 })).await;
    assert_eq!((answer.status, world.sim.seen().len()), (400, 2), "the vendor says so: {answer:?}");
    world.settled(1).await;
}

/// The items of a conversation that the vendor does not store.
fn approved(request: &Value) -> Value {
    json!([
        { "role": "user", "content": "How much is 2 + 2?" },
        { "type": "mcp_list_tools", "id": "mcpl_1", "server_label": "sums", "tools": [
            { "name": "add", "input_schema": { "type": "object" } },
        ] },
        request,
        { "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true },
    ])
}

fn question() -> Value {
    json!({
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "sums", "name": "add",
        "arguments": "{}",
    })
}

#[tokio::test]
async fn an_approval_goes_on_with_or_without_what_the_vendor_stores() {
    let world = World::start(Store::Sqlite).run().await;
    let mut asking = server();
    asking["require_approval"] = "always".into();
    let asking = with(call(), &json!({ "tools": [asking] }));
    let first = world.call(CHEAP, asking.clone()).await.json();
    let asked = &first["output"][1];
    assert_eq!(asked["type"], "mcp_approval_request", "{first}");
    let approval = json!({
        "type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": true,
    });
    let next = json!({ "previous_response_id": first["id"], "input": [approval] });
    let second = world.call(CHEAP, with(asking.clone(), &next)).await;
    assert_eq!(second.status, 200, "{second:?}");
    assert_eq!(second.json()["output"][1]["type"], "mcp_call", "{second:?}");
    let items = json!([question(), { "type": "mcp_call", "id": "mcp_1", "server_label": "sums",
        "name": "add", "arguments": "{}", "output": "4" }]);
    for input in [approved(&question()), items] {
        let unstored = with(asking.clone(), &json!({ "store": false, "input": input }));
        let answer = world.call(CHEAP, unstored).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    world.settled(4).await;
}

#[tokio::test]
async fn an_approval_of_what_others_were_asked_is_looked_up() {
    let world = World::start(Store::Sqlite).run().await;
    let without = |name: &str| with(question(), &json!({ name: null }));
    let renamed = with(question(), &json!({ "id": "mcpr_2" }));
    for (request, param) in [
        (without("arguments"), "input[2].id"),
        (without("id"), "input[3].approval_request_id"),
        (renamed, "input[3].approval_request_id"),
    ] {
        let members = with(call(), &json!({ "input": approved(&request) }));
        let answer = world.call(CHEAP, members).await;
        assert_eq!(answer.refusal_of(param), (404, "not_found".to_owned()), "{answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{answer:?}");
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}
