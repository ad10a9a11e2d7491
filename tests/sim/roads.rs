//! Requests on real connections: what the endpoints have in common on the way.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Sim, picture, sound};

const RESPONSE: &str = r#"{"model":"lmb-5.5","input":"How much?"}"#;
const IMAGE: &str = r#"{"model":"lmb-image-2","prompt":"A dot."}"#;
const TICKS: &str = r#"{"model":"lmd-imagine-image","prompt":"A dot."}"#;
const SPEECH: &str = r#"{"model":"tts-1","input":"hello","voice":"alloy"}"#;
const EMBEDDING: &str = r#"{"model":"text-embedding-3-small","input":"hello"}"#;
const VECTOR: &str = r#"{"model":"lmc-embedding-2","input":"hello"}"#;
const JUDGEMENT: &str = r#"{"input":"hello"}"#;

/// Every endpoint beside those of conversation, and a request that it takes.
const ALL: [Call<'static>; 7] = [
    Call { vendor: "vendor_b", endpoint: "responses", body: RESPONSE },
    Call { vendor: "vendor_b", endpoint: "images/generations", body: IMAGE },
    Call { vendor: "vendor_d", endpoint: "images/generations", body: TICKS },
    Call { vendor: "vendor_b", endpoint: "audio/speech", body: SPEECH },
    Call { vendor: "vendor_b", endpoint: "embeddings", body: EMBEDDING },
    Call { vendor: "vendor_c", endpoint: "embeddings", body: VECTOR },
    Call { vendor: "vendor_b", endpoint: "moderations", body: JUDGEMENT },
];

/// A request to an endpoint of a vendor.
#[derive(Clone, Copy, Debug)]
struct Call<'a> {
    vendor: &'a str,
    endpoint: &'a str,
    body: &'a str,
}

/// The head and the body of an answer, of which all came that will come; empty after a reset.
async fn post(sim: &Sim, call: Call<'_>, faults: &str) -> Answer {
    let Call { vendor, endpoint, body } = call;
    let url = format!("{}/{endpoint}", sim.base_url(vendor, faults));
    let path = url.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]));
    let media = if body.starts_with("--") {
        "multipart/form-data; boundary=xyz"
    } else {
        "application/json"
    };
    let request = format!(
        "POST {} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer vk-1\r\nconnection: close\r\n\
         content-type: {media}\r\ncontent-length: {}\r\n\r\n{body}",
        path.expect("a path"),
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
    let body = bytes.get(end + 4..).unwrap_or_default().to_vec();
    Answer { head: String::from_utf8_lossy(&bytes[..end]).into_owned(), body }
}

struct Answer {
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON after {}", self.head))
    }
}

#[tokio::test]
async fn every_endpoint_answers_and_is_recorded() {
    let sim = Sim::start().await;
    for call in ALL {
        let answer = post(&sim, call, "").await;
        assert!(answer.head.starts_with("HTTP/1.1 200 OK\r\n"), "{call:?}: {}", answer.head);
        assert!(answer.head.contains("\r\nset-cookie: __sim_edge=account-secret"), "{call:?}");
        let seen = sim.take_seen().pop().expect("a request");
        assert!(seen.completed && seen.billed.is_some(), "{seen:?}");
        assert_eq!((seen.vendor.as_str(), seen.body.as_ref()), (call.vendor, call.body.as_bytes()));
    }
}

#[tokio::test]
async fn faults_of_the_way_are_those_of_all_endpoints() {
    let sim = Sim::start().await;
    for call in ALL {
        let busy = post(&sim, call, "status=429;retry-after=7").await;
        assert!(busy.head.starts_with("HTTP/1.1 429 "), "{call:?}: {}", busy.head);
        assert!(busy.head.ends_with("retry-after: 7"), "{call:?}: {}", busy.head);
        assert!(busy.json().is_array() == (call.vendor == "vendor_c"), "{call:?}");
        assert_eq!(post(&sim, call, "reset=0").await.head, "", "{call:?}");
        let start = Instant::now();
        let late = post(&sim, call, "delay=30").await;
        assert!(start.elapsed() >= Duration::from_millis(30), "{call:?}");
        let garbage = post(&sim, call, "garbage").await;
        assert!(garbage.head.starts_with("HTTP/1.1 200 ") && garbage.body != late.body);
        let cut = post(&sim, call, "cut=0").await;
        assert!(cut.body.len() < late.body.len(), "{call:?}");
        assert!(sim.quiet(Duration::from_secs(5)).await);
        let seen = sim.take_seen();
        let billed: Vec<_> = seen.iter().map(|seen| seen.billed.is_some()).collect();
        assert_eq!(billed, [false, false, true, false, true], "{call:?}");
        let completed: Vec<_> = seen.iter().map(|seen| seen.completed).collect();
        assert_eq!(completed, [true, false, true, true, false], "{call:?}");
    }
}

#[tokio::test]
async fn speech_comes_in_chunks() {
    let sim = Sim::start().await;
    let call = Call { vendor: "vendor_b", endpoint: "audio/speech", body: SPEECH };
    let all = sound("hello", "alloy", "mp3", 336);
    let answer = post(&sim, call, "").await;
    assert!(answer.head.contains("content-type: audio/mpeg"));
    assert_eq!(answer.body, [b"150\r\n", all.as_slice(), b"\r\n0\r\n\r\n"].concat());
    let cut = post(&sim, call, "chunks=3;cut=1").await;
    assert_eq!(cut.body, [b"70\r\n", &all[..112], b"\r\n"].concat());
    assert_eq!(post(&sim, call, "wrong-length=short").await.body, all);
}

#[tokio::test]
async fn a_response_breaks_off_with_an_event() {
    let sim = Sim::start().await;
    let body = r#"{"model":"lmb-5.5","input":"How much?","stream":true}"#;
    let call = Call { vendor: "vendor_b", endpoint: "responses", body };
    let answer = post(&sim, call, "error-event=2").await;
    let text = String::from_utf8(answer.body).expect("a text");
    assert_eq!(text.matches("event: ").count(), 3);
    assert!(text.contains("event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\","));
    assert!(text.contains("\"sequence_number\":2}\n\n"));
}

#[tokio::test]
async fn files_of_forms_are_recorded() {
    let sim = Sim::start().await;
    let part = |head: &str, content: &str| {
        format!("--xyz\r\ncontent-disposition: form-data; {head}\r\n\r\n{content}\r\n")
    };
    let file = "name=\"image[]\"; filename=\"a.png\"\r\ncontent-type: image/png";
    let texts = part("name=\"model\"", "lmb-image-1") + &part("name=\"prompt\"", "Redder.");
    let form = texts + &part(file, "abc") + "--xyz--\r\n";
    let call = Call { vendor: "vendor_b", endpoint: "images/edits", body: &form };
    let answer = post(&sim, call, "image-bytes=200").await;
    let text = answer.json()["data"][0]["b64_json"].as_str().map(str::len);
    assert_eq!(text, Some(picture(200).len().div_ceil(3) * 4));
    let seen = sim.take_seen().pop().expect("a request");
    let [file] = seen.files.as_slice() else { panic!("{seen:?}") };
    assert_eq!((file.part.as_str(), file.len), ("image[]", 3));
    assert!(file.sha256.starts_with("ba7816bf"));
    assert_eq!((seen.field("prompt"), seen.field("n")), (Some("Redder."), None));
}
