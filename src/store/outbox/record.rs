//! The lines of the outbox: how a record is encoded as a line, and how lines are parsed from a file
//! that may be truncated or damaged.
//!
//! A line is the CRC-32 of the rest in eight hex digits, a space, and JSON. If the record has a
//! line of the journal, that follows after a tab: inside the JSON, each of its quotes would have to
//! be escaped.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::ledger::{AccountName, HoldRequest, Operation};
use crate::money::Money;

/// The end of a hold, on its way to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SettlementEntry {
    /// The number of the entry in its folder.
    pub(super) seq: u64,
    /// When it was written, in unix ms.
    pub(super) at: i64,
    /// The account of the hold.
    pub(super) account: AccountName,
    /// A settlement or a void.
    pub(super) op: Operation,
}

/// A record, which is the content of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LogRecord {
    /// The end of a hold, which the store has to apply.
    Entry(SettlementEntry),
    /// A run of the store has acknowledged the entry with this number.
    Acked {
        /// The id of the run.
        run_id: String,
        /// The number of the entry.
        seq: u64,
    },
    /// A run of the store has acknowledged all entries up to this number.
    AllAcked {
        /// The id of the run.
        run_id: String,
        /// The number of the last of these entries.
        seq: u64,
    },
}

/// The JSON form of a [`LogRecord`].
#[derive(Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum LogRecordLine<'a> {
    Settle {
        seq: u64,
        at: i64,
        account: Cow<'a, str>,
        id: Cow<'a, str>,
        charge: Money,
        /// The line of the journal, if it cannot follow after the tab.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<Cow<'a, str>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<HoldRequest>,
    },
    Void {
        seq: u64,
        at: i64,
        account: Cow<'a, str>,
        id: Cow<'a, str>,
    },
    Acked {
        #[serde(rename = "by")]
        run_id: Cow<'a, str>,
        seq: u64,
    },
    AllAcked {
        #[serde(rename = "by")]
        run_id: Cow<'a, str>,
        seq: u64,
    },
}

impl LogRecord {
    /// Parses the content of a line; `None` if it is no known record.
    fn parse(content: &[u8]) -> Option<LogRecord> {
        let (json, trailing_line) = split_content(content)?;
        Some(match serde_json::from_slice(json).ok()? {
            LogRecordLine::Settle { seq, at, account, id, charge, line, origin } => {
                let line = trailing_line.map(Cow::Borrowed).or(line)?;
                let (id, line) = (id.into_owned(), line.into_owned());
                let op = Operation::Settle { id, charge, line, origin, tokens: None };
                LogRecord::Entry(SettlementEntry {
                    seq,
                    at,
                    account: AccountName::parse(&account)?,
                    op,
                })
            }
            LogRecordLine::Void { seq, at, account, id } => {
                let op = Operation::Void { id: id.into_owned() };
                LogRecord::Entry(SettlementEntry {
                    seq,
                    at,
                    account: AccountName::parse(&account)?,
                    op,
                })
            }
            LogRecordLine::Acked { run_id, seq } => {
                LogRecord::Acked { run_id: run_id.into_owned(), seq }
            }
            LogRecordLine::AllAcked { run_id, seq } => {
                LogRecord::AllAcked { run_id: run_id.into_owned(), seq }
            }
        })
    }
}

/// The acknowledgements that were read from a folder: those of one run of the store, and those of
/// any run.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    run: AckNumbers,
    any: AckNumbers,
}

#[derive(Debug, Default)]
struct AckNumbers {
    up_to: u64,
    single: HashSet<u64>,
}

impl AckNumbers {
    fn add(&mut self, record: &LogRecord) {
        match record {
            LogRecord::Acked { seq, .. } => drop(self.single.insert(*seq)),
            LogRecord::AllAcked { seq, .. } => self.up_to = self.up_to.max(*seq),
            LogRecord::Entry(_) => {}
        }
    }

    fn lacks(&self, seq: u64) -> bool {
        seq > self.up_to && !self.single.contains(&seq)
    }
}

impl Acknowledgements {
    /// Adds the acknowledgements of a file. Files are read from the last to the first, since the
    /// acknowledgement of an entry comes after the entry.
    pub(super) fn add_all(&mut self, records: &[LogRecord], run: &str) {
        for record in records {
            self.any.add(record);
            if let LogRecord::Acked { run_id, .. } | LogRecord::AllAcked { run_id, .. } = record
                && run_id == run
            {
                self.run.add(record);
            }
        }
    }

    /// Whether the run has acknowledged all entries of the folder, also those in files that were
    /// not read yet.
    pub(super) fn has_all(&self) -> bool {
        self.run.up_to == u64::MAX
    }

    /// Returns the entries of a file that the run may lack. The first list has those that no run
    /// has acknowledged and those that were written at `since` (unix ms) or later, the second list
    /// the others.
    pub(super) fn missing_entries(
        &self,
        records: Vec<LogRecord>,
        since: i64,
    ) -> (Vec<SettlementEntry>, Vec<SettlementEntry>) {
        let entry = |record| match record {
            LogRecord::Entry(entry) if self.run.lacks(entry.seq) => Some(entry),
            _ => None,
        };
        let lacking = records.into_iter().filter_map(entry);
        lacking.partition(|entry| entry.at >= since || self.any.lacks(entry.seq))
    }
}

/// Returns when the last entry of a file was written, in unix ms; `None` if there is no entry.
pub(super) fn last_entry_ms(records: &[LogRecord]) -> Option<i64> {
    let at = |record: &LogRecord| match record {
        LogRecord::Entry(entry) => Some(entry.at),
        _ => None,
    };
    records.iter().filter_map(at).max()
}

/// Encodes an entry as a line; `None` for an operation that does not end a hold.
pub(super) fn entry_line(
    seq: u64,
    at: i64,
    account: &AccountName,
    op: &Operation,
) -> Option<Vec<u8>> {
    let account = Cow::Borrowed(account.as_str());
    Some(match op {
        Operation::Settle { id, charge, line, origin, .. } => {
            let (embedded_line, trailing_line) = place_journal_line(line);
            let (id, charge, origin) = (id.into(), *charge, *origin);
            let settle =
                LogRecordLine::Settle { seq, at, account, id, charge, line: embedded_line, origin };
            self::encode_line(&settle, trailing_line)
        }
        Operation::Void { id } => {
            encode_line(&LogRecordLine::Void { seq, at, account, id: id.into() }, None)
        }
        _ => return None,
    })
}

/// Decides where a line of the journal is written. Returns it as the one inside the JSON, or as the
/// line after the tab.
///
/// It is appended raw after a tab, since each of its many quotes would have to be escaped in the
/// JSON. It is embedded in the JSON only if a tab, a line break or a zero at its end would keep it
/// from being read back unchanged.
pub(super) fn place_journal_line(line: &str) -> (Option<Cow<'_, str>>, Option<&str>) {
    if fits_after_tab(line.as_bytes()) { (None, Some(line)) } else { (Some(line.into()), None) }
}

/// Whether a line of the journal can follow after the tab and is read back unchanged. It must not
/// contain a line break or a tab, nor end like the preallocated zeros of a file.
fn fits_after_tab(line: &[u8]) -> bool {
    memchr::memchr3(b'\n', b'\r', TAB, line).is_none() && !line.ends_with(b"\0")
}

/// Encodes the line which says that the run `run_id` of the store has acknowledged an entry.
pub(super) fn ack_line(run_id: &str, seq: u64) -> Vec<u8> {
    encode_line(&LogRecordLine::Acked { run_id: run_id.into(), seq }, None)
}

/// Encodes the line which says that the run `run_id` of the store has acknowledged all entries up
/// to `seq`.
pub(super) fn all_acked_line(run_id: &str, seq: u64) -> Vec<u8> {
    encode_line(&LogRecordLine::AllAcked { run_id: run_id.into(), seq }, None)
}

/// Encodes a line of the outbox: `written` as JSON and, if there is one, `trailing_line` after a
/// tab.
pub(super) fn encode_line(written: &impl Serialize, trailing_line: Option<&str>) -> Vec<u8> {
    let mut line = begin_line(trailing_line).into_bytes();
    // Serialization of these types cannot fail.
    let _ = serde_json::to_writer(&mut line, written);
    finish_line(line, trailing_line)
}

/// The place of the checksum in a line that is being written.
const CHECKSUM: &str = "00000000 ";

/// Begins a line, to which its JSON is then appended. `trailing_line` is the same as for
/// [`finish_line`].
pub(super) fn begin_line(trailing_line: Option<&str>) -> String {
    let mut line = String::with_capacity(320 + trailing_line.map_or(0, str::len));
    line.push_str(CHECKSUM);
    line
}

/// Finishes a line that has its JSON: appends `trailing_line` after a tab, if there is one, and
/// fills in the checksum.
pub(super) fn finish_line(mut line: Vec<u8>, trailing_line: Option<&str>) -> Vec<u8> {
    if let Some(trailing_line) = trailing_line {
        line.push(TAB);
        line.extend_from_slice(trailing_line.as_bytes());
    }
    let sum = format!("{:08x}", crc32fast::hash(&line[CHECKSUM.len()..]));
    line[..8].copy_from_slice(sum.as_bytes());
    line.push(b'\n');
    line
}

/// Separates the JSON from the line of the journal. In JSON a tab occurs only as white space, and
/// this JSON has no white space.
const TAB: u8 = b'\t';

/// Parses a file. Returns the records of the intact lines, and the number of the other lines. A
/// damaged last line was being written when the process or the machine ended; a damaged line
/// elsewhere does not affect its neighbours.
pub(super) fn parse_segment(file: &[u8]) -> (Vec<LogRecord>, usize) {
    let mut torn = 0;
    let records = checked_lines(file).filter_map(|content| {
        let record = content.and_then(LogRecord::parse);
        torn += usize::from(record.is_none());
        record
    });
    let records = records.collect();
    (records, torn)
}

/// Returns the content of each line of a file after its checksum; `None` for a line whose checksum
/// is wrong.
pub(super) fn checked_lines(file: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    let lines = file[..used_length(file)].split(|byte| *byte == b'\n');
    lines.filter(|line| !line.is_empty()).map(check_line)
}

/// Splits the content of a line into the JSON and the line of the journal after the tab, if there
/// is one; `None` if that is not UTF-8.
pub(super) fn split_content(content: &[u8]) -> Option<(&[u8], Option<&str>)> {
    Some(match memchr::memchr(TAB, content) {
        Some(at) => (&content[..at], Some(std::str::from_utf8(&content[at + 1..]).ok()?)),
        None => (content, None),
    })
}

/// Returns the length of a file without the preallocated zeros at its end.
pub(super) fn used_length(file: &[u8]) -> usize {
    file.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Returns the content of a line; `None` if the checksum is wrong.
fn check_line(line: &[u8]) -> Option<&[u8]> {
    let (sum, content) = line.split_at_checked(9)?;
    let digits = std::str::from_utf8(sum.strip_suffix(b" ")?).ok()?;
    (u32::from_str_radix(digits, 16).ok()? == crc32fast::hash(content)).then_some(content)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::KeyId;

    fn money() -> impl Strategy<Value = Money> {
        (0..=i64::MAX).prop_map(|nano| Money::from_nano(nano).expect("not negative"))
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let key = proptest::option::of(any::<u64>().prop_map(KeyId));
        let origin = proptest::option::of((money(), money(), key));
        let settle = ("(?s).{0,9}", money(), "(?s).{0,40}", origin).prop_map(
            |(id, charge, line, origin)| {
                let request = |(wanted, least, key)| HoldRequest { wanted, least, at: 7, key };
                let origin = origin.map(request);
                Operation::Settle { id, charge, line, origin, tokens: None }
            },
        );
        prop_oneof![3 => settle, 1 => ".{0,9}".prop_map(|id| Operation::Void { id })]
    }

    fn record() -> impl Strategy<Value = LogRecord> {
        let account = "[a-z]{1,9}".prop_map(|name| AccountName::parse(&name).expect("a name"));
        let entry = (any::<u64>(), any::<i64>(), account, operation()).prop_map(
            |(seq, at, account, op)| LogRecord::Entry(SettlementEntry { seq, at, account, op }),
        );
        let acked = ("[0-9a-f]{32}", any::<u64>());
        prop_oneof![
            3 => entry,
            1 => acked.prop_map(|(run_id, seq)| LogRecord::Acked { run_id, seq }),
            1 => acked.prop_map(|(run_id, seq)| LogRecord::AllAcked { run_id, seq }),
        ]
    }

    fn written(record: &LogRecord) -> Vec<u8> {
        match record {
            LogRecord::Entry(e) => {
                entry_line(e.seq, e.at, &e.account, &e.op).expect("it ends a hold")
            }
            LogRecord::Acked { run_id, seq } => ack_line(run_id, *seq),
            LogRecord::AllAcked { run_id, seq } => all_acked_line(run_id, *seq),
        }
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(records in prop::collection::vec(record(), 0..9)) {
            let mut file: Vec<u8> = records.iter().flat_map(written).collect();
            prop_assert_eq!(used_length(&file), file.len());
            prop_assert_eq!(parse_segment(&file), (records.clone(), 0));
            file.extend([0; 99]);
            prop_assert_eq!(parse_segment(&file), (records, 0));
        }

        #[test]
        fn a_file_that_was_cut_off_has_all_whole_lines_before_the_cut(
            records in prop::collection::vec(record(), 1..9),
            cut in any::<prop::sample::Index>(),
        ) {
            let file: Vec<u8> = records.iter().flat_map(written).collect();
            let cut = cut.index(file.len());
            let (parsed, torn) = parse_segment(&file[..cut]);
            let mut ends = records.iter().scan(0, |end, r| {
                *end += written(r).len();
                Some(*end)
            });
            // A line is intact even without its newline.
            let whole = ends.by_ref().take_while(|end| end - 1 <= cut).count();
            prop_assert_eq!(&parsed[..], &records[..whole]);
            prop_assert!(torn <= 1);
        }

        #[test]
        fn a_byte_that_changed_invents_nothing_and_costs_its_line_and_at_most_the_next(
            records in prop::collection::vec(record(), 1..9),
            at in any::<prop::sample::Index>(),
            by in 1u8..,
        ) {
            let mut file: Vec<u8> = records.iter().flat_map(written).collect();
            let at = at.index(file.len());
            file[at] ^= by;
            let (parsed, _) = parse_segment(&file);
            let mut left = records.iter();
            prop_assert!(parsed.iter().all(|r| left.any(|known| known == r)), "{parsed:?}");
            prop_assert!(parsed.len() + 2 >= records.len());
        }

        #[test]
        fn any_bytes_can_be_read(file in prop::collection::vec(any::<u8>(), 0..200)) {
            let (parsed, _) = parse_segment(&file);
            prop_assert_eq!(parsed, []);
        }
    }

    #[test]
    fn a_line_of_a_journal_is_read_inside_of_the_json_too() {
        let json = r#"{"is":"settle","seq":1,"at":2,"account":"a","id":"h","charge":3,"line":"{\"a\":1}"}"#;
        let file = format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
        let (records, torn) = parse_segment(file.as_bytes());
        let [LogRecord::Entry(SettlementEntry { op: Operation::Settle { line, .. }, .. })] =
            &records[..]
        else {
            panic!("{records:?}, {torn}");
        };
        assert_eq!(line, r#"{"a":1}"#);
    }

    #[test]
    fn what_one_run_has_another_may_lack() {
        let account = AccountName::parse("a").expect("a name");
        let op = Operation::Void { id: "h".to_owned() };
        let entry = |seq| {
            LogRecord::Entry(SettlementEntry {
                seq,
                at: 0,
                account: account.clone(),
                op: op.clone(),
            })
        };
        let by = |run: &str| run.to_owned();
        let mut records: Vec<_> = (1..=6).map(entry).collect();
        records.push(LogRecord::AllAcked { run_id: by("one"), seq: 3 });
        records.push(LogRecord::Acked { run_id: by("one"), seq: 5 });
        records.push(LogRecord::Acked { run_id: by("two"), seq: 6 });
        let lacking = |run: &str| {
            let mut acks = Acknowledgements::default();
            acks.add_all(&records, run);
            acks.missing_entries(records.clone(), i64::MIN)
                .0
                .iter()
                .map(|e| e.seq)
                .collect::<Vec<_>>()
        };
        assert_eq!(lacking("one"), [4, 6]);
        assert_eq!(lacking("two"), [1, 2, 3, 4, 5]);
        assert_eq!(lacking("three"), [1, 2, 3, 4, 5, 6]);
    }
}
