//! On Redis: a gate cuts the node off at the very word, and another node takes over.

use rstest::rstest;
use serde_json::json;

use super::super::words::{CHARGES, DECIDES, ENDS, RUNS, SENDS, TAKES};
use super::{DELIVERED, FAILED, Fate, LOST, NEVER_SENT, Sign, give_way, judge};
use crate::world::{Answer, Hold, Process, Store, VIDEO, Video, World, quick};

/// A world whose first gateway takes jobs in and works on none.
async fn world(faults: &str) -> World {
    let builder = World::start(Store::Redis).vendor("vendor_d", &[faults]).conf(&quick(&[]));
    builder.env("TOLLGATE__VIDEOS__WORKER", "false").gated().run().await
}

/// A node that works, and hears and speaks through the gate.
async fn worker(world: &World) -> Process {
    world.gateway_with("worker", &[("TOLLGATE__STORE__URL", &world.gate().url)]).await
}

#[rstest]
#[case::a("claimed, not yet announced as sent", "", SENDS, Hold::Words, DELIVERED)]
#[case::b("announced as sent, not yet sent", "", SENDS, Hold::Answer, NEVER_SENT)]
#[case::c("sent and taken, not yet saved", "", RUNS, Hold::Words, LOST)]
#[case::d("saved as taken", "", RUNS, Hold::Answer, DELIVERED)]
#[case::e("copied, outcome not yet saved", "", DECIDES, Hold::Words, DELIVERED)]
#[case::f("outcome saved, ledger not yet told", "", DECIDES, Hold::Answer, DELIVERED)]
#[case::g("ledger being told, has not heard", "", CHARGES, Hold::Words, DELIVERED)]
#[case::h("ledger told, answer lost", "", CHARGES, Hold::Answer, DELIVERED)]
#[case::i("settled, not yet saved as ended", "", ENDS, Hold::Words, DELIVERED)]
#[case::j("saved as ended", "", ENDS, Hold::Answer, DELIVERED)]
#[case::k("failed, outcome not yet saved", "fails=internal_error", DECIDES, Hold::Words, FAILED)]
#[case::l(
    "failed, money not yet given back",
    "fails=internal_error",
    DECIDES,
    Hold::Answer,
    FAILED
)]
#[case::m("failed, not yet saved as ended", "fails=internal_error", ENDS, Hold::Words, FAILED)]
#[tokio::test]
async fn a_job_whose_node_is_cut_off_and_dies_is_ended_by_another(
    #[case] stage: &str,
    #[case] faults: &str,
    #[case] words: &str,
    #[case] hold: Hold,
    #[case] fate: Fate,
) {
    let world = world(faults).await;
    world.gate().shut_at(words, hold);
    let mut first = worker(&world).await;
    let id = world.place(json!({})).await;
    world.gate().is_shut().await;
    let _second = world.second_gateway().await;
    first.kill();
    judge(&world, Store::Redis, stage, &id, fate).await;
}

#[rstest]
#[case::a("being sent", "submit.stall=0", Sign::Submitted, LOST)]
#[case::b("with the vendor", "video-ms=1500", Sign::Status("in_progress"), DELIVERED)]
#[case::c("being asked for", "poll.stall=0;poll.times=1", Sign::Asked, DELIVERED)]
#[case::d("being copied", "file.chunk-delay=40", Sign::Fetched, DELIVERED)]
#[case::e("over", "", Sign::Status("completed"), DELIVERED)]
#[tokio::test]
async fn a_job_whose_node_dies_is_ended_by_another(
    #[case] stage: &str,
    #[case] faults: &str,
    #[case] sign: Sign,
    #[case] fate: Fate,
) {
    let builder = World::start(Store::Redis).vendor("vendor_d", &[faults]);
    let mut world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    sign.comes(&world, &id).await;
    let second = world.second_gateway().await;
    give_way(&mut world, second).await;
    judge(&world, Store::Redis, stage, &id, fate).await;
}

#[tokio::test]
async fn a_job_that_nobody_had_is_ended_by_another() {
    let mut world = world("").await;
    let id = world.place(json!({})).await;
    let second = world.second_gateway().await;
    give_way(&mut world, second).await;
    judge(&world, Store::Redis, "placed, not claimed", &id, DELIVERED).await;
}

/// The client was not told, and asks again at another node.
#[rstest]
#[case::a("order not yet in the store", Hold::Words)]
#[case::b("order in the store, client not told", Hold::Answer)]
#[tokio::test]
async fn an_order_whose_node_dies_is_one_job_for_who_asks_again(
    #[case] stage: &str,
    #[case] hold: Hold,
) {
    let mut world = world("").await;
    world.gate().shut_at(TAKES, hold);
    let first = worker(&world).await;
    let order = |gateway: &Process| {
        let body = VIDEO.sent(&json!({}));
        let request = world.url_of(gateway, VIDEO.path).header("content-type", body.media);
        request.header("idempotency-key", "a").body(body.bytes)
    };
    let lost = tokio::spawn(order(&first).send());
    world.gate().is_shut().await;
    let again = order(&world.gateway);
    drop(first);
    assert!(lost.await.expect("no panic").is_err(), "nobody was told");
    let id = Video::of(&Answer::read(again).await).id().to_owned();
    let second = world.second_gateway().await;
    give_way(&mut world, second).await;
    judge(&world, Store::Redis, stage, &id, DELIVERED).await;
}

/// The keys of the ledger are forbidden while those of the jobs are not, so that an outcome is
/// saved and cannot be settled.
#[rstest]
#[case::completed("", DELIVERED)]
#[case::failed("fails=internal_error", FAILED)]
#[tokio::test]
async fn a_job_that_could_not_be_settled_is_settled_by_another(
    #[case] faults: &str,
    #[case] fate: Fate,
) {
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_d", &[faults]);
    let mut world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    world.in_progress(&id).await;
    let allowed = ["~tollgate:{acct}:video*", "~tollgate:{acct}:keys", "~tollgate:{:videos}:*"];
    let others = [
        "~tollgate:key:*",
        "~tollgate:restricted-key:*",
        "~tollgate:prefix:*",
        "~tollgate:s*",
        "~tollgate:{:kept}:*",
        // The settings of the account belong to its keys.
        "%R~tollgate:{acct}:account",
    ];
    let words = ["ACL", "SETUSER", "default", "resetkeys"];
    world.redis().command(&[&words[..], &allowed, &others].concat());
    world.vendor_hears("it", |world| world.sim.videos()[0].is_over()).await;
    // By then it was asked for, copied if there is something to copy, and tried to be settled.
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    assert_eq!(world.video(&id).await.status(), "in_progress", "it is not over yet");
    let second = world.second_gateway().await;
    give_way(&mut world, second).await;
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    assert_eq!(world.video(&id).await.status(), "in_progress");
    world.redis().command(&["ACL", "SETUSER", "default", "allkeys"]);
    judge(&world, Store::Redis, "decided, ledger forbidden", &id, fate).await;
}

#[tokio::test]
async fn a_gate_lets_pass_what_it_is_not_told_to_hold() {
    let world = world("").await;
    let _first = worker(&world).await;
    world.gate().shut_at("words that nobody says", Hold::Words);
    let id = world.place(json!({})).await;
    judge(&world, Store::Redis, "none", &id, DELIVERED).await;
}
