//! Price rows of the rules: decimal USD, read exactly.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::kind::Kind;
use crate::money::price::{Price, Rates, TokenPrice};
use crate::money::{Money, MoneyError, Rate, Resolution};
use crate::sheet::{Fault, Node, Place, Table};

/// Reads the price of a row.
pub(super) fn price(kind: Kind, row: &mut Table, faults: &mut Vec<Fault>) -> Price {
    match kind {
        Kind::Chat | Kind::Responses => Price::Tokens(token_price(row, true, faults)),
        Kind::Embedding => Price::Tokens(token_price(row, false, faults)),
        Kind::Image => {
            let tokens = token_price(row, true, faults);
            let reservation = required(row, "reservation", faults, Money::parse_usd);
            Price::Image { tokens, reservation }
        }
        Kind::Video => Price::Video(seconds(row, faults)),
        Kind::Speech => Price::Speech(required(row, "characters", faults, Rate::parse_per_million)),
        Kind::Moderation => Price::Free,
    }
}

/// Reads `"272K"` or a plain number of tokens; K is 1,000.
pub(super) fn tokens(row: &mut Table, key: &'static str, faults: &mut Vec<Fault>) -> Option<u64> {
    let node = row.take(key)?;
    let text = match &node.value {
        crate::sheet::Value::Text(text) | crate::sheet::Value::Number(text) => text.as_str(),
        _ => "",
    };
    let read = match text.strip_suffix('K') {
        Some(thousands) => thousands.parse().ok().and_then(|n: u64| n.checked_mul(1_000)),
        None => text.parse().ok(),
    };
    if read.is_none() {
        faults
            .push(node.place.fault(format!("'{key}' must be a number of tokens such as \"400K\"")));
    }
    read
}

fn token_price(row: &mut Table, output: bool, faults: &mut Vec<Fault>) -> TokenPrice {
    let base = rates(row, output, faults);
    let above = tiers(row.list("above", faults), faults, |tier, faults| {
        if !tier.has("input_tokens") {
            faults.push(tier.place.fault("'input_tokens' is required"));
        }
        tokens(tier, "input_tokens", faults)
    });
    let from = tiers(row.list("from", faults), faults, |tier, faults| {
        let place = tier.place.clone();
        let date = tier.text("date", faults);
        let read = date.as_deref().and_then(midnight);
        if read.is_none() {
            faults.push(place.fault("'date' must be a date such as \"2027-01-01\""));
        }
        read
    });
    if !above.is_empty() && !from.is_empty() {
        faults.push(row.place.fault("a model has either 'above' or 'from': which would win?"));
    }
    TokenPrice { base, above, from }
}

fn tiers<W: Ord + Copy>(
    rows: Vec<Node>,
    faults: &mut Vec<Fault>,
    when: impl Fn(&mut Table, &mut Vec<Fault>) -> Option<W>,
) -> Vec<(W, Rates)> {
    let mut read: Vec<(W, Rates)> = Vec::new();
    for row in rows {
        let mut tier = Table::open(row, faults);
        let place = tier.place.clone();
        let (when, rates) = (when(&mut tier, faults), rates(&mut tier, true, faults));
        tier.finish(faults);
        match when {
            Some(when) if read.last().is_none_or(|(before, _)| *before < when) => {
                read.push((when, rates));
            }
            Some(_) => faults.push(place.fault("tiers must stand in ascending order")),
            None => {}
        }
    }
    read
}

/// Midnight UTC of a day, in unix seconds.
fn midnight(date: &str) -> Option<i64> {
    let day: jiff::civil::Date = date.parse().ok()?;
    let moment = day.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(moment.timestamp().as_second())
}

fn rates(row: &mut Table, output: bool, faults: &mut Vec<Fault>) -> Rates {
    let per_million = Rate::parse_per_million;
    let input = required(row, "input", faults, per_million);
    let output = if output { required(row, "output", faults, per_million) } else { Rate::ZERO };
    let cache_read = optional(row, "cache_read", faults, per_million);
    let cache_write = optional(row, "cache_write", faults, per_million);
    Rates { input, output, cache_read, cache_write }
}

fn seconds(row: &mut Table, faults: &mut Vec<Fault>) -> Vec<(Resolution, Rate)> {
    let place = row.place.clone();
    let mut rates = Vec::new();
    for (name, node) in row.members("second", faults) {
        let Some(resolution) = Resolution::named(&name) else {
            let known = Resolution::ALL.map(Resolution::name).join(", ");
            faults.push(node.place.fault(format!("'{name}' must be one of {known}")));
            continue;
        };
        let crate::sheet::Value::Number(digits) = &node.value else {
            faults.push(node.place.fault("a price must be a number"));
            continue;
        };
        match Rate::parse_per_unit(digits) {
            Ok(rate) => rates.push((resolution, rate)),
            Err(why) => faults.push(bad_price(&node.place, &name, digits, why)),
        }
    }
    if rates.is_empty() {
        faults.push(place.fault("'second' must give a price for each resolution"));
    }
    rates
}

fn required<P: Default>(
    row: &mut Table,
    key: &'static str,
    faults: &mut Vec<Fault>,
    read: fn(&str) -> Result<P, MoneyError>,
) -> P {
    if !row.has(key) {
        faults.push(row.place.fault(format!("'{key}' is required")));
    }
    optional(row, key, faults, read).unwrap_or_default()
}

fn optional<P>(
    row: &mut Table,
    key: &'static str,
    faults: &mut Vec<Fault>,
    read: fn(&str) -> Result<P, MoneyError>,
) -> Option<P> {
    let (digits, place) = row.number(key, faults)?;
    match read(&digits) {
        Ok(price) => Some(price),
        Err(why) => {
            faults.push(bad_price(&place, key, &digits, why));
            None
        }
    }
}

fn bad_price(place: &Place, key: &str, digits: &str, why: MoneyError) -> Fault {
    place.fault(format!("'{key}' = {digits}: {why}"))
}
