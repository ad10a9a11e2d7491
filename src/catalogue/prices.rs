//! Price rows of the rules: decimal USD, read exactly.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::kind::ModelKind;
use crate::money::price::{Price, TokenPrice, TokenRates};
use crate::money::{Money, MoneyError, Rate, VideoResolution};
use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TableReader};

/// Reads the price of a row.
pub(super) fn parse_price(
    kind: ModelKind,
    row: &mut TableReader,
    faults: &mut Vec<ConfigError>,
) -> Price {
    match kind {
        ModelKind::Chat | ModelKind::Responses => {
            Price::Tokens(parse_token_price(row, true, faults))
        }
        ModelKind::Embedding => Price::Tokens(parse_token_price(row, false, faults)),
        ModelKind::Image => {
            let tokens = parse_token_price(row, true, faults);
            let reservation = required_price(row, "reservation", faults, Money::parse_usd);
            Price::Image { tokens, reservation }
        }
        ModelKind::Video => Price::Video(parse_video_rates(row, faults)),
        ModelKind::Speech => {
            Price::Speech(required_price(row, "characters", faults, Rate::parse_per_million))
        }
        ModelKind::Moderation => Price::Free,
    }
}

/// Reads `"272K"` or a plain number of tokens; K is 1,000.
pub(super) fn parse_token_count(
    row: &mut TableReader,
    key: &'static str,
    faults: &mut Vec<ConfigError>,
) -> Option<u64> {
    let node = row.take_value(key)?;
    let text = match &node.value {
        crate::toml_reader::TomlValue::Text(text) | crate::toml_reader::TomlValue::Number(text) => {
            text.as_str()
        }
        _ => "",
    };
    let read = match text.strip_suffix('K') {
        Some(thousands) => thousands.parse().ok().and_then(|n: u64| n.checked_mul(1_000)),
        None => text.parse().ok(),
    };
    if read.is_none() {
        faults.push(
            node.location.error(format!("'{key}' must be a number of tokens such as \"400K\"")),
        );
    }
    read
}

fn parse_token_price(
    row: &mut TableReader,
    output: bool,
    faults: &mut Vec<ConfigError>,
) -> TokenPrice {
    let base = parse_rates(row, output, faults);
    let above = parse_tiers(row.list("above", faults), faults, |tier, faults| {
        if !tier.has("input_tokens") {
            faults.push(tier.location.error("'input_tokens' is required"));
        }
        parse_token_count(tier, "input_tokens", faults)
    });
    let from = parse_tiers(row.list("from", faults), faults, |tier, faults| {
        let location = tier.location.clone();
        let date = tier.text("date", faults);
        let read = date.as_deref().and_then(midnight_utc);
        if read.is_none() {
            faults.push(location.error("'date' must be a date such as \"2027-01-01\""));
        }
        read
    });
    if !above.is_empty() && !from.is_empty() {
        faults.push(row.location.error("a model has either 'above' or 'from': which would win?"));
    }
    TokenPrice { base, input_tiers: above, dated_rates: from }
}

fn parse_tiers<W: Ord + Copy>(
    rows: Vec<SpannedValue>,
    faults: &mut Vec<ConfigError>,
    when: impl Fn(&mut TableReader, &mut Vec<ConfigError>) -> Option<W>,
) -> Vec<(W, TokenRates)> {
    let mut read: Vec<(W, TokenRates)> = Vec::new();
    for row in rows {
        let mut tier = TableReader::open(row, faults);
        let location = tier.location.clone();
        let (when, rates) = (when(&mut tier, faults), parse_rates(&mut tier, true, faults));
        tier.finish(faults);
        match when {
            Some(when) if read.last().is_none_or(|(before, _)| *before < when) => {
                read.push((when, rates));
            }
            Some(_) => faults.push(location.error("tiers must stand in ascending order")),
            None => {}
        }
    }
    read
}

/// Returns midnight UTC of a day, in unix seconds; `None` if the text is not a date.
fn midnight_utc(date: &str) -> Option<i64> {
    let day: jiff::civil::Date = date.parse().ok()?;
    let moment = day.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(moment.timestamp().as_second())
}

fn parse_rates(row: &mut TableReader, output: bool, faults: &mut Vec<ConfigError>) -> TokenRates {
    let per_million = Rate::parse_per_million;
    let input = required_price(row, "input", faults, per_million);
    let output =
        if output { required_price(row, "output", faults, per_million) } else { Rate::ZERO };
    let cache_read = optional_price(row, "cache_read", faults, per_million);
    let cache_write = optional_price(row, "cache_write", faults, per_million);
    let cache_write_1h = optional_price(row, "cache_write_1h", faults, per_million);
    TokenRates { input, output, cache_read, cache_write, cache_write_1h }
}

fn parse_video_rates(
    row: &mut TableReader,
    faults: &mut Vec<ConfigError>,
) -> Vec<(VideoResolution, Rate)> {
    let location = row.location.clone();
    let mut rates = Vec::new();
    for (name, node) in row.members("second", faults) {
        let Some(resolution) = VideoResolution::from_name(&name) else {
            let known = VideoResolution::ALL.map(VideoResolution::name).join(", ");
            faults.push(node.location.error(format!("'{name}' must be one of {known}")));
            continue;
        };
        let crate::toml_reader::TomlValue::Number(digits) = &node.value else {
            faults.push(node.location.error("a price must be a number"));
            continue;
        };
        match Rate::parse_per_unit(digits) {
            Ok(rate) => rates.push((resolution, rate)),
            Err(why) => faults.push(invalid_price(&node.location, &name, digits, why)),
        }
    }
    if rates.is_empty() {
        faults.push(location.error("'second' must give a price for each resolution"));
    }
    rates
}

pub(super) fn required_price<P: Default>(
    row: &mut TableReader,
    key: &'static str,
    faults: &mut Vec<ConfigError>,
    read: fn(&str) -> Result<P, MoneyError>,
) -> P {
    if !row.has(key) {
        faults.push(row.location.error(format!("'{key}' is required")));
    }
    optional_price(row, key, faults, read).unwrap_or_default()
}

pub(super) fn optional_price<P>(
    row: &mut TableReader,
    key: &'static str,
    faults: &mut Vec<ConfigError>,
    read: fn(&str) -> Result<P, MoneyError>,
) -> Option<P> {
    let (digits, location) = row.number(key, faults)?;
    match read(&digits) {
        Ok(price) => Some(price),
        Err(why) => {
            faults.push(invalid_price(&location, key, &digits, why));
            None
        }
    }
}

fn invalid_price(
    location: &SourceLocation,
    key: &str,
    digits: &str,
    why: MoneyError,
) -> ConfigError {
    location.error(format!("'{key}' = {digits}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_reader;
    use rstest::rstest;

    const DAY: i64 = 86_400;

    fn read(kind: ModelKind, text: &str) -> (Price, Vec<String>) {
        let (node, mut faults) = toml_reader::parse("p", text);
        let mut row = TableReader::open(node, &mut faults);
        let price = parse_price(kind, &mut row, &mut faults);
        row.finish(&mut faults);
        (price, faults.iter().map(ConfigError::to_string).collect())
    }

    fn nano(nano: u32) -> Rate {
        Rate::from_nano(nano)
    }

    fn rates(input: u32, output: u32) -> TokenRates {
        TokenRates { input: nano(input), output: nano(output), ..TokenRates::default() }
    }

    fn flat(base: TokenRates) -> TokenPrice {
        TokenPrice { base, ..TokenPrice::default() }
    }

    fn above(tiers: &[(u64, TokenRates)]) -> Price {
        Price::Tokens(TokenPrice { input_tiers: tiers.to_vec(), ..flat(rates(5_000, 30_000)) })
    }

    fn from(tiers: &[(i64, TokenRates)]) -> Price {
        Price::Tokens(TokenPrice { dated_rates: tiers.to_vec(), ..flat(rates(5_000, 30_000)) })
    }

    #[rstest]
    #[case::chat(ModelKind::Chat, "input = 5\noutput = 30", above(&[]))]
    #[case::pro(
        ModelKind::Responses,
        "input = 0.019\noutput = 22.5",
        Price::Tokens(flat(rates(19, 22_500)))
    )]
    #[case::cached(
        ModelKind::Chat,
        "input = 5\noutput = 30\ncache_read = 0.5\ncache_write = 6.25\ncache_write_1h = 10",
        Price::Tokens(flat(TokenRates {
            cache_read: Some(nano(500)),
            cache_write: Some(nano(6_250)),
            cache_write_1h: Some(nano(10_000)),
            ..rates(5_000, 30_000)
        }))
    )]
    #[case::tiers_in_thousands_or_plain(
        ModelKind::Chat,
        "input = 5\noutput = 30\nabove = [{ input_tokens = \"272K\", input = 10, output = 45 }, \
         { input_tokens = 272_001, input = 11, output = 46 }]",
        above(&[(272_000, rates(10_000, 45_000)), (272_001, rates(11_000, 46_000))])
    )]
    #[case::days_from_their_midnight_on(
        ModelKind::Chat,
        "input = 5\noutput = 30\nfrom = [{ date = \"1970-01-02\", input = 1, output = 2 }, \
         { date = 2027-01-01, input = 3, output = 4 }]",
        from(&[(DAY, rates(1_000, 2_000)), (20_819 * DAY, rates(3_000, 4_000))])
    )]
    #[case::embedding(ModelKind::Embedding, "input = 0.02", Price::Tokens(flat(rates(20, 0))))]
    #[case::image(
        ModelKind::Image,
        "input = 5\noutput = 30\nreservation = 0.075",
        Price::Image {
            tokens: flat(rates(5_000, 30_000)),
            reservation: Money::from_nano(75_000_000).expect("money"),
        }
    )]
    #[case::video(
        ModelKind::Video,
        "second = { 720p = 0.07, 480p = 0.05 }",
        Price::Video(vec![
            (VideoResolution::P720, nano(70_000_000)),
            (VideoResolution::P480, nano(50_000_000)),
        ])
    )]
    #[case::speech(ModelKind::Speech, "characters = 15", Price::Speech(nano(15_000)))]
    #[case::moderation(ModelKind::Moderation, "", Price::Free)]
    fn a_row_is_the_price_that_it_says(
        #[case] kind: ModelKind,
        #[case] text: &str,
        #[case] expected: Price,
    ) {
        assert_eq!(read(kind, text), (expected, vec![]));
    }

    const BASE: &str = "input = 5\noutput = 30\n";
    const TOKENS: &str = "p:3: 'input_tokens' must be a number of tokens such as \"400K\"";
    const DATE: &str = "p:3: 'date' must be a date such as \"2027-01-01\"";
    const ORDER: &str = "p:3: tiers must stand in ascending order";

    #[rstest]
    #[case::no_prices("", &["p: 'input' is required", "p: 'output' is required"])]
    #[case::not_exact(
        "input = 0.0001\noutput = 5_000_000\ncache_read = \"1\"\ncache_write = 1e3",
        &[
            "p:1: 'input' = 0.0001: not a whole number of nano-USD per unit",
            "p:2: 'output' = 5000000: the amount is out of range",
            "p:3: 'cache_read' must be a number, not a text",
            "p:4: 'cache_write' = 1e3: not a plain decimal number",
        ]
    )]
    #[case::tier_of_nothing(
        "above = [{ input = 1, output = 2 }]",
        &["p:3: 'input_tokens' is required"]
    )]
    #[case::tier_without_prices(
        "above = [{ input_tokens = 1 }]",
        &["p:3: 'input' is required", "p:3: 'output' is required"]
    )]
    #[case::a_word("above = [{ input_tokens = \"many\", input = 1, output = 2 }]", &[TOKENS])]
    #[case::a_k("above = [{ input_tokens = \"K\", input = 1, output = 2 }]", &[TOKENS])]
    #[case::truth("above = [{ input_tokens = true, input = 1, output = 2 }]", &[TOKENS])]
    #[case::too_many(
        "above = [{ input_tokens = \"18446744073709552K\", input = 1, output = 2 }]",
        &[TOKENS]
    )]
    #[case::twice_the_same(
        "above = [{ input_tokens = \"1K\", input = 1, output = 2 }, \
         { input_tokens = 1000, input = 1, output = 2 }]",
        &[ORDER]
    )]
    #[case::descending(
        "from = [{ date = \"2027-01-02\", input = 1, output = 2 }, \
         { date = \"2027-01-01\", input = 1, output = 2 }]",
        &[ORDER]
    )]
    #[case::no_date("from = [{ input = 1, output = 2 }]", &[DATE])]
    #[case::no_such_day("from = [{ date = \"2027-02-29\", input = 1, output = 2 }]", &[DATE])]
    #[case::unknown_in_a_tier(
        "from = [{ date = \"2027-01-01\", input = 1, output = 2, outputs = 3 }]",
        &["p:3: unknown key 'outputs'; closest is 'output'"]
    )]
    #[case::both(
        "above = [{ input_tokens = 1, input = 1, output = 2 }]\n\
         from = [{ date = \"2027-01-01\", input = 1, output = 2 }]",
        &["p: a model has either 'above' or 'from': which would win?"]
    )]
    fn what_is_wrong_with_a_token_price_is_told(#[case] text: &str, #[case] expected: &[&str]) {
        let is_tier = text.starts_with("above") || text.starts_with("from");
        let text = format!("{}{text}", if is_tier { BASE } else { "" });
        assert_eq!(read(ModelKind::Chat, &text).1, expected);
    }

    #[rstest]
    #[case::output_of_embeddings(
        ModelKind::Embedding,
        BASE,
        &["p:2: unknown key 'output'; closest is 'input'"]
    )]
    #[case::no_reservation(ModelKind::Image, BASE, &["p: 'reservation' is required"])]
    #[case::no_characters(ModelKind::Speech, "", &["p: 'characters' is required"])]
    #[case::no_seconds(
        ModelKind::Video,
        "",
        &["p: 'second' must give a price for each resolution"]
    )]
    #[case::seconds_of_no_price(
        ModelKind::Video,
        "[second]\n4k = 1\n480p = \"1\"\n720p = 0.0000000001",
        &[
            "p:2: '4k' must be one of 480p, 720p, 1080p",
            "p:3: a price must be a number",
            "p:4: '720p' = 0.0000000001: not a whole number of nano-USD per unit",
            "p: 'second' must give a price for each resolution",
        ]
    )]
    #[case::price_of_what_is_free(
        ModelKind::Moderation,
        "input = 1",
        &["p:1: unknown key 'input'; known are "]
    )]
    fn a_row_has_the_prices_of_its_kind(
        #[case] kind: ModelKind,
        #[case] text: &str,
        #[case] expected: &[&str],
    ) {
        assert_eq!(read(kind, text).1, expected);
    }
}
