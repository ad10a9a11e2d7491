//! Reads the segments of a log of ends: which allotments they are about, and those of their ends
//! that are wanted.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use super::end_record::{self, AllotmentEnds};
use super::segment_files;
use crate::ledger::AccountName;
use crate::ledger::prepaid::records::AllotmentId;

/// An allotment of an account.
pub(in crate::store) type AllotmentKey = (AccountName, AllotmentId);

/// Ends by account and allotment.
pub(in crate::store) type EndsByAllotment = BTreeMap<AllotmentKey, AllotmentEnds>;

/// The segments of a log of ends, and the lines that only memory has for certain.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct EndFiles {
    /// The paths of the segments, oldest first.
    pub(super) segments: Vec<PathBuf>,
    /// Lines, some of which may be in a segment as well.
    pub(super) in_memory: Vec<u8>,
}

/// The allotments in a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::store) struct EndIndex {
    /// The last end of each.
    pub(in crate::store) last: BTreeMap<AllotmentKey, LastEnd>,
    /// The number of lines that are damaged.
    pub(in crate::store) torn: usize,
}

/// The last end of an allotment in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct LastEnd {
    /// When the allotment was lent first, in unix ms of the store.
    pub(in crate::store) lent_at: i64,
    /// The number of the end.
    pub(in crate::store) seq: u64,
}

/// The ends of allotments that are wanted.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct WantedEnds(HashMap<AllotmentKey, WantedRange>);

/// The numbers above `known`, up to `last`.
#[derive(Debug, Clone, Copy)]
struct WantedRange {
    known: u64,
    last: u64,
}

impl WantedEnds {
    /// Adds the ends of an allotment with numbers above `known`, up to `last`.
    pub(in crate::store) fn add(&mut self, key: AllotmentKey, known: u64, last: u64) {
        if known < last {
            self.0.insert(key, WantedRange { known, last });
        }
    }

    pub(in crate::store) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn count(&self) -> u64 {
        self.0.values().map(|range| range.last - range.known).sum()
    }
}

impl EndFiles {
    /// Returns the allotments in the log.
    ///
    /// # Errors
    /// A segment cannot be read.
    pub(in crate::store) fn read_index(&self) -> io::Result<EndIndex> {
        let (mut torn, mut last) = (0, HashMap::<String, HashMap<String, LastEnd>>::new());
        let mut add_all = |text: &[u8]| {
            torn += end_record::for_each_head(text, |head| {
                // Nearly all lines are about an allotment that is known already.
                if !last.contains_key(&*head.account) {
                    last.insert(head.account.clone().into_owned(), HashMap::new());
                }
                let Some(allotments) = last.get_mut(&*head.account) else { return };
                let end = LastEnd { lent_at: head.lent_at, seq: head.seq };
                match allotments.get_mut(&*head.allotment) {
                    Some(known) if known.seq <= end.seq => *known = end,
                    Some(_) => {}
                    None => drop(allotments.insert(head.allotment.into_owned(), end)),
                }
            });
        };
        for segment in &self.segments {
            add_all(&read_segment(segment)?);
        }
        add_all(&self.in_memory);
        let mut index = EndIndex { last: BTreeMap::new(), torn };
        for (account, allotments) in last {
            let Some(account) = AccountName::parse(&account) else { continue };
            let keyed =
                allotments.into_iter().map(|(id, end)| ((account.clone(), AllotmentId(id)), end));
            index.last.extend(keyed);
        }
        Ok(index)
    }

    /// Reads all ends, and counts the damaged lines.
    #[cfg(test)]
    pub(super) fn read_all(&self) -> (EndsByAllotment, usize) {
        let (index, mut wanted) = (self.read_index().expect("an index"), WantedEnds::default());
        for (key, last) in index.last {
            wanted.add(key, 0, last.seq);
        }
        (self.read_wanted(&wanted).expect("ends"), index.torn)
    }

    /// Reads wanted ends. The newest segment comes first, since a store loses its newest writes;
    /// the others are read only as long as something is missing.
    ///
    /// # Errors
    /// A segment cannot be read.
    pub(in crate::store) fn read_wanted(&self, wanted: &WantedEnds) -> io::Result<EndsByAllotment> {
        let (mut read, mut missing) = (EndsByAllotment::new(), wanted.count());
        let mut add_all = |text: &[u8]| {
            for end in end_record::parse_ends(text).0 {
                let key = (end.account.clone(), end.allotment.clone());
                let range = wanted.0.get(&key);
                if range.is_some_and(|range| range.known < end.seq && end.seq <= range.last) {
                    let ends = read.entry(key).or_default();
                    missing -= u64::from(!ends.ends.contains_key(&end.seq));
                    ends.add(end);
                }
            }
            missing == 0
        };
        if add_all(&self.in_memory) {
            return Ok(read);
        }
        for segment in self.segments.iter().rev() {
            if add_all(&read_segment(segment)?) {
                break;
            }
        }
        Ok(read)
    }
}

/// Reads a segment. One that was removed meanwhile is not needed any more.
fn read_segment(segment: &Path) -> io::Result<Vec<u8>> {
    match segment_files::read_written(segment) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::prepaid::records::CallEnd;

    fn key(allotment: &str) -> AllotmentKey {
        let account = AccountName::parse("ada").expect("a name");
        (account, AllotmentId(allotment.to_owned()))
    }

    fn lines(allotment: &str, seqs: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let end = |seq: u64| CallEnd::uncharged(&seq.to_string());
        let (account, id) = key(allotment);
        let line = |seq| end_record::encode_end(&account, &id, 5, seq, &end(seq));
        seqs.into_iter().flat_map(line).collect()
    }

    fn files(folder: &Path, segments: &[Vec<u8>]) -> EndFiles {
        let path = |number| folder.join(format!("{number:08}.ends"));
        let write = |(number, text): (usize, &Vec<u8>)| {
            std::fs::write(path(number), text).expect("a file");
            path(number)
        };
        let segments = segments.iter().enumerate().map(write).collect();
        EndFiles { segments, in_memory: lines("b", [3, 4]) }
    }

    #[test]
    fn the_index_has_the_last_end_of_each_allotment() {
        let folder = tempfile::tempdir().expect("a folder");
        let torn = [lines("a", [2, 3]), b"torn\n".to_vec()].concat();
        let files = files(folder.path(), &[lines("a", [1, 2]), torn]);
        let index = files.read_index().expect("an index");
        let last = |seq| LastEnd { lent_at: 5, seq };
        assert_eq!(index.last, [(key("a"), last(3)), (key("b"), last(4))].into());
        assert_eq!(index.torn, 1);
    }

    #[test]
    fn what_is_wanted_is_read_from_the_newest_segments() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path(), &[lines("a", 1..=3), lines("a", 4..=6), lines("a", [7])]);
        let read = |known, last| {
            let mut wanted = WantedEnds::default();
            wanted.add(key("a"), known, last);
            let read = files.read_wanted(&wanted).expect("ends");
            read.into_values().flat_map(|ends| ends.ends.into_keys()).collect::<Vec<_>>()
        };
        assert_eq!(read(0, 9), [1, 2, 3, 4, 5, 6, 7], "8 and 9 are nowhere");
        std::fs::write(&files.segments[0], lines("a", [5])).expect("written");
        assert_eq!((read(4, 7), read(2, 6)), (vec![5, 6, 7], vec![4, 5, 6]));
        assert_eq!(read(7, 7), [0; 0]);
        std::fs::remove_file(&files.segments[0]).expect("removed");
        assert_eq!(read(0, 6), [4, 5, 6]);
    }
}
