//! What a store has lost is told again, and what cannot be told keeps nothing else waiting.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tempfile::TempDir;

use super::*;
use crate::clock::unix_ms;
use crate::ledger::prepaid::answer::AccountStep;
use crate::ledger::prepaid::records::{AllotmentState, CallEnd, PrepaidAccount};
use crate::ledger::prepaid::update::AllotmentDemand;
use crate::ledger::prepaid::{allotment, transfer};
use crate::ledger::{AccountName, Leases};
use crate::money::Money;
use crate::store::outbox::{AllotmentKey, EndLog, Retention};

mod long_lent;
mod rounds;

const STORE_ID: &str = "s";
const LEASE: Duration = Duration::from_secs(60);

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

fn ada() -> AccountName {
    AccountName::parse("ada").expect("a name")
}

fn bob() -> AccountName {
    AccountName::parse("bob").expect("a name")
}

/// The ids of the calls with these numbers.
fn calls(numbers: RangeInclusive<u64>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

fn open_log(root: &Path, retention: Retention) -> EndLog {
    EndLog::open(root, retention, Arc::new(AtomicBool::new(true))).expect("a log of ends")
}

fn segments_in(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "ends")).collect()
}

type Accounts = BTreeMap<AccountName, PrepaidAccount>;

/// When the store falls back to its snapshot by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fallback {
    /// So many updates are done before.
    AfterUpdates(u32),
    /// As it is asked whether it has everything.
    BeforeSync,
}

/// A store in memory, on the pure machine, that loses things.
#[derive(Clone, Default)]
struct LosingStore(Arc<Mutex<LosingState>>);

#[derive(Default)]
struct LosingState {
    accounts: Accounts,
    snapshot: Accounts,
    run: u32,
    is_closed: bool,
    /// Every update of this account is refused.
    refused: Option<AccountName>,
    next_fallback: Option<Fallback>,
}

impl LosingState {
    fn fall_back(&mut self) {
        self.accounts = self.snapshot.clone();
        self.run += 1;
        self.next_fallback = None;
    }
}

impl LosingStore {
    /// A store with two rich accounts, which are all that it falls back to at first.
    fn new() -> LosingStore {
        let (store, mut account) = (LosingStore::default(), PrepaidAccount::default());
        let paid = transfer::add_payment(&account, "t", nano(1_000_000), unix_ms());
        account.commit(paid.changes);
        store.lock().accounts = [(ada(), account.clone()), (bob(), account)].into();
        store.take_snapshot();
        store
    }

    fn lock(&self) -> MutexGuard<'_, LosingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_snapshot(&self) {
        let mut state = self.lock();
        state.snapshot = state.accounts.clone();
    }

    /// Loses what came after the snapshot, and begins a new run.
    fn fall_back(&self) {
        self.lock().fall_back();
    }

    fn lose_account(&self, account: &AccountName) {
        self.lock().accounts.remove(account);
    }

    fn refuse_account(&self, account: &AccountName) {
        self.lock().refused = Some(account.clone());
    }

    fn account(&self, account: &AccountName) -> PrepaidAccount {
        self.lock().accounts.get(account).expect("an account").clone()
    }

    /// The calls that were charged, in the order of the journal.
    fn charged(&self, account: &AccountName) -> Vec<String> {
        self.account(account).journal.into_iter().map(|line| line.request).collect()
    }

    /// The allotments that are neither over nor fenced.
    fn open_allotments(&self, account: &AccountName) -> HashSet<AllotmentId> {
        let known = self.account(account).allotments.into_iter();
        let open = known.filter(|(_, allotment)| allotment.state == AllotmentState::Open);
        open.map(|(id, _)| id).collect()
    }

    /// Lends something of the first account.
    async fn lend(&self, id: &AllotmentId) {
        let demand =
            AllotmentDemand { free: nano(800), quote: nano(100), ..AllotmentDemand::default() };
        let asked = AllotmentUpdate {
            step: 1,
            demand: Some(demand),
            lease_ms: 60_000,
            ..AllotmentUpdate::replay(id.clone(), 0, 1, Vec::new())
        };
        self.update_allotment(&ada(), asked).await.expect("an answer");
        assert_eq!(self.account(&ada()).head.balances.held, nano(800));
    }

    /// Tells ends of the first account, as a successor does.
    async fn tell(&self, id: &AllotmentId, seqs: RangeInclusive<u64>) {
        let (first, last_seq) = (*seqs.start(), *seqs.end());
        let ends = seqs.map(end).collect();
        let told = AllotmentUpdate::replay(id.clone(), unix_ms(), first, ends);
        let answer = self.update_allotment(&ada(), told).await;
        assert_eq!(answer, Ok(Some(LedgerAnswer::AllotmentEnded { last_seq })));
    }
}

impl AllotmentStore for LosingStore {
    async fn update_allotment(
        &self,
        account: &AccountName,
        update: AllotmentUpdate,
    ) -> Result<Option<LedgerAnswer>, Unavailable> {
        let mut state = self.lock();
        let next = state.next_fallback;
        match next {
            Some(Fallback::AfterUpdates(0)) => state.fall_back(),
            Some(Fallback::AfterUpdates(left)) => {
                state.next_fallback = Some(Fallback::AfterUpdates(left - 1));
            }
            Some(Fallback::BeforeSync) | None => {}
        }
        if state.refused.as_ref() == Some(account) {
            return Ok(Some(LedgerAnswer::OutOfRange));
        }
        let Some(known) = state.accounts.get_mut(account) else { return Ok(None) };
        let AccountStep { answer, changes } =
            allotment::update_allotment(known, &update, unix_ms());
        known.commit(changes);
        Ok(Some(answer))
    }

    async fn sync(&self) -> Result<(), Unavailable> {
        let mut state = self.lock();
        if state.next_fallback == Some(Fallback::BeforeSync) {
            state.fall_back();
        }
        if state.is_closed { Err(Unavailable("closed".to_owned())) } else { Ok(()) }
    }

    async fn list_allotments(
        &self,
        run: &str,
    ) -> Result<Vec<(AccountName, AllotmentId, i64)>, Unavailable> {
        let (state, mut listed) = (self.lock(), Vec::new());
        for (name, account) in &state.accounts {
            let of_run = account.allotments.iter().filter(|(id, _)| id.0.contains(run));
            let out = of_run.filter(|(_, allotment)| allotment.is_out());
            listed.extend(out.map(|(id, out)| (name.clone(), id.clone(), out.lent_at)));
        }
        Ok(listed)
    }

    async fn last_seqs(&self, allotments: &[AllotmentKey]) -> Result<Vec<u64>, Unavailable> {
        let state = self.lock();
        let last_seq = |(account, id): &AllotmentKey| {
            let known = state.accounts.get(account)?.allotments.get(id)?;
            Some(known.last_seq)
        };
        Ok(allotments.iter().map(|key| last_seq(key).unwrap_or(0)).collect())
    }

    fn store_id(&self) -> Option<String> {
        Some(STORE_ID.to_owned())
    }

    fn run_id(&self) -> Option<Arc<str>> {
        Some(self.lock().run.to_string().into())
    }

    fn may_lend(&self) -> bool {
        !self.lock().is_closed
    }
}

/// The end of a call that has the number of the end as its id.
fn end(seq: u64) -> CallEnd {
    CallEnd {
        call: seq.to_string(),
        key: None,
        held: nano(100),
        charge: Some(nano(1)),
        windows: Vec::new(),
        line: "{}".to_owned(),
    }
}

/// A gateway that lives, and its store.
struct World {
    store: LosingStore,
    upkeep: AllotmentUpkeep<LosingStore>,
    root: TempDir,
}

/// What a gateway that has died has left.
struct DeadGateway {
    id: AllotmentId,
    folder: PathBuf,
}

impl World {
    fn new(retention: Retention) -> World {
        let (store, root) = (LosingStore::new(), tempfile::tempdir().expect("a folder"));
        let log = open_log(root.path(), retention);
        let book = Arc::new(AllotmentBook::new(log, Leases::default(), LEASE));
        let upkeep = AllotmentUpkeep::new(book, store.clone(), true);
        upkeep.start_lending();
        World { store, upkeep, root }
    }

    /// A gateway that has an allotment of the first account, logs these ends, and dies.
    async fn dead_gateway(&self, seqs: RangeInclusive<u64>) -> DeadGateway {
        let log = open_log(self.root.path(), Retention::FOR_SERVER);
        log.bind_to_store(STORE_ID).expect("written");
        let id = AllotmentId(format!("{}{}-00000001", AllotmentId::PREFIX, log.run()));
        self.store.lend(&id).await;
        for seq in seqs {
            log.append(&ada(), &id, unix_ms(), seq, &end(seq));
        }
        log.flush();
        DeadGateway { id, folder: self.root.path().join(log.run()) }
    }

    fn book(&self) -> &AllotmentBook {
        &self.upkeep.book
    }

    /// Makes the hold of a call in memory.
    async fn hold(&self, account: &AccountName, call: &str) {
        for _ in 0..1_000 {
            if self.book().hold(account, call, None, nano(100), &[]).is_some() {
                return;
            }
            self.upkeep.send_due().await.expect("an answer");
            sleep(Duration::from_millis(5)).await;
        }
        panic!("nothing is lent");
    }

    /// Makes a call, whose end is in the log and is not told yet.
    async fn call(&self, account: &AccountName, call: &str) {
        self.hold(account, call).await;
        let busy = self.book().find(account).expect("a busy account");
        let mut state = busy.lock();
        let local = state.find_open(call).expect("an open call");
        let ended = local.end(call, nano(1), "{}", None).expect("a sum").expect("an end");
        self.book().ends.append(account, local.id(), local.lent_at(), ended.seq, &ended.end);
    }

    /// Tells the store all ends.
    async fn tell(&self) {
        for busy in self.book().lenders() {
            self.book().mark_due(&busy, &mut busy.lock());
        }
        self.upkeep.send_due().await.expect("an answer");
    }

    /// Lets the store fall back. The log is read soon, and is quicker to read once it is trimmed.
    fn fall_back(&self) {
        self.book().ends.flush();
        self.store.fall_back();
    }
}

/// What is above a gap was told, with the gap taken for ends that nobody has.
#[tokio::test]
async fn ends_that_the_store_lost_during_their_replay_were_given_up() {
    for updates in [0, 1] {
        let world = World::new(Retention::FOR_SERVER);
        let dead = world.dead_gateway(1..=2_400).await;
        world.store.tell(&dead.id, 1..=1_000).await;
        world.store.take_snapshot();
        world.store.tell(&dead.id, 1_001..=1_200).await;
        world.store.lock().next_fallback = Some(Fallback::AfterUpdates(updates));
        let told = world.upkeep.adopt_orphans().await;
        assert!(told.is_err(), "the store was lost after {updates} updates");
        assert_eq!(world.upkeep.adopt_orphans().await, Ok(()));
        assert_eq!(world.store.charged(&ada()), calls(1..=2_400), "{updates}");
    }
}

/// A run that does not answer may be over, and the next one lacks the ends.
#[tokio::test]
async fn a_folder_was_removed_while_the_store_was_away() {
    let world = World::new(Retention::FOR_ENDS);
    let dead = world.dead_gateway(1..=3).await;
    let adopt = async || assert_eq!(world.upkeep.adopt_orphans().await, Ok(()));
    world.store.lock().is_closed = true;
    for told in ["told", "told again"] {
        adopt().await;
        assert_eq!(world.store.charged(&ada()), calls(1..=3), "{told}");
        adopt().await;
        assert!(dead.folder.exists(), "{told}");
        world.store.fall_back();
        assert!(world.store.charged(&ada()).is_empty(), "{told}");
    }
    world.store.lock().is_closed = false;
    adopt().await;
    assert!(!dead.folder.exists());
    assert_eq!(world.store.charged(&ada()), calls(1..=3));
}

#[tokio::test]
async fn a_folder_was_removed_although_only_an_earlier_run_had_its_ends() {
    let world = World::new(Retention::FOR_ENDS);
    let dead = world.dead_gateway(1..=3).await;
    world.store.lock().next_fallback = Some(Fallback::BeforeSync);
    assert_eq!(world.upkeep.adopt_orphans().await, Ok(()));
    assert!(dead.folder.exists());
    assert!(world.store.charged(&ada()).is_empty());
    assert_eq!(world.upkeep.adopt_orphans().await, Ok(()));
    assert!(!dead.folder.exists());
    assert_eq!(world.store.charged(&ada()), calls(1..=3));
}

/// Its updates waited for an answer that never came.
#[tokio::test]
async fn one_account_that_was_gone_kept_all_others_closed() {
    let fates: [fn(&LosingStore, &AccountName); 2] =
        [LosingStore::lose_account, LosingStore::refuse_account];
    for befall in fates {
        let world = World::new(Retention::FOR_SERVER);
        for call in ["1", "2"] {
            // The end of the second one is not told yet.
            world.tell().await;
            world.call(&ada(), call).await;
            world.call(&bob(), call).await;
        }
        world.fall_back();
        befall(&world.store, &ada());
        assert_eq!(world.upkeep.recover().await, Ok(()));
        assert_eq!(world.store.charged(&bob()), calls(1..=2));
    }
}

/// The store was told again and again what it lacked, until it had a number that nobody could tell.
#[tokio::test]
async fn a_log_without_the_newest_ends_kept_the_recovery_from_ending() {
    let world = World::new(Retention::FOR_SERVER);
    world.call(&ada(), "1").await;
    world.tell().await;
    world.store.take_snapshot();
    for call in ["2", "3"] {
        world.call(&ada(), call).await;
    }
    world.tell().await;
    world.upkeep.record_durable().await.expect("synced");
    for segment in segments_in(&world.root.path().join(world.book().ends.run())) {
        fs::remove_file(segment).expect("a segment");
    }
    world.store.fall_back();
    assert_eq!(world.upkeep.recover().await, Ok(()));
    world.call(&ada(), "4").await;
    world.tell().await;
    assert_eq!(world.store.charged(&ada()), ["1", "4"]);
    assert_eq!(world.store.account(&ada()).allotments.len(), 1, "both out of the same one");
}

/// Only folders with an end of the last half minute were looked at before calls were admitted.
#[tokio::test]
async fn the_ends_of_a_gateway_that_had_died_long_ago_were_told_after_the_recovery() {
    let world = World::new(Retention::FOR_SERVER);
    let dead = world.dead_gateway(1..=3).await;
    let long_ago = SystemTime::now() - Duration::from_secs(3_600);
    let segments = segments_in(&dead.folder);
    assert_eq!(segments.len(), 1);
    for segment in segments {
        let file = File::options().write(true).open(segment).expect("a segment");
        file.set_modified(long_ago).expect("a time");
    }
    assert_eq!(world.upkeep.recover().await, Ok(()));
    assert_eq!(world.store.charged(&ada()), calls(1..=3));
    let balances = world.store.account(&ada()).head.balances;
    assert_eq!(balances.held, Money::ZERO, "its allotment is over");
}

#[tokio::test]
async fn an_unreadable_folder_kept_the_store_closed() {
    for file in ["store", "00000001.ends"] {
        let world = World::new(Retention::FOR_SERVER);
        let broken = world.root.path().join("broken");
        fs::create_dir(&broken).expect("a folder");
        // Nobody can read a link to itself.
        symlink(file, broken.join(file)).expect("a link");
        world.dead_gateway(1..=3).await;
        assert_eq!(world.upkeep.recover().await, Ok(()), "{file}");
        assert_eq!(world.store.charged(&ada()), calls(1..=3), "{file}");
        assert!(world.upkeep.adopt_orphans().await.is_err(), "{file}");
    }
}

#[tokio::test]
async fn ends_of_an_allotment_that_was_over_were_lost_with_the_store() {
    let world = World::new(Retention::FOR_SERVER);
    world.call(&ada(), "1").await;
    world.tell().await;
    world.upkeep.record_durable().await.expect("synced");
    world.upkeep.retire(world.book().lenders(), |_| true).await;
    world.call(&ada(), "2").await;
    world.tell().await;
    let live = world.book().live_ids();
    world.fall_back();
    for _ in 0..2 {
        assert_eq!(world.upkeep.recover().await, Ok(()));
        let mut charged = world.store.charged(&ada());
        charged.sort();
        assert_eq!(charged, calls(1..=2));
    }
    world.hold(&ada(), "3").await;
    assert_eq!((live.len(), world.book().live_ids()), (1, live.clone()), "it still lends");
    assert_eq!(world.store.open_allotments(&ada()), live);
}

#[tokio::test]
async fn a_call_that_ended_during_the_recovery_fenced_its_allotment() {
    let world = World::new(Retention::FOR_SERVER);
    world.call(&ada(), "1").await;
    let live = world.book().live_ids();
    end_replay::tell_own(&world.store, world.book()).await.expect("told");
    assert!(world.store.charged(&ada()).is_empty(), "its own update tells it");
    world.tell().await;
    assert_eq!(world.store.charged(&ada()), calls(1..=1));
    assert_eq!((live.len(), world.store.open_allotments(&ada())), (1, live));
}
