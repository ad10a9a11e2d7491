//! Percentiles of times that are counted in buckets.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::metrics::CALL_BUCKETS_MS;

/// The number of buckets. The last one has the times above all limits.
pub(crate) const BUCKETS: usize = CALL_BUCKETS_MS.len() + 1;

/// How many times fell into each bucket: above the limit of the one before, and up to its own.
pub(crate) type BucketCounts = [u64; BUCKETS];

/// A percentile of times, as far as buckets tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimePercentile {
    /// About this many microseconds: between the limits of its bucket it is estimated.
    About(u64),
    /// More than this many microseconds, the limit of the last bucket that has one.
    Above(u64),
}

impl TimePercentile {
    /// Returns the time that `per_cent` of the times do not exceed; `None` if there are none.
    /// Within a bucket the times are taken as spread evenly.
    #[must_use]
    pub(crate) fn of(counts: &BucketCounts, per_cent: u64) -> Option<TimePercentile> {
        let total: u128 = counts.iter().map(|count| u128::from(*count)).sum();
        // The rank of the time among all, of which the first has the rank 1.
        let rank = (total * u128::from(per_cent.min(100))).div_ceil(100).max(1);
        let (mut below, mut lower) = (0_u128, 0_u64);
        let limits = CALL_BUCKETS_MS.iter().map(|limit| u64::from(*limit) * 1_000);
        for (count, upper) in counts.iter().map(|count| u128::from(*count)).zip(limits) {
            if count > 0 && below + count >= rank {
                let width = u128::from(upper - lower);
                let part = (width * (rank - below)).div_ceil(count);
                return Some(TimePercentile::About(lower + u64::try_from(part).unwrap_or(0)));
            }
            below += count;
            lower = upper;
        }
        (total > 0).then_some(TimePercentile::Above(lower))
    }

    /// Returns the time in microseconds, or the one that it exceeds.
    #[must_use]
    pub(crate) fn micros(self) -> u64 {
        match self {
            TimePercentile::About(micros) | TimePercentile::Above(micros) => micros,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket_of(micros: u64) -> usize {
        let limits = CALL_BUCKETS_MS.iter();
        limits.take_while(|limit| u64::from(**limit) * 1_000 < micros).count()
    }

    #[test]
    fn a_percentile_lies_between_the_limits_of_its_bucket() {
        let mut counts = [0; BUCKETS];
        assert_eq!(TimePercentile::of(&counts, 50), None);
        // Four answers within 50 ms, and four of up to 100 ms.
        (counts[0], counts[1]) = (4, 4);
        let [median, most] = [50, 100].map(|per_cent| TimePercentile::of(&counts, per_cent));
        assert_eq!(median, Some(TimePercentile::About(50_000)));
        assert_eq!(most, Some(TimePercentile::About(100_000)));
        assert_eq!(TimePercentile::of(&counts, 25), Some(TimePercentile::About(25_000)));
        counts[BUCKETS - 1] = 100;
        assert_eq!(TimePercentile::of(&counts, 95), Some(TimePercentile::Above(300_000_000)));
        let full = [u64::MAX; BUCKETS];
        assert_eq!(TimePercentile::of(&full, 100), Some(TimePercentile::Above(300_000_000)));
        assert_eq!(TimePercentile::of(&full, 0), Some(TimePercentile::About(1)));
    }

    proptest! {
        /// A sorted list tells the truth: the percentile is in the bucket of the list's own.
        #[test]
        fn a_percentile_is_in_the_bucket_of_the_time_with_its_rank(
            mut times in proptest::collection::vec(1_u64..400_000_000, 1..200),
            per_cent in 1_u64..=100,
        ) {
            let mut counts = [0; BUCKETS];
            times.iter().for_each(|time| counts[bucket_of(*time)] += 1);
            times.sort_unstable();
            let rank = (times.len() as u64 * per_cent).div_ceil(100).max(1);
            let known = times[usize::try_from(rank - 1).expect("a place")];
            match TimePercentile::of(&counts, per_cent).expect("a time") {
                TimePercentile::About(micros) => {
                    prop_assert_eq!(bucket_of(micros), bucket_of(known));
                }
                TimePercentile::Above(micros) => prop_assert!(known > micros),
            }
        }

        #[test]
        fn a_higher_percentile_is_no_shorter(counts in proptest::array::uniform13(0_u64..50)) {
            let all: Vec<_> =
                (0..=100).filter_map(|per_cent| TimePercentile::of(&counts, per_cent)).collect();
            prop_assert!(all.is_sorted_by_key(|time| time.micros()));
        }
    }
}
