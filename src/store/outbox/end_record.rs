//! The lines of the log of ends: how the end of a call whose hold was made out of an allotment is
//! encoded as a line, and how lines are parsed from a file that may be truncated or damaged.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::record;
use crate::ledger::prepaid::records::{AllotmentId, CallEnd};
use crate::ledger::prepaid::window::{KeyId, WindowId};
use crate::ledger::{AccountName, push_number, push_string};
use crate::money::Money;

/// The end of a call, as it is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct LoggedEnd {
    /// The account.
    pub(in crate::store) account: AccountName,
    /// The allotment out of which the hold was made.
    pub(in crate::store) allotment: AllotmentId,
    /// When the allotment was lent first, in unix ms of the store.
    pub(in crate::store) lent_at: i64,
    /// The number of the end in its allotment.
    pub(in crate::store) seq: u64,
    /// The end.
    pub(in crate::store) end: CallEnd,
}

/// The ends of one allotment that were read from a folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::store) struct AllotmentEnds {
    /// When the allotment was lent first, in unix ms of the store, as its last end says.
    pub(in crate::store) lent_at: i64,
    /// The ends by their numbers.
    pub(in crate::store) ends: BTreeMap<u64, CallEnd>,
}

impl AllotmentEnds {
    /// Adds an end. A line that was written twice counts once.
    pub(super) fn add(&mut self, logged: LoggedEnd) {
        if self.ends.last_key_value().is_none_or(|(last, _)| *last <= logged.seq) {
            self.lent_at = logged.lent_at;
        }
        self.ends.insert(logged.seq, logged.end);
    }
}

/// The JSON form of a [`LoggedEnd`], as it is read. [`encode_end`] writes it.
#[derive(Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum EndLine<'a> {
    End {
        account: Cow<'a, str>,
        allotment: Cow<'a, str>,
        lent_at: i64,
        seq: u64,
        call: Cow<'a, str>,
        key: Option<u64>,
        held: Money,
        charge: Option<Money>,
        #[serde(default, deserialize_with = "deserialize_windows")]
        windows: Cow<'a, [WindowId]>,
        /// The line of the journal, if it cannot follow after the tab.
        line: Option<Cow<'a, str>>,
    },
}

/// Encodes the end of a call as a line.
pub(super) fn encode_end(
    account: &AccountName,
    allotment: &AllotmentId,
    lent_at: i64,
    seq: u64,
    end: &CallEnd,
) -> Vec<u8> {
    let (embedded_line, trailing_line) = record::place_journal_line(&end.line);
    let mut json = record::begin_line(trailing_line);
    push_string(&mut json, r#"{"is":"end","account":"#, account.as_str());
    push_string(&mut json, r#","allotment":"#, &allotment.0);
    push_number(&mut json, r#","lent_at":"#, lent_at);
    push_number(&mut json, r#","seq":"#, seq);
    push_string(&mut json, r#","call":"#, &end.call);
    if let Some(KeyId(id)) = end.key {
        push_number(&mut json, r#","key":"#, id);
    }
    push_number(&mut json, r#","held":"#, end.held.nano());
    if let Some(charge) = end.charge {
        push_number(&mut json, r#","charge":"#, charge.nano());
    }
    if !end.windows.is_empty() {
        push_windows(&mut json, &end.windows);
    }
    if let Some(embedded_line) = embedded_line {
        push_string(&mut json, r#","line":"#, &embedded_line);
    }
    json.push('}');
    record::finish_line(json.into_bytes(), trailing_line)
}

/// Appends windows as the short texts of [`WindowId`].
fn push_windows(json: &mut String, windows: &[WindowId]) {
    let mut start_of_item = r#","windows":[""#;
    for window in windows {
        json.push_str(start_of_item);
        window.push_to(json);
        start_of_item = r#"",""#;
    }
    json.push_str(r#""]"#);
}

impl LoggedEnd {
    /// Parses the content of a line; `None` if it is no end.
    fn parse(content: &[u8]) -> Option<LoggedEnd> {
        let (json, trailing_line) = record::split_content(content)?;
        let EndLine::End {
            account,
            allotment,
            lent_at,
            seq,
            call,
            key,
            held,
            charge,
            windows,
            line,
        } = serde_json::from_slice(json).ok()?;
        let (account, allotment) = (AccountName::parse(&account)?, AllotmentId(allotment.into()));
        let (call, key, windows) = (call.into_owned(), key.map(KeyId), windows.into_owned());
        let line = trailing_line.map(Cow::Borrowed).or(line)?.into_owned();
        let end = CallEnd { call, key, held, charge, windows, line };
        Some(LoggedEnd { account, allotment, lent_at, seq, end })
    }
}

/// Which end a line has. The rest of the line is not looked at.
#[derive(Deserialize)]
pub(super) struct EndHead<'a> {
    is: &'a str,
    #[serde(borrow)]
    pub(super) account: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) allotment: Cow<'a, str>,
    pub(super) lent_at: i64,
    pub(super) seq: u64,
}

/// Does something for each intact line of a file. Returns the number of the other lines.
pub(super) fn for_each_head(file: &[u8], mut then: impl FnMut(EndHead<'_>)) -> usize {
    let mut torn = 0;
    for content in record::checked_lines(file) {
        let json = content.and_then(record::split_content).map(|(json, _)| json);
        let head: Option<EndHead<'_>> = json.and_then(|json| serde_json::from_slice(json).ok());
        match head.filter(|head| head.is == "end") {
            Some(head) => then(head),
            None => torn += 1,
        }
    }
    torn
}

/// Parses a file. Returns the ends of the intact lines, and the number of the other lines.
pub(super) fn parse_ends(file: &[u8]) -> (Vec<LoggedEnd>, usize) {
    let mut torn = 0;
    let ends = record::checked_lines(file).filter_map(|content| {
        let end = content.and_then(LoggedEnd::parse);
        torn += usize::from(end.is_none());
        end
    });
    let ends = ends.collect();
    (ends, torn)
}

/// Reads windows from their short texts.
fn deserialize_windows<'de, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Cow<'a, [WindowId]>, D::Error> {
    let texts = Vec::<Cow<'de, str>>::deserialize(deserializer)?;
    let windows = texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom));
    Ok(Cow::Owned(windows.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::prepaid::window::{BudgetOwner, WindowKind};

    fn money() -> impl Strategy<Value = Money> {
        (0..=i64::MAX).prop_map(|nano| Money::from_nano(nano).expect("not negative"))
    }

    fn window() -> impl Strategy<Value = WindowId> {
        let owner = prop_oneof![
            Just(BudgetOwner::Account),
            any::<u64>().prop_map(|id| BudgetOwner::Key(KeyId(id))),
        ];
        (owner, prop::sample::select(WindowKind::ALL.to_vec()), any::<i64>())
            .prop_map(|(owner, kind, start)| WindowId { owner, kind, start })
    }

    fn call_end() -> impl Strategy<Value = CallEnd> {
        let (key, charge) = (any::<Option<u64>>(), proptest::option::of(money()));
        let windows = prop::collection::vec(window(), 0..4);
        ("(?s).{0,9}", key, money(), charge, windows, "(?s).{0,40}").prop_map(
            |(call, key, held, charge, windows, line)| {
                let key = key.map(KeyId);
                CallEnd { call, key, held, charge, windows, line }
            },
        )
    }

    fn logged() -> impl Strategy<Value = LoggedEnd> {
        let account = "[a-z]{1,9}".prop_map(|name| AccountName::parse(&name).expect("a name"));
        let allotment = "(?s).{0,9}".prop_map(AllotmentId);
        (account, allotment, any::<i64>(), any::<u64>(), call_end()).prop_map(
            |(account, allotment, lent_at, seq, end)| LoggedEnd {
                account,
                allotment,
                lent_at,
                seq,
                end,
            },
        )
    }

    fn encode(logged: &LoggedEnd) -> Vec<u8> {
        let LoggedEnd { account, allotment, lent_at, seq, end } = logged;
        encode_end(account, allotment, *lent_at, *seq, end)
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(ends in prop::collection::vec(logged(), 0..9)) {
            let mut file: Vec<u8> = ends.iter().flat_map(encode).collect();
            prop_assert_eq!(record::used_length(&file), file.len());
            prop_assert_eq!(parse_ends(&file), (ends.clone(), 0));
            file.extend([0; 99]);
            prop_assert_eq!(parse_ends(&file), (ends, 0));
        }

        #[test]
        fn a_file_that_was_cut_off_has_all_whole_lines_before_the_cut(
            ends in prop::collection::vec(logged(), 1..9),
            cut in any::<prop::sample::Index>(),
        ) {
            let file: Vec<u8> = ends.iter().flat_map(encode).collect();
            let cut = cut.index(file.len());
            let (parsed, torn) = parse_ends(&file[..cut]);
            let lengths = ends.iter().scan(0, |length, end| {
                *length += encode(end).len();
                Some(*length)
            });
            // A line is intact even without its newline.
            let whole = lengths.take_while(|length| length - 1 <= cut).count();
            prop_assert_eq!(&parsed[..], &ends[..whole]);
            prop_assert!(torn <= 1);
        }

        #[test]
        fn a_byte_that_changed_invents_nothing_and_costs_its_line_and_at_most_the_next(
            ends in prop::collection::vec(logged(), 1..9),
            at in any::<prop::sample::Index>(),
            by in 1u8..,
        ) {
            let mut file: Vec<u8> = ends.iter().flat_map(encode).collect();
            let at = at.index(file.len());
            file[at] ^= by;
            let (parsed, _) = parse_ends(&file);
            let mut left = ends.iter();
            prop_assert!(parsed.iter().all(|end| left.any(|known| known == end)), "{parsed:?}");
            prop_assert!(parsed.len() + 2 >= ends.len());
        }

        #[test]
        fn any_bytes_can_be_read(file in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(parse_ends(&file).0, []);
        }

        #[test]
        fn a_window_is_read_back_from_its_text(window in window()) {
            prop_assert_eq!(window.to_string().parse(), Ok(window));
        }
    }

    /// A line with a valid checksum.
    fn checked(content: &str) -> Vec<u8> {
        format!("{:08x} {content}\n", crc32fast::hash(content.as_bytes())).into_bytes()
    }

    #[test]
    fn the_fields_of_a_line_are_those_that_are_documented() {
        let nano = |n| Money::from_nano(n).expect("money");
        let day =
            WindowId { owner: BudgetOwner::Account, kind: WindowKind::Day, start: 86_400_000 };
        let month =
            WindowId { owner: BudgetOwner::Key(KeyId(7)), kind: WindowKind::Month, start: -5 };
        let full = CallEnd {
            call: "c".to_owned(),
            key: Some(KeyId(7)),
            held: nano(9),
            charge: Some(nano(8)),
            windows: vec![day, month],
            line: r#"{"a":1}"#.to_owned(),
        };
        let bare = CallEnd { key: None, charge: None, windows: Vec::new(), ..full.clone() };
        let (account, allotment) =
            (AccountName::parse("acme").expect("a name"), AllotmentId("run-1".to_owned()));
        let line = |end: &CallEnd| encode_end(&account, &allotment, 5, 6, end);
        assert_eq!(
            line(&full),
            checked(
                &[
                    r#"{"is":"end","account":"acme","allotment":"run-1","lent_at":5,"seq":6,"#,
                    r#""call":"c","key":7,"held":9,"charge":8,"#,
                    r#""windows":["account/day/86400000","key:7/month/-5"]}"#,
                    "\t{\"a\":1}",
                ]
                .concat()
            )
        );
        assert_eq!(
            line(&bare),
            checked(
                &[
                    r#"{"is":"end","account":"acme","allotment":"run-1","lent_at":5,"seq":6,"#,
                    r#""call":"c","held":9}"#,
                    "\t{\"a\":1}",
                ]
                .concat()
            )
        );
    }

    #[test]
    fn what_is_not_understood_is_passed_over() {
        let with_windows = |windows: &str| {
            let start = r#"{"is":"end","account":"a","allotment":"b","lent_at":1,"seq":1,"#;
            let call = r#""call":"c","held":1,"windows":["#;
            checked(&[start, call, windows, "]}\tx"].concat())
        };
        assert_eq!(parse_ends(&with_windows(r#""account/day/1""#)).0.len(), 1);
        let bad_windows = [
            "account/day/",
            "account/day",
            "account/year/1",
            "key/day/1",
            "key:/day/1",
            "key:-1/day/1",
            "account/day/1/2",
            "Account/day/1",
            "",
        ];
        for window in bad_windows {
            let file = with_windows(&format!("\"{window}\""));
            assert_eq!(parse_ends(&file), (Vec::new(), 1), "{window}");
        }
        let others = [
            r#"{"is":"settle","seq":1,"at":2,"account":"a","id":"h","charge":3,"line":"x"}"#,
            r#"{"is":"begin","account":"a"}"#,
            r#"{"is":"end","account":"a","allotment":"b","lent_at":1,"seq":1,"call":"c","held":1}"#,
            "{\"is\":\"end\",\"account\":\"no name\",\"allotment\":\"b\",\"lent_at\":1,\
             \"seq\":1,\"call\":\"c\",\"held\":1}\tx",
        ];
        for other in others {
            assert_eq!(parse_ends(&checked(other)), (Vec::new(), 1), "{other}");
        }
        let (old_log, _) = record::parse_segment(&with_windows(""));
        assert_eq!(old_log, [], "it is no record of the other log");
    }

    #[test]
    fn the_last_end_says_when_the_allotment_was_lent() {
        let mut read = AllotmentEnds::default();
        let end = |seq, lent_at| {
            let file = encode_end(
                &AccountName::parse("a").expect("a name"),
                &AllotmentId("b".to_owned()),
                lent_at,
                seq,
                &CallEnd::uncharged(&seq.to_string()),
            );
            parse_ends(&file).0.remove(0)
        };
        for (seq, lent_at) in [(1, 10), (3, 20), (3, 20), (2, 10)] {
            read.add(end(seq, lent_at));
        }
        assert_eq!((read.lent_at, read.ends.into_keys().collect::<Vec<_>>()), (20, vec![1, 2, 3]));
    }
}
