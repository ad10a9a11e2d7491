//! Many large files at once, in little memory.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{Answer, EDIT_B, EDIT_D, Form, Offer, Sent, Store, World};

const FILE_BYTES_MAX: usize = 25 << 20;
const CLIENTS: usize = 8;
/// What the gateway may need beside what it needs anyway.
const MORE_BYTES_MAX: u64 = 64 << 20;

/// A line of what the system tells of a process, in bytes.
pub(crate) fn memory(process: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status.lines().find_map(|told| told.strip_prefix(line)).expect("a line");
    let kilobytes = line.trim_matches([':', '\t', ' ', 'k', 'B']);
    kilobytes.parse::<u64>().expect("kilobytes") * 1024
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
    let sent = form_of(offer, FILE_BYTES_MAX);
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

/// The head of an upload that is to have so many bytes.
fn head(world: &World, media: &str, length: usize) -> String {
    format!(
        "POST /v1/images/edits HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
         content-type: {media}\r\ncontent-length: {length}\r\n\r\n",
        world.key
    )
}

/// A form with a file of so many bytes.
fn form_of(offer: Offer, bytes: usize) -> Sent {
    let mut file = vec![7; bytes];
    file[..4].copy_from_slice(b"\x89PNG");
    let texts = Form::new().field("model", offer.model).field("prompt", "Redder.");
    texts.file("image", "image/png", &file).sent()
}

/// An upload of which only the beginning comes.
fn begun(world: &World, bytes: usize) -> Vec<u8> {
    let sent = form_of(EDIT_B, bytes);
    let head = head(world, &sent.media, sent.bytes.len());
    [head.as_bytes(), &sent.bytes[..sent.bytes.len() - 10]].concat()
}

/// Room for one upload at a time.
const NARROW: &str = "[limits]\nimage_bytes_max = 200_000\nuploads_bytes_max = 200_000";

#[tokio::test]
async fn who_finds_no_room_in_time_is_told_to_come_back() {
    let conf = format!("{NARROW}\n[timeouts]\nbody_ms = 700");
    let world = World::start(Store::Sqlite).conf(&conf).run().await;
    let (world, begun) = (&world, &begun(&world, 100_000));
    // Who stops in the middle takes up the room, and then so does the next of that kind.
    let slow = |ms| async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        world.raw(begun).await
    };
    let late = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let sent = form_of(EDIT_B, 100_000);
        world.send(EDIT_B.path, &sent).await
    };
    let (first, second, third) = tokio::join!(slow(0), slow(200), late);
    assert_eq!([first[0].status, second[0].status], [408, 408]);
    assert_eq!(third.refusal(), (503, "overloaded".to_owned()));
    assert!(third.header("retry-after").is_some(), "{third:?}");
    assert_eq!(world.sim.seen().len(), 0);
    assert_eq!(world.send(EDIT_B.path, &form_of(EDIT_B, 100_000)).await.status, 200);
    world.settled(1).await;
}

/// They had told a length, and room was taken for all of it before a byte had come.
#[tokio::test]
async fn clients_that_send_next_to_nothing_stand_in_nobodys_way() {
    let world = World::start(Store::Sqlite).conf(NARROW).run().await;
    let sent = form_of(EDIT_B, 200_000);
    let head = head(&world, &sent.media, sent.bytes.len());
    let idle = [head.as_bytes(), &sent.bytes[..1_000]].concat();
    let idle = (0..20).map(|_| world.raw(&idle));
    tokio::select! {
        _ = join_all(idle) => panic!("they got an answer"),
        answers = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            [world.ask(EDIT_B).await, world.send(EDIT_B.path, &sent).await]
        } => assert_eq!(answers.map(|answer| answer.status), [200, 200]),
    }
    world.settled(2).await;
}

#[tokio::test]
async fn who_stops_in_the_middle_has_to_go_when_others_wait() {
    let world = World::start(Store::Sqlite).conf(NARROW).run().await;
    let stopped = begun(&world, 150_000);
    let next = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.send(EDIT_B.path, &form_of(EDIT_B, 150_000)).await
    };
    let waits = async {
        let mut connection = TcpStream::connect(&world.gateway.http).await.expect("a connection");
        connection.write_all(&stopped).await.expect("it is taken");
        let mut answer = [0; 12];
        connection.read_exact(&mut answer).await.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let (stopped, next) = tokio::join!(waits, next);
    assert_eq!((stopped.as_str(), next.status), ("HTTP/1.1 408", 200));
    world.settled(1).await;
}

/// Another route would need the body again, but others need its room.
#[tokio::test]
async fn a_body_that_its_vendor_has_had_for_long_makes_room_for_others() {
    let builder = World::start(Store::Sqlite).conf(NARROW);
    let world = builder.vendor("vendor_b", &["delay=5000;status=503;times=1", ""]).run().await;
    let sent = form_of(EDIT_B, 150_000);
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.send(EDIT_B.path, &sent).await
    };
    let (first, second) = tokio::join!(world.send(EDIT_B.path, &sent), late);
    assert_eq!(first.refusal(), (503, "upstream_overloaded".to_owned()));
    assert_eq!(second.status, 200, "{second:?}");
    world.settled(1).await;
}
