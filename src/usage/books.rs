//! The books of an account, as they are proved.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::rollup::Rollups;
use crate::money::Money;

/// What the books of an account say at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageBooks {
    /// The number of the last line that is in the sums; 0 if none is.
    pub folded: u64,
    /// The number of the last line of the journal; 0 if it is empty.
    pub lines: u64,
    /// P: the sum of all charges, without what was given back.
    pub posted: Money,
    /// W: the part of the charges that the account could not pay.
    pub written_off: Money,
    /// The sums by day, of the kinds that were asked for.
    pub days: Rollups,
}
