//! On `SQLite`: a trigger refuses the very write, and the gateway is started again on the same
//! file.

use std::time::{Duration, Instant};

use rstest::rstest;
use rusqlite::Connection;
use serde_json::json;

use super::{DELIVERED, FAILED, Fate, LOST, NEVER_SENT, Sign, judge};
use crate::world::{Store, World, quick};

/// What a job's row is refused to become, or what is refused elsewhere.
const SENDS: &str = r#"UPDATE ON video WHEN NEW.job LIKE '%"stage":{"submitting"%'"#;
const RUNS: &str = r#"UPDATE ON video WHEN NEW.job LIKE '%"stage":{"running"%'"#;
const DECIDES: &str = r#"UPDATE ON video WHEN NEW.job LIKE '%"stage":{"settling"%'"#;
const ENDS: &str = r#"UPDATE ON video WHEN NEW.job LIKE '%"stage":{"ended"%'"#;
const CHARGES: &str = "INSERT ON journal";
const VOIDS: &str = "INSERT ON hold WHEN NEW.state = 2";

/// The ledger's file, beside the gateway.
fn file(world: &World) -> Connection {
    let file = Connection::open(world.path("tollgate.db")).expect("the ledger's file");
    file.busy_timeout(Duration::from_secs(10)).expect("patience");
    file
}

/// Waits until a question to the file is answered with yes.
async fn says(file: &Connection, question: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    while !file.query_row(question, [], |row| row.get::<_, bool>(0)).expect("an answer") {
        assert!(Instant::now() < end, "{question} is never so");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The stage of the one job.
fn stage_is(stage: &str) -> String {
    format!(r#"SELECT job LIKE '%"stage":{{"{stage}"%' FROM video"#)
}

/// The vendor has been asked, and the gateway had the time to make something of the answer.
async fn heard(world: &World, sign: Sign, id: &str) {
    sign.comes(world, id).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
}

#[rstest]
#[case::a("claimed, not yet announced as sent", "", SENDS, DELIVERED)]
#[case::b("sent and taken, not yet saved", "", RUNS, LOST)]
#[case::c("copied, outcome not yet saved", "", DECIDES, DELIVERED)]
#[case::d("outcome saved, ledger not yet told", "", CHARGES, DELIVERED)]
#[case::e("settled, not yet saved as ended", "", ENDS, DELIVERED)]
#[case::f("failed, outcome not yet saved", "fails=internal_error", DECIDES, FAILED)]
#[case::g("failed, money not yet given back", "fails=internal_error", VOIDS, FAILED)]
#[case::h("failed, not yet saved as ended", "fails=internal_error", ENDS, FAILED)]
#[tokio::test]
async fn a_job_whose_gateway_dies_before_a_write_is_ended_after_a_restart(
    #[case] stage: &str,
    #[case] faults: &str,
    #[case] refused: &str,
    #[case] fate: Fate,
) {
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &[faults]);
    // While the lease lasts, nobody else makes something of what was not saved.
    let mut world = builder.conf(&quick(&[("lease_ms", 1_500)])).run().await;
    let file = file(&world);
    let trigger = format!("CREATE TRIGGER crash BEFORE {refused}");
    let raise = "BEGIN SELECT RAISE(ABORT, 'the test refuses it'); END";
    file.execute_batch(&format!("{trigger} {raise}")).expect("a trigger");
    let id = world.place(json!({})).await;
    match refused {
        SENDS => says(&file, "SELECT revision > 0 FROM video").await,
        RUNS => heard(&world, Sign::Submitted, &id).await,
        DECIDES if fate == FAILED => heard(&world, Sign::Asked, &id).await,
        DECIDES => heard(&world, Sign::Fetched, &id).await,
        _ => says(&file, &stage_is("settling")).await,
    }
    if refused == ENDS && fate == DELIVERED {
        says(&file, "SELECT count(*) = 1 FROM journal").await;
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!world.video(&id).await.is_over(), "it is not over yet");
    world.gateway.kill();
    file.execute_batch("DROP TRIGGER crash").expect("no trigger any more");
    world.kill_and_start_again().await;
    judge(&world, Store::Sqlite, stage, &id, fate).await;
}

#[rstest]
#[case::a("being sent", "submit.stall=0", Sign::Submitted, LOST)]
#[case::b("with the vendor", "video-ms=1500", Sign::Status("in_progress"), DELIVERED)]
#[case::c("being asked for", "poll.stall=0;poll.times=1", Sign::Asked, DELIVERED)]
#[case::d("being copied", "file.chunk-delay=40", Sign::Fetched, DELIVERED)]
#[case::e("over", "", Sign::Status("completed"), DELIVERED)]
#[tokio::test]
async fn a_job_whose_gateway_dies_is_ended_after_a_restart(
    #[case] stage: &str,
    #[case] faults: &str,
    #[case] sign: Sign,
    #[case] fate: Fate,
) {
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &[faults]);
    let mut world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    sign.comes(&world, &id).await;
    world.kill_and_start_again().await;
    judge(&world, Store::Sqlite, stage, &id, fate).await;
}

#[tokio::test]
async fn a_job_that_nobody_had_is_ended_after_a_restart() {
    let builder = World::start(Store::Sqlite).conf(&quick(&[]));
    let mut world = builder.env("TOLLGATE__VIDEOS__WORKER", "false").run().await;
    let id = world.place(json!({})).await;
    world.kill_and_start_again().await;
    judge(&world, Store::Sqlite, "placed, not claimed", &id, DELIVERED).await;
}

/// No write is between the announcement and the sending, so the crash is written into the file.
#[tokio::test]
async fn a_job_that_was_announced_and_not_sent_is_not_sent_after_a_restart() {
    let builder = World::start(Store::Sqlite).conf(&quick(&[]));
    let mut world = builder.env("TOLLGATE__VIDEOS__WORKER", "false").run().await;
    let id = world.place(json!({})).await;
    world.gateway.kill();
    let file = file(&world);
    let submitting = r#"{"submitting":{"route":"r0","refused":0}}"#;
    let soon = "1000 * unixepoch('subsec') + 800";
    let changed = file.execute(
        &format!(
            "UPDATE video SET job = json_set(job, '$.stage', json('{submitting}')),
             revision = revision + 2, lease_until = CAST({soon} AS INTEGER)"
        ),
        [],
    );
    assert_eq!(changed, Ok(1));
    world.kill_and_start_again().await;
    let stage = "announced as sent, not yet sent";
    judge(&world, Store::Sqlite, stage, &id, NEVER_SENT).await;
}
