//! Lines of a journal with the hours in which they were posted. The script that appends a line
//! notes the hour of the server's clock if it is a later one than that of the line before.

use super::super::archive::JournalPage;
use super::super::keys::{self, AccountKeys};
use super::super::reply_parts::{parse_part, unexpected};
use super::super::shared_store::RedisStore;
use crate::ledger::Unavailable;
use crate::usage::{HourMark, PostedEntry, hour_of};

impl RedisStore {
    /// Returns lines of a journal after `seq`, at most `limit`, with their hours: the first ones
    /// that are still there.
    pub(super) async fn read_posted_lines(
        &self,
        keys: &AccountKeys,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<PostedEntry>, Unavailable> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let JournalPage { after, lines, marks } = self.read_lines(keys, seq, limit, true).await?;
        let marks = marks.iter().map(|text| parse_mark(text));
        let marks: Vec<HourMark> = marks.collect::<Result<_, _>>()?;
        let posted = |(seq, text): (u64, &String)| {
            let entry = keys::parse_journal_entry(seq, text)?;
            Ok(PostedEntry { entry, posted_at: hour_of(&marks, seq) })
        };
        (after + 1..).zip(&lines).map(posted).collect()
    }
}

/// Parses `INDEX HOUR`, where the index of the first line is 0.
fn parse_mark(text: &str) -> Result<HourMark, Unavailable> {
    let (index, hour) = text.split_once(' ').ok_or_else(|| unexpected(text))?;
    let index: u64 = parse_part(index)?;
    Ok(HourMark { seq: index.saturating_add(1), hour: parse_part(hour)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_the_index_of_a_line_and_an_hour() {
        assert_eq!(parse_mark("2 100").expect("a mark"), HourMark { seq: 3, hour: 100 });
        for text in ["", "7", "x 5", "-1 5", "5 y"] {
            assert!(parse_mark(text).is_err(), "{text}");
        }
    }
}
