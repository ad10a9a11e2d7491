//! How much the server keeps beside the books: replies, notes, bodies for vendors; and who makes
//! room for it.
//!
//! Each account's sums are in its own slot, changed by the scripts that keep something. What they
//! say is told to a fleet-wide index in a slot of its own, in the background and only where it
//! changed enough: who keeps how much, and the sum. An account is told of by its whole sum, never
//! by a difference, so words that are lost or come twice do not add up to a drift; a gateway of
//! the fleet weighs all that keep something anew each minute.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;

use super::RedisStore;
use super::keys::AccountKeys;
use super::scripts::{ScriptCall, ScriptSelector};
use crate::ledger::{AccountName, Ledger, Unavailable};
use crate::metrics::METRICS;

/// No account's name has a colon, so none shares the hash tag.
const ACCOUNTS: &str = "tollgate:{:kept}:accounts";
const TOTAL: &str = "tollgate:{:kept}:total";
const SWEEPING: &str = "tollgate:{:kept}:sweeping";

/// A change by fewer bytes waits for the next that is told, or for the sweep.
const TELL_BYTES_MIN: u64 = 32 << 10;
/// What is known of so many accounts is remembered.
const REMEMBERED_MAX: usize = 10_000;
/// So much is dropped of one account before it is looked again who keeps most.
const EVICT_BYTES: u64 = 4 << 20;
/// One gateway of a fleet weighs all accounts, so often, in ms.
const SWEEP_EVERY_MS: u64 = 60_000;
/// So many are weighed at a time.
const TOGETHER: usize = 256;

/// What a process knows of what is kept.
pub(super) struct KeptBytes {
    most: u64,
    /// What is kept in all, as it was told last.
    total: AtomicU64,
    /// Whether those that nobody tells of were weighed: what an older version kept.
    has_weighed_all: AtomicBool,
    words: Mutex<KeptKeys>,
}

#[derive(Default)]
struct KeptKeys {
    /// The last of each account.
    last: HashMap<AccountName, u64>,
    pending: HashMap<AccountName, u64>,
    /// Whether they are on their way.
    are_told: bool,
}

/// What the index says.
struct KeptTotals {
    total: u64,
    /// Those who keep most, and how much.
    most: Vec<(AccountName, u64)>,
}

impl KeptBytes {
    pub(super) fn new(most: u64) -> KeptBytes {
        let (total, has_weighed_all) = (AtomicU64::new(0), AtomicBool::new(false));
        KeptBytes { most, total, has_weighed_all, words: Mutex::default() }
    }

    /// Above this something is dropped, so that there is room for what comes.
    fn low_water(&self) -> u64 {
        self.most - self.most / 8
    }

    fn words(&self) -> MutexGuard<'_, KeptKeys> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisStore {
    /// Whether so many bytes more may be kept, as far as is known. What is known may be old, so it
    /// is asked anew where they may not.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let total = self.kept.total.load(Ordering::Relaxed);
        let fits = total.saturating_add(bytes as u64) <= self.kept.most;
        if !fits {
            self.tell_soon(&mut self.kept.words());
        }
        fits
    }

    /// Takes in what an account keeps now, as its scripts say.
    pub(super) fn note_kept(&self, account: &AccountName, bytes: &str) {
        let Ok(bytes) = bytes.parse::<u64>() else { return };
        let mut words = self.kept.words();
        let last = words.last.get(account).copied();
        if last.is_some_and(|last| last.abs_diff(bytes) < TELL_BYTES_MIN) {
            return;
        }
        if words.last.len() >= REMEMBERED_MAX {
            words.last.clear();
        }
        words.last.insert(account.clone(), bytes);
        words.pending.insert(account.clone(), bytes);
        self.tell_soon(&mut words);
    }

    fn tell_soon(&self, words: &mut KeptKeys) {
        if std::mem::replace(&mut words.are_told, true) {
            return;
        }
        let redis = self.handle();
        tokio::spawn(async move { redis.tell_all().await });
    }

    /// Tells the index until there is nothing to tell; makes room where that is needed.
    async fn tell_all(&self) {
        loop {
            let pending = std::mem::take(&mut self.kept.words().pending);
            let told = match self.tell(pending).await {
                Ok(told) => self.make_room(&told).await,
                failed => failed.map(drop),
            };
            if let Err(why) = told {
                log::warn!(event = "kept_bytes_update_failed", why:% = why; "kept bytes not told");
            }
            let mut words = self.kept.words();
            if words.pending.is_empty() {
                words.are_told = false;
                return;
            }
        }
    }

    async fn tell(
        &self,
        sums: impl IntoIterator<Item = (AccountName, u64)>,
    ) -> Result<KeptTotals, Unavailable> {
        let mut call = of_index();
        for (account, bytes) in sums {
            call.arg(account.as_str()).arg(bytes);
        }
        let told = self.told(&call, |s| &s.kept.tell).await?;
        let unreadable = || Unavailable(format!("unexpected answer: {told:?}"));
        let (total, most) = told.split_first().ok_or_else(unreadable)?;
        // It was set anew in between, if it is below.
        let total = total.parse::<i64>().map_err(|_| unreadable())?.try_into().unwrap_or(0);
        self.kept.total.store(total, Ordering::Relaxed);
        let gauge = METRICS.kept_bytes.with_label_values(&["store"]);
        gauge.set(i64::try_from(total).unwrap_or(i64::MAX));
        let most = most
            .chunks_exact(2)
            .filter_map(|pair| Some((AccountName::parse(&pair[0])?, pair[1].parse().ok()?)));
        Ok(KeptTotals { total, most: most.collect() })
    }

    /// Drops something of whoever keeps most, where there is little room left.
    async fn make_room(&self, told: &KeptTotals) -> Result<(), Unavailable> {
        let over = told.total.saturating_sub(self.kept.low_water());
        if over == 0 {
            return Ok(());
        }
        for (account, known) in &told.most {
            let mut call = of_account(account);
            call.arg(over.min(EVICT_BYTES));
            let (dropped, bytes) = match self.numbers(&call, |s| &s.kept.evict).await?.as_slice() {
                [dropped, bytes] => (*dropped, *bytes),
                other => return Err(Unavailable(format!("unexpected answer: {other:?}"))),
            };
            METRICS.kept_evicted_bytes.with_label_values(&["store"]).inc_by(dropped);
            if bytes != *known {
                let mut words = self.kept.words();
                words.last.insert(account.clone(), bytes);
                words.pending.insert(account.clone(), bytes);
            }
            if dropped > 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Weighs all accounts that keep something, if nobody has lately; and once in the life of a
    /// process all there are.
    pub(super) async fn sweep_kept(&self) -> Result<(), Unavailable> {
        let is_first = !self.kept.has_weighed_all.load(Ordering::Relaxed);
        let mut lock = redis::cmd("SET");
        lock.arg(SWEEPING).arg(1).arg("PX").arg(SWEEP_EVERY_MS);
        if !is_first {
            lock.arg("NX");
        }
        let locked: Option<String> = self.connection().await?.query(&lock).await?;
        if locked.is_none() {
            return Ok(());
        }
        let names = if is_first { self.accounts().await? } else { self.keepers().await? };
        for few in names.chunks(TOGETHER) {
            let weighing = few.iter().map(|account| async move {
                let sums = self.numbers(&of_account(account), |s| &s.kept.weigh).await?;
                Ok::<_, Unavailable>((account.clone(), sums.first().copied().unwrap_or_default()))
            });
            let sums: Result<Vec<_>, _> = join_all(weighing).await.into_iter().collect();
            self.tell(sums?).await?;
        }
        self.kept.has_weighed_all.store(true, Ordering::Relaxed);
        self.numbers(&of_index(), |s| &s.kept.recount).await?;
        self.tell_soon(&mut self.kept.words());
        Ok(())
    }

    /// The accounts that keep something.
    async fn keepers(&self) -> Result<Vec<AccountName>, Unavailable> {
        let mut all = redis::cmd("ZRANGE");
        all.arg(ACCOUNTS).arg(0).arg(-1);
        let names: Vec<String> = self.connection().await?.query(&all).await?;
        Ok(names.iter().filter_map(|name| AccountName::parse(name)).collect())
    }

    /// Runs a script that answers with numbers.
    async fn numbers(
        &self,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<Vec<u64>, Unavailable> {
        let told = self.told(call, pick).await?;
        let numbers = told.iter().map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
        numbers.ok_or_else(|| Unavailable(format!("unexpected answer: {told:?}")))
    }
}

fn of_index() -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(ACCOUNTS).key(TOTAL);
    call
}

fn of_account(account: &AccountName) -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(AccountKeys::of(account).tag());
    call
}
