//! Charts, drawn as SVG, each with its figures as a table. Whole numbers are enough for pixels.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::parts::{Column, table, usd};
use crate::money::Money;
use crate::usage::{RollupSums, UsageGroup, date_text};

/// The size of a chart, in pixels.
pub(super) const WIDTH: i64 = 720;
pub(super) const HEIGHT: i64 = 180;
/// The space below the bars, for the dates.
pub(super) const FOOT: i64 = 24;
/// The number of series that have colours of their own. The others share one.
const SERIES_MAX: usize = 5;
const OTHERS: &str = "others";

/// The marks that tell series apart without their colours.
const HATCHES: [&str; SERIES_MAX + 1] =
    ["", "M0 6L6 0", "M0 3H6", "M3 0V6", "M0 0L6 6", "M0 3H6M3 0V6"];

/// What the numbers of a chart are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChartUnit {
    /// Amounts in nano-USD, which are shown in USD.
    Usd,
    Tokens,
}

/// A chart of days.
struct DayChart<'a> {
    /// The beginning of the ids in it.
    id: &'static str,
    /// What it shows, for those who do not see it, too.
    title: &'static str,
    unit: ChartUnit,
    /// What a series stands for, such as a model.
    series_title: &'static str,
    /// The names of the series; the lowest one in each bar first.
    series: Vec<&'a str>,
    /// The beginning of each day in unix ms, and the numbers in the order of the series.
    days: BTreeMap<i64, Vec<i64>>,
}

/// Draws what was spent on each day, by model.
pub(in crate::console) fn spend_by_day(usage: &[(UsageGroup, RollupSums)]) -> Markup {
    let rows = usage.iter().map(|row| {
        let model = row.0.model.as_deref().unwrap_or_default();
        let name = if model.is_empty() { "no model" } else { model };
        (row.0.start, name, row.1.charged.nano())
    });
    let (series, days) = ranked(&rows.collect::<Vec<_>>());
    let (unit, series_title) = (ChartUnit::Usd, "Model");
    let title = "Spend of each day by model, in USD";
    DayChart { id: "models", title, unit, series_title, series, days }.draw()
}

/// Draws what was spent on each day, by key. `name_of` tells the name of a key's id.
pub(in crate::console) fn spend_by_key(
    usage: &[(UsageGroup, RollupSums)],
    name_of: &impl Fn(&str) -> String,
) -> Markup {
    let ids = usage.iter().map(|row| row.0.key_id.as_deref().unwrap_or_default());
    let names: BTreeMap<&str, String> = ids.map(|id| (id, name_of(id))).collect();
    let rows = usage.iter().map(|row| {
        let id = row.0.key_id.as_deref().unwrap_or_default();
        let name = names.get(id).map(String::as_str).unwrap_or_default();
        let name = if id.is_empty() { "no key" } else { name };
        (row.0.start, name, row.1.charged.nano())
    });
    let (series, days) = ranked(&rows.collect::<Vec<_>>());
    let title = "Spend of each day by key, in USD";
    let (unit, series_title) = (ChartUnit::Usd, "Key");
    DayChart { id: "keys", title, unit, series_title, series, days }.draw()
}

/// Draws the tokens of each day.
pub(in crate::console) fn tokens_by_day(usage: &[(UsageGroup, RollupSums)]) -> Markup {
    let mut days: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    for (group, sums) in usage {
        let Some(start) = group.start else { continue };
        let fresh = sums.prompt_tokens.saturating_sub(sums.cached_tokens);
        let counts = [fresh, sums.cached_tokens, sums.completion_tokens].map(count);
        let day = days.entry(start).or_insert_with(|| vec![0; counts.len()]);
        for (sum, count) in day.iter_mut().zip(counts) {
            *sum = sum.saturating_add(count);
        }
    }
    let is_used = days.values().flatten().any(|count| *count > 0);
    let series = if is_used { vec!["input", "cached input", "output"] } else { Vec::new() };
    let (unit, series_title) = (ChartUnit::Tokens, "Tokens of");
    let title = "Tokens of each day: input, cached input and output";
    DayChart { id: "tokens", title, unit, series_title, series, days }.draw()
}

/// A part of a bar: the beginning of its day, the name of its series, its number.
type ChartRow<'a> = (Option<i64>, &'a str, i64);

/// Puts numbers into series, the largest first. Those beyond a few share the last one.
fn ranked<'a>(rows: &[ChartRow<'a>]) -> (Vec<&'a str>, BTreeMap<i64, Vec<i64>>) {
    let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, name, number) in rows {
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(*number);
    }
    let mut all: Vec<(&str, i64)> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
    all.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(other.0)));
    let mut series: Vec<&str> = all.iter().take(SERIES_MAX).map(|(name, _)| *name).collect();
    let named = series.len();
    if all.len() > named {
        series.push(OTHERS);
    }
    let mut days: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (start, name, number) in rows {
        let Some(start) = start else { continue };
        let numbers = days.entry(*start).or_insert_with(|| vec![0; series.len()]);
        let place = series.iter().take(named).position(|known| known == name);
        if let Some(sum) = numbers.get_mut(place.unwrap_or(named)) {
            *sum = sum.saturating_add(*number);
        }
    }
    (series, days)
}

impl DayChart<'_> {
    fn draw(&self) -> Markup {
        if self.series.is_empty() {
            return html! { p.empty { "Nothing was charged in this time." } };
        }
        html! {
            figure {
                (self.bars())
                figcaption {
                    (self.title)
                    ul.legend {
                        @for (at, name) in self.series.iter().enumerate() {
                            li {
                                svg width="12" height="12" aria-hidden="true" {
                                    (self.bar(at, [0, 0, 12, 12]))
                                }
                                " " (name)
                            }
                        }
                    }
                }
            }
            details {
                summary { "The figures of this chart: " (self.title) }
                (self.figures())
            }
        }
    }

    /// Returns the most of a day; at least 1.
    fn most(&self) -> i64 {
        let sums = self.days.values().map(|numbers| sum_of(numbers));
        sums.max().unwrap_or_default().max(1)
    }

    fn bars(&self) -> Markup {
        let count = i64::try_from(self.days.len()).unwrap_or(1).max(1);
        let (most, bottom) = (self.most(), HEIGHT - FOOT);
        let pitch = (WIDTH / count).max(2);
        let width = (pitch - 2).clamp(1, 40);
        let label_each = (count / 6).max(1);
        html! {
            svg role="img" aria-label={ (self.title) "; a table follows" }
                viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) {
                defs { (self.hatches()) }
                line.axis x1="0" y1=(bottom) x2=(WIDTH) y2=(bottom) {}
                // An element of HTML would end the picture.
                text x="0" y="12" { (self.text_of(most)) }
                @for (at, (start, numbers)) in (0_i64..).zip(&self.days) {
                    @for (series, top, height) in stacked(numbers, most, bottom) {
                        (self.bar(series, [at * pitch, top, width, height]))
                    }
                    @if at % label_each == 0 {
                        text x=(at * pitch) y=(HEIGHT - 8) { (month_and_day(*start)) }
                    }
                }
            }
        }
    }

    /// Draws a bar of a series at its place: x, y, width and height.
    fn bar(&self, series: usize, place: [i64; 4]) -> Markup {
        let [x, y, width, height] = place;
        let has_hatch = HATCHES.get(series).is_some_and(|path| !path.is_empty());
        html! {
            rect class=(class(series)) x=(x) y=(y) width=(width) height=(height) {}
            @if has_hatch {
                rect fill={ "url(#" (self.id) "-" (series) ")" } x=(x) y=(y) width=(width)
                    height=(height) {}
            }
        }
    }

    /// Draws the marks of the series, which their bars refer to.
    fn hatches(&self) -> Markup {
        let used = HATCHES.iter().enumerate().take(self.series.len());
        html! {
            @for (series, path) in used.filter(|(_, path)| !path.is_empty()) {
                pattern id={ (self.id) "-" (series) } width="6" height="6"
                    patternUnits="userSpaceOnUse" { path.hatch d=(path) {} }
            }
        }
    }

    fn figures(&self) -> Markup {
        let number = match self.unit {
            ChartUnit::Usd => "Charged, USD",
            ChartUnit::Tokens => "Tokens",
        };
        let columns =
            [Column::Text("Day (UTC)"), Column::Text(self.series_title), Column::Number(number)];
        let rows: Vec<_> = self
            .days
            .iter()
            .rev()
            .flat_map(|(start, numbers)| {
                let of_day = self.series.iter().zip(numbers).filter(|(_, number)| **number > 0);
                of_day.map(|(name, number)| {
                    let day = date_text(*start).unwrap_or_default();
                    vec![html! { (day) }, html! { (name) }, self.shown(*number)]
                })
            })
            .collect();
        table(self.title, &columns, &rows, "")
    }

    fn shown(&self, number: i64) -> Markup {
        match self.unit {
            ChartUnit::Usd => usd(Money::from_nano(number).unwrap_or_default()),
            ChartUnit::Tokens => html! { (number) },
        }
    }

    fn text_of(&self, number: i64) -> String {
        match self.unit {
            ChartUnit::Usd => Money::from_nano(number).unwrap_or_default().to_string(),
            ChartUnit::Tokens => number.to_string(),
        }
    }
}

fn sum_of(numbers: &[i64]) -> i64 {
    numbers.iter().copied().fold(0, i64::saturating_add)
}

/// Returns the part `number` of `most` of a length, rounded down. All are at least 0.
pub(super) fn scaled(number: i64, most: i64, length: i64) -> i64 {
    let part = i128::from(number) * i128::from(length) / i128::from(most.max(1));
    i64::try_from(part).unwrap_or(length)
}

/// Returns the bars of a day or an hour, one on the other: the series, the top and the height of
/// each.
pub(super) fn stacked(numbers: &[i64], most: i64, bottom: i64) -> Vec<(usize, i64, i64)> {
    let mut below = 0_i64;
    let mut bars = Vec::new();
    for (series, number) in numbers.iter().enumerate() {
        let from = scaled(below, most, bottom - 16);
        below = below.saturating_add(*number);
        let to = scaled(below, most, bottom - 16);
        if to > from {
            bars.push((series, bottom - to, to - from));
        }
    }
    bars
}

/// Returns the class whose colour a series has.
pub(super) fn class(series: usize) -> String {
    format!("s{}", series + 1)
}

/// Returns a date without its year, such as `11-27`.
fn month_and_day(start: i64) -> String {
    let date = date_text(start).unwrap_or_default();
    date.split_once('-').map(|(_, rest)| rest.to_owned()).unwrap_or_default()
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
        let rows = usage.iter().map(|row| {
            let model = row.0.model.as_deref().unwrap_or_default();
            (row.0.start, model, row.1.charged.nano())
        });
        let rows: Vec<_> = rows.collect();
        let (series, days) = ranked(&rows);
        assert_eq!(series, ["m7", "m6", "m5", "m4", "m3", OTHERS]);
        assert_eq!(days[&day], [70, 60, 50, 40, 30, 10 + 20]);
        assert_eq!(days[&(2 * day)], [5, 0, 0, 0, 0, 0]);
        // A model may have the name of the last series.
        let named = [(Some(day), OTHERS, 100)];
        let (series, days) = ranked(&[&rows[..], &named].concat());
        assert_eq!((series[0], series[5]), (OTHERS, OTHERS));
        assert_eq!((days[&day][0], days[&day][5]), (100, 10 + 20 + 30));
        let drawn = spend_by_day(&usage).into_string();
        assert!(
            drawn.contains("<svg") && drawn.contains("<table>") && drawn.contains("1970-01-02")
        );
        assert!(spend_by_day(&[]).into_string().contains("Nothing was charged"));
        // A picture with HTML in it ends there, and has no bars.
        for picture in drawn.split("<svg").skip(1).filter_map(|rest| rest.split("</svg>").next()) {
            assert!(!picture.contains("<span"), "{picture}");
        }
    }

    #[test]
    fn cached_tokens_are_no_other_input() {
        let group =
            UsageGroup { start: Some(86_400_000), key_id: None, model: None, endpoint: None };
        let sums = RollupSums {
            prompt_tokens: 1_000,
            cached_tokens: 400,
            completion_tokens: 7,
            ..RollupSums::default()
        };
        let drawn = tokens_by_day(&[(group, sums)]).into_string();
        for cell in ["<td class=\"number\">600</td>", ">400</td>", ">7</td>", "1007</text>"] {
            assert!(drawn.contains(cell), "{cell}: {drawn}");
        }
        assert!(tokens_by_day(&[]).into_string().contains("Nothing was charged"));
    }

    #[test]
    fn a_key_has_its_name_and_what_has_none_says_so() {
        let row = |id: &str| {
            let key_id = Some(id.to_owned());
            let group = UsageGroup { start: Some(0), key_id, model: None, endpoint: None };
            let charged = Money::from_nano(5).expect("an amount");
            (group, RollupSums { charged, ..RollupSums::default() })
        };
        let drawn = spend_by_key(&[row("7"), row("")], &|id| format!("sk-{id}")).into_string();
        assert!(drawn.contains("sk-7") && drawn.contains("no key"), "{drawn}");
    }
}
