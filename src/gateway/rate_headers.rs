//! The headers that tell a client of its rate limits. They have the figures of the moment at which
//! the call was admitted or refused, so that they belong together.

use std::cmp::Reverse;

use http::{HeaderName, HeaderValue};

use crate::gateway::call_rates::CallRates;
use crate::gateway::response_head::ResponseHead;
use crate::ledger::{RateAsk, RateKind, RateLimit, RateReading};

/// One minute, in ms.
const MINUTE_MS: i64 = 60_000;
/// What is left of limits is compared in this many parts of them.
const LIMIT_PARTS: i128 = 1 << 60;

/// The kinds of limits that headers tell of. Places are free again at any time.
const TOLD_KINDS: [RateKind; 2] = [RateKind::Requests, RateKind::Tokens];

/// The names of the headers that all endpoints have, for each of [`TOLD_KINDS`]: the limit, what
/// remains, and when it is whole again.
static TOLD_NAMES: [[HeaderName; 3]; 2] = [
    [
        HeaderName::from_static("x-ratelimit-limit-requests"),
        HeaderName::from_static("x-ratelimit-remaining-requests"),
        HeaderName::from_static("x-ratelimit-reset-requests"),
    ],
    [
        HeaderName::from_static("x-ratelimit-limit-tokens"),
        HeaderName::from_static("x-ratelimit-remaining-tokens"),
        HeaderName::from_static("x-ratelimit-reset-tokens"),
    ],
];

/// The limits of the messages format. One limit counts the tokens of input and of output, so both
/// have its figures.
const MESSAGES_LIMITS: [(&str, RateKind); 4] = [
    ("requests", RateKind::Requests),
    ("tokens", RateKind::Tokens),
    ("input-tokens", RateKind::Tokens),
    ("output-tokens", RateKind::Tokens),
];

/// The headers that tell of rate limits. Without a limit there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RateHeaders {
    /// The figures for each of [`TOLD_KINDS`]. Their headers are made when they are written: most
    /// are written once, and a header that is cloned costs as much as one that is made.
    told: [Option<RateFigures>; 2],
    /// The headers that only the messages format has.
    messages: Vec<(HeaderName, HeaderValue)>,
}

impl RateHeaders {
    /// Makes the headers that the answers of all endpoints have. Of several limits of a kind they
    /// tell of the tightest one. A limit that refuses nothing is not told.
    #[must_use]
    pub(crate) fn of_call(rates: &CallRates) -> RateHeaders {
        let told = TOLD_KINDS.map(|kind| RateFigures::of_tightest(rates, kind));
        RateHeaders { told, messages: Vec::new() }
    }

    /// Adds the headers that only the messages format has. `name_header` makes the name of a header
    /// from its end, such as `ratelimit-tokens-reset`. `now_ms` is the present time in unix ms.
    pub(crate) fn add_messages_headers(
        &mut self,
        rates: &CallRates,
        now_ms: i64,
        name_header: impl Fn(&str) -> String,
    ) {
        for (counted, kind) in MESSAGES_LIMITS {
            let Some(figures) = RateFigures::of_tightest(rates, kind) else { continue };
            let reset = figures.reset_ms.and_then(|ms| format_time(now_ms.saturating_add(ms)));
            let mut add = |figure: &str, value: String| {
                self.add(name_header(&format!("ratelimit-{counted}-{figure}")), value);
            };
            add("limit", figures.limit.to_string());
            add("remaining", figures.remaining.to_string());
            if let Some(reset) = reset {
                add("reset", reset);
            }
        }
    }

    /// Whether there are no headers.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.told.iter().all(Option::is_none) && self.messages.is_empty()
    }

    /// How many headers there are at most.
    #[must_use]
    pub(crate) fn len_max(&self) -> usize {
        self.told.iter().flatten().count() * TOLD_NAMES[0].len() + self.messages.len()
    }

    /// Adds the headers to the head of an answer.
    pub(crate) fn write_into(&self, head: &mut ResponseHead) {
        for ([limit, remaining, reset], figures) in TOLD_NAMES.iter().zip(&self.told) {
            let Some(figures) = figures else { continue };
            let mut add = |name: &HeaderName, value: &str| {
                // All characters of these values are allowed in a header.
                if let Ok(value) = HeaderValue::from_str(value) {
                    head.headers.insert(name.clone(), value);
                }
            };
            let mut digits = itoa::Buffer::new();
            add(limit, digits.format(figures.limit));
            add(remaining, digits.format(figures.remaining));
            if let Some(ms) = figures.reset_ms {
                add(reset, &format_duration(ms));
            }
        }
        for (name, value) in &self.messages {
            head.headers.insert(name.clone(), value.clone());
        }
    }

    /// A name of the configuration that no header can have is left out.
    fn add(&mut self, name: String, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            self.messages.push((name, value));
        }
    }
}

/// What is told of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RateFigures {
    limit: i64,
    /// At least nothing, also while calls are in debt.
    remaining: i64,
    /// The time until the limit is whole again, in ms; `None` if it never is.
    reset_ms: Option<i64>,
}

impl RateFigures {
    /// Returns the figures of the limit of a kind of which the least part is left; `None` if there
    /// is no such limit, or if it is not known what is left.
    fn of_tightest(rates: &CallRates, kind: RateKind) -> Option<RateFigures> {
        let known = rates.asks.iter().zip(&rates.readings);
        let told = known.filter(|(ask, _)| ask.id.kind == kind && !ask.is_shadow);
        // The first one of those that are as tight.
        let (ask, reading) = told.min_by_key(|(ask, reading)| tightness(ask, reading))?;
        Some(RateFigures {
            limit: ask.limit.burst,
            remaining: reading.remaining.max(0),
            reset_ms: reset_ms(ask.limit, reading.remaining),
        })
    }
}

/// The tightest limit has the least of these. Of two of which as much is left, the one is tighter
/// that takes longer.
fn tightness(ask: &RateAsk, reading: &RateReading) -> (i128, Reverse<Option<i64>>) {
    let RateLimit { burst, .. } = ask.limit;
    let part = match burst {
        // Nothing passes a limit of nothing.
        ..=0 => i128::MIN,
        1.. => i128::from(reading.remaining) * LIMIT_PARTS / i128::from(burst),
    };
    (part, Reverse(reset_ms(ask.limit, reading.remaining)))
}

/// Returns the time until a limit is whole again of which so much is left, in ms, rounded up;
/// `None` if it never is.
fn reset_ms(limit: RateLimit, remaining: i64) -> Option<i64> {
    let RateLimit { per_minute, burst } = limit;
    if per_minute <= 0 {
        return None;
    }
    let missing = burst.saturating_sub(remaining).max(0).saturating_mul(MINUTE_MS);
    Some(missing.saturating_add(per_minute - 1) / per_minute)
}

/// Writes a time in ms as clients read it: `12ms`, `1.5s`, `6m0s`, `1h0m0s`.
#[must_use]
pub(crate) fn format_duration(ms: i64) -> String {
    let ms = ms.max(0);
    let mut text = String::with_capacity(16);
    let mut digits = itoa::Buffer::new();
    let mut push = |n: i64, unit: &str| {
        text.push_str(digits.format(n));
        text.push_str(unit);
    };
    if (1..1_000).contains(&ms) {
        push(ms, "ms");
        return text;
    }
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / MINUTE_MS % 60, ms / 1_000 % 60);
    if hours > 0 {
        push(hours, "h");
    }
    if hours > 0 || minutes > 0 {
        push(minutes, "m");
    }
    match ms % 1_000 {
        0 => push(seconds, "s"),
        rest => {
            push(seconds, ".");
            // As three digits, without the zeros at the end.
            let all = digits.format(1_000 + rest);
            text.push_str(all[1..].trim_end_matches('0'));
            text.push('s');
        }
    }
    text
}

/// Writes a time in unix ms in the format of RFC 3339, rounded up to a second; `None` if it is
/// beyond all calendars.
fn format_time(at_ms: i64) -> Option<String> {
    let seconds = at_ms.saturating_add(999).div_euclid(1_000);
    jiff::Timestamp::from_second(seconds).ok().map(|at| at.to_string())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::ledger::{BudgetOwner, KeyId, RateId};

    /// 2026-11-21 12:00:00.250 UTC.
    const NOW_MS: i64 = 1_795_262_400_250;

    fn ask(owner: BudgetOwner, kind: RateKind, size: i64) -> RateAsk {
        let limit = match kind {
            RateKind::Calls => RateLimit { per_minute: 0, burst: size },
            RateKind::Requests | RateKind::Tokens => RateLimit { per_minute: size, burst: size },
        };
        RateAsk { id: RateId { owner, kind, row: 0 }, limit, amount: 1, is_shadow: false }
    }

    fn rates(limits: &[(RateAsk, i64)]) -> CallRates {
        let asks = limits.iter().map(|(ask, _)| *ask).collect();
        let readings =
            limits.iter().map(|(_, remaining)| RateReading::within(*remaining)).collect();
        CallRates { asks, readings }
    }

    fn lines(headers: &RateHeaders) -> Vec<String> {
        let text = |value: &HeaderValue| value.to_str().expect("a text").to_owned();
        let mut head = ResponseHead::new(http::StatusCode::OK, 0);
        headers.write_into(&mut head);
        assert!(head.headers.len() <= headers.len_max());
        head.headers.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect()
    }

    fn account(kind: RateKind, size: i64) -> RateAsk {
        ask(BudgetOwner::Account, kind, size)
    }

    #[test]
    fn an_answer_tells_of_requests_and_tokens_and_when_they_are_whole_again() {
        let rates = rates(&[
            (account(RateKind::Requests, 20), 19),
            (account(RateKind::Tokens, 40_000), 39_541),
            (account(RateKind::Calls, 4), 3),
        ]);
        let expected = [
            "x-ratelimit-limit-requests: 20",
            "x-ratelimit-remaining-requests: 19",
            "x-ratelimit-reset-requests: 3s",
            "x-ratelimit-limit-tokens: 40000",
            "x-ratelimit-remaining-tokens: 39541",
            "x-ratelimit-reset-tokens: 689ms",
        ];
        assert_eq!(lines(&RateHeaders::of_call(&rates)), expected);
    }

    #[test]
    fn the_messages_format_has_its_own_names_and_times() {
        let rates = rates(&[
            (account(RateKind::Requests, 20), 19),
            (account(RateKind::Tokens, 40_000), -80_000),
        ]);
        let mut headers = RateHeaders::default();
        headers.add_messages_headers(&rates, NOW_MS, |end| format!("brand-{end}"));
        let tokens = |name: &str| {
            [
                format!("brand-ratelimit-{name}-limit: 40000"),
                format!("brand-ratelimit-{name}-remaining: 0"),
                format!("brand-ratelimit-{name}-reset: 2026-11-21T12:03:01Z"),
            ]
        };
        let requests = [
            "brand-ratelimit-requests-limit: 20".to_owned(),
            "brand-ratelimit-requests-remaining: 19".to_owned(),
            "brand-ratelimit-requests-reset: 2026-11-21T12:00:04Z".to_owned(),
        ];
        let tokens = ["tokens", "input-tokens", "output-tokens"].map(tokens).concat();
        assert_eq!(lines(&headers), [requests.to_vec(), tokens].concat());
        let mut without_names = RateHeaders::default();
        without_names.add_messages_headers(&rates, NOW_MS, |_| "no name".to_owned());
        assert!(without_names.is_empty(), "no header has such a name");
    }

    #[test]
    fn the_tightest_limit_is_told_and_a_shadow_is_not() {
        let key = BudgetOwner::Key(KeyId(7));
        let told = |limits: &[(RateAsk, i64)]| lines(&RateHeaders::of_call(&rates(limits)));
        let large = (account(RateKind::Requests, 1_000), 30);
        let small = (ask(key, RateKind::Requests, 20), 19);
        assert!(told(&[large, small])[0].ends_with(": 1000"), "three parts in a hundred are left");
        let empty = (ask(key, RateKind::Requests, 20), 0);
        assert!(told(&[large, empty])[0].ends_with(": 20"));
        let shadow = (RateAsk { is_shadow: true, ..empty.0 }, 0);
        assert!(told(&[large, shadow])[0].ends_with(": 1000"));
        assert!(told(&[shadow]).is_empty());
        let nothing = (account(RateKind::Requests, 0), 0);
        let expected = ["x-ratelimit-limit-requests: 0", "x-ratelimit-remaining-requests: 0"];
        assert_eq!(told(&[nothing, empty]), expected, "it is never whole again");
    }

    #[test]
    fn without_limits_or_without_readings_there_are_no_headers() {
        assert!(RateHeaders::of_call(&CallRates::default()).is_empty());
        let unknown =
            CallRates { readings: Vec::new(), ..rates(&[(account(RateKind::Tokens, 9), 1)]) };
        assert!(RateHeaders::of_call(&unknown).is_empty());
    }

    #[rstest]
    #[case(-1, "0s")]
    #[case(0, "0s")]
    #[case(12, "12ms")]
    #[case(1_000, "1s")]
    #[case(1_500, "1.5s")]
    #[case(61_050, "1m1.05s")]
    #[case(360_000, "6m0s")]
    #[case(3_600_001, "1h0m0.001s")]
    fn times_are_written_as_clients_read_them(#[case] ms: i64, #[case] text: &str) {
        assert_eq!(format_duration(ms), text);
    }

    #[test]
    fn the_reset_is_never_too_early_and_survives_any_figures() {
        let a_minute = |units| RateLimit { per_minute: units, burst: units };
        assert_eq!(reset_ms(a_minute(7), 6), Some(8_572), "8,571 ms and a part of one");
        assert_eq!(reset_ms(a_minute(7), 7), Some(0));
        assert_eq!(reset_ms(a_minute(7), 99), Some(0));
        assert_eq!(reset_ms(a_minute(0), 0), None);
        assert!(reset_ms(a_minute(1), i64::MIN).is_some_and(|ms| ms > 0));
        assert_eq!(format_time(i64::MAX), None);
    }
}
