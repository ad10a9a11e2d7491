//! Files as large as may be, and a byte larger, however long the body says it is.

use rstest::rstest;

use crate::world::{Answer, EDIT_B, EDIT_D, Form, Offer, Sent, Store, World};

const FILE_BYTES_MAX: usize = 25 << 20;

fn form(offer: Offer, length: usize) -> Sent {
    let mut file = vec![7; length];
    file[..4].copy_from_slice(b"\x89PNG");
    let texts = Form::new().field("model", offer.model).field("prompt", "Redder.");
    texts.file("image", "image/png", &file).sent()
}

#[rstest]
#[tokio::test]
async fn the_largest_file_passes_and_a_byte_more_does_not(
    #[values(EDIT_B, EDIT_D)] offer: Offer,
    #[values(false, true)] in_chunks: bool,
) {
    let world = World::start(Store::Sqlite).run().await;
    for (length, status) in [(FILE_BYTES_MAX, 200), (FILE_BYTES_MAX + 1, 413)] {
        let sent = form(offer, length);
        let request = world.sending(offer.path, &sent.media, Some(&world.key));
        let body = if in_chunks { sent.in_chunks() } else { sent.bytes.into() };
        match Answer::try_read(request.body(body)).await {
            Ok(answer) => assert_eq!(answer.status, status, "{answer:?}"),
            // A server may close before it has read what it does not want.
            Err(error) => assert_eq!(status, 413, "{error}"),
        }
    }
    let seen = world.sim.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].files[0].len, FILE_BYTES_MAX);
    world.settled(1).await;
}

fn head(world: &World, framing: &str) -> Vec<u8> {
    let sent = form(EDIT_B, 100);
    let head = format!(
        "POST /v1/images/edits HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
         content-type: {}\r\n{framing}\r\n\r\n",
        world.key, sent.media
    );
    head.into_bytes()
}

#[tokio::test]
async fn a_body_that_is_told_to_be_far_too_large_is_refused_before_it_comes() {
    let world = World::start(Store::Sqlite).run().await;
    let answers = world.raw(&head(&world, "content-length: 104857600")).await;
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!((answers[0].status, answers[0].whole), (413, true), "{answers:?}");
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_body_that_is_longer_than_it_says_is_a_broken_form() {
    let world = World::start(Store::Sqlite).run().await;
    let sent = form(EDIT_B, 10_000);
    let mut bytes = head(&world, "content-length: 5000");
    bytes.extend_from_slice(&sent.bytes);
    let answers = world.raw(&bytes).await;
    assert_eq!(answers[0].status, 400, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.status >= 400), "{answers:?}");
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_body_that_is_shorter_than_it_says_is_not_served() {
    let world = World::start(Store::Sqlite).conf("[timeouts]\nbody_ms = 200").run().await;
    let sent = form(EDIT_B, 10_000);
    let framing = format!("content-length: {}", sent.bytes.len() + 1_000);
    let mut bytes = head(&world, &framing);
    bytes.extend_from_slice(&sent.bytes);
    let answers = world.raw(&bytes).await;
    assert_eq!(answers[0].status, 408, "{answers:?}");
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_file_in_many_small_chunks_is_the_same_file() {
    let world = World::start(Store::Sqlite).run().await;
    let sent = form(EDIT_B, 3_000);
    let mut bytes = head(&world, "connection: close\r\ntransfer-encoding: chunked");
    for piece in sent.bytes.chunks(7) {
        bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        bytes.extend_from_slice(piece);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    let answers = world.raw(&bytes).await;
    assert_eq!(answers[0].status, 200, "{answers:?}");
    let seen = world.sim.seen().remove(0);
    assert_eq!(seen.files[0].len, 3_000);
    world.settled(1).await;
}
