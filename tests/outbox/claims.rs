//! Idempotency keys while a store may lack those of calls that were charged.

use tempfile::TempDir;
use tollgate::idempotency::{ClaimMode, ClaimResult, FirstAttempts, IdempotencyKey};
use tollgate::ledger::{AccountName, Leases};
use tollgate::store::{self, StoreSection};

use super::node::{TIMES, keep};
use crate::ledger::redis_server::RedisServer;
use crate::ledger::subject::at;

/// A repeat would take the key for a free one, and be a new call.
#[tokio::test]
async fn no_call_claims_a_key_before_the_store_has_what_earlier_processes_left() {
    let (server, folder) = (RedisServer::start(), TempDir::new().expect("a folder"));
    let outbox = folder.path().join("outbox").display().to_string();
    let file = at(format!("sqlite:{}", folder.path().join("money.db").display()));
    store::create(&file).await.expect("a new file");
    for section in [file, StoreSection { outbox, ..at(server.url()) }] {
        let serving =
            store::open_for_serving(&section, Leases::default(), FirstAttempts::default(), TIMES);
        let serving = serving.expect("it opens");
        let account = AccountName::parse("claims").expect("a name");
        serving.requests.ledger.open_account(&account).await.expect("an account");
        let claim = async |name: &str, mode| {
            let (name, owner) = (format!("key:{name}"), format!("{mode:?}"));
            let key = IdempotencyKey { name, content: [7; 32], owner, life_ms: 60_000 };
            serving.requests.reply_store.claim_key(&account, &key, &mode, 1_000).await
        };
        for mode in [ClaimMode::IfFree, ClaimMode::TakeOver("other".to_owned())] {
            let why = claim("early", mode).await.expect_err("it may have been charged").0;
            assert!(why.contains("may lack"), "{why}");
        }
        let _running = keep(&serving.maintenance.into());
        assert_eq!(claim("early", ClaimMode::IfFree).await, Ok(ClaimResult::Claimed));
        assert_eq!(claim("early", ClaimMode::Restore).await, Ok(ClaimResult::Running));
        assert_eq!(claim("late", ClaimMode::Restore).await, Ok(ClaimResult::Claimed));
    }
}
