//! Levels that rise and fall, such as how much of a budget is spent. Each rise above a level is
//! told once. A level that has fallen can be crossed again.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::{Deserialize, Serialize};

use crate::money::Money;

/// The percentages of a budget that are told, the highest first.
const BUDGET_LEVELS: [u32; 3] = [100, 80, 50];

/// What is known of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CrossedLevel {
    /// The level that was last seen; 0 is the lowest.
    pub(crate) level: u32,
    /// How often it has risen. It makes each rise an event of its own.
    pub(crate) rises: u64,
    /// Whether its last rise may not be told yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_untold: bool,
}

/// What a new level means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LevelChange {
    /// Nothing.
    None,
    /// It has fallen to this. That is noted and not told.
    Fallen(CrossedLevel),
    /// It has risen to this, which is told.
    Risen(CrossedLevel),
}

impl CrossedLevel {
    /// Returns what it means that the level is `level` now.
    pub(crate) fn change_to(self, level: u32) -> LevelChange {
        let rises = self.rises.saturating_add(1);
        match level.cmp(&self.level) {
            std::cmp::Ordering::Equal => LevelChange::None,
            std::cmp::Ordering::Less => {
                LevelChange::Fallen(CrossedLevel { level, is_untold: false, ..self })
            }
            std::cmp::Ordering::Greater => {
                LevelChange::Risen(CrossedLevel { level, rises, is_untold: true })
            }
        }
    }
}

/// Returns the highest of the levels 50, 80 and 100 that a part of a limit has reached, in percent;
/// 0 if it has reached none. Of a limit of nothing, nobody is told: it refuses all calls.
pub(crate) fn budget_level(spent: Money, limit: Money) -> u32 {
    if limit == Money::ZERO {
        return 0;
    }
    let (spent, limit) = (i128::from(spent.nano()), i128::from(limit.nano()));
    let reached = |percent: &u32| spent * 100 >= limit * i128::from(*percent);
    BUDGET_LEVELS.into_iter().find(reached).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("an amount")
    }

    #[test]
    fn a_budget_reaches_its_levels_to_the_nano() {
        let limit = 10_000_000_001;
        for (spent, level) in [
            (0, 0),
            (5_000_000_000, 0),
            (5_000_000_001, 50),
            (8_000_000_000, 50),
            (8_000_000_001, 80),
            (10_000_000_000, 80),
            (10_000_000_001, 100),
            (i64::MAX, 100),
        ] {
            assert_eq!(budget_level(nano(spent), nano(limit)), level, "{spent}");
        }
        assert_eq!(budget_level(nano(i64::MAX), nano(i64::MAX)), 100);
        assert_eq!(budget_level(nano(7), nano(0)), 0);
    }

    proptest! {
        #[test]
        fn each_rise_is_an_event_of_its_own(levels in prop::collection::vec(0_u32..4, 0..40)) {
            let (mut known, mut told, mut previous) = (CrossedLevel::default(), Vec::new(), 0);
            for level in levels {
                match known.change_to(level) {
                    LevelChange::None => prop_assert_eq!(level, previous),
                    LevelChange::Fallen(new) => {
                        prop_assert!(level < previous);
                        known = new;
                    }
                    LevelChange::Risen(new) => {
                        prop_assert!(level > previous);
                        told.push(new.rises);
                        known = new;
                    }
                }
                previous = level;
                prop_assert_eq!(known.level, level);
            }
            prop_assert!(told.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
