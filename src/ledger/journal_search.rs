//! Finds the lines of a call in the journal of its account, which has no index by the ids of calls:
//! they begin with their time, and the lines are roughly in the order of theirs.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::Deserialize;

use super::journal::JournalEntry;

/// The length of a UUID as text.
const UUID_CHARS: usize = 36;
/// A search begins this long before the time in an id, in ms: the clocks of gateways differ.
const CLOCK_SKEW_MS: i64 = 60_000;
/// The number of entries whose times tell together where a place of the journal is: a few may have
/// come late.
const PROBE_SIZE: u32 = 16;
/// The number of entries that are read at a time.
pub(crate) const SEARCH_PAGE_SIZE: u32 = 1_000;

/// The journal of an account, as its searcher reads it.
pub(crate) trait JournalReader {
    /// Why it cannot be read.
    type Error;

    /// Returns the number of the last entry; 0 if there is none.
    fn length(&self) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Returns entries after a number, oldest first, at most `limit`.
    fn read(
        &self,
        after: u64,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<JournalEntry>, Self::Error>> + Send;
}

/// How far a search goes from the time of a call on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchBounds {
    /// No call is charged later than this after its id was made, in ms.
    pub(crate) call_life_ms: i64,
    /// At most this many pages of [`SEARCH_PAGE_SIZE`] are read.
    pub(crate) pages_max: usize,
}

/// Reads the pages of a journal that have the lines of a call, oldest first, and gives each to
/// `collect`. An id without a time has none.
///
/// # Errors
/// The journal cannot be read, or those of `collect`.
pub(crate) async fn search_from_time<R: JournalReader>(
    journal: &R,
    id: &str,
    bounds: SearchBounds,
    mut collect: impl FnMut(Vec<JournalEntry>) -> Result<(), R::Error>,
) -> Result<(), R::Error> {
    let Some(time_ms) = time_of_id(id) else { return Ok(()) };
    let mut after = count_before(journal, time_ms.saturating_sub(CLOCK_SKEW_MS)).await?;
    let until = time_ms.saturating_add(bounds.call_life_ms);
    for _ in 0..bounds.pages_max {
        let page = journal.read(after, SEARCH_PAGE_SIZE).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        let is_over = page.len() < SEARCH_PAGE_SIZE as usize || have_all(&page, |at| at > until);
        collect(page)?;
        if is_over {
            break;
        }
    }
    Ok(())
}

/// Whether an entry is older than all lines of the call or video job that has an id.
pub(crate) fn is_before_request(entry: &JournalEntry, id: &str) -> bool {
    let begin = time_of_id(id).map(|time_ms| time_ms.saturating_sub(CLOCK_SKEW_MS));
    begin.is_none_or(|begin| time_of_entry(entry).is_some_and(|at| at < begin))
}

/// Returns the time in the id of a call or of a video job, in unix ms; `None` if it has none.
pub(crate) fn time_of_id(id: &str) -> Option<i64> {
    let at = id.len().checked_sub(UUID_CHARS)?;
    let id = uuid::Uuid::try_parse(id.get(at..)?).ok()?;
    let (seconds, nanos) = id.get_timestamp().filter(|_| id.get_version_num() == 7)?.to_unix();
    i64::try_from(seconds).ok()?.checked_mul(1_000)?.checked_add(i64::from(nanos / 1_000_000))
}

/// Returns how many entries at the beginning of a journal are older than a time.
pub(crate) async fn count_before<R: JournalReader>(
    journal: &R,
    time_ms: i64,
) -> Result<u64, R::Error> {
    let (mut low, mut high) = (0, journal.length().await?);
    while low < high {
        let middle = low + (high - low) / 2;
        let probe = journal.read(middle, PROBE_SIZE).await?;
        if have_all(&probe, |at| at < time_ms) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Whether the times of all entries are as they should be. An entry whose time cannot be read tells
/// nothing, and no entries tell nothing.
fn have_all(entries: &[JournalEntry], is_right: impl Fn(i64) -> bool) -> bool {
    let mut times = entries.iter().filter_map(time_of_entry).peekable();
    times.peek().is_some() && times.all(is_right)
}

/// What the search reads of every line.
#[derive(Deserialize)]
struct LineMoment {
    at: i64,
}

/// Returns the time of an entry, in unix ms.
fn time_of_entry(entry: &JournalEntry) -> Option<i64> {
    serde_json::from_str(&entry.line).ok().map(|line: LineMoment| line.at)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::ledger::EntryKind;
    use crate::money::Money;

    /// A journal whose entries are one second apart.
    struct Journal {
        lines: Vec<String>,
        reads: AtomicUsize,
    }

    impl Journal {
        fn new(count: i64) -> Journal {
            let lines = (0..count).map(|n| format!(r#"{{"at":{}}}"#, 1_000_000 + n * 1_000));
            Journal { lines: lines.collect(), reads: AtomicUsize::new(0) }
        }
    }

    impl JournalReader for Journal {
        type Error = ();

        async fn length(&self) -> Result<u64, ()> {
            Ok(self.lines.len() as u64)
        }

        async fn read(&self, after: u64, limit: u32) -> Result<Vec<JournalEntry>, ()> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let entry = |(seq, line): (u64, &String)| {
                let (kind, amount) = (EntryKind::Charge, Money::ZERO);
                JournalEntry { seq, kind, amount, written_off: amount, line: line.clone() }
            };
            let first = usize::try_from(after).map_err(|_| ())?;
            let lines = (after + 1..).zip(self.lines.iter().skip(first)).take(limit as usize);
            Ok(lines.map(entry).collect())
        }
    }

    /// The id of a call that was made in this second of the journal.
    fn id_of(second: i64) -> String {
        let hex = format!("{:012x}", 1_000_000 + second * 1_000);
        format!("{}-{}-7000-8000-000000000000", &hex[..8], &hex[8..])
    }

    #[tokio::test]
    async fn a_search_reads_from_the_time_of_the_id_to_the_end_of_its_life() {
        let journal = Journal::new(50_000);
        for (second, life_ms, pages_max, expected) in [
            // From a minute and a probe before, until a whole page is younger than the life.
            (30_000, 500_000, 100, Some((29_926, 31_925))),
            (30_000, 500_000, 1, Some((29_926, 30_925))),
            (49_990, 500_000, 100, Some((49_916, 50_000))),
            (10, 500_000, 1, Some((1, 1_000))),
            (90_000, 500_000, 100, None),
        ] {
            journal.reads.store(0, Ordering::Relaxed);
            let bounds = SearchBounds { call_life_ms: life_ms, pages_max };
            let (mut first, mut last) = (u64::MAX, 0);
            let collect = |page: Vec<JournalEntry>| {
                first = page.iter().map(|entry| entry.seq).fold(first, u64::min);
                last = page.iter().map(|entry| entry.seq).fold(last, u64::max);
                Ok(())
            };
            let searched = search_from_time(&journal, &id_of(second), bounds, collect).await;
            assert_eq!(searched, Ok(()));
            let found = (last > 0).then_some((first, last));
            assert_eq!(found, expected, "{second} {life_ms} {pages_max}");
            let reads = journal.reads.load(Ordering::Relaxed);
            assert!(reads < 24, "{reads} reads");
        }
    }

    #[test]
    fn the_id_of_a_call_or_a_job_has_its_time() {
        let id = "019ac3a1-5e00-7000-8000-000000000000";
        let time = time_of_id(id).expect("a time");
        assert_eq!(time, 0x019a_c3a1_5e00);
        assert_eq!(time_of_id(&format!("video_{id}")), Some(time));
        let others = ["", "r", "chatcmpl-1", "video_1", "é9ac3a1-5e00-7000-8000-000000000000"];
        for text in others.into_iter().chain([id.replace("-7", "-4").as_str()]) {
            assert_eq!(time_of_id(text), None, "{text}");
        }
    }
}
