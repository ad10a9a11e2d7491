//! The texts of lots, as stores and journal lines have them: `1795564800000/promotion`, and
//! `never/voucher` for credit that does not expire.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;
use std::str::FromStr;

use super::lot::{CreditSource, LotAmounts, LotId, NEVER_EXPIRES};
use crate::ledger::json_text::push_number;
use crate::money::Money;

/// A text is not that of a lot, or of amounts of lots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no text of a lot")]
pub struct LotTextError;

impl CreditSource {
    /// All sources, in the order in which they are drawn.
    pub const ALL: [CreditSource; 3] =
        [CreditSource::Promotion, CreditSource::Voucher, CreditSource::Paid];

    /// Returns the name, as in `promotion`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CreditSource::Promotion => "promotion",
            CreditSource::Voucher => "voucher",
            CreditSource::Paid => "paid",
        }
    }

    /// Returns the source of a name; `None` if there is none.
    #[must_use]
    pub fn of_name(name: &str) -> Option<CreditSource> {
        CreditSource::ALL.into_iter().find(|source| source.as_str() == name)
    }
}

impl fmt::Display for LotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = self.source.as_str();
        match self.expires_at {
            NEVER_EXPIRES => write!(f, "never/{source}"),
            at => write!(f, "{at}/{source}"),
        }
    }
}

impl FromStr for LotId {
    type Err = LotTextError;

    fn from_str(text: &str) -> Result<LotId, LotTextError> {
        let (at, source) = text.split_once('/').ok_or(LotTextError)?;
        let source = CreditSource::of_name(source).ok_or(LotTextError)?;
        let expires_at = match at {
            "never" => NEVER_EXPIRES,
            at => at.parse().map_err(|_| LotTextError)?,
        };
        Ok(LotId { expires_at, source })
    }
}

impl LotAmounts {
    /// Writes the amounts of all lots but that of payments, such as
    /// `1795564800000/promotion 500,never/voucher 20`. The text is empty if there are none: what is
    /// missing of the total came from payments.
    #[must_use]
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (lot, amount) in self.iter().filter(|(lot, _)| *lot != LotId::PAID) {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&lot.to_string());
            push_number(&mut text, " ", amount.nano());
        }
        text
    }

    /// Parses what [`to_text`](LotAmounts::to_text) wrote. The rest of `total` is that of payments.
    pub(crate) fn parse(text: &str, total: Money) -> Result<LotAmounts, LotTextError> {
        let mut amounts = LotAmounts::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (lot, amount) = part.split_once(' ').ok_or(LotTextError)?;
            let amount = amount.parse().map_err(|_| LotTextError)?;
            let amount = Money::from_nano(amount).map_err(|_| LotTextError)?;
            amounts.add(lot.parse()?, amount).map_err(|_| LotTextError)?;
        }
        let named = amounts.total().map_err(|_| LotTextError)?;
        let paid = total.checked_sub(named).map_err(|_| LotTextError)?;
        amounts.add(LotId::PAID, paid).map_err(|_| LotTextError)?;
        Ok(amounts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nano(n: i64) -> Money {
        Money::from_nano(n).expect("money")
    }

    #[test]
    fn a_lot_is_read_as_it_was_written() {
        for source in CreditSource::ALL {
            for expires_at in [i64::MIN, 0, 1_795_564_800_000, NEVER_EXPIRES] {
                let lot = LotId { expires_at, source };
                assert_eq!(lot.to_string().parse(), Ok(lot));
            }
        }
        for bad in ["", "paid", "/paid", "never/", "1/gift", "x/paid", "1/paid/2"] {
            assert_eq!(bad.parse::<LotId>(), Err(LotTextError), "{bad}");
        }
    }

    #[test]
    fn amounts_are_read_as_they_were_written_and_payments_are_the_rest() {
        let mut amounts = LotAmounts::default();
        let voucher = LotId { expires_at: NEVER_EXPIRES, source: CreditSource::Voucher };
        let promotion = LotId { expires_at: 5, source: CreditSource::Promotion };
        for (lot, amount) in [(LotId::PAID, 7), (voucher, 20), (promotion, 500)] {
            amounts.add(lot, nano(amount)).expect("a sum");
        }
        let text = amounts.to_text();
        assert_eq!(text, "5/promotion 500,never/voucher 20");
        assert_eq!(LotAmounts::parse(&text, nano(527)), Ok(amounts));
        assert_eq!(LotAmounts::parse(&text, nano(519)), Err(LotTextError), "more than all of it");
        assert_eq!(LotAmounts::parse("", Money::ZERO), Ok(LotAmounts::default()));
        for bad in ["5/promotion", "5/promotion x", "5/promotion -1", "5/gift 1"] {
            assert_eq!(LotAmounts::parse(bad, nano(9)), Err(LotTextError), "{bad}");
        }
    }
}
