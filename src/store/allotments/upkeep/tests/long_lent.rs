//! Ends of an allotment that was lent long ago.

use super::*;

/// The store remembers an ended allotment for a day, and refuses what is older than half of that.
#[tokio::test]
async fn an_account_that_had_been_busy_since_yesterday_lost_its_ends_with_the_store() {
    let long_ago = unix_ms() - 13 * 60 * 60 * 1_000;
    for (call, charged) in [(uuid::Uuid::now_v7(), 1), (uuid::Uuid::nil(), 0)] {
        let world = World::new(Retention::FOR_SERVER);
        let log = open_log(world.root.path(), Retention::FOR_SERVER);
        log.bind_to_store(STORE_ID).expect("written");
        let id = AllotmentId(format!("{}{}-00000001", AllotmentId::PREFIX, log.run()));
        log.append(&ada(), &id, long_ago, 900, &CallEnd { call: call.to_string(), ..end(900) });
        log.flush();
        drop(log);
        world.upkeep.adopt_orphans().await.expect("an answer");
        assert_eq!(world.store.charged(&ada()).len(), charged, "{call}");
    }
}
