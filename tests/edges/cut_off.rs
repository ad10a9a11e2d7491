//! Answers that are not whole: none of them ends as if it were.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;
use tokio::net::TcpSocket;

use super::many::encrypted_of;
use super::{Client, head};
use crate::world::{Builder, Canned, SPEECH, Store, World, chat_of, with};

const IMPATIENT: &str = "[timeouts]\nclient_write_ms = 700\nkeepalive_ms = 2_000";
/// More than there is room for between a vendor and a client that does not listen.
const SOUND_BYTES: usize = 24 << 20;
/// Each is taken on by itself, and would fit into the smallest buffer; in all they fit into none.
const SMALL_EVENTS: &str = "chunks=5000;reply-bytes=5000000;chunk-delay=1";

/// A vendor that speaks for long.
async fn speaker() -> Canned {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg";
    let mut answer = format!("{head}\r\ncontent-length: {SOUND_BYTES}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + SOUND_BYTES, 7);
    Canned::start(answer, usize::MAX).await
}

fn world_of(vendor: &Canned) -> Builder {
    World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url])
}

/// A client that takes little at a time.
pub(super) async fn narrow(world: &World) -> Client {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 << 10).expect("a small buffer");
    let address = world.gateway.http.parse().expect("an address");
    let stream = socket.connect(address).await.expect("a connection");
    Client { stream, heard: Vec::new() }
}

/// So many calls were given up, since their clients took nothing.
pub(super) async fn given_up(world: &World, count: usize) {
    let end = std::time::Instant::now() + super::PATIENCE;
    while world.log().matches("client_gone=true").count() < count {
        assert!(std::time::Instant::now() < end, "{}", world.log());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The piece under way was cut in the middle, most often.
#[tokio::test]
async fn sound_that_was_not_taken_in_time_ended_like_a_whole_one() {
    let vendor = speaker().await;
    let world = world_of(&vendor).conf(IMPATIENT).run().await;
    let sent = SPEECH.sent(&json!({}));
    let length = format!("content-length: {}\r\n", sent.bytes.len());
    let call = head(&world, &format!("POST {} HTTP/1.1", SPEECH.path), &length);
    let call = [call.as_bytes(), &sent.bytes].concat();
    let (world, call) = (&world, &call);
    let mut clients = join_all((0..4).map(|_| async move {
        let mut client = narrow(world).await;
        client.send(call).await;
        assert!(client.listen().await);
        client
    }))
    .await;
    given_up(world, clients.len()).await;
    for client in clients.drain(..) {
        let answers = client.rest().await;
        let bytes = answers[0].body.len();
        assert!(!answers[0].whole && bytes < SOUND_BYTES, "{bytes} bytes looked like all of it");
    }
    world.metric_becomes("tollgate_connections", &[], 0).await;
}

/// Events are small: the chunk under way lay whole in a buffer, and pingora put the last behind it.
#[tokio::test]
async fn events_that_were_not_taken_in_time_ended_like_a_whole_stream() {
    let builder = World::start(Store::Sqlite).credit("5000");
    let builder = builder.vendor("vendor_b", &[SMALL_EVENTS]);
    let world = builder.conf(IMPATIENT).run().await;
    let body = with(chat_of("lmb-5.5"), &json!({ "stream": true })).to_string();
    let length = format!("content-length: {}\r\n", body.len());
    let call = head(&world, "POST /v1/chat/completions HTTP/1.1", &length) + &body;
    let mut client = narrow(&world).await;
    client.send(call).await;
    assert!(client.listen().await);
    given_up(&world, 1).await;
    let answers = client.rest().await;
    assert!(!answers[0].whole && !answers[0].body.ends_with(b"[DONE]\n\n"));
    world.settled(1).await;
}

/// Reads the rest of an answer; tells whether it ended well, and after how many bytes.
async fn rest(mut answer: reqwest::Response) -> (bool, usize) {
    let mut bytes = 0;
    loop {
        match answer.chunk().await {
            Ok(Some(piece)) => bytes += piece.len(),
            Ok(None) => return (true, bytes),
            Err(_) => return (false, bytes),
        }
    }
}

/// Its stream was ended, and not reset; no length says how much there should have been.
#[tokio::test]
async fn sound_that_was_not_taken_in_time_ended_well_on_a_connection_of_many() {
    let vendor = speaker().await;
    let (world, _folder) = encrypted_of(world_of(&vendor), IMPATIENT).await;
    let client = super::many::client(false);
    let sent = SPEECH.sent(&json!({}));
    let url = format!("https://{}{}", world.gateway.http, SPEECH.path);
    let call = client.post(&url).bearer_auth(&world.key).header("content-type", &sent.media);
    let mut answer = call.body(sent.bytes).send().await.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    answer.chunk().await.expect("a connection").expect("sound");
    given_up(&world, 1).await;
    let (well, bytes) = rest(answer).await;
    assert!(!well && bytes < SOUND_BYTES, "{bytes} bytes looked like all of it");
    // The connection has other streams.
    let models = client.get(format!("https://{}/v1/models", world.gateway.http));
    assert_eq!(models.bearer_auth(&world.key).send().await.expect("an answer").status(), 200);
    assert_eq!(world.metric("tollgate_connections", &[]).await, 1);
}

/// What it still sent lay in memory meanwhile, for a minute, and so often as it liked.
#[tokio::test]
async fn who_was_refused_and_did_not_take_it_was_waited_for() {
    let conf = "[timeouts]\nclient_write_ms = 600_000";
    let (world, _folder) = encrypted_of(World::start(Store::Sqlite), conf).await;
    let client = super::many::builder().http2_initial_stream_window_size(0).build();
    let (_sender, body) = tokio::io::duplex(1 << 20);
    let body = reqwest::Body::wrap_stream(futures_util::stream::unfold(body, |mut body| async {
        let mut piece = vec![0; 1_000];
        let read = tokio::io::AsyncReadExt::read(&mut body, &mut piece).await;
        Some((read.map(|_| piece), body))
    }));
    let url = format!("https://{}/v1/chat/completions", world.gateway.http);
    let call = client.expect("a client").post(url).body(body).send();
    let answer = call.await.expect("the head of an answer");
    assert_eq!(answer.status(), 401);
    let (well, bytes) = rest(answer).await;
    assert!(!well && bytes == 0, "{bytes} bytes came");
    given_up(&world, 1).await;
}

/// What the vendor breaks off breaks off for the client, whatever it speaks.
#[rstest]
#[tokio::test]
async fn sound_that_breaks_off_has_no_end_either(
    #[values(true, false)] one_at_a_time: bool,
    #[values("cut=2", "reset=2")] fault: &str,
) {
    let faults = format!("chunks=6;chunk-delay=10;{fault}");
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &[&faults]);
    let (world, _folder) = encrypted_of(builder, "").await;
    let sent = SPEECH.sent(&json!({}));
    let url = format!("https://{}{}", world.gateway.http, SPEECH.path);
    let call = super::many::client(one_at_a_time).post(url).bearer_auth(&world.key);
    let call = call.header("content-type", &sent.media).body(sent.bytes);
    let (well, bytes) = rest(call.send().await.expect("an answer")).await;
    assert!(!well && bytes > 0, "{bytes} bytes looked like all of it");
    world.free_of_charge().await;
}
