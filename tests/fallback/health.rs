//! Routes that answer badly beside one that is well: who is sent where, and who decides that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rstest::rstest;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{Answer, Canned, Store, World, chat_of, model_of, with};

const CALLS: usize = 15;
const R0: [&str; 2] = [r#"route="r0""#, r#"vendor="vendor_b""#];

async fn readiness(world: &World) -> (u16, Value) {
    let url = format!("http://{}/readyz", world.gateway.admin);
    let answer = world.client().get(url).send().await.expect("readiness");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

async fn chat_with(world: &World, key: &str, words: &str) -> Answer {
    let message = serde_json::json!([{ "role": "user", "content": words }]);
    let call = with(chat_of("lmb-5.5"), &serde_json::json!({ "messages": message }));
    let request = world.sending("/v1/chat/completions", "application/json", Some(key));
    Answer::read(request.body(call.to_string())).await
}

fn depth(answer: &Answer) -> Option<&str> {
    answer.header("x-gateway-fallback-depth")
}

#[rstest]
#[case::elsewhere("status=302", "redirect")]
#[case::a_page("page", "html")]
#[case::nothing("empty", "empty")]
#[case::a_teapot("status=418", "status")]
#[case::a_bad_key("status=401", "auth")]
#[tokio::test]
async fn answers_that_no_model_made_took_everything_down_beside_a_healthy_route(
    #[case] fault: &str,
    #[case] reason: &str,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[fault, ""]).run().await;
    for number in 0..CALLS {
        let answer =
            world.chat(with(chat_of("lmb-5.5"), &serde_json::json!({"stream": stream}))).await;
        assert_eq!((answer.status, depth(&answer)), (200, Some("1")), "call {number}: {answer:?}");
        if number == 3 {
            // By then its own question has failed too, and it needs no second account.
            world.metric_becomes("tollgate_route_up", &R0, 0).await;
        }
    }
    let bad = world.sim.seen().iter().filter(|seen| seen.faults == fault).count();
    assert!((1..CALLS).contains(&bad), "{bad} of {CALLS} calls were tried there");
    let label = format!("reason={reason:?}");
    let told = world.metric("tollgate_fallbacks_total", &[R0[0], &label]).await;
    assert_eq!(usize::try_from(told), Ok(bad));
    let (status, ready) = readiness(&world).await;
    assert_eq!((status, &ready["vendors"]["vendor_b"]["r0"]), (200, &"blocked".into()));
    let down = serde_json::json!([{"vendor": "vendor_b", "route": "r0", "reason": reason}]);
    assert_eq!(ready["down"], down);
    world.logged(&["route_down", "r0", reason]).await;
    world.settled(CALLS).await;
}

#[rstest]
#[case::packed("gzip", "unreadable")]
#[case::an_error_with_200("status=200", "error")]
#[case::garbage("garbage", "garbage")]
#[case::cut("cut=1", "reset")]
#[case::a_reset_in_the_body("reset=1", "reset")]
#[case::a_hang_in_the_body("stall=1", "silent")]
#[tokio::test]
async fn lost_answers_kept_coming_from_a_route_beside_a_healthy_one(
    #[case] fault: &str,
    #[case] reason: &str,
) {
    let short = "[timeouts]\nstall_ms = 300";
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &[fault, ""]);
    let world = builder.conf(short).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()));
    assert_eq!(answer.header("x-should-retry"), Some("false"), "the vendor may have worked");
    assert_eq!(world.sim.count("vendor_b"), 1, "nor is it tried elsewhere");
    world.metric_becomes("tollgate_route_up", &R0, 0).await;
    for number in 1..CALLS {
        let answer = world.chat(chat_of("lmb-5.5")).await;
        assert_eq!((answer.status, depth(&answer)), (200, Some("1")), "call {number}: {answer:?}");
    }
    assert_eq!(readiness(&world).await.1["down"][0]["reason"], reason);
    assert_eq!(world.metric("tollgate_lost_attempts_total", &R0).await, 1);
    world.settled(CALLS - 1).await;
}

/// A vendor that does well but for calls with a certain word in them.
struct Picky {
    url: String,
    calls: Arc<AtomicUsize>,
}

impl Picky {
    async fn start() -> Picky {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/v1", listener.local_addr().expect("its address"));
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Picky::serve(stream, counted.clone()));
            }
        });
        Picky { url, calls }
    }

    async fn serve(mut stream: TcpStream, calls: Arc<AtomicUsize>) {
        let (mut said, mut buffer) = (String::new(), [0; 4096]);
        // All calls of these tests end so, and questions for the list end with their heads.
        let is_whole = |said: &str| {
            let is_get = said.starts_with("GET ") && said.ends_with("\r\n\r\n");
            is_get || said.ends_with('}')
        };
        while !is_whole(&said) {
            match stream.read(&mut buffer).await {
                Ok(count @ 1..) => said.push_str(&String::from_utf8_lossy(&buffer[..count])),
                _ => return,
            }
        }
        let body = if said.starts_with("GET ") {
            r#"{"object":"list","data":[]}"#
        } else {
            calls.fetch_add(1, Ordering::Relaxed);
            let is_poisoned = said.contains("poison");
            if is_poisoned {
                "nonsense"
            } else {
                r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#
            }
        };
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
        let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        // Who has gone has heard enough.
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

#[tokio::test]
async fn a_tenant_closed_a_route_to_all_others() {
    let vendor = Picky::start().await;
    let routes = [vendor.url.as_str(), ""];
    let world = World::start(Store::Sqlite).vendor("vendor_b", &routes).run().await;
    let (bad, good) = (world.key.clone(), world.another_account("good", "5").await);
    let third = world.another_account("third", "5").await;
    for _ in 0..4 {
        // Whatever he does costs him his own place on the route, and nobody else's.
        chat_with(&world, &bad, "poison").await;
        let answer = chat_with(&world, &good, "Hello.").await;
        assert_eq!((answer.status, depth(&answer)), (200, Some("0")), "{answer:?}");
    }
    world.logged(&["probe succeeded"]).await;
    assert_eq!(world.metric("tollgate_route_up", &R0).await, 1);
    let mut is_elsewhere = false;
    for _ in 0..20 {
        chat_with(&world, &bad, "poison").await;
        is_elsewhere |= depth(&chat_with(&world, &bad, "Hello.").await) == Some("1");
    }
    assert!(is_elsewhere, "his own calls are");
    assert_eq!(depth(&chat_with(&world, &good, "Hello.").await), Some("0"));
    // Of three that fail one after the other, two are others than he is.
    for key in [&good, &third] {
        assert_eq!(chat_with(&world, key, "poison").await.status, 502);
    }
    world.metric_becomes("tollgate_route_up", &R0, 0).await;
    assert!(vendor.calls.load(Ordering::Relaxed) >= 7);
}

#[rstest]
#[case::page("text/html", "<html><h1>404 Not Found</h1></html>")]
#[case::nothing("text/plain", "")]
#[case::words("text/plain", "404 page not found")]
#[tokio::test]
async fn a_wrong_base_url_was_told_to_the_client_as_its_own_fault(
    #[case] kind: &str,
    #[case] body: &str,
    #[values("404 Not Found", "400 Bad Request", "405 Method Not Allowed")] status: &str,
) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}");
    let vendor = Canned::start(format!("{head}\r\n\r\n{body}").into_bytes(), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url, ""]).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!((answer.status, depth(&answer)), (200, Some("1")), "{answer:?}");
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()));
    assert_eq!(answer.header("x-should-retry"), None, "nothing was done, and nothing charged");
    world.free_of_charge().await;
}

/// A vendor that names an unknown field at its full length says more than is read of an error.
#[tokio::test]
async fn a_call_whose_words_a_vendor_repeats_at_length_was_told_as_the_routes_fault() {
    let message = format!("Unrecognized request argument supplied: {}", "k".repeat(100_000));
    let body = format!(r#"{{"error":{{"message":"{message}","type":"invalid_request_error"}}}}"#);
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json";
    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let vendor = Canned::start(answer.into_bytes(), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url, ""]).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!((answer.status, depth(&answer)), (400, Some("0")), "{answer:?}");
    world.free_of_charge().await;
}

#[rstest]
#[case::key_of_c(
    "vendor_c",
    r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}]"#,
    true
)]
#[case::place_of_c(
    "vendor_c",
    r#"[{"error":{"code":400,"message":"User location is not supported for the API use.","status":"FAILED_PRECONDITION"}}]"#,
    true
)]
#[case::key_of_d(
    "vendor_d",
    r#"{"code":"Client specified an invalid argument","error":"Incorrect API key provided: vk***ey. You can get one at https://console.vendor.test."}"#,
    true
)]
#[case::said_by_the_client(
    "vendor_c",
    r#"[{"error":{"code":400,"message":"tools[0].name: API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"field":"API_KEY_INVALID"}]}}]"#,
    false
)]
#[case::repeated_by_d(
    "vendor_d",
    r#"{"code":"Client specified an invalid argument","error":"No such tool: Incorrect API key provided"}"#,
    false
)]
#[tokio::test]
async fn a_key_of_ours_that_had_expired_was_told_to_the_client_as_its_own_fault(
    #[case] vendor: &str,
    #[case] body: &str,
    #[case] is_ours: bool,
) {
    let length = body.len();
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json";
    let answer = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes();
    let canned = Canned::start(answer, usize::MAX).await;
    let call = chat_of(model_of(vendor));
    let world = World::start(Store::Sqlite).vendor(vendor, &[&canned.url, ""]).run().await;
    let answer = world.chat(call.clone()).await;
    let expected = if is_ours { (200, Some("1")) } else { (400, Some("0")) };
    assert_eq!((answer.status, depth(&answer)), expected, "{answer:?}");
    if is_ours {
        let world = World::start(Store::Sqlite).vendor(vendor, &[&canned.url]).run().await;
        let answer = world.chat(call).await;
        assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()));
        assert_eq!(answer.header("x-should-retry"), Some("false"), "no retry mends it");
        let said = answer.message();
        assert!(!said.contains("key") && !said.contains("location"), "{said}");
        let labels = [r#"reason="auth""#];
        assert_eq!(world.metric("tollgate_fallbacks_total", &labels).await, 1);
    }
}

#[rstest]
#[tokio::test]
async fn a_key_that_a_vendor_does_not_know_leads_to_the_next_route(
    #[values("vendor_a", "vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).vendor(vendor, &["bad-key", ""]).run().await;
    let mut call = chat_of(model_of(vendor));
    call["stream"] = stream.into();
    let answer = world.chat(call).await;
    assert_eq!((answer.status, depth(&answer)), (200, Some("1")), "{answer:?}");
    assert_eq!(world.metric("tollgate_fallbacks_total", &[r#"reason="auth""#]).await, 1);
    assert_eq!(world.charge().await.route, "r1");
}
