//! Amounts of money on the command line.

use anyhow::anyhow;

use crate::money::Money;

/// Parses an amount in USD.
pub(super) fn parse_amount(usd: &str) -> anyhow::Result<Money> {
    Money::parse_usd(usd).map_err(|why| anyhow!("'{usd}' is no amount in USD: {why}"))
}
