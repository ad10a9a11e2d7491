//! Charts, drawn as SVG, each with its figures as a table. Whole numbers are enough for pixels.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::parts::{Column, table, usd};
use crate::money::Money;
use crate::usage::{RollupSums, UsageGroup, date_text};

/// The size of a chart, in pixels.
const WIDTH: i64 = 720;
const HEIGHT: i64 = 180;
/// The space below the bars, for the dates.
const FOOT: i64 = 24;
/// The number of models that have colours of their own. The others share one.
const SERIES_MAX: usize = 5;
const OTHERS: &str = "others";

/// The amounts of each day, by series.
struct Days<'a> {
    /// The names of the series, the largest first.
    series: Vec<&'a str>,
    /// The beginning of each day in unix ms, and the amounts in nano-USD in the order of the
    /// series.
    days: BTreeMap<i64, Vec<i64>>,
}

/// Draws what was spent on each day, by model.
pub(in crate::console) fn spend_by_day(usage: &[(UsageGroup, RollupSums)]) -> Markup {
    let days = Days::of(usage);
    if days.series.is_empty() {
        return html! { p.empty { "Nothing was charged in this time." } };
    }
    html! {
        figure {
            (bars(&days))
            figcaption {
                ul.legend {
                    @for (at, name) in days.series.iter().enumerate() {
                        li {
                            svg width="12" height="12" aria-hidden="true" {
                                rect class=(class(at)) width="12" height="12" {}
                            }
                            " " (shown(name))
                        }
                    }
                }
            }
        }
        details {
            summary { "The figures" }
            (figures(&days))
        }
    }
}

impl<'a> Days<'a> {
    fn of(usage: &'a [(UsageGroup, RollupSums)]) -> Days<'a> {
        let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
        for (group, row) in usage {
            let model = group.model.as_deref().unwrap_or_default();
            let sum = sums.entry(model).or_default();
            *sum = sum.saturating_add(row.charged.nano());
        }
        let mut ranked: Vec<(&str, i64)> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
        ranked.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(other.0)));
        let mut series: Vec<&str> = ranked.iter().take(SERIES_MAX).map(|(name, _)| *name).collect();
        let others: BTreeSet<&str> =
            ranked.iter().skip(SERIES_MAX).map(|(name, _)| *name).collect();
        if !others.is_empty() {
            series.push(OTHERS);
        }
        let mut days: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for (group, row) in usage {
            let (Some(start), model) = (group.start, group.model.as_deref().unwrap_or_default())
            else {
                continue;
            };
            let name = if others.contains(model) { OTHERS } else { model };
            let amounts = days.entry(start).or_insert_with(|| vec![0; series.len()]);
            let place = series.iter().position(|known| *known == name);
            if let Some(amount) = place.and_then(|at| amounts.get_mut(at)) {
                *amount = amount.saturating_add(row.charged.nano());
            }
        }
        Days { series, days }
    }

    /// Returns the most of a day; at least 1.
    fn most(&self) -> i64 {
        let sums = self.days.values().map(|amounts| sum_of(amounts));
        sums.max().unwrap_or_default().max(1)
    }
}

fn sum_of(amounts: &[i64]) -> i64 {
    amounts.iter().copied().fold(0, i64::saturating_add)
}

/// Returns the part `amount` of `most` of a length, rounded down. All are at least 0.
fn scaled(amount: i64, most: i64, length: i64) -> i64 {
    let part = i128::from(amount) * i128::from(length) / i128::from(most.max(1));
    i64::try_from(part).unwrap_or(length)
}

fn bars(days: &Days<'_>) -> Markup {
    let count = i64::try_from(days.days.len()).unwrap_or(1).max(1);
    let (most, bottom) = (days.most(), HEIGHT - FOOT);
    let pitch = (WIDTH / count).max(2);
    let width = (pitch - 2).clamp(1, 40);
    let label_each = (count / 6).max(1);
    html! {
        svg role="img" aria-label="Spend of each day by model, in USD; a table follows"
            viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) {
            line.axis x1="0" y1=(bottom) x2=(WIDTH) y2=(bottom) {}
            text x="0" y="12" { (Money::from_nano(most).unwrap_or_default()) " USD" }
            @for (at, (start, amounts)) in (0_i64..).zip(&days.days) {
                @for (series, top, height) in stacked(amounts, most, bottom) {
                    rect class=(class(series)) x=(at * pitch) y=(top) width=(width)
                        height=(height) {}
                }
                @if at % label_each == 0 {
                    text x=(at * pitch) y=(HEIGHT - 8) { (month_and_day(*start)) }
                }
            }
        }
    }
}

/// Returns the bars of a day, one on the other: the series, the top and the height of each.
fn stacked(amounts: &[i64], most: i64, bottom: i64) -> Vec<(usize, i64, i64)> {
    let mut below = 0_i64;
    let mut bars = Vec::new();
    for (series, amount) in amounts.iter().enumerate() {
        let from = scaled(below, most, bottom - 16);
        below = below.saturating_add(*amount);
        let to = scaled(below, most, bottom - 16);
        if to > from {
            bars.push((series, bottom - to, to - from));
        }
    }
    bars
}

fn figures(days: &Days<'_>) -> Markup {
    let columns =
        [Column::Text("Day (UTC)"), Column::Text("Model"), Column::Number("Charged, USD")];
    let rows: Vec<_> = days
        .days
        .iter()
        .rev()
        .flat_map(|(start, amounts)| {
            let of_day = days.series.iter().zip(amounts).filter(|(_, amount)| **amount > 0);
            of_day.map(|(name, amount)| {
                vec![
                    html! { (date_text(*start).unwrap_or_default()) },
                    html! { (shown(name)) },
                    usd(Money::from_nano(*amount).unwrap_or_default()),
                ]
            })
        })
        .collect();
    table("Spend of each day by model", &columns, &rows, "")
}

/// Returns a date without its year, such as `11-27`.
fn month_and_day(start: i64) -> String {
    let date = date_text(start).unwrap_or_default();
    date.split_once('-').map(|(_, rest)| rest.to_owned()).unwrap_or_default()
}

fn shown(name: &str) -> &str {
    if name.is_empty() { "no model" } else { name }
}

fn class(series: usize) -> String {
    format!("s{}", series + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_a_day_touch_and_the_largest_day_is_as_high_as_the_chart() {
        let bottom = HEIGHT - FOOT;
        let bars = stacked(&[30, 0, 70], 100, bottom);
        assert_eq!(bars.iter().map(|(series, ..)| *series).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(bars[0].1 + bars[0].2, bottom);
        assert_eq!(bars[1].1 + bars[1].2, bars[0].1);
        assert_eq!(bars[1].1, 16);
        assert!(stacked(&[0, 0], 1, bottom).is_empty());
        assert_eq!(scaled(i64::MAX, i64::MAX, 100), 100);
        assert_eq!(scaled(5, 0, 100), 500);
    }

    #[test]
    fn models_beyond_the_fifth_are_one_series() {
        let day = 86_400_000;
        let row = |model: &str, nano: i64, start: i64| {
            let (model, key_id, endpoint) = (Some(model.to_owned()), None, None);
            let group = UsageGroup { start: Some(start), key_id, model, endpoint };
            let charged = Money::from_nano(nano).expect("an amount");
            (group, RollupSums { charged, ..RollupSums::default() })
        };
        let mut usage: Vec<_> = (1..=7).map(|at| row(&format!("m{at}"), at * 10, day)).collect();
        usage.push(row("m7", 5, 2 * day));
        usage.push(row("", 0, 2 * day));
        let days = Days::of(&usage);
        assert_eq!(days.series, ["m7", "m6", "m5", "m4", "m3", OTHERS]);
        assert_eq!(days.days[&day], [70, 60, 50, 40, 30, 10 + 20]);
        assert_eq!(days.days[&(2 * day)], [5, 0, 0, 0, 0, 0]);
        assert_eq!(days.most(), 280);
        let drawn = spend_by_day(&usage).into_string();
        assert!(
            drawn.contains("<svg") && drawn.contains("<table>") && drawn.contains("1970-01-02")
        );
        assert!(spend_by_day(&[]).into_string().contains("Nothing was charged"));
    }
}
