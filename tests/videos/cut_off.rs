//! A node that is cut off, or asleep, for longer than its lease: another one takes its job over,
//! and what the first one still says when it comes back changes nothing.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::proven;
use super::words::{CHARGES, DECIDES, ENDS, RUNS, SENDS};
use crate::world::{Hold, Store, World, quick};

/// By then whoever woke up has said all that he wanted to say.
const AFTERMATH: Duration = Duration::from_millis(1_000);

/// The job as it ended stays so, whatever comes.
async fn stays(world: &World, id: &str, submissions: usize) {
    let before = world.over(id).await;
    let charges = proven(world, &[id.to_owned()]).await;
    tokio::time::sleep(AFTERMATH).await;
    assert_eq!(world.video(id).await.json, before.json);
    assert_eq!(world.settled(charges.len()).await, charges);
    assert_eq!(world.submissions().len(), submissions);
    assert_eq!(super::files(world), charges.len());
}

#[rstest]
#[case::before_it_sends(SENDS, Hold::Words, "completed", 1)]
#[case::as_it_sends(SENDS, Hold::Answer, "failed vendor_failed", 0)]
#[case::when_it_was_sent(RUNS, Hold::Words, "failed vendor_failed", 1)]
#[case::when_that_is_known(RUNS, Hold::Answer, "completed", 1)]
#[case::before_it_decides(DECIDES, Hold::Words, "completed", 1)]
#[case::as_it_decides(DECIDES, Hold::Answer, "completed", 1)]
#[case::before_it_charges(CHARGES, Hold::Words, "completed", 1)]
#[case::as_it_charges(CHARGES, Hold::Answer, "completed", 1)]
#[case::before_it_ends(ENDS, Hold::Words, "completed", 1)]
#[tokio::test]
async fn a_node_that_was_cut_off_changes_nothing_when_it_is_back(
    #[case] words: &str,
    #[case] hold: Hold,
    #[case] outcome: &str,
    #[case] submissions: usize,
) {
    let builder = World::start(Store::Redis).conf(&quick(&[])).gated();
    let world = builder.env("TOLLGATE__VIDEOS__WORKER", "false").run().await;
    world.gate().shut_at(words, hold);
    let env = [("TOLLGATE__STORE__URL", world.gate().url.as_str())];
    let mut first = world.gateway_with("first", &env).await;
    let id = world.place(json!({})).await;
    world.gate().is_shut().await;
    let second = world.second_gateway().await;
    assert_eq!(world.over(&id).await.outcome(), outcome);
    world.gate().open();
    stays(&world, &id, submissions).await;
    assert!(first.is_running(), "{}", first.log());
    // It works again, too.
    drop(second);
    let next = world.place(json!({ "prompt": "the next" })).await;
    assert_eq!(world.over(&next).await.outcome(), "completed");
}

/// For a moment only: the node says it again, and goes on.
#[rstest]
#[case::sends(SENDS, Hold::Answer, 300)]
#[case::sends_late(SENDS, Hold::Words, 2_300)]
#[case::sends_and_hears_late(SENDS, Hold::Answer, 2_300)]
#[case::runs(RUNS, Hold::Answer, 2_300)]
#[case::decides(DECIDES, Hold::Answer, 2_300)]
#[case::charges_late(CHARGES, Hold::Words, 2_300)]
#[case::charges(CHARGES, Hold::Answer, 2_300)]
#[case::ends(ENDS, Hold::Answer, 2_300)]
#[tokio::test]
async fn a_node_that_missed_an_answer_goes_on(
    #[case] words: &str,
    #[case] hold: Hold,
    #[case] pause_ms: u64,
) {
    let conf = quick(&[("lease_ms", 6_000)]);
    let builder = World::start(Store::Redis).conf(&conf).gated();
    let world = builder.env("TOLLGATE__VIDEOS__WORKER", "false").run().await;
    world.gate().shut_at(words, hold);
    let env = [("TOLLGATE__STORE__URL", world.gate().url.as_str())];
    let _first = world.gateway_with("first", &env).await;
    let id = world.place(json!({})).await;
    world.gate().is_shut().await;
    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    world.gate().open();
    assert_eq!(world.over(&id).await.outcome(), "completed");
    stays(&world, &id, 1).await;
}

#[rstest]
#[case::being_sent("submit.delay=600", "failed vendor_failed")]
#[case::with_the_vendor("video-ms=700", "completed")]
#[case::being_asked_for("poll.delay=300", "completed")]
#[case::being_copied("file.chunk-delay=40", "completed")]
#[tokio::test]
async fn a_node_that_slept_changes_nothing_when_it_wakes(
    #[case] faults: &str,
    #[case] outcome: &str,
) {
    let builder = World::start(Store::Redis).vendor("vendor_d", &[faults]);
    let mut world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    world
        .vendor_hears("it", |world| match faults.split(['.', '-']).next() {
            Some("submit") => !world.submissions().is_empty(),
            Some("file") => !world.fetches().is_empty(),
            _ => !world.polls().is_empty(),
        })
        .await;
    world.gateway.signal("STOP");
    let second = world.second_gateway().await;
    let first = std::mem::replace(&mut world.gateway, second);
    assert_eq!(world.over(&id).await.outcome(), outcome);
    first.signal("CONT");
    stays(&world, &id, 1).await;
}
