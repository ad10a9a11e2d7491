//! Late ends of calls whose holds Redis has forgotten, and whose lines may have left the journal.

use redis::Connection;
use tollgate::ledger::{HoldRequest, Operation, Outcome};
use tollgate::money::Money;
use tollgate::store::OpenStore;

use super::super::redis_server::RedisServer;
use super::super::script::now;
use super::super::subject::{name, opened};
use super::{archive_to, fold_all, nano, open_account, settle_new};

const HOUR_MS: i64 = 3_600_000;

/// A call that began three hours ago.
fn call(number: usize) -> String {
    let ms = now() - 3 * HOUR_MS;
    format!("{:08x}-{:04x}-7000-8000-{number:012x}", ms >> 16, ms & 0xffff)
}

/// The end of a call, which counts even where the hold was lost.
async fn settle_late(store: &OpenStore, id: &str, amount: i64) -> Outcome {
    let wanted = nano(amount);
    let at = now() - 3 * HOUR_MS;
    let origin = Some(HoldRequest { wanted, least: wanted, at, key: None });
    let line = format!(r#"{{"request_id":"{id}","at":1}}"#);
    let id = id.to_owned();
    let settle = Operation::Settle { id, charge: wanted, line, origin, tokens: None };
    store.ledger.submit(&name("ada"), settle).await.expect("an outcome")
}

fn posted(amount: i64) -> Outcome {
    Outcome::Posted { amount: nano(amount), written_off: Money::ZERO }
}

fn forget(beside: &mut Connection, id: &str) {
    let key = format!("tollgate:{{ada}}:hold:{id}");
    redis::cmd("DEL").arg(key).exec(beside).expect("it is forgotten");
}

/// An account with eight charges that are forgotten, of which five have left the journal.
async fn trimmed(server: &RedisServer) -> (OpenStore, Connection, Vec<String>) {
    let url = server.fresh_url();
    let store = opened(&url).await;
    let client = redis::Client::open(url.as_str()).expect("an address");
    let mut beside = client.get_connection().expect("a connection");
    open_account(&store, "ada").await;
    let ids: Vec<String> = (0..8).map(call).collect();
    for id in &ids {
        let line = format!(r#"{{"request_id":"{id}","at":1}}"#);
        assert_eq!(settle_new(&store, id, 4, &line).await, posted(4));
        forget(&mut beside, id);
    }
    fold_all(&store, 100).await;
    assert_eq!(archive_to(&store, "ada", 5).await, 5);
    (store, beside, ids)
}

#[tokio::test]
async fn a_charge_that_is_still_there_is_found_by_its_call() {
    let (store, mut beside, ids) = trimmed(&RedisServer::shared()).await;
    for id in &ids[5..] {
        assert_eq!(settle_late(&store, id, 9).await, Outcome::AlreadyPosted(nano(4)));
        forget(&mut beside, id);
        let void = Operation::Void { id: id.clone() };
        let told = store.ledger.submit(&name("ada"), void).await;
        assert_eq!(told, Ok(Outcome::AlreadyPosted(nano(4))));
    }
}

/// Lines that were posted an hour ago have left the journal. A call that is not among the others
/// may have been charged there.
#[tokio::test]
async fn a_charge_that_left_the_journal_early_is_not_made_again() {
    let (store, _, ids) = trimmed(&RedisServer::shared()).await;
    let before = store.ledger.balances(&name("ada")).await;
    let unknown = call(77);
    for id in ids[..5].iter().chain([&unknown]) {
        assert_eq!(settle_late(&store, id, 9).await, Outcome::AlreadyPosted(Money::ZERO));
    }
    assert_eq!(store.ledger.balances(&name("ada")).await, before);
}

/// Lines of days ago can be of no call that is told late, so they are not missed.
#[tokio::test]
async fn a_lost_call_is_charged_though_old_lines_have_left_the_journal() {
    let (store, mut beside, ids) = trimmed(&RedisServer::shared()).await;
    let account = "tollgate:{ada}:account";
    let noted = redis::cmd("HGET").arg(account).arg("journal_base_hour").query(&mut beside);
    let noted: i64 = noted.expect("an hour");
    assert!((now() - 2 * HOUR_MS..=now()).contains(&noted), "{noted}");
    let days_ago = now() - 27 * HOUR_MS;
    let set = redis::cmd("HSET").arg(account).arg("journal_base_hour").arg(days_ago).to_owned();
    set.exec(&mut beside).expect("changed");
    assert_eq!(settle_late(&store, &call(77), 9).await, posted(9));
    assert_eq!(settle_late(&store, &ids[7], 9).await, Outcome::AlreadyPosted(nano(4)));
}

/// The notes by which a search knows where to end count all lines.
#[tokio::test]
async fn a_search_ends_where_it_did_before() {
    let (store, mut beside, ids) = trimmed(&RedisServer::shared()).await;
    let account = "tollgate:{ada}:account";
    let mut set = redis::cmd("HSET");
    // The day ends, and the next charge notes the length of the journal.
    set.arg(account).arg("journal_marked_at").arg(now() - 25 * HOUR_MS);
    set.exec(&mut beside).expect("changed");
    let line = format!(r#"{{"request_id":"{}","at":1}}"#, call(8));
    assert_eq!(settle_new(&store, &call(8), 4, &line).await, posted(4));
    let read = redis::cmd("HMGET").arg(account).arg(&["journal_floor", "journal_mark"]).to_owned();
    let noted: (u64, u64) = read.query(&mut beside).expect("notes");
    assert_eq!(noted, (0, 8));
    let mut set = redis::cmd("HSET");
    set.arg(account).arg("journal_marked_at").arg(now() - 25 * HOUR_MS);
    set.exec(&mut beside).expect("changed");
    // Before the mark there is no charge of the last day.
    assert_eq!(settle_late(&store, &ids[7], 9).await, posted(9));
}
