//! Calls whose holds Redis has forgotten: the journal tells what became of them. SQLite remembers
//! all of them for a day, and says the same.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use tollgate::ledger::in_memory::InMemoryAccount;
use tollgate::ledger::{AccountName, HoldRequest, Operation, Outcome};
use tollgate::money::Money;

use super::laws::sound;
use super::properties::bounds;
use super::redis_server::RedisServer;
use super::script::{LONG_MS, SHORT_MS, balances_text, now};
use super::subject::{Memory, Stored, Subject, name};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const ACCOUNT: &str = "forgetful";
/// How long Redis remembers a hold that was charged, in ms.
const CHARGED_MS: i64 = 2 * HOUR_MS;
/// Of a call that is younger than this, in ms, nothing is ever forgotten.
const REMEMBERED_MS: i64 = 20 * MINUTE_MS;

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

/// An id that the gateway would have made so long ago.
fn id_of(age_ms: i64, number: usize) -> String {
    let ms = now() - age_ms;
    format!("{:08x}-{:04x}-7000-8000-{number:012x}", ms >> 16, ms & 0xffff)
}

fn line_of(id: &str) -> String {
    format!(r#"{{"request_id":"{id}","at":1}}"#)
}

fn hold(id: &str, lease_ms: u64) -> Operation {
    let (id, wanted) = (id.to_owned(), nano(60));
    Operation::Hold { id, wanted, least: wanted, lease_ms, key: None, rates: Vec::new() }
}

fn checkpoint(id: &str, charge: i64) -> Operation {
    Operation::Checkpoint { id: id.to_owned(), charge: nano(charge), line: line_of(id) }
}

/// A settlement that counts even where the hold was lost.
fn settle(id: &str, charge: i64, age_ms: i64) -> Operation {
    let (wanted, at) = (nano(60), now() - age_ms);
    let origin = HoldRequest { wanted, least: wanted, at, key: None };
    let (id, line) = (id.to_owned(), line_of(id));
    Operation::Settle { id, charge: nano(charge), line, origin: Some(origin), tokens: None }
}

fn void(id: &str) -> Operation {
    Operation::Void { id: id.to_owned() }
}

fn posted(amount: i64) -> Outcome {
    Outcome::Posted { amount: nano(amount), written_off: Money::ZERO }
}

/// A store with one account that has 1,000, and a second connection to it if it is Redis.
struct Books {
    store: Stored,
    beside: Option<redis::Connection>,
    account: AccountName,
}

impl Books {
    async fn new(store: Stored, beside: Option<redis::Connection>) -> Books {
        let mut books = Books { store, beside, account: name(ACCOUNT) };
        assert!(books.store.open(&books.account).await);
        let paid = Operation::Credit { tx: "t".to_owned(), amount: nano(1_000) };
        assert_eq!(books.apply(&paid).await, Outcome::Done);
        books
    }

    async fn redis(server: &RedisServer) -> Books {
        let url = server.fresh_url();
        let client = redis::Client::open(url.as_str()).expect("an address");
        let beside = client.get_connection().expect("a connection");
        Books::new(Stored::at(&url).await, Some(beside)).await
    }

    async fn sqlite(folder: &Path) -> Books {
        Books::new(Stored::sqlite(folder).await, None).await
    }

    async fn apply(&mut self, op: &Operation) -> Outcome {
        self.store.apply(&self.account, op).await
    }

    async fn balances(&mut self) -> String {
        balances_text(self.store.balances(&self.account).await)
    }

    /// How long Redis still remembers a hold, in ms; -2 if it does not. SQLite does not tell.
    fn remembered_ms(&mut self, id: &str) -> Option<i64> {
        let beside = self.beside.as_mut()?;
        let life = redis::cmd("PTTL").arg(hold_key(id)).query(beside);
        Some(life.expect("a time"))
    }

    /// Lets Redis forget a hold, as it does by itself two hours after the charge. Returns whether
    /// it would.
    fn forget(&mut self, id: &str) -> bool {
        let Some(life) = self.remembered_ms(id) else { return false };
        let is_due = (1..=CHARGED_MS).contains(&life);
        if is_due && let Some(beside) = self.beside.as_mut() {
            redis::cmd("DEL").arg(hold_key(id)).exec(beside).expect("it is forgotten");
        }
        is_due
    }

    /// A call that is charged and then forgotten.
    async fn charge_and_forget(&mut self, id: &str, charge: i64, age_ms: i64) {
        assert_eq!(self.apply(&hold(id, LONG_MS)).await, Outcome::Held(nano(60)));
        assert_eq!(self.apply(&settle(id, charge, age_ms)).await, posted(charge));
        assert_eq!(self.forget(id), self.beside.is_some(), "{id} is remembered for longer");
    }

    /// Makes the last note of the length of the journal one of so long ago.
    fn mark_journal(&mut self, age_ms: i64, length: u64) {
        let mut noted = redis::cmd("HSET");
        noted.arg(format!("tollgate:{{{ACCOUNT}}}:account"));
        noted.arg("journal_mark").arg(length).arg("journal_marked_at").arg(now() - age_ms);
        noted.exec(self.beside.as_mut().expect("Redis")).expect("noted");
    }

    /// That a hold which ended without a charge, or after its lease, is remembered for a day.
    fn assert_remembered(&mut self, id: &str) {
        let life = self.remembered_ms(id);
        assert!(life.is_none_or(|life| life > 23 * HOUR_MS), "{id} is remembered for {life:?} ms");
    }
}

fn hold_key(id: &str) -> String {
    format!("tollgate:{{{ACCOUNT}}}:hold:{id}")
}

/// Both stores, the second without anything that it forgets.
async fn both(server: &RedisServer, folder: &Path) -> [Books; 2] {
    [Books::redis(server).await, Books::sqlite(folder).await]
}

#[tokio::test]
async fn a_charge_that_was_told_again_after_two_hours_was_made_twice() {
    let (server, folder) = (RedisServer::shared(), tempfile::tempdir().expect("a folder"));
    for mut books in both(&server, folder.path()).await {
        for (number, age) in (1..).zip([25 * MINUTE_MS, 3 * HOUR_MS, 11 * HOUR_MS, 13 * HOUR_MS]) {
            let id = id_of(age, number);
            books.charge_and_forget(&id, 40, age).await;
            for again in [40, 55] {
                let told = books.apply(&settle(&id, again, age)).await;
                assert_eq!(told, Outcome::AlreadyPosted(nano(40)), "{age} ms ago");
            }
        }
        let expected = "credit 1000 available 840 held 0 posted 160 lost 0";
        assert_eq!(books.balances().await, expected);
        assert_eq!(books.store.journal(&books.account).await.len(), 4);
    }
}

#[tokio::test]
async fn a_void_after_two_hours_said_that_a_charged_call_was_free() {
    let (server, folder) = (RedisServer::shared(), tempfile::tempdir().expect("a folder"));
    for mut books in both(&server, folder.path()).await {
        for (number, age) in (1..).zip([25 * MINUTE_MS, 3 * HOUR_MS, 23 * HOUR_MS]) {
            let id = id_of(age, number);
            books.charge_and_forget(&id, 40, age).await;
            let charged = Outcome::AlreadyPosted(nano(40));
            assert_eq!(books.apply(&void(&id)).await, charged, "{age} ms ago");
        }
    }
}

#[tokio::test]
async fn a_lost_call_that_was_told_late_was_taken_for_charged() {
    let (server, folder) = (RedisServer::shared(), tempfile::tempdir().expect("a folder"));
    for mut books in both(&server, folder.path()).await {
        let age = 3 * HOUR_MS;
        books.charge_and_forget(&id_of(age, 1), 40, age).await;
        let lost = id_of(age, 2);
        assert_eq!(books.apply(&settle(&lost, 70, age)).await, posted(70));
        books.assert_remembered(&lost);
        assert_eq!(books.apply(&settle(&lost, 70, age)).await, Outcome::AlreadyPosted(nano(70)));
        let too_old = id_of(13 * HOUR_MS, 3);
        let told = books.apply(&settle(&too_old, 70, 13 * HOUR_MS)).await;
        assert_eq!(told, Outcome::UnknownHold);
        let expected = "credit 1000 available 890 held 0 posted 110 lost 0";
        assert_eq!(books.balances().await, expected);
    }
}

#[tokio::test]
async fn a_call_that_was_taken_over_was_charged_after_two_hours() {
    let (server, folder) = (RedisServer::shared(), tempfile::tempdir().expect("a folder"));
    for mut books in both(&server, folder.path()).await {
        let age = 3 * HOUR_MS;
        books.charge_and_forget(&id_of(age, 1), 40, age).await;
        let [open, unknown] = [2, 3].map(|number| id_of(age, number));
        assert_eq!(books.apply(&hold(&open, LONG_MS)).await, Outcome::Held(nano(60)));
        for id in [&open, &unknown] {
            assert_eq!(books.apply(&void(id)).await, Outcome::Voided);
            books.assert_remembered(id);
            assert_eq!(books.apply(&settle(id, 50, age)).await, Outcome::Voided);
        }
        assert_eq!(books.apply(&hold(&unknown, LONG_MS)).await, Outcome::Tombstoned);
        let expected = "credit 1000 available 960 held 0 posted 40 lost 0";
        assert_eq!(books.balances().await, expected);
    }
}

#[tokio::test]
async fn the_rest_of_a_call_whose_lease_ran_out_was_never_charged() {
    let (server, folder) = (RedisServer::shared(), tempfile::tempdir().expect("a folder"));
    for mut books in both(&server, folder.path()).await {
        let age = 3 * HOUR_MS;
        let id = id_of(age, 1);
        assert_eq!(books.apply(&hold(&id, SHORT_MS)).await, Outcome::Held(nano(60)));
        assert_eq!(books.apply(&checkpoint(&id, 20)).await, Outcome::Done);
        assert_eq!(books.store.expire().await, 1);
        books.assert_remembered(&id);
        assert_eq!(books.apply(&settle(&id, 50, age)).await, posted(50));
        books.assert_remembered(&id);
        assert_eq!(books.apply(&settle(&id, 50, age)).await, Outcome::AlreadyPosted(nano(50)));
        let expected = "credit 1000 available 950 held 0 posted 50 lost 0";
        assert_eq!(books.balances().await, expected);
    }
}

#[tokio::test]
async fn a_charge_that_cannot_be_found_by_its_id_was_forgotten_after_two_hours() {
    let server = RedisServer::shared();
    let mut books = Books::redis(&server).await;
    let without_time = "video_1".to_owned();
    let (in_another_line, age) = (id_of(0, 1), 0);
    for id in [&without_time, &in_another_line] {
        assert_eq!(books.apply(&hold(id, LONG_MS)).await, Outcome::Held(nano(60)));
        let mut op = settle(id, 40, age);
        if let Operation::Settle { line, .. } = &mut op {
            let quoted = line_of(&in_another_line).replace('"', "\\\"");
            *line = format!(r#"{{"vendor_request_id":"{in_another_line}","text":"{quoted}"}}"#);
        }
        assert_eq!(books.apply(&op).await, posted(40));
        books.assert_remembered(id);
    }
}

#[tokio::test]
async fn a_charge_far_back_in_a_long_journal_was_not_found() {
    let server = RedisServer::shared();
    let mut books = Books::redis(&server).await;
    let age = 3 * HOUR_MS;
    let id = id_of(age, 1);
    books.charge_and_forget(&id, 40, age).await;
    let mut push = redis::cmd("RPUSH");
    push.arg(format!("tollgate:{{{ACCOUNT}}}:journal"));
    for number in 0..2_500 {
        push.arg(format!("0 0 {}", line_of(&id_of(age, 1_000 + number))));
    }
    push.exec(books.beside.as_mut().expect("Redis")).expect("many lines");
    assert_eq!(books.apply(&settle(&id, 40, age)).await, Outcome::AlreadyPosted(nano(40)));
    // A call that has no line in it.
    assert_eq!(books.apply(&settle(&id_of(age, 2), 30, age)).await, posted(30));
}

/// Charges of busy accounts do not move the floor at which a search ends.
#[tokio::test]
async fn a_search_went_back_to_a_direct_charge_of_weeks_ago() {
    let server = RedisServer::shared();
    let mut books = Books::redis(&server).await;
    let age = 3 * HOUR_MS;
    let [first, second, third] = [1, 2, 3].map(|number| id_of(age, number));
    for id in [&first, &second, &third] {
        books.charge_and_forget(id, 40, age).await;
    }
    let found = Outcome::AlreadyPosted(nano(40));
    books.mark_journal(HOUR_MS, 2);
    assert_eq!(books.apply(&settle(&first, 40, age)).await, found, "it ends at the floor");
    // No direct charge came in the last day, or the mark would be younger.
    books.mark_journal(25 * HOUR_MS, 2);
    assert_eq!(books.apply(&settle(&third, 40, age)).await, found);
    assert_eq!(books.apply(&settle(&second, 40, age)).await, posted(40), "it ends at the mark");
    assert!(books.forget(&third));
    books.mark_journal(49 * HOUR_MS, 2);
    assert_eq!(books.apply(&settle(&third, 40, age)).await, posted(40), "there is no search");
}

#[tokio::test]
async fn each_direct_call_left_a_key_in_redis_for_a_day() {
    const CALLS: usize = 200;
    let server = RedisServer::shared();
    let mut books = Books::redis(&server).await;
    for number in 0..CALLS {
        let id = id_of(0, number);
        assert_eq!(books.apply(&hold(&id, LONG_MS)).await, Outcome::Held(nano(60)));
        assert_eq!(books.apply(&settle(&id, 1, 0)).await, posted(1));
    }
    let beside = books.beside.as_mut().expect("Redis");
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(beside).expect("the keys");
    let (of_calls, others): (Vec<_>, Vec<_>) =
        keys.iter().partition(|key| key.contains("-7000-8000-"));
    assert_eq!(of_calls.len(), CALLS);
    for key in of_calls {
        let life: i64 = redis::cmd("PTTL").arg(key).query(beside).expect("a time");
        assert!((1..=CHARGED_MS).contains(&life), "{key} lives for {life} ms");
    }
    assert!(others.len() < 10, "{others:?}");
}

/// Something that happens to the calls of an account, which have numbers.
#[derive(Debug, Clone)]
enum Event {
    Hold {
        call: usize,
        lease_ms: u64,
    },
    Checkpoint {
        call: usize,
        charge: i64,
    },
    Settle {
        call: usize,
        charge: i64,
    },
    Void {
        call: usize,
    },
    Expire,
    /// Redis forgets what it may.
    Forget,
}

fn event() -> impl Strategy<Value = Event> {
    let call = || 0..AGES_MS.len();
    let lease_ms = prop::sample::select(vec![SHORT_MS, LONG_MS]);
    prop_oneof![
        6 => (call(), lease_ms).prop_map(|(call, lease_ms)| Event::Hold { call, lease_ms }),
        2 => (call(), 0..=80i64).prop_map(|(call, charge)| Event::Checkpoint { call, charge }),
        6 => (call(), 0..=80i64).prop_map(|(call, charge)| Event::Settle { call, charge }),
        2 => call().prop_map(|call| Event::Void { call }),
        1 => Just(Event::Expire),
        3 => Just(Event::Forget),
    ]
}

/// How long ago the calls began.
const AGES_MS: [i64; 5] = [0, 21 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS, 11 * HOUR_MS];

/// Redis that forgets beside a machine that does not.
async fn same_as_without_forgetting(
    server: &RedisServer,
    events: &[Event],
) -> Result<(), TestCaseError> {
    let mut books = Books::redis(server).await;
    let (mut machine, mut forgotten) = (Memory::new(InMemoryAccount::default), BTreeSet::new());
    machine.open(&books.account).await;
    let paid = Operation::Credit { tx: "t".to_owned(), amount: nano(1_000) };
    machine.apply(&books.account, &paid).await;
    let ids: Vec<String> = (1..).zip(AGES_MS).map(|(number, age)| id_of(age, number)).collect();
    for event in events {
        let op = match event {
            // Nobody makes a hold again two hours after it was charged.
            Event::Hold { call, .. } if forgotten.contains(call) => continue,
            Event::Hold { call, lease_ms } => hold(&ids[*call], *lease_ms),
            Event::Checkpoint { call, charge } => checkpoint(&ids[*call], *charge),
            Event::Settle { call, charge } => settle(&ids[*call], *charge, AGES_MS[*call]),
            Event::Void { call } => void(&ids[*call]),
            Event::Expire => {
                prop_assert_eq!(books.store.expire().await, machine.expire().await);
                continue;
            }
            Event::Forget => {
                let old = (0..ids.len()).filter(|call| AGES_MS[*call] > REMEMBERED_MS);
                forgotten.extend(old.filter(|call| books.forget(&ids[*call])));
                continue;
            }
        };
        let expected = machine.apply(&books.account, &op).await;
        prop_assert_eq!(books.apply(&op).await, expected, "{:?}", op);
        let balances = books.store.balances(&books.account).await.unwrap_or_default();
        prop_assert_eq!(Some(balances), machine.balances(&books.account).await);
        let journal = books.store.journal(&books.account).await;
        sound(balances, &journal)?;
        prop_assert_eq!(journal, machine.journal(&books.account).await);
    }
    Ok(())
}

#[test]
fn whatever_redis_forgets_each_answer_is_that_of_a_ledger_that_remembers() {
    let server = RedisServer::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    proptest!(bounds(48), |(events in prop::collection::vec(event(), 1..=40))| {
        runtime.block_on(same_as_without_forgetting(&server, &events))?;
    });
}
