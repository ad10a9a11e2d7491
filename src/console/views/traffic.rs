//! The traffic of this gateway: its calls with their errors and their times to the first byte, hour
//! by hour.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::chart::{FOOT, HEIGHT, WIDTH, class, scaled, stacked};
use super::parts::{Column, facts, moment, table};
use crate::gateway::traffic::counts::CallCounts;
use crate::gateway::traffic::history::HourOfCalls;
use crate::gateway::traffic::percentile::TimePercentile;
use crate::gateway::traffic::reading::TrafficView;

const HOUR_MS: i64 = 3_600_000;
/// The place of the axis.
const BOTTOM: i64 = HEIGHT - FOOT;
/// The space above the highest value, which has the text of the scale.
const TOP: i64 = 16;
/// An hour in this many has its time below it.
const LABEL_EACH: usize = 4;
/// The two series of calls.
const SERIES: [&str; 2] = ["answered", "ended in an error"];

/// A percentile that is drawn as a line.
struct Line {
    name: &'static str,
    per_cent: u64,
    /// The series whose colour it has.
    series: usize,
    /// The distance of its name from the last point.
    name_shift: i64,
}

/// The lines differ by their dashes and their marks, too.
const LINES: [Line; 2] = [
    Line { name: "p50", per_cent: 50, series: 0, name_shift: 36 },
    Line { name: "p95", per_cent: 95, series: 1, name_shift: 4 },
];

/// Draws the section of the first page.
pub(in crate::console) fn draw(traffic: &TrafficView) -> Markup {
    let has_calls = traffic.hours.iter().any(|hour| hour.calls.calls() > 0);
    html! {
        section aria-labelledby="traffic" {
            h2 #traffic { "Calls of this gateway" }
            p.hint {
                "As this gateway has counted since it started at " (moment(traffic.since))
                " UTC, at most 24 hours ago. Other gateways of a fleet count their own. Free calls "
                "and the polls of video jobs are among them."
            }
            (facts(&today(&traffic.today)))
            p.hint {
                "Times are estimated within ranges of milliseconds and seconds, and may be above "
                "that of the slowest call."
            }
            @if has_calls {
                (calls(&traffic.hours))
                (times(&traffic.hours))
            } @else {
                p.empty { "No call has come to this gateway in the last 24 hours." }
            }
        }
    }
}

fn today(calls: &CallCounts) -> [(&'static str, Markup); 6] {
    let time = |per_cent| {
        let time = TimePercentile::of(&calls.first_bytes, per_cent);
        html! { span.number { (time_text(time)) } }
    };
    let number = |number: u64| html! { span.number { (number) } };
    [
        ("Calls today", number(calls.calls())),
        ("Errors of clients (4xx)", number(calls.client_errors)),
        ("Errors of vendors (502, 504, 529)", number(calls.vendor_errors)),
        ("Errors of this gateway (other 5xx)", number(calls.gateway_errors)),
        ("Time to first byte today, p50", time(50)),
        ("Time to first byte today, p95", time(95)),
    ]
}

fn calls(hours: &[HourOfCalls]) -> Markup {
    html! {
        h3 { "Calls and their errors" }
        figure {
            (bars(hours))
            figcaption {
                ul.legend {
                    @for (at, name) in SERIES.iter().enumerate() {
                        li {
                            svg width="12" height="12" aria-hidden="true" {
                                rect class=(class(at)) width="12" height="12" {}
                            }
                            " " (name)
                        }
                    }
                }
            }
        }
        details {
            summary { "The figures of the calls" }
            (table(
                "Calls and their errors by hour",
                &[
                    Column::Text("Hour (UTC)"), Column::Number("Calls"),
                    Column::Number("Errors of clients"), Column::Number("Errors of vendors"),
                    Column::Number("Errors of this gateway"), Column::Number("Share of errors"),
                ],
                &hours.iter().rev().map(calls_row).collect::<Vec<_>>(),
                "",
            ))
            p.hint {
                "A status tells whose error it is: 4xx, or no answer at all, is the client's; 502, "
                "504 and 529 are the vendor's; all other 5xx are this gateway's, with those 503 "
                "that tell of an overloaded vendor. A stream that breaks after its beginning "
                "counts as answered."
            }
        }
    }
}

fn calls_row(hour: &HourOfCalls) -> Vec<Markup> {
    let calls = &hour.calls;
    vec![
        html! { (date_and_hour(hour.start)) },
        html! { (calls.calls()) },
        html! { (calls.client_errors) },
        html! { (calls.vendor_errors) },
        html! { (calls.gateway_errors) },
        html! { (share_text(calls.errors(), calls.calls())) },
    ]
}

fn bars(hours: &[HourOfCalls]) -> Markup {
    let pair = |hour: &HourOfCalls| [whole(hour.calls.answered), whole(hour.calls.errors())];
    let sums = hours.iter().map(|hour| whole(hour.calls.calls()));
    let most = sums.max().unwrap_or_default().max(1);
    let pitch = pitch(hours);
    html! {
        svg role="img" aria-label="Calls of each hour and their errors; a table follows"
            viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) {
            line.axis x1="0" y1=(BOTTOM) x2=(WIDTH) y2=(BOTTOM) {}
            text x="0" y="12" { (most) @if most == 1 { " call" } @else { " calls" } }
            @for (at, hour) in (0_i64..).zip(hours) {
                @for (series, top, height) in stacked(&pair(hour), most, BOTTOM) {
                    rect class=(class(series)) x=(at * pitch) y=(top) width=(pitch - 4)
                        height=(height) {}
                }
            }
            (hour_labels(hours))
        }
    }
}

fn times(hours: &[HourOfCalls]) -> Markup {
    html! {
        h3 { "Time to first byte, p50 and p95" }
        figure {
            (lines(hours))
            figcaption {
                ul.legend {
                    @for line in &LINES {
                        li {
                            svg width="36" height="12" aria-hidden="true" {
                                polyline class=(line_class(line)) points="0,6 36,6" {}
                                (mark(line, (18, 6)))
                            }
                            " " (line.name)
                        }
                    }
                }
            }
        }
        details {
            summary { "The figures of the times" }
            (table(
                "Time to first byte by hour",
                &[
                    Column::Text("Hour (UTC)"), Column::Number("Answers"), Column::Number("p50"),
                    Column::Number("p95"),
                ],
                &hours.iter().rev().map(times_row).collect::<Vec<_>>(),
                "",
            ))
            p.hint {
                "From the head of a request to the first byte of its answer, of errors too. Times "
                "are counted in ranges, within which these figures are estimated."
            }
        }
    }
}

fn times_row(hour: &HourOfCalls) -> Vec<Markup> {
    let counts = &hour.calls.first_bytes;
    let time = |per_cent| time_text(TimePercentile::of(counts, per_cent));
    vec![
        html! { (date_and_hour(hour.start)) },
        html! { (counts.iter().copied().fold(0, u64::saturating_add)) },
        html! { (time(50)) },
        html! { (time(95)) },
    ]
}

fn lines(hours: &[HourOfCalls]) -> Markup {
    let of = |line: &Line| -> Vec<Option<TimePercentile>> {
        let times = hours.iter().map(|hour| &hour.calls.first_bytes);
        times.map(|counts| TimePercentile::of(counts, line.per_cent)).collect()
    };
    let of_lines = LINES.each_ref().map(of);
    let highest = of_lines.iter().flatten().flatten().max_by_key(|time| time.micros()).copied();
    let most = highest.map_or(1, |time| whole(time.micros()).max(1));
    html! {
        svg role="img" aria-label="Time to first byte of each hour, p50 and p95; a table follows"
            viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) {
            line.axis x1="0" y1=(BOTTOM) x2=(WIDTH) y2=(BOTTOM) {}
            text x="0" y="12" { (time_text(highest)) }
            @for (line, times) in LINES.iter().zip(&of_lines) {
                @let runs = runs(times, most, pitch(hours));
                @for run in &runs {
                    polyline class=(line_class(line)) points=(points(run)) {}
                    @for point in run { (mark(line, *point)) }
                }
                @if let Some((x, y)) = runs.last().and_then(|run| run.last()) {
                    text x=(x - line.name_shift) y=(y - 6) text-anchor="end" { (line.name) }
                }
            }
            (hour_labels(hours))
        }
    }
}

/// Returns the points of a line, in runs: an hour without answers is a gap.
fn runs(times: &[Option<TimePercentile>], most: i64, pitch: i64) -> Vec<Vec<(i64, i64)>> {
    let mut runs = vec![Vec::new()];
    for (at, time) in (0_i64..).zip(times) {
        match (time, runs.last_mut()) {
            (Some(time), Some(run)) => {
                let height = scaled(whole(time.micros()), most, BOTTOM - TOP);
                run.push((at * pitch + pitch / 2, BOTTOM - height));
            }
            _ => runs.push(Vec::new()),
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

fn points(run: &[(i64, i64)]) -> String {
    run.iter().map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
}

/// Draws the mark of a value: a circle for the first line, a square for the second.
fn mark(line: &Line, at: (i64, i64)) -> Markup {
    let (x, y) = at;
    html! {
        @if line.series == 0 {
            circle class=(class(line.series)) cx=(x) cy=(y) r="3" {}
        } @else {
            rect class=(class(line.series)) x=(x - 3) y=(y - 3) width="6" height="6" {}
        }
    }
}

fn line_class(line: &Line) -> String {
    format!("l{}", line.series + 1)
}

fn hour_labels(hours: &[HourOfCalls]) -> Markup {
    let pitch = pitch(hours);
    html! {
        @for (at, hour) in (0_i64..).zip(hours).step_by(LABEL_EACH) {
            text x=(at * pitch) y=(HEIGHT - 8) { (time_of_day(hour.start)) }
        }
    }
}

/// Returns the width that an hour has.
fn pitch(hours: &[HourOfCalls]) -> i64 {
    let count = i64::try_from(hours.len()).unwrap_or(1).max(1);
    (WIDTH / count).max(6)
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns an hour with its date, such as `2026-11-27 18:00`.
fn date_and_hour(start: i64) -> String {
    moment(start).chars().take(16).collect()
}

/// Returns an hour as `18:00`.
fn time_of_day(start: i64) -> String {
    format!("{:02}:00", start.div_euclid(HOUR_MS).rem_euclid(24))
}

/// Returns a time as people read it; a dash if there is none.
fn time_text(time: Option<TimePercentile>) -> String {
    match time {
        None => "–".to_owned(),
        Some(TimePercentile::Above(micros)) => format!("over {}", duration_text(micros)),
        Some(TimePercentile::About(micros)) => duration_text(micros),
    }
}

fn duration_text(micros: u64) -> String {
    let ms = micros.div_ceil(1_000);
    match ms {
        0..=999 => format!("{ms} ms"),
        1_000..=9_999 => format!("{}.{:02} s", ms / 1_000, ms % 1_000 / 10),
        _ => format!("{} s", ms / 1_000),
    }
}

/// Returns a part of a whole in per cent, rounded down to a tenth.
fn share_text(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let tenths = u128::from(part) * 1_000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::traffic::percentile::BUCKETS;

    fn hours() -> Vec<HourOfCalls> {
        let hour = |at: i64| {
            let mut first_bytes = [0; BUCKETS];
            // No call at all in the third hour.
            let calls = u64::from(at != 2);
            (first_bytes[1], first_bytes[BUCKETS - 1]) = (90 * calls, 10 * calls);
            let (answered, client_errors) = (95 * calls, 5 * calls);
            let counted = CallCounts { answered, client_errors, ..CallCounts::default() };
            HourOfCalls { start: at * HOUR_MS, calls: CallCounts { first_bytes, ..counted } }
        };
        (0..24).map(hour).collect()
    }

    #[test]
    fn each_chart_has_a_table_and_says_what_its_last_range_hides() {
        let (hours, today) = (hours(), CallCounts::default());
        let view =
            TrafficView { since: 0, hours, today, routes: std::collections::BTreeMap::new() };
        let page = draw(&view).into_string();
        assert_eq!(page.matches("role=\"img\"").count(), 2, "{page}");
        assert_eq!(page.matches("<table>").count(), 2, "{page}");
        for shown in ["100 calls", "5.0 %", "over 300 s", "78 ms", "1970-01-01 23:00", ">20:00<"] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
        // Two lines, each with a gap.
        assert_eq!(page.matches("<polyline").count(), 2 * 2 + 2, "{page}");
        assert!(!page.contains("style="), "{page}");
        let quiet = TrafficView { hours: Vec::new(), ..view };
        assert!(draw(&quiet).into_string().contains("No call has come"));
    }

    #[test]
    fn points_stay_within_the_chart() {
        let time = |micros| Some(TimePercentile::About(micros));
        let runs = runs(&[time(0), None, time(50), time(100)], 100, 30);
        assert_eq!(runs, [vec![(15, BOTTOM)], vec![(75, 86), (105, TOP)]]);
        assert_eq!(points(&runs[1]), "75,86 105,16");
    }

    #[test]
    fn times_and_shares_are_written_as_people_read_them() {
        let texts = [1, 999_000, 1_234_567, 12_000_000, 300_000_000].map(duration_text);
        assert_eq!(texts, ["1 ms", "999 ms", "1.23 s", "12 s", "300 s"]);
        let shares = [(0, 0), (1, 3), (3, 3), (u64::MAX, u64::MAX)];
        let shares = shares.map(|(part, whole)| share_text(part, whole));
        assert_eq!(shares, ["–", "33.3 %", "100.0 %", "100.0 %"]);
    }
}
