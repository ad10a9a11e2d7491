//! A job is sent to a vendor once. Where nothing was begun it may be sent again; where nobody
//! knows, it never is.

use rstest::rstest;
use serde_json::json;

use super::{SHORT, proven};
use crate::world::{Canned, Store, VENDOR_KEY, World, closed_port, quick};

#[rstest]
#[case::no_key(Store::Sqlite, "submit.status=401")]
#[case::no_money(Store::Redis, "submit.status=402")]
#[case::not_allowed(Store::Sqlite, "submit.status=403")]
#[case::too_many(Store::Redis, "submit.status=429")]
#[case::overloaded(Store::Sqlite, "submit.status=503")]
#[case::overloaded_otherwise(Store::Redis, "submit.status=529")]
#[case::nobody_there(Store::Sqlite, "closed")]
#[tokio::test]
async fn a_route_that_begins_nothing_gives_way_to_the_next(
    #[case] store: Store,
    #[case] faults: &str,
) {
    let closed = closed_port();
    let first = if faults == "closed" { closed.as_str() } else { faults };
    let builder = World::start(store).vendor("vendor_d", &[first, ""]);
    let world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    let charge = proven(&world, &[id]).await.remove(0);
    assert_eq!((charge.route.as_str(), charge.amount_nano), ("r1", SHORT));
    let posts = world.submissions();
    assert_eq!(posts.len(), if faults == "closed" { 1 } else { 2 });
    assert!(posts.iter().all(|post| post.body == posts[0].body), "all routes get the same");
    let asked = world.polls();
    assert!(asked.iter().all(|poll| poll.faults.is_empty()), "only the one that has it is asked");
}

#[tokio::test]
async fn an_expired_key_that_comes_as_400_was_told_to_the_client_as_its_own_fault() {
    let body = r#"{"code":"Client specified an invalid argument","error":"Incorrect API key provided: vk***ey."}"#;
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json";
    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let vendor = Canned::start(answer, usize::MAX).await;
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &[&vendor.url, ""]);
    let world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    assert_eq!(vendor.heard(), 1);
    proven(&world, &[id]).await;
}

#[rstest]
#[case::overloaded("submit.status=503;submit.times=3")]
#[case::too_many("submit.status=429;submit.times=3")]
#[tokio::test]
async fn a_vendor_who_is_overloaded_for_a_while_gets_it_later(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] faults: &str,
) {
    let world = World::start(store).vendor("vendor_d", &[faults]).conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    proven(&world, &[id]).await;
    assert_eq!(world.submissions().len(), 4);
    assert_eq!(world.sim.videos().len(), 1);
}

#[rstest]
#[tokio::test]
async fn while_all_routes_are_overloaded_it_is_queued_and_its_money_held(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "submit.status=503;submit.times=4";
    let builder = World::start(store).vendor("vendor_d", &[faults, &closed_port()]);
    let world = builder.conf(&quick(&[("retry_ms", 100)])).run().await;
    let id = world.place(json!({})).await;
    world.vendor_hears("the job", |world| world.submissions().len() > 2).await;
    assert_eq!(world.video(&id).await.outcome(), "queued");
    assert_eq!(world.balances().await.held, SHORT);
    assert_eq!(world.over(&id).await.outcome(), "completed");
    proven(&world, &[id]).await;
}

/// The vendor has it, or may have it; he bills it or not. The job fails, and costs nothing.
#[rstest]
#[case::fails(Store::Sqlite, "submit.status=500", 0)]
#[case::bad_gateway(Store::Redis, "submit.status=502", 0)]
#[case::late(Store::Sqlite, "submit.status=504", 0)]
#[case::too_slow(Store::Redis, "submit.status=408", 0)]
#[case::odd(Store::Sqlite, "submit.status=409", 0)]
#[case::hangs_up(Store::Redis, "submit.reset=0", 1)]
#[case::breaks(Store::Sqlite, "submit.cut=0", 1)]
#[case::never_answers(Store::Redis, "submit.stall=0", 1)]
#[case::answers_in_part(Store::Sqlite, "submit.stall=1", 1)]
#[case::nonsense(Store::Redis, "submit.garbage", 1)]
#[tokio::test]
async fn when_nobody_knows_whether_a_vendor_has_it_it_is_never_sent_again(
    #[case] store: Store,
    #[case] faults: &str,
    #[case] made: usize,
) {
    let builder = World::start(store).vendor("vendor_d", &[faults, "", ""]);
    let world = builder.conf(&quick(&[("answer_ms", 400)])).run().await;
    let id = world.place(json!({})).await;
    let video = world.over(&id).await;
    assert_eq!((video.outcome().as_str(), video.cost_nano()), ("failed vendor_failed", 0));
    world.free_of_charge().await;
    // Another one would come soon.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!((world.submissions().len(), world.sim.videos().len()), (1, made));
    assert_eq!(world.video(&id).await.json, video.json);
}

#[rstest]
#[case::bad(Store::Sqlite, "submit.status=400")]
#[case::unknown(Store::Redis, "submit.status=404")]
#[case::too_large(Store::Sqlite, "submit.status=413")]
#[case::of_no_kind(Store::Redis, "submit.status=415")]
#[case::makes_no_sense(Store::Sqlite, "submit.status=422")]
#[tokio::test]
async fn what_a_vendor_refuses_for_good_fails_at_once(#[case] store: Store, #[case] faults: &str) {
    let world = World::start(store).vendor("vendor_d", &[faults, ""]).conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    assert_eq!(world.over(&id).await.outcome(), "failed vendor_failed");
    world.free_of_charge().await;
    assert_eq!(world.submissions().len(), 1, "no other route is asked");
}

#[rstest]
#[case::no_key("submit.status=401")]
#[case::no_money("submit.status=402")]
#[case::not_allowed("submit.status=403")]
#[tokio::test]
async fn without_a_route_that_lets_us_in_it_fails(#[case] faults: &str) {
    let routes = [faults, "submit.status=401"];
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &routes).conf(&quick(&[]));
    let world = builder.run().await;
    let id = world.place(json!({})).await;
    let video = world.over(&id).await;
    assert_eq!(video.outcome(), "failed vendor_failed");
    // The vendor's quarrel is with us, and none of the client's business.
    let told = video.json["error"]["message"].to_string();
    assert!(!told.contains("key") && !told.contains("credit"), "{told}");
    world.free_of_charge().await;
}

/// The key goes to the vendor, and to nobody who only keeps his files.
#[rstest]
#[tokio::test]
async fn the_vendors_key_is_shown_to_the_vendor_alone(#[values("info", "trace")] level: &str) {
    let conf = quick(&[]) + &format!("[log]\nlevel = {level:?}");
    let world = World::start(Store::Sqlite).conf(&conf).run().await;
    let id = world.place(json!({ "prompt": "a canary of a prompt" })).await;
    proven(&world, &[id]).await;
    let key = format!("Bearer {VENDOR_KEY}");
    for seen in world.submissions().iter().chain(&world.polls()) {
        assert_eq!(seen.header("authorization"), Some(&*key), "{}", seen.path);
        assert!(!format!("{:?}", seen.headers).contains(&world.key), "{}", seen.path);
    }
    for seen in world.fetches() {
        assert_eq!(seen.header("authorization"), None);
    }
    let told = world.log() + &world.metrics().await;
    for secret in [VENDOR_KEY, &world.key, "canary of a prompt"] {
        assert!(!told.contains(secret), "{secret} in\n{told}");
    }
}

/// Whoever works on a job for longer than a claim lasts keeps it from the others.
#[rstest]
#[case::being_sent("submit.delay=2500")]
#[case::being_asked_for("poll.delay=2500;poll.times=1")]
#[case::being_copied("file.chunk-delay=90")]
#[tokio::test]
async fn what_takes_longer_than_a_claim_is_done_once(#[case] faults: &str) {
    let builder = World::start(Store::Redis).vendor("vendor_d", &[faults]);
    let world = builder.conf(&quick(&[])).run().await;
    let second = world.second_gateway().await;
    let id = world.place(json!({})).await;
    proven(&world, &[id]).await;
    assert_eq!((world.submissions().len(), world.fetches().len()), (1, 1));
    assert!(!(world.log() + &second.log()).contains("another worker"));
}

#[rstest]
#[tokio::test]
async fn two_nodes_share_many_jobs_and_do_nothing_twice(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["video-ms=300"]).credit("50");
    let world = builder.conf(&quick(&[])).run().await;
    let second = if store == Store::Redis { Some(world.second_gateway().await) } else { None };
    let orders = (0..50).map(|number| world.place(json!({ "prompt": format!("number {number}") })));
    let ids = futures_util::future::join_all(orders).await;
    assert_eq!(proven(&world, &ids).await.len(), 50);
    assert_eq!((world.submissions().len(), world.fetches().len()), (50, 50));
    for node in second.iter().chain([&world.gateway]) {
        let ended = node.log().matches("video ended").count();
        assert!(second.is_none() || (1..50).contains(&ended), "{ended} of one node");
    }
}
