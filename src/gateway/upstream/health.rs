//! The circuit breaker of a route, which calls and the gateway's own probes open and close.
//!
//! A tenant can make a vendor fail the tenant's own calls, so the failures of one account say
//! little about the route. They make only that account's next calls try other routes first, and
//! they start probes of the route. The breaker opens for all accounts after failures of two
//! accounts without a success in between (a lost answer of each, or three failures of which at most
//! two count of one account), or when a probe fails. A failing route is tried last and not left
//! out, so it is still tried if all other routes fail.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ledger::AccountName;

/// This many failures without a success in between open the breaker.
const FAILURE_THRESHOLD: u32 = 3;
/// The failures of at most this many accounts are kept for a route; the account that failed longest
/// ago is evicted first.
const ACCOUNTS_MAX: usize = 64;
/// The shortest time for which a route is tried last, in ms; it doubles with every further failure.
const OPEN_MS_MIN: i64 = 1_000;
/// The longest such time, in ms.
const OPEN_MS_MAX: i64 = 30_000;
/// A vendor's `retry-after` is honoured up to this time, in ms.
const RETRY_AFTER_MS_MAX: i64 = 300_000;
/// Failures older than this are ignored, in ms.
const FAILURE_AGE_MS_MAX: i64 = 60_000;
/// The time between two probes, in ms; it doubles with every probe from the shortest to the
/// longest.
const PROBE_INTERVAL_MS_MIN: i64 = 1_000;
const PROBE_INTERVAL_MS_MAX: i64 = 30_000;
/// A breaker that a probe opened stays open until this long after the next probe is due, in ms:
/// that probe may take this time.
const PROBE_SLACK_MS: i64 = 10_000;

/// A failure of a route, as a call or a probe saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HealthFailure {
    /// The reason, as a label for the log and the metrics.
    pub reason: &'static str,
    /// Whether the call was lost: the vendor may have done the work, so no other route was tried.
    /// One lost call is enough for its account to try other routes first.
    pub is_lost: bool,
    /// How long the vendor asks to wait; `None` if it does not say.
    pub retry_after: Option<Duration>,
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    /// The route answered like the vendor's API.
    Healthy,
    /// The route did not.
    Failed(HealthFailure),
}

/// The health of one route (see the module). All times are Unix times in ms.
#[derive(Debug, Default)]
pub(crate) struct RouteHealth {
    /// Whether the record has anything against the route. While it has not, calls read nothing else
    /// and take no lock.
    is_suspect: AtomicBool,
    /// Until when all accounts try the route last.
    open_until: AtomicI64,
    /// Until when the vendor's `retry-after` applies to all accounts.
    retry_after_until: AtomicI64,
    record: Mutex<HealthRecord>,
}

#[derive(Debug, Default)]
struct HealthRecord {
    accounts: Vec<AccountHealth>,
    /// When the breaker opened last.
    opened_at: i64,
    /// How often the breaker opened since the last whole response.
    open_count: u32,
    is_open_by_probe: bool,
    /// Until when failed calls keep the breaker open, regardless of probes.
    calls_open_until: i64,
    reason: &'static str,
    next_probe_at: i64,
    probe_interval_ms: i64,
}

/// The failures of an account since its last success.
#[derive(Debug)]
struct AccountHealth {
    account: Option<AccountName>,
    blocked_count: u32,
    lost_count: u32,
    /// Whether these failures count for opening the breaker: since then no account has received a
    /// whole response, and they have not opened it yet.
    counts_towards_opening: bool,
    failed_at: i64,
    avoid_until: i64,
    retry_after_until: i64,
}

impl AccountHealth {
    fn reaches_threshold(&self) -> bool {
        self.lost_count > 0 || self.blocked_count >= FAILURE_THRESHOLD
    }
}

impl RouteHealth {
    /// Whether all accounts try the route last.
    #[must_use]
    pub(crate) fn is_open(&self, now_ms: i64) -> bool {
        let until = |moment: &AtomicI64| moment.load(Ordering::Relaxed);
        until(&self.open_until).max(until(&self.retry_after_until)) > now_ms
    }

    /// Whether an account's calls try the route last.
    #[must_use]
    pub(crate) fn is_avoided_by(&self, account: Option<&AccountName>, now_ms: i64) -> bool {
        if !self.is_suspect.load(Ordering::Relaxed) {
            return false;
        }
        let record = self.lock_record();
        let of_account = record.accounts.iter().find(|a| a.account.as_ref() == account);
        let own = of_account.map_or(0, |a| a.avoid_until.max(a.retry_after_until));
        self.is_open(now_ms) || own > now_ms
    }

    /// Returns the reason of the last failure.
    #[must_use]
    pub(crate) fn reason(&self) -> &'static str {
        self.lock_record().reason
    }

    /// Records a failure of an account's call.
    pub(crate) fn record_failure(
        &self,
        account: Option<&AccountName>,
        failure: HealthFailure,
        now_ms: i64,
    ) {
        let mut record = self.lock_record();
        self.is_suspect.store(true, Ordering::Relaxed);
        record.reason = failure.reason;
        let known = record.accounts.iter().position(|a| a.account.as_ref() == account);
        let at = known.unwrap_or_else(|| record.insert_account(account, now_ms));
        let account_health = &mut record.accounts[at];
        (account_health.counts_towards_opening, account_health.failed_at) = (true, now_ms);
        let count = if failure.is_lost {
            &mut account_health.lost_count
        } else {
            &mut account_health.blocked_count
        };
        *count = count.saturating_add(1);
        if account_health.reaches_threshold() {
            let failures_over_threshold = account_health.lost_count
                + account_health.blocked_count.saturating_sub(FAILURE_THRESHOLD - 1);
            account_health.avoid_until =
                now_ms + backoff_ms(failures_over_threshold.saturating_sub(1));
        }
        if let Some(asked) = failure.retry_after {
            account_health.retry_after_until =
                account_health.retry_after_until.max(now_ms + retry_after_ms(asked));
            self.share_retry_after(&record);
        }
        self.open_if_accounts_agree(&mut record, now_ms);
    }

    /// Records that the vendor answered a call that arrived at `began_ms`: with the whole response
    /// if `is_whole`, otherwise with its head.
    pub(crate) fn record_success(
        &self,
        account: Option<&AccountName>,
        is_whole: bool,
        began_ms: i64,
    ) {
        if !self.is_suspect.load(Ordering::Relaxed) {
            return;
        }
        let mut record = self.lock_record();
        // A call that began before the breaker opened says nothing about the present state.
        let is_newer = began_ms >= record.opened_at;
        for account_health in record.accounts.iter_mut().filter(|a| began_ms >= a.failed_at) {
            account_health.counts_towards_opening &= !is_whole;
            if account_health.account.as_ref() == account {
                account_health.blocked_count = 0;
                if is_whole {
                    (account_health.lost_count, account_health.avoid_until) = (0, 0);
                }
            }
        }
        record
            .accounts
            .retain(|a| a.blocked_count + a.lost_count > 0 || a.retry_after_until > began_ms);
        if is_whole && is_newer {
            (record.open_count, record.is_open_by_probe, record.calls_open_until) = (0, false, 0);
            self.open_until.store(0, Ordering::Relaxed);
        }
        self.update_suspect(&record, began_ms);
    }

    /// Whether the route must be probed now. If so, the next probe becomes due after the interval.
    #[must_use]
    pub(crate) fn try_start_probe(&self, now_ms: i64) -> bool {
        if !self.is_suspect.load(Ordering::Relaxed) {
            return false;
        }
        let mut record = self.lock_record();
        let is_recent = |a: &AccountHealth| now_ms - a.failed_at < FAILURE_AGE_MS_MAX;
        record.accounts.retain(|a| is_recent(a) || a.retry_after_until > now_ms);
        self.update_suspect(&record, now_ms);
        let suspected = record.accounts.iter().any(|a| a.reaches_threshold() && is_recent(a));
        // A breaker that is open only because of `retry-after` needs no probe.
        let is_open = self.open_until.load(Ordering::Relaxed) > now_ms;
        if !(suspected || record.is_open_by_probe || is_open) {
            return false;
        }
        if now_ms < record.next_probe_at {
            return false;
        }
        // After a long time without a probe, the interval begins again with the shortest.
        let rested = now_ms - record.next_probe_at > FAILURE_AGE_MS_MAX;
        let gap = if rested {
            PROBE_INTERVAL_MS_MIN
        } else {
            record.probe_interval_ms.max(PROBE_INTERVAL_MS_MIN)
        };
        record.next_probe_at = now_ms + gap;
        record.probe_interval_ms = (gap * 2).min(PROBE_INTERVAL_MS_MAX);
        true
    }

    /// Records the result of a probe.
    pub(crate) fn record_probe(&self, probed: ProbeOutcome, now_ms: i64) {
        let mut record = self.lock_record();
        match probed {
            ProbeOutcome::Failed(failure) => {
                if !self.is_open(now_ms) {
                    record.opened_at = now_ms;
                }
                record.is_open_by_probe = true;
                record.reason = failure.reason;
                let until = record.next_probe_at + PROBE_SLACK_MS;
                self.open_until.fetch_max(until, Ordering::Relaxed);
                if let Some(asked) = failure.retry_after {
                    let until = now_ms + retry_after_ms(asked);
                    self.retry_after_until.fetch_max(until, Ordering::Relaxed);
                }
            }
            // A breaker that failed calls opened stays open until its time is over.
            ProbeOutcome::Healthy if record.is_open_by_probe => {
                record.is_open_by_probe = false;
                self.open_until.store(record.calls_open_until, Ordering::Relaxed);
            }
            ProbeOutcome::Healthy => {}
        }
        self.update_suspect(&record, now_ms);
    }

    /// Applies to all accounts the `retry-after` that at least two accounts were given.
    fn share_retry_after(&self, record: &HealthRecord) {
        let mut asked: Vec<i64> = record.accounts.iter().map(|a| a.retry_after_until).collect();
        asked.sort_unstable_by(|one, other| other.cmp(one));
        if let Some(second) = asked.get(1) {
            self.retry_after_until.fetch_max(*second, Ordering::Relaxed);
        }
    }

    fn open_if_accounts_agree(&self, record: &mut HealthRecord, now_ms: i64) {
        let is_recent = |a: &&mut AccountHealth| {
            a.counts_towards_opening && now_ms - a.failed_at < FAILURE_AGE_MS_MAX
        };
        let mut recent: Vec<_> = record.accounts.iter_mut().filter(is_recent).collect();
        // The failures of one account are capped, so that one account alone never opens the
        // breaker.
        let failures =
            |a: &&mut AccountHealth| (a.blocked_count + a.lost_count).min(FAILURE_THRESHOLD - 1);
        let count: u32 = recent.iter().map(failures).sum();
        let enough = recent.iter().filter(|a| a.reaches_threshold()).count();
        if enough < 2 && count < FAILURE_THRESHOLD {
            return;
        }
        // Two accounts must fail anew to open the breaker again.
        recent.iter_mut().for_each(|a| a.counts_towards_opening = false);
        record.calls_open_until = now_ms + backoff_ms(record.open_count);
        self.open_until.fetch_max(record.calls_open_until, Ordering::Relaxed);
        record.open_count = record.open_count.saturating_add(1);
        record.opened_at = now_ms;
    }

    /// Keeps the route suspect as long as failures are on record or the breaker is open.
    fn update_suspect(&self, record: &HealthRecord, now_ms: i64) {
        let is_over = record.accounts.is_empty() && !record.is_open_by_probe;
        self.is_suspect.store(!is_over || self.is_open(now_ms), Ordering::Relaxed);
    }

    fn lock_record(&self) -> MutexGuard<'_, HealthRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HealthRecord {
    fn insert_account(&mut self, account: Option<&AccountName>, now_ms: i64) -> usize {
        let oldest = |accounts: &[AccountHealth]| {
            let ages = accounts.iter().enumerate().map(|(at, one)| (one.failed_at, at));
            ages.min().map(|(_, at)| at)
        };
        if self.accounts.len() >= ACCOUNTS_MAX
            && let Some(at) = oldest(&self.accounts)
        {
            self.accounts.swap_remove(at);
        }
        self.accounts.push(AccountHealth {
            account: account.cloned(),
            blocked_count: 0,
            lost_count: 0,
            counts_towards_opening: true,
            failed_at: now_ms,
            avoid_until: 0,
            retry_after_until: 0,
        });
        self.accounts.len() - 1
    }
}

fn backoff_ms(times: u32) -> i64 {
    (OPEN_MS_MIN << times.min(8)).min(OPEN_MS_MAX)
}

fn retry_after_ms(asked: Duration) -> i64 {
    i64::try_from(asked.as_millis()).unwrap_or(i64::MAX).min(RETRY_AFTER_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKED: HealthFailure =
        HealthFailure { reason: "status", is_lost: false, retry_after: None };
    const LOST: HealthFailure =
        HealthFailure { reason: "answer", is_lost: true, retry_after: None };

    fn account(name: &str) -> Option<AccountName> {
        AccountName::parse(name)
    }

    fn asked(seconds: u64) -> HealthFailure {
        HealthFailure { retry_after: Some(Duration::from_secs(seconds)), ..BLOCKED }
    }

    /// Returns the health of a route on which these accounts failed, one after the other.
    fn failed_by(accounts: &[&str], failure: HealthFailure) -> RouteHealth {
        let health = RouteHealth::default();
        accounts.iter().for_each(|name| health.record_failure(account(name).as_ref(), failure, 0));
        health
    }

    fn avoids(health: &RouteHealth, name: &str, now_ms: i64) -> bool {
        health.is_avoided_by(account(name).as_ref(), now_ms)
    }

    #[test]
    fn a_tenant_closed_a_route_for_everybody() {
        for failure in [BLOCKED, LOST, asked(7)] {
            let health = failed_by(&["bad"; 100], failure);
            assert!(!health.is_open(0) && !avoids(&health, "good", 0), "{failure:?}");
            assert!(avoids(&health, "bad", 0), "{failure:?}");
            assert!(!health.is_avoided_by(None, 0));
        }
    }

    #[test]
    fn two_accounts_open_it_for_a_while_that_doubles() {
        let health = failed_by(&["a", "a", "b"], BLOCKED);
        assert!(avoids(&health, "c", 999) && !avoids(&health, "c", 1_000));
        for (at, until) in [(1_000, 3_000), (3_000, 7_000), (7_000, 15_000)] {
            health.record_failure(account("a").as_ref(), BLOCKED, at);
            assert!(!avoids(&health, "c", at), "one of them is not enough the next time either");
            health.record_failure(account("a").as_ref(), BLOCKED, at);
            health.record_failure(account("b").as_ref(), BLOCKED, at);
            assert!(avoids(&health, "c", until - 1) && !avoids(&health, "c", until), "{at}");
        }
        let health = failed_by(&["a", "b"], BLOCKED);
        assert!(!health.is_open(0), "two failures are not yet a row");
        let health = failed_by(&["a"], LOST);
        health.record_failure(account("b").as_ref(), BLOCKED, 0);
        assert!(!health.is_open(0), "what one account lost made another's refusal enough");
        assert!(failed_by(&["a", "b"], LOST).is_open(0));
        assert!(!failed_by(&["a", "a", "a", "a"], BLOCKED).is_open(0));
    }

    #[test]
    fn a_success_between_two_accounts_failures_is_one() {
        for (is_whole, expected) in [(true, false), (false, true)] {
            let health = failed_by(&["a"], LOST);
            health.record_success(account("c").as_ref(), is_whole, 1);
            health.record_failure(account("b").as_ref(), LOST, 2);
            assert_eq!(health.is_open(2), expected, "the head alone says nothing of an answer");
        }
        let health = failed_by(&["a", "a", "b"], BLOCKED);
        health.record_success(account("c").as_ref(), true, -1);
        assert!(health.is_open(1), "a call from before it opened");
        health.record_success(account("c").as_ref(), true, 1);
        assert!(!health.is_open(1));
    }

    #[test]
    fn a_probe_that_answered_opened_what_calls_had_closed() {
        let health = failed_by(&["a", "a", "b"], BLOCKED);
        health.record_probe(ProbeOutcome::Failed(LOST), 10);
        health.record_probe(ProbeOutcome::Healthy, 20);
        assert!(health.is_open(999) && !health.is_open(1_000));
    }

    #[test]
    fn what_a_probe_found_was_forgotten_after_a_success_meanwhile() {
        let health = failed_by(&["a"], LOST);
        health.record_success(account("a").as_ref(), true, 1);
        health.record_probe(ProbeOutcome::Failed(LOST), 2);
        assert!(avoids(&health, "b", 3));
    }

    #[test]
    fn an_account_comes_back_by_itself_and_after_its_own_success() {
        let health = failed_by(&["a", "a"], BLOCKED);
        assert!(!avoids(&health, "a", 0));
        health.record_failure(account("a").as_ref(), BLOCKED, 0);
        assert!(avoids(&health, "a", 999) && !avoids(&health, "a", 1_000));
        health.record_failure(account("a").as_ref(), BLOCKED, 1_000);
        assert!(avoids(&health, "a", 2_999) && !avoids(&health, "a", 3_000));
        health.record_success(account("b").as_ref(), true, 3_000);
        assert!(avoids(&health, "a", 2_999), "the success of another");
        health.record_success(account("a").as_ref(), true, 3_000);
        assert!(!avoids(&health, "a", 1_500) && !health.is_suspect.load(Ordering::Relaxed));
    }

    #[test]
    fn patience_is_what_two_were_asked_for_and_no_success_cuts_it_short() {
        let health = failed_by(&["bad"], asked(1_000_000));
        health.record_failure(account("a").as_ref(), asked(7), 0);
        assert!(avoids(&health, "c", 6_999) && !avoids(&health, "c", 7_000));
        assert!(avoids(&health, "bad", 299_999) && !avoids(&health, "bad", 300_000));
        health.record_success(account("a").as_ref(), true, 1);
        assert!(avoids(&health, "c", 6_999) && avoids(&health, "a", 6_999));
        assert!(!health.try_start_probe(2), "who asked for patience is not asked");
    }

    #[test]
    fn a_gateway_of_one_account_had_no_breaker() {
        let health = failed_by(&["only"], LOST);
        assert!(health.try_start_probe(10) && !health.try_start_probe(10), "one at a time");
        health.record_probe(ProbeOutcome::Failed(BLOCKED), 20);
        assert!(health.is_open(20) && health.reason() == "status");
        assert!(
            health.try_start_probe(1_010)
                && !health.try_start_probe(3_009)
                && health.try_start_probe(3_010)
        );
        health.record_probe(ProbeOutcome::Failed(BLOCKED), 3_020);
        assert!(health.is_open(7_010), "until the next probe at least");
        health.record_probe(ProbeOutcome::Healthy, 7_020);
        assert!(!health.is_open(7_020));
    }

    #[test]
    fn probes_are_few_and_only_while_a_route_is_suspected() {
        let health = failed_by(&["a", "a"], BLOCKED);
        assert!(!health.try_start_probe(0), "two blocks are nothing yet");
        health.record_failure(account("a").as_ref(), BLOCKED, 0);
        let probes = (0..3_600_000).step_by(100).filter(|now| health.try_start_probe(*now)).count();
        assert!((3..10).contains(&probes), "{probes}");
        let health = RouteHealth::default();
        let mut probes = 0;
        for now in (0..3_600_000).step_by(100) {
            health.record_failure(account("a").as_ref(), LOST, now);
            probes += usize::from(health.try_start_probe(now));
            health.record_success(account("a").as_ref(), true, now);
        }
        assert!(probes < 3_600 / 30 + 10, "{probes} in an hour");
        assert!(!health.try_start_probe(i64::MAX / 2));
    }

    #[test]
    fn a_healthy_probe_does_not_close_what_two_accounts_opened() {
        let health = failed_by(&["a", "b"], LOST);
        assert!(health.try_start_probe(0));
        health.record_probe(ProbeOutcome::Healthy, 1);
        assert!(health.is_open(1));
    }

    #[test]
    fn the_accounts_that_are_remembered_are_bounded() {
        let health = RouteHealth::default();
        for number in 0..10_000 {
            let name = account(&format!("a{number}"));
            health.record_failure(name.as_ref(), LOST, i64::from(number));
        }
        assert_eq!(health.lock_record().accounts.len(), ACCOUNTS_MAX);
        assert!(avoids(&health, "a9999", 10_000));
    }
}
