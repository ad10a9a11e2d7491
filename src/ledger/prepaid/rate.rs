//! Rate limits of accounts and keys: requests and tokens a minute, and calls at a time.
//!
//! A bucket fills with what is taken and drains at the limit's pace (the generic cell rate
//! algorithm), in whole numbers: what is in it is counted in units times the ms of a minute, so one
//! ms drains as many as the limit has units a minute. Places do not drain; they are given back.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::lending_rule::lendable_part;
use super::window::BudgetOwner;
use crate::money::MoneyError;

/// One minute, in ms.
const MINUTE_MS: i64 = 60_000;
/// Who waits for a place asks again after this long, in ms.
const PLACE_RETRY_MS: i64 = 1_000;

/// What a rate limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RateKind {
    /// Calls that begin.
    Requests,
    /// Tokens that are reserved, and corrected when a call ends.
    Tokens,
    /// Calls that are open at a time.
    Calls,
}

/// The name of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RateId {
    /// Whose it is.
    pub owner: BudgetOwner,
    /// What it counts.
    pub kind: RateKind,
    /// The row of the plan: 0 for all models, else that of some of them.
    pub row: u16,
}

/// A limit, as the plan of the account or key has it now. It is an argument and not stored, since
/// plans are rules that may change at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Units a minute; nothing for calls at a time.
    pub per_minute: i64,
    /// Units at once.
    pub burst: i64,
}

/// What a call asks of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateAsk {
    /// The bucket.
    pub id: RateId,
    /// Its limit.
    pub limit: RateLimit,
    /// The units.
    pub amount: i64,
    /// Whether the limit refuses nothing. What does not fit is then not counted.
    pub is_shadow: bool,
}

/// What a call has used of a bucket in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateUsed {
    /// The bucket.
    pub id: RateId,
    /// The units.
    pub amount: i64,
}

/// What a gateway has used of its slice of a bucket, and what it wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateDemand {
    /// The limit of the bucket.
    pub limit: RateLimit,
    /// The units that were used up since the last message.
    pub spent: i64,
    /// The places of open calls.
    pub needed: i64,
    /// What must not be taken back, since the gateway goes on using it. It includes what is needed.
    pub kept: i64,
    /// What should be free beside what is needed.
    pub free: i64,
    /// What one call takes.
    pub unit: i64,
}

/// What a gateway is told of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateStatus {
    /// What its allotment has of it.
    pub slice: i64,
    /// What there is beside that.
    pub room: i64,
}

/// A bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateBucket {
    /// What is in it, in units times the ms of a minute.
    pub level: i64,
    /// When it was looked at last, in unix ms.
    pub at: i64,
}

impl RateBucket {
    /// Returns the bucket at `now` (unix ms), after it has drained.
    #[must_use]
    pub fn drained(self, limit: RateLimit, now: i64) -> RateBucket {
        let passed = now.saturating_sub(self.at).max(0);
        let drained = limit.per_minute.max(0).saturating_mul(passed);
        RateBucket { level: self.level.saturating_sub(drained).max(0), at: self.at.max(now) }
    }

    /// Returns the whole units that a drained bucket has room for.
    #[must_use]
    pub fn room(self, limit: RateLimit) -> i64 {
        let most = limit.burst.max(0).saturating_mul(MINUTE_MS);
        most.saturating_sub(self.level).max(0) / MINUTE_MS
    }

    /// Puts units into a drained bucket. A call above the burst passes an empty one, into debt, so
    /// that a limit never refuses it for ever. `Err` is when to try again, in ms from now; `None`
    /// if that is not known.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if the level exceeds the range.
    pub fn take(self, ask: RateAsk) -> Result<Result<RateBucket, Option<i64>>, MoneyError> {
        let RateAsk { id, limit, amount, .. } = ask;
        let level = self.add(amount)?.level;
        let most = limit.burst.checked_mul(MINUTE_MS).ok_or(MoneyError::OutOfRange)?;
        let passes_empty = self.level == 0 && limit.burst > 0 && id.kind != RateKind::Calls;
        if level <= most || passes_empty {
            return Ok(Ok(RateBucket { level, ..self }));
        }
        if id.kind == RateKind::Calls {
            return Ok(Err(Some(PLACE_RETRY_MS)));
        }
        let excess = level.saturating_sub(most).min(self.level);
        let has_pace = limit.per_minute > 0 && limit.burst > 0;
        Ok(Err(has_pace.then(|| divide_up(excess, limit.per_minute))))
    }

    /// Puts units in, whether there is room or not.
    pub(crate) fn add(self, amount: i64) -> Result<RateBucket, MoneyError> {
        let more = amount.max(0).checked_mul(MINUTE_MS).ok_or(MoneyError::OutOfRange)?;
        let level = self.level.checked_add(more).ok_or(MoneyError::OutOfRange)?;
        Ok(RateBucket { level, ..self })
    }

    /// Takes units out that were not used after all. What has drained since stays drained.
    #[must_use]
    pub(crate) fn remove(self, amount: i64) -> RateBucket {
        let less = amount.max(0).saturating_mul(MINUTE_MS);
        RateBucket { level: self.level.saturating_sub(less).max(0), ..self }
    }

    /// What may be lent of a drained bucket, by the rule of money: small limits lend nothing.
    #[must_use]
    pub fn lendable(self, limit: RateLimit, unit: i64, others: u32) -> i64 {
        lendable_part(self.room(limit), unit.max(1), others).unwrap_or_default()
    }
}

fn divide_up(amount: i64, by: i64) -> i64 {
    amount / by + i64::from(amount % by > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ask(kind: RateKind, per_minute: i64, burst: i64, amount: i64) -> RateAsk {
        let id = RateId { owner: BudgetOwner::Account, kind, row: 0 };
        RateAsk { id, limit: RateLimit { per_minute, burst }, amount, is_shadow: false }
    }

    fn take(bucket: RateBucket, ask: RateAsk, now: i64) -> Result<RateBucket, Option<i64>> {
        bucket.drained(ask.limit, now).take(ask).expect("in range")
    }

    #[test]
    fn a_bucket_takes_its_burst_and_then_its_pace() {
        let one = ask(RateKind::Requests, 20, 3, 1);
        let mut bucket = RateBucket::default();
        for _ in 0..3 {
            bucket = take(bucket, one, 0).expect("room");
        }
        assert_eq!(take(bucket, one, 0), Err(Some(3_000)));
        assert_eq!(take(bucket, one, 2_999), Err(Some(1)));
        bucket = take(bucket, one, 3_000).expect("room");
        assert_eq!(take(bucket, one, 3_000), Err(Some(3_000)));
        assert_eq!(bucket.drained(one.limit, 63_000).room(one.limit), 3);
        assert_eq!(bucket.drained(one.limit, 5_999).room(one.limit), 0);
        assert_eq!(bucket.drained(one.limit, 0).level, bucket.level, "no clock goes back");
    }

    #[test]
    fn a_call_above_the_burst_passes_an_empty_bucket_into_debt() {
        let big = ask(RateKind::Tokens, 40, 40, 100);
        let bucket = take(RateBucket::default(), big, 0).expect("an empty bucket");
        assert_eq!(take(bucket, big, 0), Err(Some(150_000)));
        assert_eq!(take(bucket, big, 149_999), Err(Some(1)));
        assert!(take(bucket, big, 150_000).is_ok());
        let small = ask(RateKind::Tokens, 40, 40, 10);
        assert_eq!(take(bucket, small, 0), Err(Some(105_000)));
        assert!(take(bucket, small, 105_000).is_ok());
    }

    #[test]
    fn nothing_passes_a_limit_of_nothing_and_places_are_never_exceeded() {
        for kind in [RateKind::Requests, RateKind::Tokens] {
            assert_eq!(take(RateBucket::default(), ask(kind, 0, 0, 1), 0), Err(None));
        }
        let place = ask(RateKind::Calls, 0, 2, 1);
        let one = take(RateBucket::default(), place, 0).expect("a place");
        let two = take(one, place, 1).expect("a place");
        assert_eq!(take(two, place, 999_999_999), Err(Some(PLACE_RETRY_MS)));
        assert!(take(two.remove(1), place, 2).is_ok());
        assert_eq!(
            take(RateBucket::default(), ask(RateKind::Calls, 0, 2, 3), 0),
            Err(Some(PLACE_RETRY_MS))
        );
    }

    #[test]
    fn what_is_given_back_is_room_again_but_never_more_than_the_burst() {
        let limit = RateLimit { per_minute: 60, burst: 100 };
        let bucket = RateBucket::default().add(50).expect("in range");
        assert_eq!((bucket.room(limit), bucket.remove(20).room(limit)), (50, 70));
        assert_eq!(bucket.drained(limit, 40_000).remove(20).room(limit), 100);
        assert!(RateBucket::default().add(i64::MAX).is_err());
    }

    #[test]
    fn small_limits_lend_nothing() {
        let lend = |burst, unit, others| {
            RateBucket::default().lendable(RateLimit { per_minute: 1, burst }, unit, others)
        };
        assert_eq!((lend(20, 1, 0), lend(63, 1, 0), lend(104, 1, 0)), (0, 0, 10));
        assert_eq!((lend(104, 1, 2), lend(40_000, 500, 0)), (5, 2_000));
    }

    proptest! {
        /// Over any time no more passes than the burst and what the pace allows.
        #[test]
        fn no_more_passes_than_burst_and_pace(
            per_minute in 1..500i64,
            burst in 1..50i64,
            steps in prop::collection::vec((0..4_000i64, 1..20i64), 1..200),
        ) {
            let (mut bucket, mut now, mut passed) = (RateBucket::default(), 0, 0);
            for (wait, amount) in steps {
                now += wait;
                let ask = ask(RateKind::Requests, per_minute, burst, amount.min(burst));
                let drained = bucket.drained(ask.limit, now);
                match drained.take(ask).expect("in range") {
                    Ok(after) => {
                        bucket = after;
                        passed += ask.amount;
                    }
                    Err(retry) => {
                        let retry = retry.expect("a pace");
                        let later = bucket.drained(ask.limit, now + retry).take(ask);
                        let sooner = bucket.drained(ask.limit, now + retry - 1).take(ask);
                        prop_assert!(later.expect("in range").is_ok());
                        prop_assert!(sooner.expect("in range").is_err());
                    }
                }
                prop_assert!(passed * MINUTE_MS <= burst * MINUTE_MS + per_minute * now);
            }
        }
    }
}
