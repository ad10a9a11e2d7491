//! How much the server keeps beside the books: replies, cache entries, bodies for vendors; and who
//! makes room for it.
//!
//! Each account's sums are in its own slot, changed by the scripts that keep something. What they
//! say is told to a fleet-wide index in a slot of its own, in the background and only where it
//! changed enough: who keeps how much, and the sum. An account is told of by its whole sum, never
//! by a difference, so words that are lost or come twice do not add up to a drift; a gateway of
//! the fleet weighs all that keep something anew each minute.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::kept_counts::KeptReports;
use super::keys::AccountKeys;
use super::scripts::{ScriptCall, ScriptSelector};
use super::shared_store::RedisStore;
use crate::ledger::{AccountName, Ledger, Unavailable};
use crate::metrics::METRICS;

/// No account's name has a colon, so none shares the hash tag.
const ACCOUNTS_KEY: &str = "tollgate:{:kept}:accounts";
const TOTAL_KEY: &str = "tollgate:{:kept}:total";
const SWEEP_LOCK_KEY: &str = "tollgate:{:kept}:sweeping";

/// A change by fewer bytes waits for the next that is told, or for the sweep.
const REPORT_BYTES_MIN: u64 = 32 << 10;
/// Of how many accounts the kept bytes are cached.
const CACHED_ACCOUNTS_MAX: usize = 10_000;
/// Bytes that are evicted from one account before the largest account is determined again.
const EVICT_BYTES: u64 = 4 << 20;
/// One gateway of a fleet weighs all accounts, so often, in ms.
const SWEEP_INTERVAL_MS: u64 = 60_000;
/// So many are weighed at a time.
const ACCOUNTS_BATCH: usize = 256;

/// What the index says.
struct KeptTotals {
    total: u64,
    /// Those who keep most, and how much.
    largest: Vec<(AccountName, u64)>,
}

impl RedisStore {
    /// Whether `bytes` more may be kept, as far as is known. What is known may be old, so it
    /// is asked anew where they may not.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let total = self.kept_bytes.total.load(Ordering::Relaxed);
        let fits = total.saturating_add(bytes as u64) <= self.kept_bytes.bytes_max;
        if !fits {
            self.report_soon(&mut self.kept_bytes.reports());
        }
        fits
    }

    /// Takes in what an account keeps now, as its scripts say.
    pub(super) fn record_kept_bytes(&self, account: &AccountName, bytes: &str) {
        let Ok(bytes) = bytes.parse::<u64>() else { return };
        let mut reports = self.kept_bytes.reports();
        let last = reports.last_reported.get(account).copied();
        if last.is_some_and(|last| last.abs_diff(bytes) < REPORT_BYTES_MIN) {
            return;
        }
        if reports.last_reported.len() >= CACHED_ACCOUNTS_MAX {
            reports.last_reported.clear();
        }
        reports.last_reported.insert(account.clone(), bytes);
        reports.pending.insert(account.clone(), bytes);
        self.report_soon(&mut reports);
    }

    fn report_soon(&self, reports: &mut KeptReports) {
        if std::mem::replace(&mut reports.is_reporting, true) {
            return;
        }
        let redis = self.clone_handle();
        tokio::spawn(async move { redis.report_pending().await });
    }

    /// Tells the index until there is nothing to tell; makes room where that is needed.
    async fn report_pending(&self) {
        loop {
            let pending = std::mem::take(&mut self.kept_bytes.reports().pending);
            let result = match self.report_totals(pending).await {
                Ok(totals) => self.evict_if_full(&totals).await,
                failed => failed.map(drop),
            };
            if let Err(why) = result {
                log::warn!(
                    event = "kept_bytes_update_failed", why:% = why;
                    "kept bytes report failed"
                );
            }
            let mut reports = self.kept_bytes.reports();
            if reports.pending.is_empty() {
                reports.is_reporting = false;
                return;
            }
        }
    }

    async fn report_totals(
        &self,
        sums: impl IntoIterator<Item = (AccountName, u64)>,
    ) -> Result<KeptTotals, Unavailable> {
        let mut call = totals_call();
        for (account, bytes) in sums {
            call.arg(account.as_str()).arg(bytes);
        }
        let reply = self.run_script(&call, |s| &s.kept.tell).await?;
        let unreadable = || Unavailable(format!("unexpected answer: {reply:?}"));
        let (total, most) = reply.split_first().ok_or_else(unreadable)?;
        // It was set anew in between, if it is below.
        let total = total.parse::<i64>().map_err(|_| unreadable())?.try_into().unwrap_or(0);
        self.kept_bytes.total.store(total, Ordering::Relaxed);
        let gauge = METRICS.kept_bytes.with_label_values(&["store"]);
        gauge.set(i64::try_from(total).unwrap_or(i64::MAX));
        let most = most
            .chunks_exact(2)
            .filter_map(|pair| Some((AccountName::parse(&pair[0])?, pair[1].parse().ok()?)));
        Ok(KeptTotals { total, largest: most.collect() })
    }

    /// Drops something of whoever keeps most, where there is little room left.
    async fn evict_if_full(&self, totals: &KeptTotals) -> Result<(), Unavailable> {
        let over = totals.total.saturating_sub(self.kept_bytes.low_water());
        if over == 0 {
            return Ok(());
        }
        for (account, known) in &totals.largest {
            let mut call = account_call(account);
            call.arg(over.min(EVICT_BYTES));
            let (dropped, bytes) =
                match self.run_numeric_script(&call, |s| &s.kept.evict).await?.as_slice() {
                    [dropped, bytes] => (*dropped, *bytes),
                    other => return Err(Unavailable(format!("unexpected answer: {other:?}"))),
                };
            METRICS.kept_evicted_bytes.with_label_values(&["store"]).inc_by(dropped);
            if bytes != *known {
                let mut reports = self.kept_bytes.reports();
                reports.last_reported.insert(account.clone(), bytes);
                reports.pending.insert(account.clone(), bytes);
            }
            if dropped > 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Weighs all accounts that keep something, if nobody has lately; and once in the life of a
    /// process all there are.
    pub(super) async fn recount_kept_bytes(&self) -> Result<(), Unavailable> {
        let is_first = !self.kept_bytes.has_counted_all.load(Ordering::Relaxed);
        let mut lock = redis::cmd("SET");
        lock.arg(SWEEP_LOCK_KEY).arg(1).arg("PX").arg(SWEEP_INTERVAL_MS);
        if !is_first {
            lock.arg("NX");
        }
        let locked: Option<String> = self.connection().await?.query(&lock).await?;
        if locked.is_none() {
            return Ok(());
        }
        let names =
            if is_first { self.list_accounts().await? } else { self.accounts_with_kept().await? };
        for few in names.chunks(ACCOUNTS_BATCH) {
            let weighing = few.iter().map(|account| async move {
                let sums =
                    self.run_numeric_script(&account_call(account), |s| &s.kept.weigh).await?;
                Ok::<_, Unavailable>((account.clone(), sums.first().copied().unwrap_or_default()))
            });
            let sums: Result<Vec<_>, _> = join_all(weighing).await.into_iter().collect();
            self.report_totals(sums?).await?;
        }
        self.kept_bytes.has_counted_all.store(true, Ordering::Relaxed);
        self.run_numeric_script(&totals_call(), |s| &s.kept.recount).await?;
        self.report_soon(&mut self.kept_bytes.reports());
        Ok(())
    }

    /// The accounts that keep something.
    async fn accounts_with_kept(&self) -> Result<Vec<AccountName>, Unavailable> {
        let mut all = redis::cmd("ZRANGE");
        all.arg(ACCOUNTS_KEY).arg(0).arg(-1);
        let names: Vec<String> = self.connection().await?.query(&all).await?;
        Ok(names.iter().filter_map(|name| AccountName::parse(name)).collect())
    }

    /// Runs a script that answers with numbers.
    async fn run_numeric_script(
        &self,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<Vec<u64>, Unavailable> {
        let reply = self.run_script(call, pick).await?;
        let numbers = reply.iter().map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
        numbers.ok_or_else(|| Unavailable(format!("unexpected answer: {reply:?}")))
    }
}

fn totals_call() -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(ACCOUNTS_KEY).key(TOTAL_KEY);
    call
}

fn account_call(account: &AccountName) -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(AccountKeys::of(account).tag());
    call
}
