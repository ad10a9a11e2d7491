//! A ledger that goes away and comes back, a gateway that is told to stop, and one that is killed.

use std::time::{Duration, Instant};

use rstest::rstest;

use crate::world::{Answer, MODERATION, Sent, Store, World, chat_of};

/// Nothing that a test waits for takes longer, and the grace of a stop is longer still.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn without_its_ledger_the_gateway_serves_only_what_is_free_and_mends_by_itself() {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    world.redis().stop();
    for stream in [false, true] {
        let began = Instant::now();
        let mut call = chat_of("lmb-5.5");
        call["stream"] = stream.into();
        let answer = world.chat(call).await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!(answer.refusal(), (503, "ledger_unavailable".to_owned()));
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert_eq!(world.get("/v1/models").await.status, 200, "the key is still remembered");
    assert_eq!(world.sim.count("vendor_b"), 1, "no vendor works without a hold");
    let ready = world.client().get(format!("http://{}/readyz", world.gateway.admin)).send().await;
    assert_eq!(ready.expect("readiness").status(), 503);
    assert!(world.redis().start_again());
    let end = Instant::now() + PATIENCE;
    while world.chat(chat_of("lmb-5.5")).await.status != 200 {
        assert!(Instant::now() < end, "it does not mend");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.settled(2).await;
}

#[tokio::test]
async fn a_key_is_unknown_only_when_the_ledger_says_so() {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    world.redis().stop();
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.refusal(), (503, "ledger_unavailable".to_owned()));
    assert!(world.redis().start_again());
    let end = Instant::now() + PATIENCE;
    while world.chat(chat_of("lmb-5.5")).await.status != 200 {
        assert!(Instant::now() < end, "it does not mend");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// They were served with whatever key, as long as it had the shape of one.
#[tokio::test]
async fn while_the_ledger_is_away_only_keys_that_were_good_get_what_is_free() {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    let revoked = world.another_account("gone", "1").await;
    let listed = world.command(&["--json", "key", "list", "gone"]).await.json();
    let prefix = listed[0]["prefix"].as_str().expect("a prefix").to_owned();
    for key in [&world.key, &revoked] {
        assert_eq!(world.get_with("/v1/models", key).await.status, 200);
    }
    world.command(&["key", "revoke", &prefix]).await.done();
    let end = Instant::now() + PATIENCE;
    while world.get_with("/v1/models", &revoked).await.status != 403 {
        assert!(Instant::now() < end, "it is not noticed");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    world.redis().stop();
    let (start, last) = world.key.split_at(world.key.len() - 1);
    let unknown = format!("{start}{}", if last == "0" { "1" } else { "0" });
    let unavailable = (503, "ledger_unavailable".to_owned());
    assert_eq!(world.get_with("/v1/models", &unknown).await.refusal(), unavailable);
    let sent = Sent::json(&MODERATION.call());
    let request = world.sending(MODERATION.path, &sent.media, Some(&unknown));
    let moderated = Answer::read(request.body(sent.bytes)).await;
    assert_eq!(moderated.refusal(), unavailable);
    // What was looked up lately is used for ten seconds while the ledger does not answer.
    while world.get_with("/v1/models", &revoked).await.status == 403 {
        assert!(Instant::now() < end, "it is remembered for ever");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(world.get_with("/v1/models", &revoked).await.refusal(), unavailable);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(world.get("/v1/models").await.status, 200, "it was good, and is served");
    assert_eq!(world.ask(MODERATION).await.status, 200);
}

#[rstest]
#[case::charged("chunk-delay=50;chunks=12", 1)]
#[case::nothing_to_charge("delay=500;status=500", 0)]
#[tokio::test]
async fn a_call_that_outlives_its_ledger_is_settled_once_when_it_is_back(
    #[case] faults: &str,
    #[case] charges: usize,
) {
    let mut world =
        World::start(Store::Redis).own_redis().vendor("vendor_b", &[faults]).run().await;
    let mut call = chat_of("lmb-5.5");
    call["stream"] = true.into();
    let request = world.request("/v1/chat/completions").body(call.to_string());
    let under_way = tokio::spawn(request.send());
    while world.sim.count("vendor_b") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.redis().stop();
    let answer = under_way.await.expect("no panic").expect("an answer");
    let body = answer.text().await.expect("all of the answer");
    assert_eq!(body.ends_with("data: [DONE]\n\n"), charges == 1, "{body}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(world.redis().start_again());
    world.settled(charges).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    world.settled(charges).await;
}

#[tokio::test]
async fn the_first_call_after_redis_lost_its_scripts_works() {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    world.redis().command(&["SCRIPT", "FLUSH"]);
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn told_to_stop_it_finishes_its_streams_and_takes_no_more(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).vendor("vendor_b", &["held=4"]).run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    world.gateway.signal("TERM");
    let end = Instant::now() + PATIENCE;
    while tokio::net::TcpStream::connect(&world.gateway.http).await.is_ok() {
        assert!(Instant::now() < end, "it still listens");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.sim.let_go();
    let streamed = stream.rest().await;
    assert!(streamed.is_done(), "{streamed:?}");
    world.gateway.ended(PATIENCE).await;
    assert_eq!(world.charge().await.basis, "reported");
}

#[rstest]
#[tokio::test]
async fn told_to_stop_it_charges_even_those_who_hung_up(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "chunk-delay=20;chunks=25";
    let mut world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    drop(stream);
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
    assert_eq!(world.charge().await.basis, "reported");
}

#[tokio::test]
async fn told_to_stop_while_idle_it_stops_at_once() {
    let mut world = World::start(Store::Sqlite).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
}

#[rstest]
#[tokio::test]
async fn killed_while_calls_run_it_keeps_what_was_charged_and_holds_the_rest_until_its_lease_ends(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "delay=100;prompt=1;completion=1";
    let mut world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    let request = world.request("/v1/chat/completions").body(chat_of("lmb-5.5").to_string());
    let lost = tokio::spawn(request.send());
    while world.sim.count("vendor_b") < 2 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    world.kill_and_start_again().await;
    assert!(lost.await.expect("no panic").is_err());
    world.charged(1).await;
    assert!(world.balances().await.held > 0, "the lost call's money is held");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.charged(2).await;
}

#[tokio::test]
async fn a_charge_that_was_made_survives_a_kill() {
    let mut world = World::start(Store::Sqlite).run().await;
    for number in 1..=4 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
        world.settled(number).await;
        world.kill_and_start_again().await;
        world.settled(number).await;
    }
}
