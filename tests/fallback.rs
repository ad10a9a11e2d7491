//! Routes that are blocked, vendors that refuse, and answers that are no answers.

mod connections;
mod health;
mod secrets;

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use crate::world::{Answer, Canned, Store, World, chat_of, closed_port, model_of};

const TEXT: &str = "The answer is four and everybody in the room agrees.";

#[rstest]
#[case::refused("refused", "connect_refused")]
#[case::reset("reset=0", "reset")]
#[case::unauthorised("status=401", "auth")]
#[case::unpaid("status=402", "auth")]
#[case::forbidden("status=403", "auth")]
#[case::timed_out("status=408", "timeout")]
#[case::limited("status=429", "rate_limit")]
#[case::failed("status=500", "status")]
#[case::bad_gateway("status=502", "status")]
#[case::unavailable("status=503", "overloaded")]
#[case::overloaded("status=529", "overloaded")]
#[tokio::test]
async fn the_next_route_serves_what_a_blocked_one_does_not(
    #[case] fault: &str,
    #[case] reason: &str,
    #[values(false, true)] stream: bool,
) {
    let closed = closed_port();
    let first = if fault == "refused" { closed.as_str() } else { fault };
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[first, ""]).run().await;
    let depth = if stream {
        let streamed = world.stream(chat_of("lmb-5.5")).await;
        assert_eq!((streamed.text().as_str(), streamed.is_done()), (TEXT, true));
        streamed.header("x-gateway-fallback-depth").map(str::to_owned)
    } else {
        let answer = world.chat(chat_of("lmb-5.5")).await;
        assert_eq!(answer.text(), TEXT);
        answer.header("x-gateway-fallback-depth").map(str::to_owned)
    };
    assert_eq!(depth.as_deref(), Some("1"));
    let charge = world.charge().await;
    assert_eq!((charge.depth, charge.route.as_str()), (1, "r1"));
    let labels = [r#"vendor="vendor_b""#, r#"from_route="r0""#, &format!("reason={reason:?}")];
    assert_eq!(world.metric("tollgate_fallbacks_total", &labels).await, 1);
}

#[rstest]
#[tokio::test]
async fn depth_counts_the_routes_that_failed(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
) {
    let routes = ["status=503", "status=429", ""];
    let world = World::start(store).vendor(vendor, &routes).run().await;
    let answer = world.chat(chat_of(model_of(vendor))).await;
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("2"));
    assert_eq!(world.sim.count(vendor), 3);
    assert_eq!(world.charge().await.depth, 2);
}

#[rstest]
#[case::unavailable(&["status=503"], 503, "upstream_overloaded", Some("1"), None)]
#[case::overloaded(&["status=529"], 503, "upstream_overloaded", Some("1"), None)]
#[case::limited(&["status=429;retry-after=7"], 503, "upstream_overloaded", Some("7"), None)]
#[case::limited_for_long(
    &["status=429;retry-after=9999"], 503, "upstream_overloaded", Some("60"), None
)]
#[case::failed(&["status=500"], 502, "upstream_error", None, Some("false"))]
#[case::bad_gateway(&["status=502"], 502, "upstream_error", None, Some("false"))]
#[case::unauthorised(&["status=401"], 502, "upstream_error", None, Some("false"))]
#[case::unpaid(&["status=402"], 502, "upstream_error", None, Some("false"))]
#[case::forbidden(&["status=403"], 502, "upstream_error", None, Some("false"))]
#[case::timed_out(&["status=408"], 504, "upstream_timeout", None, Some("false"))]
#[case::reset(&["reset=0"], 502, "upstream_error", None, Some("false"))]
#[case::the_last_route_speaks(
    &["status=401", "status=503"], 503, "upstream_overloaded", Some("1"), None
)]
#[case::but_lost_work_is_not_forgotten(
    &["status=500", "status=503"], 503, "upstream_overloaded", Some("1"), Some("false")
)]
#[case::a_status_that_nobody_knows(&["status=418"], 502, "upstream_error", None, None)]
#[case::elsewhere(&["status=302"], 502, "upstream_error", None, None)]
#[case::a_page(&["page"], 502, "upstream_error", None, None)]
#[case::nothing(&["empty"], 502, "upstream_error", None, None)]
#[tokio::test]
async fn when_no_route_serves_the_last_ones_reason_is_told(
    #[case] routes: &[&str],
    #[case] status: u16,
    #[case] code: &str,
    #[case] retry_after: Option<&str>,
    #[case] should_retry: Option<&str>,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_b", routes).run().await;
    for stream in [false, true] {
        let mut call = chat_of("lmb-5.5");
        call["stream"] = stream.into();
        let answer = world.chat(call).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()));
        assert_eq!(answer.header("retry-after"), retry_after);
        assert_eq!(answer.header("x-should-retry"), should_retry);
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        for secret in ["vk-", "org-sim", "10000", "sim-account", "req_vendor"] {
            assert!(!said.contains(secret), "{said}");
        }
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_vendor_that_cannot_be_reached_is_a_502_that_may_be_tried_again() {
    // The second is an address that nobody has, by decree.
    let routes = [closed_port(), "http://192.0.2.1:9/v1".to_owned()];
    let routes = routes.each_ref().map(String::as_str);
    let short = "[timeouts]\nconnect_ms = 200";
    let world = World::start(Store::Sqlite).vendor("vendor_b", &routes).conf(short).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()));
    assert_eq!(answer.header("x-should-retry"), None);
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_vendor_without_routes_is_told_apart_from_one_that_fails() {
    let world = World::start(Store::Sqlite).vendor("vendor_d", &[]).run().await;
    let answer = world.chat(chat_of("lmd-4.6")).await;
    assert_eq!(answer.refusal(), (503, "no_route".to_owned()));
    let ready = world.client().get(format!("http://{}/readyz", world.gateway.admin)).send().await;
    let ready: serde_json::Value = ready.expect("readiness").json().await.expect("JSON");
    assert_eq!(ready["vendors"]["vendor_d"], "no_route");
    assert_eq!(ready["vendors"]["vendor_b"]["r0"], "up");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
}

#[tokio::test]
async fn a_vendor_without_a_section_is_named_by_readyz() {
    let mut world = World::start(Store::Sqlite).run().await;
    let file = world.path("tollgate.toml");
    let conf = std::fs::read_to_string(&file).expect("the configuration");
    let (before, rest) = conf.split_once("[vendor.vendor_d]\n").expect("a section");
    let after = rest.split_once('\n').map_or("", |(_, after)| after);
    std::fs::write(&file, format!("{before}{after}")).expect("a configuration without it");
    world.kill_and_start_again().await;
    let ready = world.client().get(format!("http://{}/readyz", world.gateway.admin)).send().await;
    let ready: serde_json::Value = ready.expect("readiness").json().await.expect("JSON");
    assert_eq!(ready["vendors"]["vendor_d"], "no_route", "its models are listed: {ready}");
    assert_eq!(
        (&ready["vendors"]["vendor_b"]["r0"], &ready["ready"]),
        (&"up".into(), &true.into())
    );
}

#[rstest]
#[case::of_b("vendor_b", "invalid_request_error", "vendor_refused", "model_not_found")]
#[case::of_c("vendor_c", "invalid_request_error", "INVALID_ARGUMENT", "NOT_FOUND")]
#[case::of_d("vendor_d", "invalid_request_error", "invalid-argument", "not-found")]
#[case::of_e("vendor_e", "invalid_request_error", "vendor_refused", "vendor_refused")]
#[tokio::test]
async fn what_the_vendor_refuses_passes_in_our_shape_and_no_other_route_is_asked(
    #[case] vendor: &str,
    #[case] kind: &str,
    #[case] code: &str,
    #[case] code_of_404: &str,
) {
    for (status, code) in [(400, code), (404, code_of_404), (413, code), (422, code)] {
        let fault = format!("status={status}");
        let world = World::start(Store::Sqlite).vendor(vendor, &[&fault, ""]).run().await;
        let answer = world.chat(chat_of(model_of(vendor))).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()));
        assert_eq!(answer.json()["error"]["type"], kind);
        let said = ["The request is invalid.", "The model or path does not exist"];
        assert!(said.iter().any(|said| answer.message().starts_with(said)), "{answer:?}");
        assert_eq!(answer.header("x-gateway-fallback-depth"), Some("0"));
        assert_eq!(answer.header("x-should-retry"), Some("false"), "it would be refused again");
        assert_eq!(world.sim.count(vendor), 1);
        world.free_of_charge().await;
    }
}

#[tokio::test]
async fn a_route_that_asks_for_patience_is_left_alone_and_comes_back_by_itself() {
    let routes = ["status=429;retry-after=2;times=2", ""];
    let world = World::start(Store::Sqlite).vendor("vendor_b", &routes).run().await;
    let other = world.another_account("other", "5").await;
    for (key, asked) in [(&world.key, 1), (&world.key, 1), (&other, 2), (&world.key, 2)] {
        let request = world.sending("/v1/chat/completions", "application/json", Some(key));
        let answer = Answer::read(request.body(chat_of("lmb-5.5").to_string())).await;
        assert_eq!(answer.header("x-gateway-fallback-depth"), Some("1"));
        let first = world.sim.seen().iter().filter(|s| s.faults.starts_with("status")).count();
        assert_eq!(first, asked, "who was told to wait does not ask again");
    }
    assert_eq!(world.metric("tollgate_route_up", &[r#"route="r0""#, "vendor_b"]).await, 0);
    tokio::time::sleep(Duration::from_millis(2_050)).await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("0"));
    world.metric_becomes("tollgate_route_up", &[r#"route="r0""#, "vendor_b"], 1).await;
}

#[tokio::test]
async fn a_route_that_fails_again_and_again_is_tried_last_and_still_tried() {
    let routes = ["status=503", "status=503;times=3"];
    let world = World::start(Store::Sqlite).vendor("vendor_b", &routes).run().await;
    for _ in 0..3 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 503);
    }
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("1"), "{answer:?}");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(2).await;
}

#[rstest]
#[case::whole_before_the_head("stall=0", false)]
#[case::stream_before_the_head("delay=1500", true)]
#[tokio::test]
async fn a_vendor_that_took_the_call_and_is_silent_is_not_asked_elsewhere(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] fault: &str,
    #[case] stream: bool,
) {
    let short = "[timeouts]\nanswer_ms = 300";
    let world = World::start(store).vendor("vendor_b", &[fault, ""]).conf(short).run().await;
    let mut call = chat_of("lmb-5.5");
    call["stream"] = stream.into();
    let answer = world.chat(call).await;
    assert_eq!(answer.refusal(), (504, "upstream_timeout".to_owned()));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!(world.sim.count("vendor_b"), 1, "the second route heard nothing");
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_whole_answer_that_stops_half_way_is_no_success() {
    let short = "[timeouts]\nstall_ms = 300";
    let routes = ["stall=1;times=1"];
    let world = World::start(Store::Sqlite).vendor("vendor_b", &routes).conf(short).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    world.free_of_charge().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.text(), TEXT);
}

#[tokio::test]
async fn a_kept_connection_waits_for_the_next_head_as_long_as_a_new_one() {
    let short = "[timeouts]\nstall_ms = 300";
    let slow = ["delay=700"];
    let world = World::start(Store::Sqlite).vendor("vendor_b", &slow).conf(short).run().await;
    for _ in 0..2 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.text(), TEXT);
    }
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn no_broken_answer_looks_like_a_success_and_the_next_call_works(
    #[values("wrong-length=long", "wrong-length=short", "gzip", "huge-header", "garbage", "cut=1")]
    fault: &str,
    #[values(false, true)] stream: bool,
    #[values("vendor_b", "vendor_c")] vendor: &str,
) {
    let world =
        World::start(Store::Sqlite).vendor(vendor, &[&format!("{fault};times=1")]).run().await;
    let mut call = chat_of(model_of(vendor));
    call["stream"] = stream.into();
    let answer = world.chat(call).await;
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    // A stream whose [DONE] came is whole, whatever its length was said to be; and so is a reply
    // whose head is merely long.
    let end = if stream { "data: [DONE]\n\n" } else { "}" };
    let whole = said.contains("agrees.") && said.ends_with(end) && answer.status == 200;
    let told = said.contains(r#""code":"upstream_error""#);
    assert!(answer.status == 502 || told || whole, "{answer:?}");
    assert!(told != whole, "{answer:?}");
    for _ in 0..2 {
        let next = world.chat(chat_of(model_of(vendor))).await;
        assert_eq!(next.text(), TEXT);
        assert!(world.stream(chat_of(model_of(vendor))).await.is_done());
    }
    world.nothing_held().await;
}

#[rstest]
#[case::not_json("<", 200)]
#[case::empty("", 200)]
#[case::words("ok", 502)]
#[case::half(r#"{"id":"c","choices":[{"message":{"content":"fo"#, 502)]
#[case::two(r#"{"choices":[]}{"choices":[]}"#, 502)]
#[case::an_error_with_200(r#"{"error":{"message":"busy","type":"t"}}"#, 502)]
#[tokio::test]
async fn a_200_that_is_no_reply_is_a_502(#[case] body: &str, #[case] status: u16) {
    let vendor = Canned::start(crate::world::http(body), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url, ""]).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    if status == 200 {
        // No model has made that, so another route may be asked.
        assert_eq!(
            (answer.text().as_str(), answer.header("x-gateway-fallback-depth")),
            (TEXT, Some("1"))
        );
        return;
    }
    assert_eq!(answer.refusal(), (status, "upstream_error".to_owned()));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!((vendor.heard(), world.sim.count("vendor_b")), (1, 0));
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_connection_that_the_vendor_closed_meanwhile_is_made_anew() {
    let reply = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    let vendor = Canned::start(crate::world::http(reply), 1).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    for number in 1..=4 {
        let answer = world.chat(chat_of("lmb-5.5")).await;
        assert_eq!(answer.status, 200, "call {number}: {answer:?}");
        assert_eq!(answer.header("x-gateway-fallback-depth"), Some("0"));
        assert_eq!(vendor.connections(), number);
    }
    // It took each of the last three calls before it closed, and may have done them.
    assert_eq!(world.metric("tollgate_lost_attempts_total", &[r#"route="r0""#]).await, 3);
    world.settled(4).await;
}

#[tokio::test]
async fn connections_to_a_vendor_are_used_again() {
    let reply = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    let vendor = Canned::start(crate::world::http(reply), usize::MAX).await;
    let server = "[server]\nthreads = 1";
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).conf(server);
    let world = world.run().await;
    for _ in 0..10 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    }
    assert_eq!((vendor.heard(), vendor.connections()), (10, 1));
}

#[tokio::test]
async fn a_vendor_that_answers_before_it_has_read_the_body_is_heard() {
    let error = json!({ "error": { "message": "too much", "code": "too_large" } }).to_string();
    let length = error.len();
    let answer = format!(
        "HTTP/1.1 413 Payload Too Large\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n{error}"
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/v1", listener.local_addr().expect("its address"));
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut some = vec![0; 4096];
        stream.read_exact(&mut some).await.expect("the beginning of a request");
        stream.write_all(answer.as_bytes()).await.expect("a peer that listens");
        tokio::time::sleep(Duration::from_secs(5)).await;
    });
    let short = "[timeouts]\nstall_ms = 500";
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&url]).conf(short);
    let world = world.credit("100").run().await;
    let mut call = chat_of("lmb-5.5");
    call["user"] = "x".repeat(8 << 20).into();
    let answer = world.chat(call).await;
    assert_eq!(answer.refusal(), (413, "too_large".to_owned()));
    world.free_of_charge().await;
}

#[tokio::test]
async fn an_interim_answer_before_the_real_one_is_passed_over() {
    let reply = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    let hints = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".as_slice();
    let vendor = Canned::start([hints, &crate::world::http(reply)].concat(), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer: Answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!((answer.status, answer.json()["usage"]["prompt_tokens"].as_u64()), (200, Some(1)));
}
