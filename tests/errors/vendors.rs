//! What the vendor refuses or fails at: told at every endpoint alike, and free.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::{Expected, Table};
use crate::world::{Canned, OFFERS, Offer, Store, VENDOR_KEY, World, chat_of, events, with};

const VENDORS: [&str; 4] = ["vendor_a", "vendor_b", "vendor_c", "vendor_d"];

/// A vendor's own code of a bad request; ours where it has none.
fn code_of_400(offer: Offer) -> &'static str {
    match offer.vendor {
        "vendor_c" => "INVALID_ARGUMENT",
        "vendor_d" => "invalid-argument",
        _ => "vendor_refused",
    }
}

fn expected(offer: Offer, fault: &str) -> Expected {
    let failed = Expected { no_retry: true, ..Expected::new(502, "upstream_error", "api_error") };
    match fault {
        "status=400" => Expected::new(400, code_of_400(offer), "invalid_request_error")
            .saying("The request is invalid."),
        "status=429;retry-after=7" => Expected {
            messages: (529, "overloaded_error"),
            retry_after: Some("7"),
            ..Expected::new(503, "upstream_overloaded", "overloaded_error")
        },
        _ => failed,
    }
}

#[rstest]
#[tokio::test]
async fn what_the_vendor_refuses_or_fails_at_is_told_and_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(
        "status=400",
        "status=401",
        "status=403",
        "status=429;retry-after=7",
        "status=500",
        "reset=0",
        "garbage",
        "cut=0"
    )]
    fault: &str,
) {
    let builder = World::start(store);
    let world = VENDORS.iter().fold(builder, |b, vendor| b.vendor(vendor, &[fault])).run().await;
    let mut table = Table::default();
    let mut cells = 0;
    for offer in OFFERS {
        // Sound is not read, so that nobody knows noise when it comes.
        if fault == "garbage" && offer.endpoint == "speech" {
            continue;
        }
        let answer = world.ask(offer).await;
        cells += 1;
        table.judge(offer, fault, &answer, &expected(offer, fault));
        let heard = world.sim.take_seen().len();
        table.hold(&format!("{} was heard {heard} times, not once", offer.path), heard == 1);
    }
    table.end(&world, cells).await;
}

#[rstest]
#[tokio::test]
async fn a_vendor_whose_head_trickled_in_was_waited_for_without_end(
    #[values("HTTP/1.1 200 OK\r\nx: ", "HTTP/1.1 103 Early Hints\r\n\r\n")] word: &'static str,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/v1", listener.local_addr().expect("its address"));
    let vendor = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.expect("a call");
        let interim = word.ends_with("\r\n\r\n");
        let mut said = client.write_all(word.as_bytes()).await;
        while said.is_ok() {
            tokio::time::sleep(Duration::from_millis(40)).await;
            said = client.write_all(if interim { word.as_bytes() } else { b"a" }).await;
        }
    });
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&url]);
    let world = world.conf("[timeouts]\nanswer_ms = 400").run().await;
    let answer = tokio::time::timeout(Duration::from_secs(5), world.chat(chat_of("lmb-5.5"))).await;
    assert_eq!(answer.expect("an answer in time").refusal().0, 504);
    world.free_of_charge().await;
    vendor.await.expect("the vendor was hung up on");
}

#[rstest]
#[tokio::test]
async fn a_vendor_that_repeats_our_key_told_it_to_the_client(#[values(false, true)] stream: bool) {
    let said = format!(
        "{{\"error\":{{\"message\":\"bad head: {VENDOR_KEY}\",\"code\":\"{VENDOR_KEY}\"}}}}"
    );
    let answer = if stream {
        let event = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}}}}]}}\n\ndata: {said}\n\n"
        );
        events(&event)
    } else {
        let length = said.len();
        let head =
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-request-id: a b";
        format!("{head}\r\ncontent-length: {length}\r\n\r\n{said}").into_bytes()
    };
    let vendor = Canned::start(answer, 1).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let call = with(chat_of("lmb-5.5"), &json!({ "stream": stream }));
    let answer = world.chat(call).await;
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(body.contains("bad head: [redacted]") && !body.contains(VENDOR_KEY), "{body}");
    assert!(!world.log().contains(VENDOR_KEY), "the key is in the log");
}

#[tokio::test]
async fn an_answer_that_is_no_http_told_our_key_to_the_log() {
    let said = format!("authorization: Bearer {VENDOR_KEY}\r\n\r\n").into_bytes();
    let vendor = Canned::start(said, 1).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    assert!(world.chat(chat_of("lmb-5.5")).await.status >= 500);
    world.logged(&["upstream closed without a response"]).await;
    assert!(!world.log().contains(VENDOR_KEY), "the key is in the log");
}
