//! Videos on real connections: what can go wrong on the way, and with which of the requests.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::{Calls, Sim, film};

const ORDER: &str =
    r#"{"model":"lmd-imagine-video","prompt":"A cat.","duration":1,"resolution":"480p"}"#;
const KEY: &str = "authorization: Bearer vk-1\r\n";

/// The status and the body of an answer, of which all came that will come; 0 after a reset.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

async fn call(sim: &Sim, method: &str, url: &str, headers: &str, body: &str) -> Answer {
    let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect("");
    let request = format!(
        "{method} /{path} HTTP/1.1\r\nhost: {host}\r\n{headers}connection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(sim.address()).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("a listener");
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        bytes.extend_from_slice(&buffer[..count]);
    }
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(bytes.len());
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or_default();
    Answer { status, head, body: bytes.get(end + 4..).unwrap_or_default().to_vec() }
}

async fn submit(sim: &Sim, faults: &str) -> Answer {
    let url = sim.base_url("vendor_d", faults) + "/videos/generations";
    call(sim, "POST", &url, KEY, ORDER).await
}

async fn poll(sim: &Sim, faults: &str, id: &str) -> Answer {
    let url = format!("{}/videos/{id}", sim.base_url("vendor_d", faults));
    call(sim, "GET", &url, KEY, "").await
}

async fn fetch(sim: &Sim, faults: &str, id: &str) -> Answer {
    let url = format!("{}/files/{id}.mp4", sim.base_url("vendor_d", faults));
    call(sim, "GET", &url, "", "").await
}

async fn ordered(sim: &Sim, faults: &str) -> String {
    let answer = submit(sim, faults).await;
    answer.json()["request_id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_video_is_ordered_asked_after_and_fetched() {
    let sim = Sim::start().await;
    let start = Instant::now();
    let (id, other) = (ordered(&sim, "").await, ordered(&sim, "").await);
    assert_ne!(id, other);
    let mut progress = Vec::new();
    let done = loop {
        let answer = poll(&sim, "", &id).await;
        if answer.status == 200 {
            break answer.json();
        }
        assert_eq!(answer.status, 202, "{}", answer.head);
        progress.extend(answer.json()["progress"].as_u64());
        tokio::time::sleep(Duration::from_millis(40)).await;
    };
    assert!(start.elapsed() >= Duration::from_millis(400));
    assert!(!progress.is_empty() && progress.is_sorted(), "{progress:?}");
    let url = done["video"]["url"].as_str().expect("an address");
    let file = call(&sim, "GET", url, "", "").await;
    assert!(file.head.contains("\r\ncontent-type: video/mp4\r\n"), "{}", file.head);
    assert!(file.head.ends_with("content-length: 102400"), "{}", file.head);
    assert!(file.body == film(&id, 1));
    let [video, _] = &*sim.videos() else { panic!("two videos") };
    let polls = video.polls;
    assert_eq!((&video.id, video.fetches, video.billed), (&id, 1, Some(500_000_000)));
    assert_eq!(sim.video_calls(), Calls { submissions: 2, polls, fetches: 1 });
    assert_eq!(sim.count("vendor_d"), polls + 3);
    let seen = sim.take_seen();
    let billed = seen[0].billed.expect("a bill");
    assert_eq!((billed.seconds, billed.ticks), (1, 500_000_000));
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert!(methods.starts_with(&["POST", "POST", "GET"]));
    assert!(seen[2..].iter().all(|seen| seen.billed.is_none() && seen.completed));
    let page = call(&sim, "GET", &format!("http://{}/_videos", sim.address()), "", "").await;
    assert_eq!((&page.json()["submissions"], &page.json()["polls"]), (&json!(2), &json!(polls)));
    assert_eq!(page.json()["videos"][0]["billed"], 500_000_000);
}

#[tokio::test]
async fn keys_and_methods_are_checked() {
    let sim = Sim::start().await;
    let id = ordered(&sim, "video-ms=0").await;
    let base = sim.base_url("vendor_d", "");
    let (orders, video) = (format!("{base}/videos/generations"), format!("{base}/videos/{id}"));
    let file = format!("{base}/files/{id}.mp4");
    let client = "authorization: Bearer sk-1\r\n";
    for (method, url, headers, status) in [
        ("POST", &orders, "", 401),
        ("POST", &orders, client, 401),
        ("GET", &orders, KEY, 405),
        ("GET", &video, "", 401),
        ("GET", &video, client, 401),
        ("GET", &video, "authorization: Bearer vk-2\r\n", 404),
        ("GET", &video, KEY, 200),
        ("POST", &video, KEY, 405),
        ("DELETE", &video, KEY, 405),
        ("GET", &file, "", 200),
        ("GET", &file, KEY, 400),
        ("GET", &file, client, 400),
        ("GET", &file, "authorization: Basic eA==\r\n", 400),
        ("GET", &file, "x-api-key: vk-1\r\n", 400),
    ] {
        let body = if method == "POST" { ORDER } else { "" };
        let answer = call(&sim, method, url, headers, body).await;
        assert_eq!(answer.status, status, "{method} {url} {headers}");
    }
    assert_eq!(sim.videos().len(), 1);
    assert_eq!(sim.video_calls(), Calls { submissions: 3, polls: 4, fetches: 5 });
    assert!(sim.seen().last().is_some_and(|seen| seen.header("x-api-key") == Some("vk-1")));
}

#[tokio::test]
async fn a_fault_hits_the_request_that_it_is_aimed_at() {
    let sim = Sim::start().await;
    for (faults, expected) in [
        ("video-ms=0", [200, 200, 200]),
        ("submit.status=500;video-ms=0", [500, 200, 200]),
        ("poll.status=503", [200, 503, 200]),
        ("file.status=503", [200, 200, 503]),
        ("status=429", [429, 429, 429]),
        ("status=429;poll.status=404", [429, 404, 429]),
        ("poll.reset=0;file.redirect", [200, 0, 302]),
        ("submit.garbage;file.reset=0", [200, 200, 0]),
    ] {
        let id = ordered(&sim, "video-ms=0").await;
        let told = [
            submit(&sim, faults).await.status,
            poll(&sim, faults, &id).await.status,
            fetch(&sim, faults, &id).await.status,
        ];
        assert_eq!(told, expected, "{faults}");
    }
    let id = ordered(&sim, "video-ms=0").await;
    let faults = "poll.status=503;poll.retry-after=1;poll.times=2;file.cut=1;file.times=1";
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(poll(&sim, faults, &id).await.status);
    }
    assert_eq!(told, [503, 503, 200]);
    assert_eq!(fetch(&sim, faults, &id).await.body, film(&id, 1)[..16 << 10]);
    assert!(fetch(&sim, faults, &id).await.body == film(&id, 1));
    let video = sim.videos().pop().expect("a video");
    assert_eq!((video.polls, video.fetches), (3, 2));
}

#[tokio::test]
async fn an_order_whose_answer_is_lost_is_made_and_billed() {
    let sim = Sim::start().await;
    let lost = ["cut=0", "reset=0", "reset=1", "garbage", "wrong-length=long"];
    for (number, fault) in (1..).zip(lost) {
        submit(&sim, &format!("submit.{fault}")).await;
        assert!(sim.quiet(Duration::from_secs(5)).await);
        assert_eq!(sim.videos().len(), number, "{fault}");
        let seen = sim.take_seen().pop().expect("a request");
        assert!(seen.billed.is_some_and(|billed| billed.ticks == 500_000_000), "{fault}");
    }
    for fault in ["submit.stall=0", "submit.delay=60000"] {
        let before = sim.videos().len();
        let limit = Duration::from_millis(500);
        assert!(tokio::time::timeout(limit, submit(&sim, fault)).await.is_err(), "{fault}");
        assert_eq!(sim.videos().len(), before + 1, "{fault}");
        let seen = sim.take_seen().pop().expect("a request");
        assert!(seen.billed.is_some() && !seen.completed, "{fault}");
    }
    submit(&sim, "submit.status=500").await;
    assert_eq!(sim.videos().len(), lost.len() + 2);
}

#[tokio::test]
async fn files_break_off_or_take_their_time() {
    let sim = Sim::start().await;
    let id = ordered(&sim, "video-ms=0").await;
    let all = film(&id, 1);
    let chunk = 16 << 10;
    for (fault, length) in [("cut=0", 0), ("cut=2", 2 * chunk), ("cut=99", all.len())] {
        let answer = fetch(&sim, &format!("file.{fault}"), &id).await;
        assert!(answer.head.ends_with("content-length: 102400"), "{fault}: {}", answer.head);
        assert!(answer.body == all[..length], "{fault}");
    }
    let short = fetch(&sim, "file.wrong-length=short", &id).await;
    assert!(short.head.ends_with("content-length: 51200"), "{}", short.head);
    let start = Instant::now();
    assert!(fetch(&sim, "file.chunk-delay=10", &id).await.body == all);
    assert!(start.elapsed() >= Duration::from_millis(60));
    let limit = Duration::from_millis(500);
    for fault in ["file.stall=0", "file.stall=2"] {
        assert!(tokio::time::timeout(limit, fetch(&sim, fault, &id)).await.is_err(), "{fault}");
    }
    assert!(sim.quiet(Duration::from_secs(5)).await);
    let completed: Vec<_> = sim.seen()[1..].iter().map(|seen| seen.completed).collect();
    assert_eq!(completed, [false, false, false, true, true, false, false]);
}
