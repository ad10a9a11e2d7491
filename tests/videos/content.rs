//! The file of a finished video: a redirect to an address that is good for a while, for one video.

use rstest::rstest;
use serde_json::json;

use super::{proven, swift};
use crate::sim::film;
use crate::world::{Store, World, quick};

/// Where the file of a finished video is.
async fn location(world: &World, id: &str) -> String {
    let answer = world.get_there(&format!("/v1/videos/{id}/content"), Some(&world.key), None).await;
    assert_eq!((answer.status, answer.body.len()), (302, 0), "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"), "{answer:?}");
    answer.header("location").expect("an address").to_owned()
}

/// A world with a finished video, and the bytes that the vendor made of it.
async fn made(store: Store) -> (World, String, Vec<u8>) {
    let world = swift(store).run().await;
    let id = world.place(json!({ "seconds": 2 })).await;
    proven(&world, std::slice::from_ref(&id)).await;
    let film = film(&world.sim.videos()[0].id, 2);
    (world, id, film)
}

#[rstest]
#[tokio::test]
async fn the_content_leads_to_the_file_which_needs_no_key(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let (world, id, film) = made(store).await;
    let place = location(&world, &id).await;
    assert!(!place.contains(&world.key) && !world.log().contains(&place), "{place}");
    let file = world.get_there(&place, None, None).await;
    assert_eq!(file.status, 200, "{}", file.status);
    assert!(file.body == film, "every byte of it");
    assert_eq!(file.header("content-type"), Some("video/mp4"));
    assert_eq!(file.header("accept-ranges"), Some("bytes"));
    assert_eq!(file.header("content-length"), Some(&*film.len().to_string()));
    // With a key it is the same: clients keep it on the way to the same host.
    assert!(world.get_there(&place, Some(&world.key), None).await.body == film);
    let led = world.get(&format!("/v1/videos/{id}/content?variant=video")).await;
    assert!(led.status == 200 && led.body == film);
    world.settled(1).await;
}

#[tokio::test]
async fn a_part_of_the_file_can_be_asked_for() {
    let (world, id, film) = made(Store::Sqlite).await;
    let place = location(&world, &id).await;
    for (range, begin, end) in [
        ("bytes=0-99", 0_usize, 100_usize),
        ("bytes=1000-1999", 1_000, 2_000),
        ("bytes=204000-", 204_000, 204_800),
        ("bytes=-100", 204_700, 204_800),
        ("bytes=204799-999999", 204_799, 204_800),
    ] {
        let part = world.get_there(&place, None, Some(range)).await;
        assert_eq!(part.status, 206, "{range}");
        assert!(part.body == film[begin..end], "{range}");
        let told = format!("bytes {begin}-{}/{}", end - 1, film.len());
        assert_eq!(part.header("content-range"), Some(&*told), "{range}");
        let length = (end - begin).to_string();
        assert_eq!(part.header("content-length"), Some(&*length), "{range}");
    }
    let none = world.get_there(&place, None, Some("bytes=204800-")).await;
    assert_eq!((none.status, none.header("content-range")), (416, Some("bytes */204800")));
}

#[tokio::test]
async fn what_clients_are_led_to_can_be_behind_another_address() {
    let base = ("TOLLGATE__FILES__PUBLIC_BASE", "https://files.test/a");
    let world = swift(Store::Sqlite).env(base.0, base.1).run().await;
    let id = world.place(json!({})).await;
    proven(&world, std::slice::from_ref(&id)).await;
    let place = location(&world, &id).await;
    let path = place.strip_prefix("https://files.test/a").expect("the public address");
    assert_eq!(world.get_there(path, None, None).await.status, 200);
}

/// Whoever changes anything of an address has none.
#[rstest]
#[tokio::test]
async fn an_address_is_for_one_video_and_cannot_be_made_up(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = swift(store).run().await;
    let mut ids = Vec::new();
    for prompt in ["a", "b"] {
        ids.push(world.place(json!({ "prompt": prompt })).await);
    }
    proven(&world, &ids).await;
    let place = location(&world, &ids[0]).await;
    let (path, token) = place.split_once("?token=").expect("a token");
    assert_eq!(path, format!("/v1/videos/{}/file", ids[0]));
    let mut forged = vec![
        path.to_owned(),
        format!("{path}?token="),
        format!("{path}?token=a"),
        format!("{path}?other={token}"),
        format!("{path}?token={token}A"),
        format!("{path}?token={token}="),
        format!("{path}?token=={token}"),
        format!("{path}?token={}", token.to_uppercase()),
        place.replace(&ids[0], &ids[1]),
        place.replace(&ids[0], &ids[0].to_uppercase()),
    ];
    for at in 0..token.len() {
        let mut bytes = token.as_bytes().to_vec();
        // Each character in turn, so that each bit that counts is another one.
        bytes[at] = if bytes[at] == b'Q' { b'g' } else { b'Q' };
        forged.push(format!("{path}?token={}", String::from_utf8(bytes).expect("ASCII")));
    }
    for address in forged {
        let answer = world.get_there(&address, Some(&world.key), None).await;
        assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "{address}");
    }
    assert_eq!(world.get_there(&place, None, None).await.status, 200);
}

/// The fleet has one secret, which outlives all of its nodes.
#[rstest]
#[tokio::test]
async fn an_address_is_good_at_every_node_and_after_a_crash(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let (mut world, id, film) = made(store).await;
    let place = location(&world, &id).await;
    if store == Store::Redis {
        let second = world.second_gateway().await;
        let there = format!("http://{}{place}", second.http);
        assert!(world.get_there(&there, None, None).await.body == film);
    }
    world.kill_and_start_again().await;
    assert!(world.get_there(&place, None, None).await.body == film);
}

/// A leaked secret could not be taken out of use without breaking each address that is under way.
#[tokio::test]
async fn the_secret_of_addresses_is_changed_and_no_address_breaks_meanwhile() {
    let (world, id, _) = made(Store::Sqlite).await;
    let secret = ("LINKS", "a-secret-of-thirty-two-bytes-or-more");
    let setting = "TOLLGATE__FILES__LINK_SECRETS";
    let both = world.gateway_with("both", &[secret, (setting, "['env:LINKS', 'store']")]).await;
    let new = world.gateway_with("new", &[secret, (setting, "['env:LINKS']")]).await;
    let at = |gateway: &crate::world::Process, path: &str| format!("http://{}{path}", gateway.http);
    let old_place = location(&world, &id).await;
    let asked = at(&both, &format!("/v1/videos/{id}/content"));
    let answer = world.get_there(&asked, Some(&world.key), None).await;
    let new_place = answer.header("location").expect("an address").to_owned();
    for (gateway, place, status) in [
        (&world.gateway, &old_place, 200),
        (&both, &old_place, 200),
        (&new, &old_place, 404),
        (&world.gateway, &new_place, 404),
        (&both, &new_place, 200),
        (&new, &new_place, 200),
    ] {
        let answer = world.get_there(&at(gateway, place), None, None).await;
        assert_eq!(answer.status, status, "{place} at {}", gateway.http);
    }
    for (secret, told) in [("short", "32 bytes at least"), ("", "32 bytes at least")] {
        let env = [("LINKS", secret), (setting, "['env:LINKS']")];
        for words in [&["check"][..], &["serve"]] {
            let run = world.command_with(words, &env).await;
            assert!(run.code == 1 && run.err.contains(told), "{words:?}: {run:?}");
        }
    }
}

#[tokio::test]
async fn only_the_video_itself_is_there() {
    let (world, id, _) = made(Store::Sqlite).await;
    for (query, status) in [
        ("variant=thumbnail", 400),
        ("variant=spritesheet", 400),
        ("variant=", 400),
        ("other=thumbnail", 302),
    ] {
        let path = format!("/v1/videos/{id}/content?{query}");
        let answer = world.get_there(&path, Some(&world.key), None).await;
        assert_eq!(answer.status, status, "{query}: {answer:?}");
        if status == 400 {
            assert_eq!(answer.refusal_of(query).1, "invalid_value", "{query}");
            assert_eq!(answer.json()["error"]["param"], "variant", "{query}");
        }
    }
}

#[rstest]
#[tokio::test]
async fn before_it_is_finished_there_is_nothing_to_fetch(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("never", "submit.status=503", "file.stall=1")] faults: &str,
) {
    let world = World::start(store).vendor("vendor_d", &[faults]).conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    if faults.starts_with("file") {
        world.vendor_hears("the file", |world| !world.fetches().is_empty()).await;
    }
    let answer = world.get(&format!("/v1/videos/{id}/content")).await;
    assert_eq!(answer.refusal(), (400, "video_not_ready".to_owned()));
    for path in [format!("/v1/videos/{id}/file"), format!("/v1/videos/{id}/file?token=abc")] {
        assert_eq!(world.get(&path).await.refusal(), (404, "not_found".to_owned()));
    }
}
