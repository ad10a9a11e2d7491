//! Many large files at once, in little memory.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use crate::world::{Answer, EDIT_B, EDIT_D, Form, Offer, Sent, Store, World};

const FILE_BYTES_MAX: usize = 25 << 20;
const CLIENTS: usize = 8;
/// What the gateway may need beside what it needs anyway.
const MORE_BYTES_MAX: u64 = 64 << 20;

/// A line of what the system tells of a process, in bytes.
fn memory(process: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status.lines().find_map(|told| told.strip_prefix(line)).expect("a line");
    let kilobytes = line.trim_matches([':', '\t', ' ', 'k', 'B']);
    kilobytes.parse::<u64>().expect("kilobytes") * 1024
}

fn form(offer: Offer) -> Sent {
    let mut file = vec![7; FILE_BYTES_MAX];
    file[..4].copy_from_slice(b"\x89PNG");
    let texts = Form::new().field("model", offer.model).field("prompt", "Redder.");
    texts.file("image", "image/png", &file).sent()
}

#[rstest]
#[tokio::test]
async fn many_large_files_at_once_need_little_memory(
    #[values(EDIT_B, EDIT_D)] offer: Offer,
    #[values(false, true)] in_chunks: bool,
) {
    let world = World::start(Store::Sqlite).run().await;
    assert_eq!(world.ask(offer).await.status, 200);
    world.settled(1).await;
    let process = world.gateway.id();
    let idle = memory(process, "VmRSS");
    let started = memory(process, "VmHWM");
    let sent = form(offer);
    let calls = (0..CLIENTS).map(|_| async {
        let request = world.sending(offer.path, &sent.media, Some(&world.key));
        let body = if in_chunks { sent.in_chunks() } else { Bytes::clone(&sent.bytes).into() };
        Answer::read(request.body(body)).await
    });
    let mut most = 0;
    let answers = tokio::select! {
        answers = join_all(calls) => answers,
        _ = async { loop {
            most = memory(process, "VmRSS").max(most);
            tokio::time::sleep(Duration::from_millis(10)).await;
        } } => unreachable!("it has no end"),
    };
    let odd: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(odd.is_empty(), "{odd:?}");
    // The system keeps the peak itself; it tells nothing if the start needed more.
    let peak = memory(process, "VmHWM");
    if peak > started {
        most = most.max(peak);
    }
    let megabytes = |bytes: u64| bytes >> 20;
    assert!(
        most < idle + MORE_BYTES_MAX,
        "{} MiB, {} MiB when idle",
        megabytes(most),
        megabytes(idle)
    );
    world.settled(CLIENTS + 1).await;
}

#[tokio::test]
async fn who_finds_no_room_in_time_is_told_to_come_back() {
    let limits = "[limits]\nimage_bytes_max = 100_000\nuploads_bytes_max = 100_000";
    let conf = format!("{limits}\n[timeouts]\nbody_ms = 700");
    let world = World::start(Store::Sqlite).conf(&conf).run().await;
    let sent = EDIT_B.sent(&json!({}));
    let head = format!(
        "POST /v1/images/edits HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
         content-type: {}\r\ncontent-length: 100000\r\n\r\n",
        world.key, sent.media
    );
    let (world, head) = (&world, &head);
    // Who comes and sends nothing takes up the room, and then so does the next of that kind.
    let slow = |ms| async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        world.raw(head.as_bytes()).await
    };
    let late = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        world.ask(EDIT_B).await
    };
    let (first, second, third) = tokio::join!(slow(0), slow(200), late);
    assert_eq!([first[0].status, second[0].status], [400, 400]);
    assert_eq!(third.refusal(), (503, "overloaded".to_owned()));
    assert!(third.header("retry-after").is_some(), "{third:?}");
    assert_eq!(world.sim.seen().len(), 0);
    assert_eq!(world.ask(EDIT_B).await.status, 200);
    world.settled(1).await;
}
