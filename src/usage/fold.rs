//! Folds lines of a journal into rows.
//!
//! | line | key | model, endpoint | what is added |
//! |---|---|---|---|
//! | charge | its own | its own | a call, units, charge, written off, fees, cost or none |
//! | correction | its own | none | what was given back, and what of it was not paid |
//! | expiry | none | none | what has expired |
//!
//! A charge without a known cost adds to the calls without cost. The line of a correction names
//! neither model nor endpoint.
//!
//! Each line is added to its day and to its hour: to the row of its key, and to the one of the
//! whole account. The amounts are those beside the line, so a line that cannot be read loses its
//! units and its names, and no money: over all days of the account, what was charged less what was
//! corrected is P, and what was written off less the part of that which was corrected is W.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::rollup::{
    PeriodKind, RollupKey, RollupOwner, RollupPeriod, RollupSums, Rollups, UsageOverflow,
};
use crate::ledger::{EntryKind, JournalEntry, KeyId};
use crate::money::Money;
use crate::money::fee::ChargedFee;

/// The version of the fold. A change of what is added to which row raises it, and all journals are
/// folded anew.
pub const FOLD_VERSION: u32 = 1;

/// An entry of a journal, with when it was posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostedEntry {
    /// The entry.
    pub entry: JournalEntry,
    /// When it was posted by the clock of the store, to the hour, in unix ms; `None` if the store
    /// does not know. Then the line's own time counts.
    pub posted_at: Option<i64>,
}

/// The members of a line that are folded, as far as it has them.
#[derive(Debug, Default, Deserialize)]
struct FoldedLine<'a> {
    #[serde(default)]
    at: Option<i64>,
    #[serde(default)]
    key_id: Option<KeyId>,
    #[serde(borrow, default)]
    model: Option<FoldedText<'a>>,
    #[serde(borrow, default)]
    endpoint: Option<FoldedText<'a>>,
    #[serde(default)]
    usage: Option<FoldedUnits>,
    #[serde(default)]
    fees: Vec<ChargedFee>,
    #[serde(default)]
    cost_nano: Option<Money>,
}

/// A text that is copied only if it has escapes, which `Option<Cow<str>>` alone is not.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
struct FoldedText<'a>(#[serde(borrow)] Cow<'a, str>);

/// The units of a line that have sums. [`BilledUnits`](crate::money::BilledUnits) are read twice,
/// to find their kind first; the sums need no kind.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct FoldedUnits {
    prompt_tokens: u64,
    completion_tokens: u64,
    cached_tokens: u64,
    characters: u64,
    images: u64,
    seconds: u64,
}

/// A row of a key and an hour, of which the other three rows of its lines are made.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FoldedRow<'a> {
    hour: i64,
    owner: RollupOwner,
    model: Cow<'a, str>,
    endpoint: Cow<'a, str>,
}

/// Folds lines of an account. Parts of a journal that are folded one after the other have together
/// the sums of the whole.
///
/// # Errors
/// [`UsageOverflow`] if a sum does not fit.
pub fn fold(entries: &[PostedEntry]) -> Result<Rollups, UsageOverflow> {
    let mut rows = BTreeMap::<FoldedRow<'_>, RollupSums>::new();
    for PostedEntry { entry, posted_at } in entries {
        let line: FoldedLine<'_> = serde_json::from_str(&entry.line).unwrap_or_default();
        let at = posted_at.or(line.at).unwrap_or_default();
        let sums = sums_of(entry, &line)?;
        let sum = rows.entry(row_of(entry.kind, line, at)).or_default();
        *sum = sum.checked_add(&sums)?;
    }
    expand(rows)
}

fn row_of(kind: EntryKind, line: FoldedLine<'_>, at: i64) -> FoldedRow<'_> {
    let text = FoldedText::default;
    let (key_id, FoldedText(model), FoldedText(endpoint)) = match kind {
        EntryKind::Charge => {
            (line.key_id, line.model.unwrap_or_default(), line.endpoint.unwrap_or_default())
        }
        EntryKind::Correction => (line.key_id, text(), text()),
        EntryKind::Expiry => (None, text(), text()),
    };
    let owner = key_id.map_or(RollupOwner::NoKey, RollupOwner::Key);
    FoldedRow { hour: PeriodKind::Hour.start_of(at), owner, model, endpoint }
}

/// Returns the rows of keys and of the whole account, of hours and of days.
fn expand(rows: BTreeMap<FoldedRow<'_>, RollupSums>) -> Result<Rollups, UsageOverflow> {
    let mut expanded = Rollups::new();
    for (FoldedRow { hour, owner, model, endpoint }, sums) in rows {
        let (model, endpoint) = (model.into_owned(), endpoint.into_owned());
        for kind in PeriodKind::ALL {
            let period = RollupPeriod { kind, start: kind.start_of(hour) };
            for owner in [owner, RollupOwner::Account] {
                let (model, endpoint) = (model.clone(), endpoint.clone());
                let key = RollupKey { period, owner, model, endpoint };
                let sum = expanded.entry(key).or_default();
                *sum = sum.checked_add(&sums)?;
            }
        }
    }
    Ok(expanded)
}

fn sums_of(entry: &JournalEntry, line: &FoldedLine<'_>) -> Result<RollupSums, UsageOverflow> {
    let (amount, written_off) = (entry.amount, entry.written_off);
    let sums = RollupSums::default();
    Ok(match entry.kind {
        EntryKind::Charge => RollupSums {
            calls: 1,
            calls_without_cost: u64::from(line.cost_nano.is_none()),
            charged: amount,
            written_off,
            fees: sum_of_fees(&line.fees)?,
            cost: line.cost_nano.unwrap_or_default(),
            ..sums_of_units(line.usage.unwrap_or_default())
        },
        EntryKind::Correction => {
            RollupSums { corrected: amount, corrected_written_off: written_off, ..sums }
        }
        EntryKind::Expiry => RollupSums { expired: amount, ..sums },
    })
}

fn sum_of_fees(fees: &[ChargedFee]) -> Result<Money, UsageOverflow> {
    let mut sum = Money::ZERO;
    for fee in fees {
        sum = sum.checked_add(fee.amount).map_err(|_| UsageOverflow)?;
    }
    Ok(sum)
}

fn sums_of_units(units: FoldedUnits) -> RollupSums {
    let FoldedUnits { prompt_tokens, completion_tokens, cached_tokens, .. } = units;
    let FoldedUnits { characters, images, seconds, .. } = units;
    let sums = RollupSums { prompt_tokens, completion_tokens, cached_tokens, ..Default::default() };
    RollupSums { characters, images, seconds, ..sums }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rollup::{RollupView, merge_rollups};
    use super::*;
    use crate::money::{BilledUnits, TokenUsage, VideoResolution};

    /// 2026-11-27, 09:00.
    const HOUR: i64 = 1_795_770_000_000;
    const DAY: i64 = 1_795_737_600_000;

    fn nano(amount: i64) -> Money {
        Money::from_nano(amount).expect("money")
    }

    fn entry(kind: EntryKind, amount: i64, written_off: i64, line: &str) -> PostedEntry {
        let (amount, written_off) = (nano(amount), nano(written_off));
        let entry = JournalEntry { seq: 1, kind, amount, written_off, line: line.to_owned() };
        PostedEntry { entry, posted_at: Some(HOUR) }
    }

    fn key(kind: PeriodKind, start: i64, key: Option<u64>, names: [&str; 2]) -> RollupKey {
        let [model, endpoint] = names.map(str::to_owned);
        let period = RollupPeriod { kind, start };
        let owner = key.map_or(RollupOwner::NoKey, |id| RollupOwner::Key(KeyId(id)));
        RollupKey { period, owner, model, endpoint }
    }

    /// The row of a key and a day that one line makes. The others have the same sums.
    fn folded(entry: PostedEntry) -> (RollupKey, RollupSums) {
        let rows = fold(&[entry]).expect("sums");
        let is_own = |key: &RollupKey| key.owner.view() == RollupView::Keys;
        let days = rows.iter().filter(|(key, _)| key.period.kind == PeriodKind::Day);
        let (day, sums) = days.clone().find(|(key, _)| is_own(key)).expect("a day");
        let of_account = RollupKey { owner: RollupOwner::Account, ..day.clone() };
        assert!(rows.contains_key(&of_account) && rows.len() == 4, "{rows:?}");
        assert!(rows.iter().all(|(key, own)| own == sums && key.model == day.model));
        (day.clone(), *sums)
    }

    #[test]
    fn each_kind_of_line_adds_to_its_own_sums() {
        let call = r#"{"at":5,"key_id":7,"endpoint":"chat","model":"m","usage":{"prompt_tokens":30,"completion_tokens":4,"cached_tokens":10},"fees":[{"name":"w","uses":2,"nano":6},{"name":"x","uses":1,"nano":1}],"cost_nano":8,"new":1}"#;
        let charged = RollupSums {
            calls: 1,
            prompt_tokens: 30,
            completion_tokens: 4,
            cached_tokens: 10,
            charged: nano(50),
            written_off: nano(3),
            fees: nano(7),
            cost: nano(8),
            ..RollupSums::default()
        };
        let named = key(PeriodKind::Day, DAY, Some(7), ["m", "chat"]);
        assert_eq!(folded(entry(EntryKind::Charge, 50, 3, call)), (named, charged));

        let correction = r#"{"corrects":"r","correction":"t","reason":"","at":9,"key_id":7}"#;
        let corrected = RollupSums {
            corrected: nano(5),
            corrected_written_off: nano(2),
            ..RollupSums::default()
        };
        let of_key = key(PeriodKind::Day, DAY, Some(7), ["", ""]);
        assert_eq!(folded(entry(EntryKind::Correction, 5, 2, correction)), (of_key, corrected));

        let expiry = r#"{"expired":"5/promotion","at":5}"#;
        let expired = RollupSums { expired: nano(9), ..RollupSums::default() };
        let nobody = key(PeriodKind::Day, DAY, None, ["", ""]);
        assert_eq!(folded(entry(EntryKind::Expiry, 9, 0, expiry)), (nobody, expired));
    }

    #[test]
    fn units_of_each_kind_have_their_sum_and_a_call_may_have_no_cost() {
        let none = RollupSums {
            calls: 1,
            calls_without_cost: 1,
            charged: nano(1),
            ..RollupSums::default()
        };
        let cases = [
            (r#"{"characters":4}"#, RollupSums { characters: 4, ..none }),
            (r#"{"images":2}"#, RollupSums { images: 2, ..none }),
            (r#"{"images":3,"cost_in_usd_ticks":9}"#, RollupSums { images: 3, ..none }),
            (r#"{"seconds":8,"resolution":"720p"}"#, RollupSums { seconds: 8, ..none }),
        ];
        for (units, sums) in cases {
            let line = format!(r#"{{"usage":{units},"model":"m","endpoint":"e"}}"#);
            assert_eq!(folded(entry(EntryKind::Charge, 1, 0, &line)).1, sums, "{units}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_read_loses_no_money() {
        for line in ["", "l", r#"{"model":5}"#, r#"{"usage":5,"model":"m"}"#] {
            let (found, sums) = folded(entry(EntryKind::Charge, 50, 20, line));
            assert_eq!(found, key(PeriodKind::Day, DAY, None, ["", ""]), "{line}");
            assert_eq!((sums.calls, sums.calls_without_cost), (1, 1));
            assert_eq!((sums.charged, sums.written_off), (nano(50), nano(20)), "{line}");
        }
    }

    #[test]
    fn units_that_are_not_known_yet_lose_no_name() {
        let line = r#"{"usage":{"furlongs":1},"model":"m\n","endpoint":"e"}"#;
        let (found, sums) = folded(entry(EntryKind::Charge, 50, 20, line));
        assert_eq!(found, key(PeriodKind::Day, DAY, None, ["m\n", "e"]));
        assert_eq!((sums.calls, sums.charged), (1, nano(50)));
    }

    #[test]
    fn each_kind_of_billed_units_is_read_as_it_is_written() {
        let tokens = TokenUsage { input: 5, output: 4, cache_read: 3, ..TokenUsage::default() };
        let none = RollupSums::default();
        let of_tokens = RollupSums { completion_tokens: 4, cached_tokens: 3, ..none };
        let video =
            BilledUnits::Video { seconds: 7, resolution: VideoResolution::P480, ticks: None };
        let cases = [
            (BilledUnits::Tokens(tokens), RollupSums { prompt_tokens: 5, ..of_tokens }),
            (BilledUnits::Characters { characters: 9 }, RollupSums { characters: 9, ..none }),
            (BilledUnits::BilledImages { images: 2, ticks: 1 }, RollupSums { images: 2, ..none }),
            (BilledUnits::Images { images: 3 }, RollupSums { images: 3, ..none }),
            (video, RollupSums { seconds: 7, ..none }),
        ];
        for (units, sums) in cases {
            let written = serde_json::to_string(&units).expect("JSON");
            let read = serde_json::from_str(&written).expect("units");
            assert_eq!(sums_of_units(read), sums, "{written}");
        }
    }

    #[test]
    fn the_time_of_posting_decides_and_the_time_of_the_line_stands_in() {
        let line = format!(r#"{{"at":{}}}"#, HOUR - 86_400_000);
        let posted = entry(EntryKind::Expiry, 1, 0, &line);
        let older = PostedEntry { posted_at: None, ..posted.clone() };
        assert_eq!(folded(posted).0.period.start, DAY);
        assert_eq!(folded(older).0.period.start, DAY - 86_400_000);
        let untimed = PostedEntry { posted_at: None, ..entry(EntryKind::Charge, 1, 0, "") };
        assert_eq!(folded(untimed).0.period.start, 0);
    }

    #[test]
    fn more_than_fits_is_refused() {
        let much = r#"{"usage":{"prompt_tokens":18446744073709551615,"completion_tokens":0}}"#;
        let line = entry(EntryKind::Charge, 1, 0, much);
        assert_eq!(fold(&[line]), Err(UsageOverflow));
    }

    fn any_entry() -> impl Strategy<Value = PostedEntry> {
        let kinds = vec![EntryKind::Charge, EntryKind::Correction, EntryKind::Expiry];
        let line = (0..3_u8, 0..2_u8, 0..100_u32, any::<bool>(), any::<bool>());
        let line = line.prop_map(|(model, key, tokens, has_cost, is_broken)| {
            if is_broken {
                return "{".to_owned();
            }
            let cost = if has_cost { r#","cost_nano":3"# } else { "" };
            let usage = format!(r#"{{"prompt_tokens":{tokens},"completion_tokens":1}}"#);
            format!(
                r#"{{"at":{HOUR},"key_id":{key},"model":"m{model}","endpoint":"chat","usage":{usage}{cost}}}"#
            )
        });
        let times = proptest::option::of((0..50_i64).prop_map(|hours| HOUR + hours * 3_600_000));
        (prop::sample::select(kinds), 0..1_000_i64, 0..1_000_i64, line, times).prop_map(
            |(kind, amount, rest, line, posted_at)| {
                let rest = if kind == EntryKind::Expiry { 0 } else { rest };
                let posted = entry(kind, amount + rest, rest, &line);
                PostedEntry { posted_at, ..posted }
            },
        )
    }

    proptest! {
        #[test]
        fn parts_that_are_folded_one_by_one_have_the_sums_of_the_whole(
            entries in prop::collection::vec(any_entry(), 0..40),
            cuts in prop::collection::vec(0..40_usize, 0..5),
        ) {
            let whole = fold(&entries).expect("sums");
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(entries.len())).collect();
            cuts.extend([0, entries.len()]);
            cuts.sort_unstable();
            let mut parts = Rollups::new();
            for ends in cuts.windows(2) {
                let part = fold(&entries[ends[0]..ends[1]]).expect("sums");
                merge_rollups(&mut parts, part).expect("sums");
            }
            prop_assert_eq!(&parts, &whole);
            let total = |view: RollupView| -> i64 {
                let days = whole.iter().filter(|(key, _)| {
                    key.period.kind == PeriodKind::Day && key.owner.view() == view
                });
                days.map(|(_, s)| s.charged.nano() - s.corrected.nano()).sum()
            };
            let signed = |e: &PostedEntry| match e.entry.kind {
                EntryKind::Charge => e.entry.amount.nano(),
                EntryKind::Correction => -e.entry.amount.nano(),
                EntryKind::Expiry => 0,
            };
            let expected = entries.iter().map(signed).sum::<i64>();
            prop_assert_eq!(RollupView::ALL.map(total), [expected; 2]);
        }
    }
}
