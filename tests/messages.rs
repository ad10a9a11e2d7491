//! Native messages calls: passed on as they came, in both directions, and every way to refuse one.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    Answer, Canned, Store, VENDOR_KEY, World, chat_of, closed_port, http, messages_of, with,
};

mod fetches;
mod money;
mod refusals;
mod summaries;

const DEPTH: &str = "x-gateway-fallback-depth";
/// The least that is an answer.
const EMPTY: &str = r#"{"content":[]}"#;
const MODEL: &str = "lma-sonnet-4-6";

/// What the vendor itself answers to a call.
async fn direct(world: &World, faults: &str, call: &Value) -> String {
    let url = world.sim.base_url("vendor_a", faults) + "/messages";
    let request = world.client().post(url).header("x-api-key", VENDOR_KEY);
    let request = request.header("content-type", "application/json");
    let request = request.header("vendor_a-version", "2023-06-01").body(call.to_string());
    let answer = Answer::read(request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    blank(&answer.body)
}

/// Two answers of the simulator differ in their numbers.
fn blank(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).expect("text");
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[rstest]
#[tokio::test]
async fn a_whole_call_passes_byte_for_byte_both_ways(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("", "tools=2", "stop=refusal", "split-utf8")] faults: &str,
) {
    let world = World::start(store).vendor("vendor_a", &[faults]).run().await;
    let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    let call = with(messages_of(MODEL), &json!({ "tools": tools }));
    let body = call.to_string().replacen(':', " :\t", 1).replacen(",\"", " ,\n \"", 1);
    let answer = world.post_messages(body.clone()).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("0"));
    assert_eq!(world.sim.take_seen()[0].body, body.as_bytes());
    assert_eq!(blank(&answer.body), direct(&world, faults, &call).await);
    let charge = world.charge().await;
    assert_eq!((charge.endpoint.as_str(), charge.model.as_str()), ("messages", MODEL));
    assert_eq!(Some(charge.request_id.as_str()), answer.header("x-request-id"));
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
}

#[rstest]
#[tokio::test]
async fn a_stream_passes_byte_for_byte(
    #[values("", "tools=2", "odd-events", "crlf;comments", "split-utf8;crlf", "double-start")]
    faults: &str,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[faults]).run().await;
    let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    let mut call = with(messages_of(MODEL), &json!({ "tools": tools }));
    let streamed = world.stream_messages(call.clone()).await;
    assert!(streamed.is_stopped(), "{streamed:?}");
    assert_eq!(streamed.header("content-type"), Some("text/event-stream; charset=utf-8"));
    call["stream"] = true.into();
    assert_eq!(world.sim.take_seen()[0].json(), call);
    assert_eq!(blank(&streamed.raw), direct(&world, faults, &call).await);
}

#[tokio::test]
async fn tool_search_was_refused_although_it_has_no_fee() {
    let world = World::start(Store::Sqlite).run().await;
    let search = "tool_search_tool_regex";
    let tools = json!([
        { "type": "tool_search_tool_regex_20251119", "name": search },
        { "type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25" },
        { "name": "f", "input_schema": { "type": "object" }, "defer_loading": true },
    ]);
    let query = json!({ "query": "f" });
    let asked = json!({ "type": "server_tool_use", "id": "s_1", "name": search, "input": query });
    let found = json!({
        "type": "tool_search_tool_search_result",
        "tool_references": [{ "type": "tool_reference", "tool_name": "f" }],
    });
    let found =
        json!({ "type": "tool_search_tool_result", "tool_use_id": "s_1", "content": found });
    let messages = json!([
        { "role": "user", "content": "Find it" },
        { "role": "assistant", "content": [asked, found, { "type": "text", "text": "Found." }] },
        { "role": "user", "content": "And?" },
    ]);
    let members =
        json!({ "tools": tools, "messages": messages, "tool_choice": { "type": "none" } });
    let call = with(messages_of(MODEL), &members);
    let answer = world.messages(call.clone()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(world.sim.take_seen()[0].json(), call);
    assert_eq!(world.charge().await.basis, "reported");
}

#[tokio::test]
async fn the_model_is_renamed_where_the_vendor_calls_it_otherwise_and_nothing_else_changes() {
    let names = "[vendor.vendor_a.names]\n\"lma-opus-5\" = \"theirs\"\n\"lma-haiku*\" = \"old*\"";
    let vendor = Canned::start(http(EMPTY), usize::MAX).await;
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).conf(names);
    let world = builder.run().await;
    let models = [("lma-opus-5", "theirs"), ("lma-haiku-4-5", "old-4-5"), (MODEL, MODEL)];
    for (number, (ours, theirs)) in models.into_iter().enumerate() {
        let rest = r#""max_tokens" : 5,"messages":[{"role":"user","content":"\u0041 lma-opus-5"}]"#;
        let body =
            |model: &str| format!(r#"{{ {rest},"metadata":{{"model":"x"}}, "model":"{model}"}}"#);
        assert_eq!(world.post_messages(body(ours)).await.status, 200);
        let heard = vendor.request(number);
        assert_eq!(heard.split_once("\r\n\r\n").map(|(_, b)| b), Some(body(theirs).as_str()));
    }
}

#[rstest]
#[tokio::test]
async fn the_key_is_taken_from_either_header(
    #[values("x-api-key", "X-Api-Key", "authorization", "Authorization")] name: &str,
) {
    let world = World::start(Store::Sqlite).run().await;
    let bearer = name.eq_ignore_ascii_case("authorization");
    let value = if bearer { format!("Bearer {}", world.key) } else { world.key.clone() };
    let url = format!("http://{}/v1/messages", world.gateway.http);
    let request = world.client().post(url).header(name, value).body(messages_of(MODEL).to_string());
    assert_eq!(Answer::read(request).await.status, 200);
    let seen = world.sim.seen().remove(0);
    assert_eq!((seen.header("x-api-key"), seen.header("authorization")), (Some(VENDOR_KEY), None));
    assert!(!format!("{:?}", seen.headers).contains(&world.key));
    assert_eq!(seen.header("vendor_a-version"), Some("2023-06-01"), "filled in");
}

#[rstest]
#[case::neutral("vendor_a-version", "vendor_a-beta")]
#[case::real("brand-version", "brand-beta")]
#[tokio::test]
async fn version_and_beta_reach_the_vendor_under_its_own_names(
    #[case] version: &str,
    #[case] beta: &str,
) {
    let vendor = Canned::start(http(EMPTY), usize::MAX).await;
    let names = "[vendor.vendor_a.header_names]\n\"vendor_a-version\" = \"brand-version\"\n\
        \"vendor_a-beta\" = \"brand-beta\"";
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).conf(names);
    let world = builder.run().await;
    let request = world.request("/v1/messages").header(version, "2026-10-21");
    let request = request.header(beta, "one-2025,two").header("x-other", "mine");
    assert_eq!(Answer::read(request.body(messages_of(MODEL).to_string())).await.status, 200);
    let request = world.request("/v1/messages").body(messages_of(MODEL).to_string());
    assert_eq!(Answer::read(request).await.status, 200);
    let heard = vendor.request(0).to_lowercase();
    for line in ["\r\nbrand-version: 2026-10-21\r\n", "\r\nbrand-beta: one-2025,two\r\n"] {
        assert_eq!(heard.matches(line).count(), 1, "{heard}");
    }
    assert!(!heard.contains("vendor_a-") && !heard.contains("x-other"), "{heard}");
    let heard = vendor.request(1).to_lowercase();
    assert!(heard.contains("\r\nbrand-version: 2023-06-01\r\n"), "{heard}");
    assert!(!heard.contains("beta"), "{heard}");
    let request = world.request("/v1/chat/completions").header(version, "2026-10-21");
    Answer::read(request.header(beta, "new").body(chat_of(MODEL).to_string())).await;
    let heard = vendor.request(2).to_lowercase();
    assert!(heard.contains("\r\nbrand-version: 2023-06-01\r\n"), "{heard}");
    assert!(!heard.contains("beta") && !heard.contains("2026"), "{heard}");
}

#[tokio::test]
async fn a_limit_of_zero_is_a_limit() {
    let world = World::start(Store::Sqlite).run().await;
    let call = with(messages_of(MODEL), &json!({ "max_tokens": 0 }));
    assert_eq!(world.messages(call.clone()).await.status, 200);
    assert_eq!(world.sim.seen()[0].json(), call);
    world.settled(1).await;
}

#[rstest]
#[case::cut("cut=4", "api_error", "the vendor")]
#[case::without_its_last_event("no-done", "api_error", "the vendor")]
#[case::reset("reset=4", "api_error", "the vendor")]
#[case::stall("stall=4", "api_error", "the vendor")]
#[case::error("error-event=4", "overloaded_error", "Overloaded")]
#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_event(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] fault: &str,
    #[case] kind: &str,
    #[case] said: &str,
) {
    let faults = format!("chunk-delay=20;{fault}");
    let short = "[timeouts]\nstall_ms = 300";
    let world = World::start(store).vendor("vendor_a", &[&faults]).conf(short).run().await;
    let streamed = world.stream_messages(messages_of(MODEL)).await;
    let error = streamed.messages_error();
    assert_eq!(error["type"], kind, "{error}");
    assert!(error["message"].as_str().is_some_and(|m| m.starts_with(said)), "{error}");
    assert!(!streamed.message_text().is_empty(), "{streamed:?}");
    let charge = world.charge().await;
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.tokens().0, billed.prompt, "{charge:?}");
    assert!(charge.tokens().1 > 0, "{charge:?}");
}

#[rstest]
#[tokio::test]
async fn a_stream_that_breaks_before_its_first_event_is_a_plain_error_and_free(
    #[values("error-event=0", "cut=0", "reset=0", "garbage", "gzip")] fault: &str,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[fault]).run().await;
    let answer = world.messages(with(messages_of(MODEL), &json!({ "stream": true }))).await;
    let refusal = answer.messages_refusal();
    let sound = [(502, "api_error"), (529, "overloaded_error")];
    assert!(sound.iter().any(|(s, k)| refusal == (*s, (*k).to_owned())), "{answer:?}");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn nothing_of_the_vendors_head_comes_back(
    #[values("/v1/messages", "/v1/chat/completions")] path: &str,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).run().await;
    let call = with(messages_of(MODEL), &json!({ "stream": stream }));
    let answer = Answer::read(world.request(path).body(call.to_string())).await;
    let mut expected = vec!["content-type", "x-gateway-fallback-depth", "x-request-id"];
    if path == "/v1/messages" {
        expected.insert(1, "request-id");
    }
    if stream {
        expected.insert(0, "cache-control");
    } else {
        expected.push("x-gateway-charged-nano");
        expected.sort_unstable();
    }
    assert_eq!(answer.header_names(), expected);
    assert_eq!(world.charge().await.vendor_request_id.as_deref(), Some("req_vendor_1"));
}

#[rstest]
#[tokio::test]
async fn a_large_body_goes_through_and_to_the_next_route(#[values(false, true)] stream: bool) {
    let routes = ["status=529", "refused", "echo"];
    let closed = closed_port();
    let routes = routes.map(|route| if route == "refused" { closed.as_str() } else { route });
    let world = World::start(Store::Sqlite).vendor("vendor_a", &routes).credit("100").run().await;
    let long = "x".repeat(4 << 20);
    let messages = json!([{ "role": "user", "content": long }]);
    let call = with(messages_of(MODEL), &json!({ "messages": messages, "stream": stream }));
    let answer = world.messages(call.clone()).await;
    assert_eq!((answer.status, answer.header("x-gateway-fallback-depth")), (200, Some("2")));
    let seen = world.sim.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|s| s.body == call.to_string().as_bytes()), "both got the same");
    assert_eq!(world.charge().await.route, "r2");
}

#[tokio::test]
async fn a_query_is_no_part_of_the_path() {
    let world = World::start(Store::Sqlite).run().await;
    let request = world.request("/v1/messages?beta=true").body(messages_of(MODEL).to_string());
    let answer = Answer::read(request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    world.settled(1).await;
}

#[tokio::test]
async fn a_model_is_known_by_the_vendors_own_name_where_that_is_allowed() {
    let names = "[vendor.vendor_a.names]\n\"lma-*\" = \"brand-*\"";
    let mut world = World::start(Store::Sqlite).conf(names).run().await;
    let file = world.path("tollgate.toml");
    let conf = std::fs::read_to_string(&file).expect("the configuration");
    let open = conf.replace("[vendor.vendor_a]\n", "[vendor.vendor_a]\naliases = true\n");
    std::fs::write(&file, open).expect("another configuration");
    world.kill_and_start_again().await;
    let body = messages_of("brand-opus-5").to_string();
    let answer = world.post_messages(body.clone()).await;
    assert_eq!(answer.json()["model"], "brand-opus-5");
    assert_eq!(world.sim.seen()[0].body, body.as_bytes());
    assert_eq!(world.charge().await.model, "lma-opus-5");
}

#[tokio::test]
async fn beta_headers_on_several_lines_lost_all_but_the_last() {
    let vendor = Canned::start(http(EMPTY), usize::MAX).await;
    let names = "[vendor.vendor_a.header_names]\n\"vendor_a-beta\" = \"brand-beta\"";
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).conf(names);
    let world = builder.run().await;
    let request = world.request("/v1/messages").header("brand-beta", "a-1");
    let request = request.header("vendor_a-beta", "b-2").header("brand-beta", "c-3");
    let request = request.header("vendor_a-version", "");
    assert_eq!(Answer::read(request.body(messages_of(MODEL).to_string())).await.status, 200);
    let heard = vendor.request(0).to_lowercase();
    let betas = heard.lines().find_map(|line| line.strip_prefix("brand-beta: ")).expect("betas");
    let mut betas: Vec<&str> = betas.split(',').collect();
    betas.sort_unstable();
    assert_eq!(betas, ["a-1", "b-2", "c-3"], "{heard}");
    assert!(heard.contains("\r\nvendor_a-version: 2023-06-01\r\n"), "{heard}");
}

#[tokio::test]
async fn of_two_keys_the_one_in_the_formats_own_header_counts() {
    let world = World::start(Store::Sqlite).run().await;
    let stranger = format!("sk-tg-{}", "0".repeat(64));
    for (path, good, status) in [
        ("/v1/messages", "x-api-key", 200),
        ("/v1/messages", "authorization", 401),
        ("/v1/chat/completions", "x-api-key", 401),
        ("/v1/chat/completions", "authorization", 200),
    ] {
        let key = |header: &str| if header == good { &world.key } else { &stranger };
        let url = format!("http://{}{path}", world.gateway.http);
        let request = world.client().post(url).body(messages_of(MODEL).to_string());
        let request = request.header("authorization", format!("Bearer {}", key("authorization")));
        let answer = Answer::read(request.header("x-api-key", key("x-api-key"))).await;
        assert_eq!(answer.status, status, "the good key in {good} at {path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_vendors_key_in_the_environment_beside_ours_was_taken_for_it() {
    let world = World::start(Store::Sqlite).run().await;
    let url = format!("http://{}/v1/messages", world.gateway.http);
    let request = world.client().post(url).body(messages_of(MODEL).to_string());
    let request = request.header("x-api-key", "sk-vendor-1").bearer_auth(&world.key);
    assert_eq!(Answer::read(request).await.status, 200);
}

#[tokio::test]
async fn a_refusal_that_speaks_of_our_own_account_went_to_the_client() {
    let body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to use this service."}}"#;
    let vendor = Canned::start(refused(body), usize::MAX).await;
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url, ""]);
    let world = builder.run().await;
    let answer = world.messages(messages_of(MODEL)).await;
    assert_eq!((answer.status, answer.header("x-gateway-fallback-depth")), (200, Some("1")));
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).run().await;
    let answer = world.messages(messages_of(MODEL)).await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(!answer.message().contains("balance"), "{answer:?}");
}

#[tokio::test]
async fn what_the_vendor_tells_programs_of_an_error_was_lost() {
    let body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"too large","details":{"error_code":"image_too_large",
        "pixels": 8000}}}"#;
    let vendor = Canned::start(refused(body), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).run().await;
    let answer = world.messages(messages_of(MODEL)).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    let details = json!({ "error_code": "image_too_large", "pixels": 8000 });
    assert_eq!(answer.json()["error"]["details"], details);
}

#[rstest]
#[tokio::test]
async fn clients_who_ask_for_what_an_account_lacks_cooled_its_route_for_all(
    #[values("status=402", "status=403")] fault: &str,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[fault, ""]).run().await;
    for _ in 0..5 {
        assert_eq!(world.messages(messages_of(MODEL)).await.header(DEPTH), Some("1"));
    }
    assert_eq!(world.sim.count("vendor_a"), 10, "the first route is tried first each time");
}

/// A 400 with a JSON body.
fn refused(body: &str) -> Vec<u8> {
    let good = String::from_utf8(http(body)).expect("text");
    good.replacen("200 OK", "400 Bad Request", 1).into_bytes()
}

#[tokio::test]
async fn a_client_that_asks_for_a_thread_learns_to_go_on_without() {
    let world = World::start(Store::Sqlite).run().await;
    let mut call = messages_of(MODEL);
    call["thread"] = json!({ "type": "create" });
    let answer = world.messages(call).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    let details = json!({ "error_code": "thread_unsupported_request", "unsupported": [] });
    assert_eq!(answer.json()["error"]["details"], details);
    assert_eq!(world.sim.count("vendor_a"), 0);
}

/// A conversation with an instruction before its last turn.
fn instructed(model: &str) -> Value {
    let mark = json!({ "type": "ephemeral" });
    let brief = json!([{ "type": "text", "text": "Be brief.", "cache_control": mark }]);
    let messages = json!([
        { "role": "user", "content": "Hello." },
        { "role": "system", "content": "Answer in English." },
        { "role": "assistant", "content": "Hello. What is it?" },
        { "role": "user", "content": "How much is 2 + 2?" },
        { "role": "system", "content": brief },
    ]);
    with(messages_of(model), &json!({ "messages": messages }))
}

#[rstest]
#[tokio::test]
async fn an_instruction_in_the_midst_of_a_conversation_passes(
    #[values("lma-fable-5", "lma-opus-5", "lma-sonnet-5", "lma-opus-4-8")] model: &str,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).run().await;
    let call = with(instructed(model), &json!({ "stream": stream }));
    let answer = world.messages(call.clone()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen = world.sim.seen().remove(0);
    assert_eq!(seen.json(), call);
    let (charge, billed) = (world.charge().await, seen.billed.expect("a bill"));
    assert_eq!(charge.tokens(), (billed.prompt, billed.completion));
    assert_eq!((charge.model.as_str(), charge.basis.as_str()), (model, "reported"));
}

#[tokio::test]
async fn an_instruction_that_an_older_model_does_not_take_is_its_vendors_to_refuse() {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.messages(instructed(MODEL)).await;
    assert_eq!(answer.messages_refusal(), (400, "invalid_request_error".to_owned()));
    assert!(answer.message().contains(r#"Unexpected role "system""#), "{}", answer.message());
    world.free_of_charge().await;
}
