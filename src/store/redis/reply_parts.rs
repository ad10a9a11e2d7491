//! Parses the parts of replies and stored values: numbers and amounts, as digits.

use crate::ledger::Unavailable;
use crate::money::Money;

/// Parses a part of a reply.
pub(super) fn parse_part<T: std::str::FromStr>(text: &str) -> Result<T, Unavailable> {
    text.parse().map_err(|_| unexpected(text))
}

/// Parses an amount in nano-USD.
pub(super) fn parse_money(digits: &str) -> Result<Money, Unavailable> {
    Money::from_nano(parse_part(digits)?).map_err(|_| unexpected(digits))
}

/// Returns the error for a reply that no script gives.
pub(super) fn unexpected(reply: impl std::fmt::Debug) -> Unavailable {
    Unavailable(format!("unexpected answer: {reply:?}"))
}
