//! When a message is sent again, and when it is given up; and how long an endpoint that fails is
//! left alone.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// The waits after the failed tries of a message, in ms. Together they are 23 h 20 min 36 s.
const WAITS_MS: [i64; 9] = [
    6_000,
    30_000,
    5 * 60_000,
    15 * 60_000,
    60 * 60_000,
    2 * 3_600_000,
    4 * 3_600_000,
    8 * 3_600_000,
    8 * 3_600_000,
];
/// A message is not sent any more this long after its event, in ms: a day.
pub(crate) const GIVEN_UP_AFTER_MS: i64 = 24 * 3_600_000;
/// A try that was begun belongs to its process for this long, in ms. Then another one tries.
pub(crate) const CLAIM_MS: i64 = 60_000;
/// How long an endpoint is left alone after its first failure, and the most, in ms. In that time
/// nothing is sent to it, so that one that does not answer costs little.
const PAUSE_MS: i64 = 1_000;
const PAUSE_MS_MAX: i64 = 120_000;

/// Returns when a message is tried again after its `tries`th failure, in unix ms; `None` if it is
/// given up. `spread` is a random number, by which the wait shrinks by a tenth at most.
pub(crate) fn next_try(created_at: i64, tries: u32, now: i64, spread: u32) -> Option<i64> {
    let place = usize::try_from(tries.saturating_sub(1)).unwrap_or(usize::MAX);
    let wait = *WAITS_MS.get(place)?;
    let spread = i64::from(spread) % (wait / 10).saturating_add(1);
    let next = now.saturating_add(wait).saturating_sub(spread);
    (next <= created_at.saturating_add(GIVEN_UP_AFTER_MS)).then_some(next)
}

/// Returns how long an endpoint is left alone after so many failures in a row, in ms.
pub(crate) fn pause_ms(failures: u32) -> i64 {
    let doubled = PAUSE_MS.checked_shl(failures.saturating_sub(1).min(20)).unwrap_or(PAUSE_MS_MAX);
    if failures == 0 { 0 } else { doubled.min(PAUSE_MS_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_tried_for_a_day_and_never_later() {
        let (mut now, mut tries) = (0, 1);
        while let Some(next) = next_try(0, tries, now, 0) {
            assert!(next > now && next <= GIVEN_UP_AFTER_MS);
            (now, tries) = (next, tries + 1);
        }
        assert_eq!((tries, now), (10, WAITS_MS.iter().sum()));
        assert!(now > GIVEN_UP_AFTER_MS * 9 / 10, "{now}");
        let spread = next_try(0, 1, 0, u32::MAX).expect("a time");
        assert!((5_400..=6_000).contains(&spread), "{spread}");
        // One that has waited for its endpoint is given up when its day is over.
        assert_eq!(next_try(0, 2, GIVEN_UP_AFTER_MS - 10_000, 0), None);
    }

    #[test]
    fn an_endpoint_that_fails_is_left_alone_for_longer_each_time() {
        let pauses: Vec<_> = [0, 1, 2, 3, 7, 8, 100, u32::MAX].map(pause_ms).into();
        assert_eq!(pauses, [0, 1_000, 2_000, 4_000, 64_000, 120_000, 120_000, 120_000]);
    }
}
