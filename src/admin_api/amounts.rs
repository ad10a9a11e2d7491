//! Amounts, names and times as requests give them.

use serde::Deserialize;
use utoipa::ToSchema;

use super::error::AdminError;
use crate::ledger::AccountName;
use crate::management::error::parse_account;
use crate::management::expiry::not_in_the_future;
use crate::money::Money;

/// A moment: unix seconds, or RFC 3339 such as `2027-01-31T18:00:00Z`, or a date, which stands for
/// its beginning (UTC).
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged)]
#[serde(expecting = "unix seconds, or a time such as 2027-01-31T18:00:00Z, or a date")]
pub(crate) enum Moment {
    /// Unix seconds.
    Seconds(i64),
    /// RFC 3339, or a date.
    #[schema(example = "2027-01-31T18:00:00Z")]
    Text(String),
}

/// The length of a date such as 2027-01-31.
const DATE_CHARS: usize = 10;

impl Moment {
    /// Returns the moment in unix seconds. It must be after `now`.
    pub(crate) fn parse_future(&self, field: &str, now: i64) -> Result<i64, AdminError> {
        let (shown, seconds) = match self {
            Moment::Seconds(seconds) => (seconds.to_string(), Some(*seconds)),
            Moment::Text(text) => (text.clone(), parse_moment(text)),
        };
        let known = seconds.filter(|at| jiff::Timestamp::from_second(*at).is_ok());
        let Some(at) = known else {
            let message = format!(
                "'{shown}' is no time: give unix seconds, or a time as in 2027-01-31T18:00:00Z, or \
                 a date as in 2027-01-31"
            );
            return Err(AdminError::invalid(field, message));
        };
        if at <= now {
            return Err(AdminError::invalid(field, not_in_the_future(field, &shown, now)));
        }
        Ok(at)
    }
}

fn parse_moment(text: &str) -> Option<i64> {
    if text.len() != DATE_CHARS {
        return text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second);
    }
    let day: jiff::civil::Date = text.parse().ok()?;
    Some(day.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Parses an amount in USD.
pub(crate) fn parse_usd(field: &str, text: &str) -> Result<Money, AdminError> {
    Money::parse_usd(text).map_err(|why| {
        let message =
            format!("'{text}' is no amount in USD: {why}; write a decimal text such as \"4.76\"");
        AdminError::invalid(field, message)
    })
}

/// Parses an amount in USD that is moved, so that it must be above 0.
pub(crate) fn parse_moved_usd(text: &str) -> Result<Money, AdminError> {
    let amount = parse_usd("amount_usd", text)?;
    if amount == Money::ZERO {
        return Err(AdminError::invalid("amount_usd", format!("'{text}' must be above 0")));
    }
    Ok(amount)
}

/// Parses the name of an account.
pub(crate) fn parse_account_name(field: &str, text: &str) -> Result<AccountName, AdminError> {
    parse_account(text).map_err(|why| AdminError::invalid(field, why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_seconds_or_a_text_in_the_future() {
        let of = |text: &str| serde_json::from_str::<Moment>(text).expect("a moment");
        for (text, at) in [
            ("1801353600", 1_801_353_600),
            ("\"2027-01-31\"", 1_801_353_600),
            ("\"2027-01-31T18:00:00Z\"", 1_801_418_400),
        ] {
            assert_eq!(of(text).parse_future("expires_at", 7).expect("a time"), at, "{text}");
            assert!(of(text).parse_future("expires_at", at).is_err(), "{text}");
        }
        for text in ["\"soon\"", "9223372036854775807", "-1"] {
            assert!(of(text).parse_future("expires_at", 7).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Moment>("1.5").is_err());
        assert!(parse_moved_usd("0.00").is_err() && parse_moved_usd("0.01").is_ok());
    }
}
