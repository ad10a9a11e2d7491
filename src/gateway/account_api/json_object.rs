//! Writes JSON objects member by member. Amounts in USD are written from whole nano-USD, digit by
//! digit, so no floating-point number is involved.

use crate::ledger::{push_number, push_string};
use crate::money::Money;

/// One USD in nano-USD.
const NANO_PER_USD: u64 = 1_000_000_000;

/// A JSON object that is being written. Its members have names that need no escapes.
#[derive(Debug)]
pub(super) struct JsonObjectWriter(String);

impl JsonObjectWriter {
    /// Begins an object.
    pub(super) fn new() -> JsonObjectWriter {
        JsonObjectWriter("{".to_owned())
    }

    /// Adds a text, or null.
    pub(super) fn text<'a>(mut self, name: &str, value: impl Into<Option<&'a str>>) -> Self {
        self.begin(name);
        match value.into() {
            Some(value) => push_string(&mut self.0, "", value),
            None => self.0.push_str("null"),
        }
        self
    }

    /// Adds a whole number.
    pub(super) fn number(mut self, name: &str, value: impl itoa::Integer) -> Self {
        self.begin(name);
        push_number(&mut self.0, "", value);
        self
    }

    /// Adds a whole number, or null.
    pub(super) fn optional_number(self, name: &str, value: Option<impl itoa::Integer>) -> Self {
        match value {
            Some(value) => self.number(name, value),
            None => self.json(name, "null"),
        }
    }

    /// Adds an amount in USD as a number, or null.
    pub(super) fn usd(self, name: &str, value: impl Into<Option<Money>>) -> Self {
        let value = value.into().map(usd_literal);
        self.json(name, value.as_deref().unwrap_or("null"))
    }

    /// Adds a list of texts.
    pub(super) fn texts(self, name: &str, values: &[String]) -> Self {
        // Texts can always be written.
        let values = serde_json::to_string(values).unwrap_or_default();
        self.json(name, &values)
    }

    /// Adds a value that is JSON already.
    pub(super) fn json(mut self, name: &str, value: &str) -> Self {
        self.begin(name);
        self.0.push_str(value);
        self
    }

    /// Adds a value that is JSON already, if there is one.
    pub(super) fn optional_json(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.json(name, value),
            None => self,
        }
    }

    /// Ends the object.
    pub(super) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn begin(&mut self, name: &str) {
        let is_first = self.0.len() == 1;
        self.0.push_str(if is_first { "\"" } else { ",\"" });
        self.0.push_str(name);
        self.0.push_str("\":");
    }
}

/// Writes a list of values that are JSON already.
pub(super) fn write_list(values: &[String]) -> String {
    format!("[{}]", values.join(","))
}

/// Writes an amount as a JSON number in USD, with one decimal or as many as it has.
fn usd_literal(amount: Money) -> String {
    let nano = amount.nano().unsigned_abs();
    let decimals = format!("{:09}", nano % NANO_PER_USD);
    let kept = decimals.trim_end_matches('0').len().max(1);
    format!("{}.{}", nano / NANO_PER_USD, &decimals[..kept])
}

/// Writes an amount in nano-USD that may be below zero as a JSON number in USD.
pub(super) fn signed_usd(nano: i64) -> String {
    let amount =
        i64::try_from(nano.unsigned_abs()).ok().and_then(|nano| Money::from_nano(nano).ok());
    let sign = if nano < 0 { "-" } else { "" };
    amount.map_or_else(|| "null".to_owned(), |amount| [sign, &usd_literal(amount)].concat())
}

/// Writes a time in unix ms in the format of RFC 3339; `None` if it is beyond all calendars.
pub(super) fn format_ms(at_ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(at_ms).ok().map(|at| at.to_string())
}

/// Writes a time in unix seconds in the format of RFC 3339; `None` if it is beyond all calendars.
pub(super) fn format_seconds(at: i64) -> Option<String> {
    jiff::Timestamp::from_second(at).ok().map(|at| at.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("not negative")
    }

    #[test]
    fn an_object_has_its_members_in_order() {
        let inner = JsonObjectWriter::new().finish();
        let object = JsonObjectWriter::new()
            .text("a", "x\"y")
            .text("b", None)
            .number("c", -7_i64)
            .optional_number("d", None::<u64>)
            .optional_number("k", Some(7_u64))
            .usd("e", nano(233_264_340))
            .usd("f", None)
            .texts("g", &["h".to_owned(), "i".to_owned()])
            .json("j", &write_list(&[inner.clone(), inner]));
        let expected = r#"{"a":"x\"y","b":null,"c":-7,"d":null,"k":7,"e":0.23326434,"f":null,"g":["h","i"],"j":[{},{}]}"#;
        assert_eq!(object.finish(), expected);
    }

    #[test]
    fn amounts_are_numbers_with_one_decimal_or_as_many_as_they_have() {
        for (amount, literal) in [
            (0, "0.0"),
            (1, "0.000000001"),
            (5_000_000_000, "5.0"),
            (4_766_735_660, "4.76673566"),
            (i64::MAX, "9223372036.854775807"),
        ] {
            assert_eq!(usd_literal(nano(amount)), literal);
        }
    }

    #[test]
    fn times_are_written_as_rfc_3339() {
        assert_eq!(format_ms(1_795_262_400_250).as_deref(), Some("2026-11-21T12:00:00.25Z"));
        assert_eq!(format_seconds(1_795_262_400).as_deref(), Some("2026-11-21T12:00:00Z"));
        assert_eq!((format_ms(i64::MAX), format_seconds(i64::MAX)), (None, None));
    }

    proptest! {
        #[test]
        fn no_digit_of_an_amount_is_lost(amount in 0..=i64::MAX) {
            let literal = usd_literal(nano(amount));
            prop_assert_eq!(Money::parse_usd(&literal), Ok(nano(amount)));
            prop_assert!(serde_json::from_str::<serde_json::Number>(&literal).is_ok());
        }
    }
}
