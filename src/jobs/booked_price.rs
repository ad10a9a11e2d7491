//! The price of a job whose account has a price book, as it was quoted.

use serde::{Deserialize, Serialize};

use crate::ledger::BookName;
use crate::money::factor::PriceFactor;
use crate::money::{Money, MoneyError};

/// The price book of a job, with what it said when the job was created: a change of the book does
/// not change the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookedPrice {
    /// The name of the book.
    pub book: BookName,
    /// The price of the job on the price list.
    pub list: Money,
    /// What the amount at list prices is multiplied by; `None` if the book has a price of its own
    /// for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<PriceFactor>,
}

impl BookedPrice {
    /// Returns the charge of a job for which the vendor bills `billed`, and for which `quoted` was
    /// held. On the price list the bill is the price.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if the charge does not fit.
    pub(crate) fn charge(&self, billed: Money, quoted: Money) -> Result<Money, MoneyError> {
        self.factor.map_or(Ok(quoted), |factor| factor.apply(billed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_is_multiplied_by_the_factor_and_changes_no_price_of_the_book() {
        let nano = |nano| Money::from_nano(nano).expect("money");
        let factor = PriceFactor::parse("0.85").expect("a factor");
        let book = BookName::parse("gold").expect("a name");
        let booked = BookedPrice { book, list: nano(100), factor: Some(factor) };
        assert_eq!(booked.charge(nano(101), nano(85)), Ok(nano(86)));
        let json = serde_json::to_string(&booked).expect("JSON");
        assert_eq!(json, r#"{"book":"gold","list":100,"factor":"0.85"}"#);
        assert_eq!(serde_json::from_str::<BookedPrice>(&json).expect("a price"), booked);
        let own = BookedPrice { factor: None, ..booked };
        assert_eq!(own.charge(nano(101), nano(70)), Ok(nano(70)));
        let json = serde_json::to_string(&own).expect("JSON");
        assert_eq!(json, r#"{"book":"gold","list":100}"#);
    }
}
