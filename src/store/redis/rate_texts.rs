//! What scripts are told of rate limits, and what they answer.

use std::collections::BTreeMap;

use crate::ledger::prepaid::rate::{RateDemand, RateStatus, format_rate_asks};
use crate::ledger::{Outcome, RateAsk, RateId, RateLimit, RateReading, Unavailable};
use crate::money::Money;

/// Writes what a call asks of rate limits. A `~` stands before a limit that refuses nothing. The
/// text is empty if there are none.
pub(super) fn format_asks(asks: &[RateAsk]) -> String {
    let text = |ask: &RateAsk| {
        let mark = if ask.is_shadow { "~" } else { "" };
        [mark, &format_rate_asks(std::slice::from_ref(ask))].concat()
    };
    asks.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Writes what a gateway has used of rate limits and wants of them.
pub(super) fn format_rate_demands(demands: &BTreeMap<RateId, RateDemand>) -> String {
    let text = |(id, demand): (&RateId, &RateDemand)| {
        let RateDemand { limit, spent, needed, kept, free, unit } = demand;
        let RateLimit { per_minute, burst } = limit;
        format!("{id}={per_minute}:{burst}:{spent}:{needed}:{kept}:{free}:{unit}")
    };
    demands.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Parses what an allotment has of rate limits: `ID=SLICE:ROOM`, with commas between them.
pub(super) fn parse_rate_statuses(text: &str) -> Result<BTreeMap<RateId, RateStatus>, Unavailable> {
    let parse = |one: &str| -> Option<(RateId, RateStatus)> {
        let (id, numbers) = one.split_once('=')?;
        let (slice, room) = numbers.split_once(':')?;
        let status = RateStatus { slice: slice.parse().ok()?, room: room.parse().ok()? };
        Some((id.parse().ok()?, status))
    };
    let parts = text.split(',').filter(|one| !one.is_empty());
    parts.map(|one| parse(one).ok_or_else(|| unexpected(one))).collect()
}

/// Parses what the limits of a call have left. A `!` stands after one that the call is above.
pub(super) fn parse_readings(words: &[String]) -> Result<Vec<RateReading>, Unavailable> {
    let parse = |word: &String| -> Result<RateReading, Unavailable> {
        let digits = word.strip_suffix('!');
        let is_exceeded = digits.is_some();
        let remaining = digits.unwrap_or(word).parse().map_err(|_| unexpected(word))?;
        Ok(RateReading { remaining, is_exceeded })
    };
    words.iter().map(parse).collect()
}

/// Returns the outcome of a hold that was placed.
pub(super) fn held_outcome(held: Money, readings: &[String]) -> Result<Outcome, Unavailable> {
    let rates = parse_readings(readings)?;
    Ok(if rates.is_empty() {
        Outcome::Held(held)
    } else {
        Outcome::HeldWithinRates { held, rates }
    })
}

/// Parses the refusal of a hold by a rate limit: the limit, when to try again in ms from now or an
/// empty text, and what each limit has left.
pub(super) fn parse_rate_limited(words: &[String]) -> Result<Outcome, Unavailable> {
    let [id, retry, readings @ ..] = words else { return Err(unexpected(&words.join(" "))) };
    let retry = Some(retry).filter(|retry| !retry.is_empty());
    let retry_after_ms = retry.map(|text| text.parse::<i64>()).transpose();
    Ok(Outcome::RateLimited {
        id: id.parse().map_err(|_| unexpected(id))?,
        retry_after_ms: retry_after_ms.map_err(|_| unexpected(id))?,
        rates: parse_readings(readings)?,
    })
}

fn unexpected(text: &str) -> Unavailable {
    Unavailable(format!("unexpected answer: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{BudgetOwner, KeyId, RateKind};

    fn words(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_script_tells_a_limit_that_refuses_nothing_from_one_that_does() {
        let id = RateId { owner: BudgetOwner::Key(KeyId(7)), kind: RateKind::Tokens, row: 2 };
        let limit = RateLimit { per_minute: 60, burst: 90 };
        let ask = RateAsk { id, limit, amount: 5, is_shadow: false };
        let shadow = RateAsk { is_shadow: true, ..ask };
        let text = "key:7/tokens/2=5:60:90,~key:7/tokens/2=5:60:90";
        assert_eq!(format_asks(&[ask, shadow]), text);
        assert_eq!(format_asks(&[]), "");
    }

    #[test]
    fn the_readings_of_a_reply_are_read_and_nothing_else() {
        let reading = |remaining, is_exceeded| RateReading { remaining, is_exceeded };
        let rates = vec![reading(5, false), reading(-3, true)];
        let id = RateId { owner: BudgetOwner::Account, kind: RateKind::Calls, row: 0 };
        let held = held_outcome(Money::ZERO, &words(&["5", "-3!"]));
        assert_eq!(held, Ok(Outcome::HeldWithinRates { held: Money::ZERO, rates: rates.clone() }));
        assert_eq!(held_outcome(Money::ZERO, &[]), Ok(Outcome::Held(Money::ZERO)));
        for (retry, retry_after_ms) in [("", None), ("7", Some(7))] {
            let told = parse_rate_limited(&words(&["account/calls/0", retry, "5", "-3!"]));
            let refused = Outcome::RateLimited { id, retry_after_ms, rates: rates.clone() };
            assert_eq!(told, Ok(refused), "{retry}");
        }
        for bad in [&["account/calls/0"][..], &["calls", "", "5"], &["account/calls/0", "", "x"]] {
            assert!(parse_rate_limited(&words(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_an_allotment_has_of_limits_is_read_and_nothing_else() {
        let id = RateId { owner: BudgetOwner::Account, kind: RateKind::Requests, row: 1 };
        let limit = RateLimit { per_minute: 6, burst: 9 };
        let demand = RateDemand { limit, spent: 1, needed: 2, kept: 3, free: 4, unit: 5 };
        let demands = BTreeMap::from([(id, demand)]);
        assert_eq!(format_rate_demands(&demands), "account/requests/1=6:9:1:2:3:4:5");
        let told = BTreeMap::from([(id, RateStatus { slice: 3, room: -2 })]);
        assert_eq!(parse_rate_statuses("account/requests/1=3:-2"), Ok(told));
        assert_eq!(parse_rate_statuses(""), Ok(BTreeMap::new()));
        for bad in ["account/requests/1", "account/requests/1=3", "words/1=3:4"] {
            assert!(parse_rate_statuses(bad).is_err(), "{bad}");
        }
    }
}
