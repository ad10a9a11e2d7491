//! Random lives: a store from which lines leave beside one that keeps all. The same operations have
//! the same outcomes, and what is left is the same.

use proptest::prelude::*;
use tollgate::ledger::{EntryKind, JournalEntry, Operation, Outcome};
use tollgate::store::OpenStore;

use super::super::properties::bounds;
use super::super::redis_server::RedisServer;
use super::super::script::{LONG_MS, wait_for_room_in_the_hour};
use super::super::subject::{name, opened};
use super::{archive_to, fold_all, lines_after, nano, open_account, posted_after, state, trim};

/// No case takes so long, in ms.
const CASE_MS: i64 = 15_000;

/// Something that happens.
#[derive(Debug, Clone)]
enum Event {
    Charge(i64),
    /// A part of the charge that has this place among all lines is given back.
    Correct(prop::sample::Index),
    /// Credit is granted that has expired already.
    Grant(i64),
    Fold(u32),
    /// Lines up to one of them are archived, and leave in steps of this many.
    Archive(prop::sample::Index, u32),
    /// Another process goes on.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..70i64).prop_map(Event::Charge),
        3 => any::<prop::sample::Index>().prop_map(Event::Correct),
        2 => (1..9i64).prop_map(Event::Grant),
        3 => (1..9u32).prop_map(Event::Fold),
        3 => (any::<prop::sample::Index>(), 1..9u32).prop_map(|(to, by)| Event::Archive(to, by)),
        1 => Just(Event::Restart),
    ]
}

async fn submit(store: &OpenStore, op: &Operation) -> Outcome {
    store.ledger.submit(&name("ada"), op.clone()).await.expect("an outcome")
}

/// Does the same on both, with the same outcome.
async fn on_both(stores: &[OpenStore; 2], op: &Operation) -> Result<(), TestCaseError> {
    let [trimmed, whole] = stores;
    prop_assert_eq!(submit(trimmed, op).await, submit(whole, op).await, "{:?}", op);
    Ok(())
}

/// A line without the moment of a correction or an expiry, which is that of its store.
fn without_moment(entry: &JournalEntry) -> JournalEntry {
    let mut line: serde_json::Value = serde_json::from_str(&entry.line).expect("a line");
    if entry.kind != EntryKind::Charge {
        line["at"] = 0.into();
    }
    JournalEntry { line: line.to_string(), ..entry.clone() }
}

async fn same_books(stores: &[OpenStore; 2]) -> Result<(), TestCaseError> {
    let [trimmed, whole] = stores;
    let account = name("ada");
    prop_assert_eq!(trimmed.ledger.balances(&account).await, whole.ledger.balances(&account).await);
    let lengths = (
        trimmed.ledger.journal_length(&account).await,
        whole.ledger.journal_length(&account).await,
    );
    prop_assert_eq!(&lengths.0, &lengths.1);
    let base = state(trimmed, "ada").await.trimmed;
    let all = |lines: Vec<JournalEntry>| lines.iter().map(without_moment).collect::<Vec<_>>();
    let left = all(lines_after(trimmed, 0, 1_000).await);
    prop_assert_eq!(&left, &all(lines_after(whole, base, 1_000).await));
    let posted = posted_after(trimmed, 0, 1_000).await.into_iter().map(|posted| posted.entry);
    prop_assert_eq!(left, all(posted.collect()));
    Ok(())
}

async fn length(store: &OpenStore) -> usize {
    let length = store.ledger.journal_length(&name("ada")).await.expect("a number");
    usize::try_from(length).expect("a number")
}

/// Gives a part of a charge back, if its line is still there; if not, that is told.
async fn correct(
    stores: &[OpenStore; 2],
    number: usize,
    which: prop::sample::Index,
) -> Result<(), TestCaseError> {
    let lines = length(&stores[1]).await;
    if lines == 0 {
        return Ok(());
    }
    let seq = which.index(lines) as u64 + 1;
    let line = lines_after(&stores[1], seq - 1, 1).await.remove(0);
    let line: serde_json::Value = serde_json::from_str(&line.line).expect("a line");
    let Some(request) = line["request_id"].as_str() else { return Ok(()) };
    let (tx, request) = (format!("c{number}"), request.to_owned());
    let (found, reason, amount) = (vec![1, seq], String::new(), nano(7));
    let op = Operation::Correct { tx, request, found, amount, reason };
    if state(&stores[0], "ada").await.trimmed < seq {
        return on_both(stores, &op).await;
    }
    prop_assert_eq!(submit(&stores[0], &op).await, Outcome::UnknownCharge);
    Ok(())
}

async fn live(
    stores: &mut [OpenStore; 2],
    urls: &[String; 2],
    events: &[Event],
) -> Result<(), TestCaseError> {
    for store in &*stores {
        open_account(store, "ada").await;
    }
    for (number, event) in events.iter().enumerate() {
        match event {
            Event::Charge(amount) => {
                let (id, wanted) = (format!("r{number}"), nano(20));
                let (least, lease_ms, key, rates) = (nano(0), LONG_MS, None, Vec::new());
                let hold = Operation::Hold { id: id.clone(), wanted, least, lease_ms, key, rates };
                on_both(stores, &hold).await?;
                let line = format!(r#"{{"request_id":"{id}","at":1,"model":"m","cost_nano":1}}"#);
                let charge = nano(*amount);
                on_both(
                    stores,
                    &Operation::Settle { id, charge, line, origin: None, tokens: None },
                )
                .await?;
            }
            Event::Correct(which) => correct(stores, number, *which).await?,
            Event::Grant(amount) => {
                let lot = "1/promotion".parse().expect("a lot");
                let (tx, amount) = (format!("g{number}"), nano(*amount));
                on_both(stores, &Operation::Grant { tx, amount, lot }).await?;
            }
            Event::Fold(lines) => {
                stores[0].usage.fold_next(*lines).await.expect("a step");
            }
            Event::Archive(to, limit) => {
                let lines = length(&stores[0]).await;
                let last = if lines == 0 { 0 } else { to.index(lines) as u64 + 1 };
                if last > state(&stores[0], "ada").await.archived_seq() {
                    let base = archive_to(&stores[0], "ada", last).await;
                    prop_assert!(base <= last);
                }
                trim(&stores[0], "ada", u64::MAX, *limit).await;
            }
            Event::Restart => stores[0] = opened(&urls[0]).await,
        }
        same_books(stores).await?;
    }
    for store in &*stores {
        fold_all(store, 100).await;
    }
    let books = |store: &OpenStore| {
        let usage = store.usage.clone();
        async move { usage.read_usage_books(&name("ada")).await.expect("books") }
    };
    let (trimmed, whole) = (books(&stores[0]).await, books(&stores[1]).await);
    prop_assert_eq!(trimmed, whole);
    trim(&stores[0], "ada", u64::MAX, u32::MAX).await;
    same_books(stores).await
}

#[test]
fn whatever_happens_a_store_without_its_first_lines_is_as_one_with_them() {
    let server = RedisServer::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    proptest!(bounds(24), |(events in prop::collection::vec(event(), 1..=40))| {
        let folder = tempfile::tempdir().expect("a folder");
        runtime.block_on(async {
            wait_for_room_in_the_hour(CASE_MS).await;
            let file = |name| format!("sqlite:{}", folder.path().join(name).display());
            for urls in [
                [file("trimmed.db"), file("whole.db")],
                [server.fresh_url(), server.fresh_url()],
            ] {
                let mut stores = [opened(&urls[0]).await, opened(&urls[1]).await];
                live(&mut stores, &urls, &events).await?;
            }
            Ok::<(), TestCaseError>(())
        })?;
    });
}
