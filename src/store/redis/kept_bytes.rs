//! Counts the bytes that the server keeps besides balances, holds and journals (replies, cache
//! entries, bodies for vendors), and evicts some of them when little room is left.
//!
//! The count of each account is in the account's own slot. The scripts that store something change
//! it and return it. Gateways report the returned counts to a fleet-wide index in its own slot, in
//! the background and only if a count has changed enough. The index has the count of each account,
//! and their total. A report always contains an account's whole count, never a difference, so lost
//! or repeated reports do not add up to a drift. In addition, one gateway of the fleet measures
//! anew, each minute, all accounts that keep something.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::kept_counts::KeptReports;
use super::keys::AccountKeys;
use super::scripts::{ScriptCall, ScriptSelector};
use super::shared_store::RedisStore;
use crate::ledger::{AccountName, Ledger, Unavailable};
use crate::metrics::METRICS;

/// The sorted set of accounts, by the bytes that they keep. No account's name contains a colon, so
/// no account shares this hash tag.
const ACCOUNTS_KEY: &str = "tollgate:{:kept}:accounts";
const TOTAL_KEY: &str = "tollgate:{:kept}:total";
const SWEEP_LOCK_KEY: &str = "tollgate:{:kept}:sweeping";

/// A count that differs from the last reported one by fewer bytes is not reported. A later change
/// or the sweep reports it.
const REPORT_BYTES_MIN: u64 = 32 << 10;
/// The last reported counts of at most this many accounts are remembered.
const CACHED_ACCOUNTS_MAX: usize = 10_000;
/// Bytes that are evicted from one account before the largest account is determined again.
const EVICT_BYTES: u64 = 4 << 20;
/// One gateway of a fleet measures all accounts once in this time, in ms.
const SWEEP_INTERVAL_MS: u64 = 60_000;
/// This many accounts are measured at a time.
const ACCOUNTS_BATCH: usize = 256;

/// The reply of the fleet-wide index.
struct KeptTotals {
    total: u64,
    /// The accounts that keep the most, with their bytes.
    largest: Vec<(AccountName, u64)>,
}

impl RedisStore {
    /// Whether `bytes` more may be kept, by the total that this process read last. That total may
    /// be out of date, so if it leaves no room, it is read anew in the background.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let total = self.kept_bytes.total.load(Ordering::Relaxed);
        let fits = total.saturating_add(bytes as u64) <= self.kept_bytes.bytes_max;
        if !fits {
            self.report_soon(&mut self.kept_bytes.reports());
        }
        fits
    }

    /// Records how many bytes an account keeps, as a script returned it, and schedules a report to
    /// the index if the count has changed enough.
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

    /// Reports counts to the index until none is pending, and evicts bytes if little room is left.
    async fn report_pending(&self) {
        loop {
            let pending = std::mem::take(&mut self.kept_bytes.reports().pending);
            let result = match self.report_totals(pending).await {
                Ok(totals) => self.evict_if_full(&totals).await,
                failed => failed.map(drop),
            };
            if let Err(why) = result {
                log::warn!(
                    event = "kept_bytes_update_failed", error:% = why;
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

    /// Records how many bytes an account keeps, at once.
    pub(super) async fn report_kept(
        &self,
        account: &AccountName,
        bytes: u64,
    ) -> Result<(), Unavailable> {
        self.kept_bytes.reports().last_reported.insert(account.clone(), bytes);
        self.report_totals([(account.clone(), bytes)]).await.map(drop)
    }

    async fn report_totals(
        &self,
        sums: impl IntoIterator<Item = (AccountName, u64)>,
    ) -> Result<KeptTotals, Unavailable> {
        let mut call = totals_call();
        for (account, bytes) in sums {
            call.arg(account.as_str()).arg(bytes);
        }
        let reply = self.run_script(&call, |s| &s.storage.report_usage).await?;
        let unreadable = || Unavailable(format!("unexpected answer: {reply:?}"));
        let (total, largest) = reply.split_first().ok_or_else(unreadable)?;
        // A total below 0 was reset in between. It counts as 0.
        let total = total.parse::<i64>().map_err(|_| unreadable())?.try_into().unwrap_or(0);
        self.kept_bytes.total.store(total, Ordering::Relaxed);
        let gauge = METRICS.kept_bytes.with_label_values(&["store"]);
        gauge.set(i64::try_from(total).unwrap_or(i64::MAX));
        let largest = largest
            .chunks_exact(2)
            .filter_map(|pair| Some((AccountName::parse(&pair[0])?, pair[1].parse().ok()?)));
        Ok(KeptTotals { total, largest: largest.collect() })
    }

    /// If little room is left, evicts bytes of the account that keeps the most or, if that account
    /// has nothing to evict, of the next largest one.
    async fn evict_if_full(&self, totals: &KeptTotals) -> Result<(), Unavailable> {
        let over = totals.total.saturating_sub(self.kept_bytes.eviction_threshold());
        if over == 0 {
            return Ok(());
        }
        for (account, known) in &totals.largest {
            let mut call = account_call(account);
            call.arg(over.min(EVICT_BYTES));
            let (dropped, bytes) =
                match self.run_numeric_script(&call, |s| &s.storage.evict).await?.as_slice() {
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

    /// Measures all accounts in the index anew, unless a gateway did so within the last
    /// `SWEEP_INTERVAL_MS`. For the first time in the life of a process it measures all accounts of
    /// the store, in any case.
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
        for batch in names.chunks(ACCOUNTS_BATCH) {
            let measurements = batch.iter().map(|account| async move {
                let sums =
                    self.run_numeric_script(&account_call(account), |s| &s.storage.measure).await?;
                Ok::<_, Unavailable>((account.clone(), sums.first().copied().unwrap_or_default()))
            });
            let sums: Result<Vec<_>, _> = join_all(measurements).await.into_iter().collect();
            self.report_totals(sums?).await?;
        }
        self.kept_bytes.has_counted_all.store(true, Ordering::Relaxed);
        self.run_numeric_script(&totals_call(), |s| &s.storage.recount).await?;
        self.report_soon(&mut self.kept_bytes.reports());
        Ok(())
    }

    /// Returns the accounts that keep something, according to the index.
    async fn accounts_with_kept(&self) -> Result<Vec<AccountName>, Unavailable> {
        let mut all = redis::cmd("ZRANGE");
        all.arg(ACCOUNTS_KEY).arg(0).arg(-1);
        let names: Vec<String> = self.connection().await?.query(&all).await?;
        Ok(names.iter().filter_map(|name| AccountName::parse(name)).collect())
    }

    /// Runs a script whose reply consists of numbers only, and returns them.
    async fn run_numeric_script(
        &self,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<Vec<u64>, Unavailable> {
        let reply = self.run_script(call, pick).await?;
        let numbers = reply.iter().map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>();
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
