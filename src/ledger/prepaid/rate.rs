//! Rate limits of accounts and keys: requests and tokens a minute, and calls at a time.
//!
//! A bucket fills with what is taken and drains at the limit's pace (the generic cell rate
//! algorithm), in whole numbers: what is in it is counted in units times the ms of a minute, so one
//! ms drains as many as the limit has units a minute. Places do not drain; they are given back.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;
use std::str::FromStr;

use super::lending_rule::{QUOTES_MIN, lendable_part};
use super::window::BudgetOwner;
use crate::ledger::json_text::push_number;

/// One minute, in ms.
const MINUTE_MS: i64 = 60_000;
/// No bucket has more in it. Doubles are exact up to here, by which the scripts of a shared store
/// compute.
const LEVEL_MAX: i64 = (1 << 53) - 1;
/// The most units of a limit, and of what one call takes. Above that the sums of a bucket would
/// come near [`LEVEL_MAX`].
pub const RATE_UNITS_MAX: i64 = 1_000_000_000;
/// Who waits for a place asks again after this long, in ms.
const PLACE_RETRY_MS: i64 = 1_000;
/// A bucket does not wait for a clock that was set back by more than this, in ms.
const SET_BACK_MAX_MS: i64 = MINUTE_MS;

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

/// What a limit has left after a call was admitted or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateReading {
    /// The whole units that are left. Less than nothing if calls are in debt.
    pub remaining: i64,
    /// Whether the call is above a limit that refuses nothing.
    pub is_exceeded: bool,
}

/// What a gateway has used of its slice of a bucket, and what it wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateDemand {
    /// The limit of the bucket.
    pub limit: RateLimit,
    /// The units that were used up since the last message. Less than nothing if ends have corrected
    /// more than was used.
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
    /// What there is beside that. Less than nothing if calls are in debt.
    pub room: i64,
}

impl RateReading {
    /// Makes the reading of a limit that the call is within, and that has so much left.
    #[must_use]
    pub fn within(remaining: i64) -> RateReading {
        RateReading { remaining, is_exceeded: false }
    }
}

impl RateKind {
    /// All kinds.
    pub const ALL: [RateKind; 3] = [RateKind::Requests, RateKind::Tokens, RateKind::Calls];

    /// Returns the name of the kind, in stores and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RateKind::Requests => "requests",
            RateKind::Tokens => "tokens",
            RateKind::Calls => "calls",
        }
    }
}

impl RateId {
    /// Appends a short text such as `account/tokens/0` or `key:7/calls/2`.
    pub(crate) fn push_to(self, text: &mut String) {
        self.owner.push_to(text);
        text.push('/');
        text.push_str(self.kind.name());
        push_number(text, "/", self.row);
    }
}

impl fmt::Display for RateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.push_to(&mut text);
        f.write_str(&text)
    }
}

/// A text does not name a bucket, or what a call takes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rate limit of an unknown form")]
pub struct RateTextError;

impl FromStr for RateId {
    type Err = RateTextError;

    fn from_str(text: &str) -> Result<RateId, RateTextError> {
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or(RateTextError);
        let owner = next()?.parse().map_err(|_| RateTextError)?;
        let kind = next()?;
        let kind = RateKind::ALL.into_iter().find(|known| known.name() == kind);
        let row = next()?.parse().map_err(|_| RateTextError)?;
        if parts.next().is_some() {
            return Err(RateTextError);
        }
        Ok(RateId { owner, kind: kind.ok_or(RateTextError)?, row })
    }
}

/// Writes what a call took of rate limits, as stores keep it: `ID=AMOUNT:PER_MINUTE:BURST`, with
/// commas between them.
#[must_use]
pub fn format_rate_asks(asks: &[RateAsk]) -> String {
    let text = |ask: &RateAsk| {
        let RateAsk { id, limit: RateLimit { per_minute, burst }, amount, .. } = ask;
        format!("{id}={amount}:{per_minute}:{burst}")
    };
    asks.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Reads what [`format_rate_asks`] has written. What is counted is counted, so none is a shadow.
///
/// # Errors
/// The text has another form.
pub fn parse_rate_asks(text: &str) -> Result<Vec<RateAsk>, RateTextError> {
    let parse = |one: &str| {
        let (id, numbers) = one.split_once('=').ok_or(RateTextError)?;
        let numbers: Result<Vec<i64>, _> = numbers.split(':').map(str::parse).collect();
        let Ok([amount, per_minute, burst]) = numbers.as_deref() else {
            return Err(RateTextError);
        };
        let limit = RateLimit { per_minute: *per_minute, burst: *burst };
        Ok(RateAsk { id: id.parse()?, limit, amount: *amount, is_shadow: false })
    };
    text.split(',').filter(|one| !one.is_empty()).map(parse).collect()
}

impl RateAsk {
    /// Whether a gateway may borrow of the limit for such calls. Of a small limit nothing is lent,
    /// so that it is exact over all gateways.
    #[must_use]
    pub fn is_lendable(&self) -> bool {
        self.limit.burst >= self.amount.max(1).saturating_mul(QUOTES_MIN)
    }

    /// Returns what a call has used in the end of what it took: of requests all, of places nothing,
    /// and of tokens what was reported.
    #[must_use]
    pub(crate) fn used(&self, tokens: Option<i64>) -> i64 {
        match self.id.kind {
            RateKind::Requests => self.amount,
            RateKind::Tokens => tokens.unwrap_or(self.amount),
            RateKind::Calls => 0,
        }
    }
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
    /// Returns the bucket at `now` (unix ms), after it has drained. While a clock that was set back
    /// by a little catches up, nothing drains twice. If it was set back by much, a bucket that
    /// drains is empty: else it would refuse calls until the clock is there again. Nothing is
    /// written when a call is refused, so this cannot begin anew with each look.
    #[must_use]
    pub fn drained(self, limit: RateLimit, now: i64) -> RateBucket {
        let passed = now.saturating_sub(self.at).max(0);
        let drained = limit.per_minute.max(0).saturating_mul(passed);
        if self.at.saturating_sub(now) > SET_BACK_MAX_MS && limit.per_minute > 0 {
            return RateBucket { level: 0, at: now };
        }
        RateBucket { level: self.level.saturating_sub(drained).max(0), at: self.at.max(now) }
    }

    /// Returns the whole units that a drained bucket has room for.
    #[must_use]
    pub fn room(self, limit: RateLimit) -> i64 {
        self.remaining(limit).max(0)
    }

    /// Returns the whole units that are left of the limit of a drained bucket. Less than nothing if
    /// there is more in it than the burst.
    #[must_use]
    pub fn remaining(self, limit: RateLimit) -> i64 {
        let most = limit.burst.max(0).saturating_mul(MINUTE_MS);
        most.saturating_sub(self.level).div_euclid(MINUTE_MS)
    }

    /// Puts units into a drained bucket. A call above the burst passes an empty one, into debt, so
    /// that a limit never refuses it for ever.
    ///
    /// # Errors
    /// There is no room; the value is when to try again, in ms from now, or `None` if that is not
    /// known.
    pub fn take(self, ask: RateAsk) -> Result<RateBucket, Option<i64>> {
        let RateAsk { id, limit, amount, .. } = ask;
        let level = self.add(amount).level;
        let most = limit.burst.max(0).saturating_mul(MINUTE_MS);
        let passes_empty = self.level == 0 && limit.burst > 0 && id.kind != RateKind::Calls;
        if level <= most || passes_empty {
            return Ok(RateBucket { level, ..self });
        }
        if id.kind == RateKind::Calls {
            return Err(Some(PLACE_RETRY_MS));
        }
        let excess = level.saturating_sub(most).min(self.level);
        let has_pace = limit.per_minute > 0 && limit.burst > 0;
        Err(has_pace.then(|| divide_up(excess, limit.per_minute)))
    }

    /// Puts units in, whether there is room or not.
    #[must_use]
    pub(crate) fn add(self, amount: i64) -> RateBucket {
        let more = amount.max(0).saturating_mul(MINUTE_MS);
        RateBucket { level: self.level.saturating_add(more).min(LEVEL_MAX), ..self }
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
        bucket.drained(ask.limit, now).take(ask)
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
    fn after_the_clock_was_set_back_a_day_calls_were_refused_for_a_day() {
        let one = ask(RateKind::Requests, 1, 1, 1);
        let day = 24 * 60 * MINUTE_MS;
        let full = take(RateBucket::default(), one, day).expect("room");
        let again = take(full, one, MINUTE_MS).expect("room");
        assert_eq!((again.level, again.at), (full.level, MINUTE_MS));
        assert_eq!(take(again, one, MINUTE_MS), Err(Some(MINUTE_MS)));
        assert!(take(again, one, 2 * MINUTE_MS).is_ok());
        let a_little = full.drained(one.limit, day - MINUTE_MS);
        assert_eq!((a_little.level, a_little.at), (full.level, day), "nothing drains twice");
        let place = ask(RateKind::Calls, 0, 1, 1);
        assert!(take(full, place, MINUTE_MS).is_err(), "a place is not given back by the clock");
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
    fn a_limit_without_a_burst_or_a_pace_does_not_say_when_to_try_again() {
        assert_eq!(take(RateBucket::default(), ask(RateKind::Tokens, 60, 0, 1), 0), Err(None));
        let no_pace = ask(RateKind::Requests, 0, 1, 1);
        let full = take(RateBucket::default(), no_pace, 0).expect("room");
        assert_eq!(take(full, no_pace, 999_999_999), Err(None));
    }

    #[test]
    fn what_is_given_back_is_room_again_but_never_more_than_the_burst() {
        let limit = RateLimit { per_minute: 60, burst: 100 };
        let bucket = RateBucket::default().add(50);
        assert_eq!((bucket.room(limit), bucket.remove(20).room(limit)), (50, 70));
        assert_eq!(bucket.drained(limit, 40_000).remove(20).room(limit), 100);
        assert_eq!(bucket.add(70).remaining(limit), -20);
        assert_eq!(bucket.add(i64::MAX).level, LEVEL_MAX);
    }

    #[test]
    fn a_store_reads_what_it_wrote_of_a_call_and_nothing_else() {
        let key = BudgetOwner::Key(super::super::window::KeyId(7));
        let one = RateAsk { amount: 5, ..ask(RateKind::Tokens, 60, 100, 5) };
        let other = RateAsk { id: RateId { owner: key, kind: RateKind::Calls, row: 3 }, ..one };
        let text = format_rate_asks(&[one, other]);
        assert_eq!(text, "account/tokens/0=5:60:100,key:7/calls/3=5:60:100");
        assert_eq!(parse_rate_asks(&text), Ok(vec![one, other]));
        assert_eq!(parse_rate_asks(""), Ok(Vec::new()));
        for bad in [
            "account/tokens/0",
            "account/tokens/0=1:2",
            "account/tokens/0/1=1:2:3",
            "account/words/0=1:2:3",
            "a=1:2:3",
        ] {
            assert_eq!(parse_rate_asks(bad), Err(RateTextError), "{bad}");
        }
        assert!(RateAsk { amount: 1, ..one }.is_lendable() && !one.is_lendable());
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
                match drained.take(ask) {
                    Ok(after) => {
                        bucket = after;
                        passed += ask.amount;
                    }
                    Err(retry) => {
                        let retry = retry.expect("a pace");
                        let later = bucket.drained(ask.limit, now + retry).take(ask);
                        let sooner = bucket.drained(ask.limit, now + retry - 1).take(ask);
                        prop_assert!(later.is_ok());
                        prop_assert!(sooner.is_err());
                    }
                }
                prop_assert!(passed * MINUTE_MS <= burst * MINUTE_MS + per_minute * now);
            }
        }
    }
}
