//! Money, rates, usage and prices, in whole nano-USD and whole units. Arithmetic fails instead of
//! wrapping.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use serde::{Deserialize, Serialize};

pub mod factor;
pub(crate) mod fee;
pub mod price;

/// Nano-USD in one USD.
const NANO_PER_USD: u64 = 1_000_000_000;
/// The unit in which some vendors bill, 10⁻¹⁰ USD, in one nano-USD.
pub(crate) const TICKS_PER_NANO: u64 = 10;

/// Why an amount could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// The result does not fit into 63 bits, or would be below zero.
    #[error("the amount is out of range")]
    OutOfRange,
    /// The text is not a plain decimal number such as `12.50`.
    #[error("not a plain decimal number")]
    NotDecimal,
    /// The price is not a whole number of nano-USD for one unit.
    #[error("not a whole number of nano-USD per unit")]
    FractionalNano,
    /// The price is for another kind of units.
    #[error("the price is not for such units")]
    WrongUnits,
}

/// An amount of money in nano-USD (10⁻⁹ USD). Never negative.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "i64", into = "i64")]
pub struct Money(i64);

impl TryFrom<i64> for Money {
    type Error = MoneyError;

    fn try_from(nano: i64) -> Result<Money, MoneyError> {
        Money::from_nano(nano)
    }
}

impl From<Money> for i64 {
    fn from(money: Money) -> i64 {
        money.nano()
    }
}

impl Money {
    /// No money.
    pub const ZERO: Money = Money(0);

    /// Makes an amount from nano-USD.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] below zero.
    pub const fn from_nano(nano: i64) -> Result<Money, MoneyError> {
        if nano < 0 { Err(MoneyError::OutOfRange) } else { Ok(Money(nano)) }
    }

    /// Returns the amount in nano-USD.
    #[must_use]
    pub const fn nano(self) -> i64 {
        self.0
    }

    /// Parses decimal USD such as `5`, `0.28` or `0.000000001`.
    ///
    /// # Errors
    /// [`MoneyError::FractionalNano`] below one nano-USD, [`MoneyError::OutOfRange`] above 9.2
    /// billion USD.
    pub fn parse_usd(text: &str) -> Result<Money, MoneyError> {
        let nano = parse_decimal(text, NANO_PER_USD)?;
        i64::try_from(nano).map(Money).map_err(|_| MoneyError::OutOfRange)
    }

    /// Converts a vendor's bill in ticks of 10⁻¹⁰ USD. A fraction of a nano-USD is rounded up, so
    /// that the charge is never less than the bill.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] above 9.2 billion USD.
    pub(crate) fn from_ticks(ticks: u64) -> Result<Money, MoneyError> {
        let nano = ticks.div_ceil(TICKS_PER_NANO);
        i64::try_from(nano).map(Money).map_err(|_| MoneyError::OutOfRange)
    }

    /// Returns the sum.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] on overflow.
    pub fn checked_add(self, other: Money) -> Result<Money, MoneyError> {
        self.0.checked_add(other.0).map(Money).ok_or(MoneyError::OutOfRange)
    }

    /// Returns the difference.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if `other` is larger.
    pub fn checked_sub(self, other: Money) -> Result<Money, MoneyError> {
        Money::from_nano(self.0.checked_sub(other.0).ok_or(MoneyError::OutOfRange)?)
    }

    /// Returns the amount times `count`.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] on overflow.
    pub(crate) fn checked_mul(self, count: u64) -> Result<Money, MoneyError> {
        let count = i64::try_from(count).map_err(|_| MoneyError::OutOfRange)?;
        self.0.checked_mul(count).map(Money).ok_or(MoneyError::OutOfRange)
    }

    /// Returns the difference, or zero if `other` is larger.
    #[must_use]
    pub fn saturating_sub(self, other: Money) -> Money {
        Money(self.0.saturating_sub(other.0).max(0))
    }
}

/// Exact decimal USD without trailing zeros, at least two decimals: `0.28`, `5.00`, `0.00000125`.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_usd(self.0.unsigned_abs(), 2))
    }
}

/// Writes nano-USD as decimal USD, with at least `decimals_min` decimals.
fn format_usd(nano: u64, decimals_min: usize) -> String {
    let fraction = format!("{:09}", nano % NANO_PER_USD);
    let kept = fraction.trim_end_matches('0').len().max(decimals_min);
    let whole = nano / NANO_PER_USD;
    if kept == 0 { whole.to_string() } else { format!("{whole}.{}", &fraction[..kept]) }
}

/// Parses a plain decimal number and multiplies it by `scale`, exactly.
fn parse_decimal(text: &str, scale: u64) -> Result<u64, MoneyError> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let both = !whole.is_empty() && digits(whole) && digits(fraction) && !text.ends_with('.');
    if !both || fraction.len() > 18 {
        return Err(MoneyError::NotDecimal);
    }
    let whole: u128 = whole.parse().map_err(|_| MoneyError::OutOfRange)?;
    let part: u128 = if fraction.is_empty() { 0 } else { parse_u128(fraction)? };
    let unit = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| MoneyError::NotDecimal)?);
    let scaled = whole
        .checked_mul(unit)
        .and_then(|w| w.checked_add(part))
        .and_then(|w| w.checked_mul(u128::from(scale)))
        .ok_or(MoneyError::OutOfRange)?;
    if scaled % unit != 0 {
        return Err(MoneyError::FractionalNano);
    }
    u64::try_from(scaled / unit).map_err(|_| MoneyError::OutOfRange)
}

fn parse_u128(digits: &str) -> Result<u128, MoneyError> {
    digits.parse().map_err(|_| MoneyError::OutOfRange)
}

/// The price of one unit (token, character or second) in nano-USD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Rate(u32);

impl Rate {
    /// A price of nothing.
    pub const ZERO: Rate = Rate(0);

    /// Makes a rate from whole nano-USD per unit.
    #[must_use]
    pub const fn from_nano(nano: u32) -> Rate {
        Rate(nano)
    }

    /// Parses a price in USD per million units, as price lists state it: `0.019` is 19 nano-USD.
    ///
    /// # Errors
    /// [`MoneyError::FractionalNano`] if one unit would not cost a whole number of nano-USD.
    pub(crate) fn parse_per_million(text: &str) -> Result<Rate, MoneyError> {
        let nano = parse_decimal(text, NANO_PER_USD / 1_000_000)?;
        u32::try_from(nano).map(Rate).map_err(|_| MoneyError::OutOfRange)
    }

    /// Parses a price in USD per unit, as video seconds are listed: `0.05` is 50,000,000 nano-USD.
    ///
    /// # Errors
    /// As [`Rate::parse_per_million`].
    pub(crate) fn parse_per_unit(text: &str) -> Result<Rate, MoneyError> {
        let nano = parse_decimal(text, NANO_PER_USD)?;
        u32::try_from(nano).map(Rate).map_err(|_| MoneyError::OutOfRange)
    }

    /// Returns the nano-USD per unit.
    #[must_use]
    pub const fn nano(self) -> u32 {
        self.0
    }

    /// Returns the cost of `units`.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] above 9.2 billion USD.
    pub(crate) fn checked_mul(self, units: u64) -> Result<Money, MoneyError> {
        let nano = u128::from(self.0) * u128::from(units);
        i64::try_from(nano).map(Money).map_err(|_| MoneyError::OutOfRange)
    }

    /// Returns the USD per unit as an exact decimal, as the model list shows it: `0.000005`.
    #[must_use]
    pub(crate) fn to_usd_string(self) -> String {
        format_usd(u64::from(self.0), 0)
    }
}

/// The billed tokens of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenUsage {
    /// All input tokens, including those of the prompt cache.
    #[serde(rename = "prompt_tokens")]
    pub input: u64,
    /// All output tokens, including reasoning.
    #[serde(rename = "completion_tokens")]
    pub output: u64,
    /// The part of the input that was read from a prompt cache.
    #[serde(rename = "cached_tokens", default, skip_serializing_if = "is_zero")]
    pub cache_read: u64,
    /// The part of the input that was written to a prompt cache.
    #[serde(rename = "cache_write_tokens", default, skip_serializing_if = "is_zero")]
    pub cache_write: u64,
    /// The part of `cache_write` that is cached for an hour.
    #[serde(rename = "cache_write_1h_tokens", default, skip_serializing_if = "is_zero")]
    pub cache_write_1h: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Where the units of a charge come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UsageBasis {
    /// The vendor reported them.
    Reported,
    /// The vendor reported none, so the gateway counted the content that passed through it.
    Counted,
    /// The units were known before the call (characters, seconds, one image).
    Fixed,
}

impl UsageBasis {
    /// Returns the name that journals and logs use.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            UsageBasis::Reported => "reported",
            UsageBasis::Counted => "counted",
            UsageBasis::Fixed => "fixed",
        }
    }
}

/// The billed units of one call, which the price is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BilledUnits {
    /// Input and output tokens.
    Tokens(TokenUsage),
    /// Unicode code points of the input text.
    Characters {
        /// How many.
        characters: u64,
    },
    /// Images for which the vendor reports its bill.
    BilledImages {
        /// How many.
        images: u64,
        /// The vendor's bill for all images, in ticks of 10⁻¹⁰ USD.
        #[serde(rename = "cost_in_usd_ticks")]
        ticks: u64,
    },
    /// Images for which only their number is known.
    Images {
        /// How many.
        images: u64,
    },
    /// A video.
    Video {
        /// The length in seconds.
        seconds: u64,
        /// The resolution by which the video is priced.
        resolution: VideoResolution,
        /// The vendor's bill, in ticks of 10⁻¹⁰ USD, if the vendor reports one.
        #[serde(rename = "cost_in_usd_ticks", default, skip_serializing_if = "Option::is_none")]
        ticks: Option<u64>,
    },
}

impl BilledUnits {
    /// Returns the units that count for the token limits of a plan: tokens of input and output,
    /// characters of speech, seconds of video; `None` for images whose tokens are not known.
    #[must_use]
    pub(crate) fn limited_units(self) -> Option<u64> {
        match self {
            BilledUnits::Tokens(used) => Some(used.input.saturating_add(used.output)),
            BilledUnits::Characters { characters } => Some(characters),
            BilledUnits::Video { seconds, .. } => Some(seconds),
            BilledUnits::BilledImages { .. } | BilledUnits::Images { .. } => None,
        }
    }
}

/// The resolution by which a video is priced: the length of its shorter side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VideoResolution {
    /// 480 lines.
    #[serde(rename = "480p")]
    P480,
    /// 720 lines.
    #[serde(rename = "720p")]
    P720,
    /// 1,080 lines.
    #[serde(rename = "1080p")]
    P1080,
}

impl VideoResolution {
    /// All resolutions, the smallest first.
    pub const ALL: [VideoResolution; 3] =
        [VideoResolution::P480, VideoResolution::P720, VideoResolution::P1080];

    /// Parses a name such as `720p`; `None` for any other text.
    #[must_use]
    pub(crate) fn from_name(name: &str) -> Option<VideoResolution> {
        VideoResolution::ALL.into_iter().find(|r| r.name() == name)
    }

    /// Returns the name that calls, rules and journals use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            VideoResolution::P480 => "480p",
            VideoResolution::P720 => "720p",
            VideoResolution::P1080 => "1080p",
        }
    }
}

/// The billed units of a call, and where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The billable units.
    pub units: BilledUnits,
    /// Where the units come from.
    pub basis: UsageBasis,
}

impl Usage {
    /// Returns the tokens; all zero for a call that is not billed by tokens.
    #[must_use]
    pub fn tokens(&self) -> TokenUsage {
        match self.units {
            BilledUnits::Tokens(tokens) => tokens,
            BilledUnits::Characters { .. }
            | BilledUnits::BilledImages { .. }
            | BilledUnits::Images { .. }
            | BilledUnits::Video { .. } => TokenUsage::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals_are_read_exactly_or_refused() {
        let usd = |t| Money::parse_usd(t).map(Money::nano);
        assert_eq!(usd("5"), Ok(5_000_000_000));
        assert_eq!(usd("0.28"), Ok(280_000_000));
        assert_eq!(usd("0.000000001"), Ok(1));
        assert_eq!(usd("9223372036.854775807"), Ok(i64::MAX));
        assert_eq!(usd("9223372036.854775808"), Err(MoneyError::OutOfRange));
        assert_eq!(usd("0.0000000001"), Err(MoneyError::FractionalNano));
        for bad in ["", ".5", "5.", "-1", "+1", "1e3", "1_000", "1,5", " 1", "∞"] {
            assert_eq!(usd(bad), Err(MoneyError::NotDecimal), "{bad:?}");
        }
        assert_eq!(Rate::parse_per_million("0.019"), Ok(Rate(19)));
        assert_eq!(Rate::parse_per_million("600"), Ok(Rate(600_000)));
        assert_eq!(Rate::parse_per_million("0.0195"), Err(MoneyError::FractionalNano));
    }

    #[test]
    fn a_part_of_a_nano_counts_as_a_whole_one() {
        let nano = |ticks| Money::from_ticks(ticks).map(Money::nano);
        assert_eq!([0, 1, 9, 10, 11].map(nano), [Ok(0), Ok(1), Ok(1), Ok(1), Ok(2)]);
        assert_eq!(nano(200_000_000), Ok(20_000_000));
        assert_eq!(nano(u64::MAX), Ok(1_844_674_407_370_955_162));
    }

    #[test]
    fn as_many_decimals_as_fit_are_read_and_no_more() {
        let zeros = "0".repeat(18);
        assert_eq!(Money::parse_usd(&format!("1.{zeros}")).map(Money::nano), Ok(1_000_000_000));
        assert_eq!(Money::parse_usd(&format!("1.{zeros}0")), Err(MoneyError::NotDecimal));
        let many = "9".repeat(60);
        assert_eq!(Money::parse_usd(&many), Err(OUT));
        assert_eq!(Money::parse_usd(&format!("{}.{zeros}", "9".repeat(30))), Err(OUT));
    }

    const OUT: MoneyError = MoneyError::OutOfRange;

    #[test]
    fn sums_and_what_is_left_of_them_are_exact() {
        let money = |nano| Money::from_nano(nano).expect("not negative");
        let (seven, three, most) = (money(7), money(3), money(i64::MAX));
        assert_eq!(
            (seven.checked_add(three), seven.checked_sub(three)),
            (Ok(money(10)), Ok(money(4)))
        );
        assert_eq!((three.checked_sub(seven), most.checked_add(money(1))), (Err(OUT), Err(OUT)));
        assert_eq!(
            (seven.saturating_sub(three), three.saturating_sub(seven)),
            (money(4), Money::ZERO)
        );
        assert_eq!(
            (seven.saturating_sub(seven), seven.saturating_sub(Money::ZERO)),
            (Money::ZERO, seven)
        );
        assert_eq!((seven.checked_mul(3), seven.checked_mul(0)), (Ok(money(21)), Ok(Money::ZERO)));
        assert_eq!((most.checked_mul(1), most.checked_mul(2)), (Ok(most), Err(OUT)));
        assert_eq!(
            (seven.checked_mul(u64::MAX), Money::ZERO.checked_mul(u64::MAX)),
            (Err(OUT), Err(OUT))
        );
        assert_eq!((Money::from_nano(-1), Money::from_nano(0)), (Err(OUT), Ok(Money::ZERO)));
    }

    #[test]
    fn money_is_a_whole_number_wherever_it_is_written() {
        assert_eq!(serde_json::to_string(&Money(7)).ok().as_deref(), Some("7"));
        assert_eq!(serde_json::from_str::<Money>("7").ok(), Some(Money(7)));
        for bad in ["-1", "7.0", "\"7\"", "9223372036854775808", "null"] {
            assert_eq!(serde_json::from_str::<Money>(bad).ok(), None, "{bad}");
        }
        assert_eq!((i64::from(Money(7)), Money::try_from(-7)), (7, Err(OUT)));
    }

    #[test]
    fn money_is_shown_with_two_decimals_or_as_many_as_it_has() {
        for (nano, shown) in [
            (0, "0.00"),
            (1, "0.000000001"),
            (1_250, "0.00000125"),
            (500_000_000, "0.50"),
            (5_000_000_000, "5.00"),
            (12_345_678_901, "12.345678901"),
            (i64::MAX, "9223372036.854775807"),
        ] {
            assert_eq!(Money(nano).to_string(), shown);
        }
    }

    #[test]
    fn a_rate_is_read_for_its_unit_and_shown_as_it_is() {
        assert_eq!(Rate::parse_per_unit("0.05").map(Rate::nano), Ok(50_000_000));
        assert_eq!(Rate::parse_per_unit("4.294967295").map(Rate::nano), Ok(u32::MAX));
        assert_eq!(Rate::parse_per_unit("4.294967296"), Err(OUT));
        assert_eq!(Rate::parse_per_unit("0.0000000001"), Err(MoneyError::FractionalNano));
        assert_eq!(Rate::parse_per_million("4294967.295").map(Rate::nano), Ok(u32::MAX));
        assert_eq!(Rate::parse_per_million("4294967.296"), Err(OUT));
        assert_eq!((Rate::from_nano(9).nano(), Rate::ZERO.nano()), (9, 0));
        for (nano, shown) in
            [(0, "0"), (5_000, "0.000005"), (1_000_000_000, "1"), (4_000_000_010, "4.00000001")]
        {
            assert_eq!(Rate(nano).to_usd_string(), shown);
        }
        assert_eq!(Rate(3).checked_mul(7).map(Money::nano), Ok(21));
        assert_eq!(Rate(1).checked_mul(i64::MAX.unsigned_abs()).map(Money::nano), Ok(i64::MAX));
        assert_eq!(Rate(1).checked_mul(1 << 63), Err(OUT));
        assert_eq!(Rate(u32::MAX).checked_mul(u64::MAX), Err(OUT));
    }

    #[test]
    fn a_resolution_is_known_by_its_name() {
        let names = VideoResolution::ALL.map(VideoResolution::name);
        assert_eq!(names, ["480p", "720p", "1080p"]);
        assert_eq!(names.map(VideoResolution::from_name), VideoResolution::ALL.map(Some));
        assert_eq!(["", "720", "4k", "720P"].map(VideoResolution::from_name), [None; 4]);
    }

    #[test]
    fn only_what_is_sold_by_tokens_has_tokens() {
        let tokens =
            TokenUsage { input: 3, output: 2, cache_read: 1, cache_write: 1, cache_write_1h: 1 };
        let of = |units| Usage { units, basis: UsageBasis::Reported }.tokens();
        assert_eq!(of(BilledUnits::Tokens(tokens)), tokens);
        let (resolution, ticks) = (VideoResolution::P480, None);
        for other in [
            BilledUnits::Characters { characters: 5 },
            BilledUnits::BilledImages { images: 1, ticks: 7 },
            BilledUnits::Images { images: 1 },
            BilledUnits::Video { seconds: 4, resolution, ticks },
        ] {
            assert_eq!(of(other), TokenUsage::default());
        }
    }

    #[test]
    fn units_read_back_from_a_journal() {
        let tokens = TokenUsage { input: 3, output: 2, ..TokenUsage::default() };
        for (units, json) in [
            (BilledUnits::Tokens(tokens), r#"{"prompt_tokens":3,"completion_tokens":2}"#),
            (
                BilledUnits::Tokens(TokenUsage { cache_read: 2, cache_write: 1, ..tokens }),
                r#"{"prompt_tokens":3,"completion_tokens":2,"cached_tokens":2,"cache_write_tokens":1}"#,
            ),
            (
                BilledUnits::Tokens(TokenUsage { cache_write: 2, cache_write_1h: 1, ..tokens }),
                r#"{"prompt_tokens":3,"completion_tokens":2,"cache_write_tokens":2,"cache_write_1h_tokens":1}"#,
            ),
            (BilledUnits::Characters { characters: 5 }, r#"{"characters":5}"#),
            (
                BilledUnits::BilledImages { images: 1, ticks: 7 },
                r#"{"images":1,"cost_in_usd_ticks":7}"#,
            ),
            (BilledUnits::Images { images: 1 }, r#"{"images":1}"#),
            (
                BilledUnits::Video { seconds: 4, resolution: VideoResolution::P720, ticks: None },
                r#"{"seconds":4,"resolution":"720p"}"#,
            ),
            (
                BilledUnits::Video {
                    seconds: 15,
                    resolution: VideoResolution::P1080,
                    ticks: Some(7),
                },
                r#"{"seconds":15,"resolution":"1080p","cost_in_usd_ticks":7}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&units).ok().as_deref(), Some(json));
            assert_eq!(serde_json::from_str::<BilledUnits>(json).ok(), Some(units));
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nano in 0..=i64::MAX) {
            let money = Money::from_nano(nano).expect("not negative");
            prop_assert_eq!(Money::parse_usd(&money.to_string()), Ok(money));
        }

        #[test]
        fn no_sum_ever_wraps(a in 0..=i64::MAX, b in 0..=i64::MAX) {
            let (x, y) = (Money(a), Money(b));
            prop_assert_eq!(x.checked_add(y).is_ok(), a.checked_add(b).is_some());
            prop_assert_eq!(x.checked_sub(y).is_ok(), a >= b);
        }
    }
}
