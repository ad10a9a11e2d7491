//! The circuit breaker of a route: what calls and the gateway's own probes say of its health.
//!
//! A tenant can make a vendor fail his own calls, so the failures of one account say little of the
//! route: they send that account's next calls elsewhere, and have the route probed. The breaker
//! opens for everybody after failures of two accounts without a success in between (a lost answer
//! of each, or three failures of which at most two count of one account), or when a probe
//! fails. A route that fails is tried last and not left out, so the last one is always tried.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ledger::AccountName;

/// This many failures in a row open the breaker.
const FAILURE_THRESHOLD: u32 = 3;
/// Accounts whose failures are remembered for a route; the one that failed longest ago goes first.
const ACCOUNTS_MAX: usize = 64;
/// The first while that a route is tried last, in ms; it doubles with every further failure.
const OPEN_MS_MIN: i64 = 1_000;
/// The longest while, in ms.
const OPEN_MS_MAX: i64 = 30_000;
/// A vendor's `retry-after` is honoured up to so long, in ms.
const RETRY_AFTER_MS_MAX: i64 = 300_000;
/// Failures that are older say nothing any more, in ms.
const FAILURE_AGE_MS_MAX: i64 = 60_000;
/// Between two probes, in ms; it doubles from one to the other.
const PROBE_INTERVAL_MS_MIN: i64 = 1_000;
const PROBE_INTERVAL_MS_MAX: i64 = 30_000;
/// What a probe may take beyond that, in ms: a breaker that a probe opened stays open so long.
const PROBE_SLACK_MS: i64 = 10_000;

/// A failure of a route, as a call or a probe saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HealthFailure {
    /// What went wrong, as the log and the metrics name it.
    pub reason: &'static str,
    /// Whether the call was lost: the vendor may have worked, so no other route was tried. One is
    /// enough for its account to go elsewhere.
    pub is_lost: bool,
    /// When the vendor wants to be asked again.
    pub retry_after: Option<Duration>,
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    /// The route answered as a vendor does.
    Healthy,
    /// It did not.
    Failed(HealthFailure),
}

/// See the module. All times are in unix ms.
#[derive(Debug, Default)]
pub(crate) struct RouteHealth {
    /// Whether anything is known against the route; ordinary calls look at nothing else.
    is_suspect: AtomicBool,
    /// Until when everybody tries it last.
    open_until: AtomicI64,
    /// Until when its vendor asked everybody not to call.
    retry_after_until: AtomicI64,
    record: Mutex<HealthRecord>,
}

#[derive(Debug, Default)]
struct HealthRecord {
    accounts: Vec<AccountHealth>,
    /// When the breaker opened last.
    opened_at: i64,
    /// How often it opened since a call was answered.
    open_count: u32,
    is_open_by_probe: bool,
    /// Until when calls opened it, whatever probes say.
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
    /// Whether they count for everybody: nobody's call was answered since.
    counts_for_all: bool,
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
    /// Whether everybody tries the route last.
    #[must_use]
    pub(crate) fn is_open(&self, now_ms: i64) -> bool {
        let until = |moment: &AtomicI64| moment.load(Ordering::Relaxed);
        until(&self.open_until).max(until(&self.retry_after_until)) > now_ms
    }

    /// Whether an account's calls try it last.
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

    /// Why it is tried last.
    #[must_use]
    pub(crate) fn reason(&self) -> &'static str {
        self.lock_record().reason
    }

    /// Takes the failure of an account's call.
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
        let one = &mut record.accounts[at];
        (one.counts_for_all, one.failed_at) = (true, now_ms);
        let count = if failure.is_lost { &mut one.lost_count } else { &mut one.blocked_count };
        *count = count.saturating_add(1);
        if one.reaches_threshold() {
            let beyond = one.lost_count + one.blocked_count.saturating_sub(FAILURE_THRESHOLD - 1);
            one.avoid_until = now_ms + backoff_ms(beyond.saturating_sub(1));
        }
        if let Some(asked) = failure.retry_after {
            one.retry_after_until = one.retry_after_until.max(now_ms + retry_after_ms(asked));
            self.share_retry_after(&record);
        }
        self.open_if_agreed(&mut record, now_ms);
    }

    /// A call that arrived at `began_ms` is being answered, or was to its end.
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
        // What was begun before it opened says nothing of what is now.
        let is_newer = began_ms >= record.opened_at;
        for one in record.accounts.iter_mut().filter(|a| began_ms >= a.failed_at) {
            one.counts_for_all &= !is_whole;
            if one.account.as_ref() == account {
                one.blocked_count = 0;
                if is_whole {
                    (one.lost_count, one.avoid_until) = (0, 0);
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

    /// Whether the route is to be probed now; the next time is later then.
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
        // Who was not probed for long begins anew.
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

    /// Takes what a probe found.
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
            // What calls said stands until its time is over.
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

    fn open_if_agreed(&self, record: &mut HealthRecord, now_ms: i64) {
        let is_recent =
            |a: &&mut AccountHealth| a.counts_for_all && now_ms - a.failed_at < FAILURE_AGE_MS_MAX;
        let mut recent: Vec<_> = record.accounts.iter_mut().filter(is_recent).collect();
        // One account can fail as often as it likes: alone it never counts as enough.
        let failures =
            |a: &&mut AccountHealth| (a.blocked_count + a.lost_count).min(FAILURE_THRESHOLD - 1);
        let count: u32 = recent.iter().map(failures).sum();
        let enough = recent.iter().filter(|a| a.reaches_threshold()).count();
        if enough < 2 && count < FAILURE_THRESHOLD {
            return;
        }
        // The next time two have to agree again.
        recent.iter_mut().for_each(|a| a.counts_for_all = false);
        record.calls_open_until = now_ms + backoff_ms(record.open_count);
        self.open_until.fetch_max(record.calls_open_until, Ordering::Relaxed);
        record.open_count = record.open_count.saturating_add(1);
        record.opened_at = now_ms;
    }

    /// Goes on to look at the route, as long as there is anything to be looked at.
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
            counts_for_all: true,
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

    /// A route that these accounts failed on, one after the other.
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
