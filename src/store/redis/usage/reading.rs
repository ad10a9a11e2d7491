//! Reads rows of sums, and the books of an account.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use redis::Pipeline;

use super::super::archive::JOURNAL_BASE_FIELD;
use super::super::keys::AccountKeys;
use super::super::reply_parts::{parse_money, parse_part};
use super::super::shared_store::RedisStore;
use super::rows::{self, RowGroup};
use crate::ledger::{KeyId, Unavailable};
use crate::usage::{
    PeriodKind, RollupKey, RollupOwner, RollupPeriod, RollupSums, RollupView, Rollups, UsageBooks,
    fold,
};

/// Groups of rows are read in parts of this many.
const GROUPS_AT_A_TIME: usize = 32;
/// A group with more rows is read in parts of about this many.
const ROWS_AT_A_TIME: usize = 1_000;
/// Books that change while they are read are read on, at most this often in all.
const BOOK_READINGS_MAX: u32 = 100;
/// If more lines were folded meanwhile, all rows are read again.
const LINES_BETWEEN_MAX: u64 = 5_000;

/// The names and the sums of rows, as they are stored.
type RowTexts = HashMap<String, String>;

impl RedisStore {
    /// Returns the groups of one kind of rows in a range of time (unix ms), in order.
    pub(super) async fn list_groups(
        &self,
        keys: &AccountKeys,
        kind: PeriodKind,
        view: RollupView,
        range: Range<i64>,
    ) -> Result<Vec<RowGroup>, Unavailable> {
        let mut list = redis::cmd("ZRANGEBYSCORE");
        list.arg(keys.usage_index(&rows::kind_of(kind, view)));
        list.arg(range.start).arg(format!("({}", range.end));
        let starts: Vec<i64> = self.connection().await?.query(&list).await?;
        let group = |start| RowGroup { period: RollupPeriod { kind, start }, view };
        Ok(starts.into_iter().map(group).collect())
    }

    /// Returns the rows of groups, in the order of the groups, until there are `rows_max`.
    pub(super) async fn read_groups(
        &self,
        keys: &AccountKeys,
        groups: &[RowGroup],
        rows_max: usize,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
        let mut found = Vec::new();
        for groups in groups.chunks(GROUPS_AT_A_TIME) {
            if found.len() >= rows_max {
                break;
            }
            let lengths =
                groups.iter().map(|group| redis::cmd("HLEN").arg(group.key(keys)).to_owned());
            let lengths: Vec<usize> =
                self.connection().await?.query_each(lengths.collect()).await?;
            let sized = groups.iter().zip(lengths);
            let (short, long): (Vec<_>, Vec<_>) =
                sized.partition(|(_, length)| *length <= ROWS_AT_A_TIME);
            let commands = short
                .iter()
                .map(|(group, _)| redis::cmd("HGETALL").arg(group.key(keys)).to_owned());
            let texts: Vec<RowTexts> =
                self.connection().await?.query_each(commands.collect()).await?;
            let mut texts: BTreeMap<RowGroup, RowTexts> =
                short.iter().map(|(group, _)| **group).zip(texts).collect();
            for (group, _) in long {
                let left = rows_max.saturating_sub(found.len());
                texts.insert(*group, self.scan_group(keys, *group, left).await?);
            }
            for (group, texts) in texts {
                found.extend(parse_rows(group, &texts)?);
            }
        }
        found.truncate(rows_max);
        Ok(found)
    }

    /// Returns the rows of a group if there are at most `rows_max`; else any of them.
    async fn scan_group(
        &self,
        keys: &AccountKeys,
        group: RowGroup,
        rows_max: usize,
    ) -> Result<RowTexts, Unavailable> {
        let (mut texts, mut cursor) = (RowTexts::new(), 0);
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(group.key(keys)).arg(cursor).arg("COUNT").arg(ROWS_AT_A_TIME);
            let (next, some): (u64, Vec<(String, String)>) =
                self.connection().await?.query(&scan).await?;
            texts.extend(some);
            if next == 0 || texts.len() >= rows_max {
                return Ok(texts);
            }
            cursor = next;
        }
    }

    /// Returns the rows of one key in the periods of these groups of the whole account, until there
    /// are `rows_max`. A row of a key has the model and the endpoint of a row of the account, so no
    /// row of another key is read.
    pub(super) async fn read_groups_of_key(
        &self,
        keys: &AccountKeys,
        groups: &[RowGroup],
        key: KeyId,
        rows_max: usize,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
        let mut found = Vec::new();
        for groups in groups.chunks(GROUPS_AT_A_TIME) {
            let of_account = self.read_groups(keys, groups, usize::MAX).await?;
            let own = |(row, _): (RollupKey, RollupSums)| {
                let row = RollupKey { owner: RollupOwner::Key(key), ..row };
                (row, RollupSums::default())
            };
            let rows: Rollups = of_account.into_iter().map(own).collect();
            let groups = rows::group_rows(rows);
            let known = self.read_known(keys, &groups).await?;
            let rows = groups.into_values().flatten().zip(known.into_iter().flatten());
            for ((row, _), sums) in rows {
                if let Some(sums) = sums.filter(|_| found.len() < rows_max) {
                    found.push((row, rows::parse_sums(&sums)?));
                }
            }
        }
        Ok(found)
    }

    /// Returns the sums of rows as they are stored, `None` for each that is not.
    pub(super) async fn read_known(
        &self,
        keys: &AccountKeys,
        groups: &BTreeMap<RowGroup, Vec<(RollupKey, RollupSums)>>,
    ) -> Result<Vec<Vec<Option<String>>>, Unavailable> {
        let commands = groups.iter().map(|(group, rows)| {
            let names: Vec<String> = rows.iter().map(|(key, _)| rows::format_name(key)).collect();
            redis::cmd("HMGET").arg(group.key(keys)).arg(names).to_owned()
        });
        self.connection().await?.query_each(commands.collect()).await
    }

    /// Reads the books of an account as they are at one moment, with these kinds of rows; `None` if
    /// there is no such account.
    /// Rows are read while others fold: those of the lines that were folded meanwhile are read
    /// again, until none was.
    pub(super) async fn read_books(
        &self,
        keys: &AccountKeys,
        views: &[RollupView],
    ) -> Result<Option<UsageBooks>, Unavailable> {
        let (mut days, mut read_to) = (Rollups::new(), None);
        for _ in 0..BOOK_READINGS_MAX {
            let Some(books) = self.read_book_head(keys).await? else { return Ok(None) };
            if read_to == Some(books.folded) {
                return Ok(Some(UsageBooks { days, ..books }));
            }
            let groups = self.list_changed_days(keys, views, read_to, books.folded).await?;
            days.retain(|key, _| !groups.contains(&RowGroup::of(key)));
            let groups: Vec<RowGroup> = groups.into_iter().collect();
            days.extend(self.read_groups(keys, &groups, usize::MAX).await?);
            read_to = Some(books.folded);
        }
        Err(Unavailable("the sums change all the time".to_owned()))
    }

    /// Returns the groups of days that lines have changed, from the one after `after` to `last`;
    /// all of them if nothing was read before, or if these are very many.
    async fn list_changed_days(
        &self,
        keys: &AccountKeys,
        views: &[RollupView],
        after: Option<u64>,
        last: u64,
    ) -> Result<BTreeSet<RowGroup>, Unavailable> {
        let mut groups = BTreeSet::new();
        let lines = after.and_then(|after| Some((after, last.checked_sub(after)?)));
        let mut entries = None;
        if let Some((after, lines)) = lines.filter(|(_, lines)| *lines <= LINES_BETWEEN_MAX) {
            let lines = u32::try_from(lines).unwrap_or(u32::MAX);
            let found = self.read_posted_lines(keys, after, lines).await?;
            // Some of them may have left the journal for the archive meanwhile.
            let is_whole = found.first().is_none_or(|first| first.entry.seq == after + 1);
            entries = is_whole.then_some(found);
        }
        let Some(entries) = entries else {
            for view in views {
                let range = i64::MIN..i64::MAX;
                let all = self.list_groups(keys, PeriodKind::Day, *view, range).await?;
                groups.extend(all);
            }
            return Ok(groups);
        };
        let rows = fold(&entries).map_err(super::overflow)?;
        let days = rows.keys().filter(|key| key.period.kind == PeriodKind::Day);
        groups.extend(days.map(RowGroup::of).filter(|group| views.contains(&group.view)));
        Ok(groups)
    }

    /// Reads the balances and the state of the sums at one moment; `None` if there is no such
    /// account.
    async fn read_book_head(&self, keys: &AccountKeys) -> Result<Option<UsageBooks>, Unavailable> {
        let mut read = Pipeline::new();
        read.atomic();
        let fields = ["posted", "written_off", JOURNAL_BASE_FIELD];
        read.cmd("HMGET").arg(keys.account()).arg(&fields);
        read.cmd("HGET").arg(keys.usage()).arg("seq");
        read.cmd("LLEN").arg(keys.journal());
        let (balances, folded, lines): (Vec<Option<String>>, Option<u64>, u64) =
            self.connection().await?.query_pipeline(&read).await?;
        let [Some(posted), Some(written_off), base] = &*balances else { return Ok(None) };
        let base = base.as_deref().map_or(Ok(0), parse_part::<u64>)?;
        let lines = base.saturating_add(lines);
        let (posted, written_off) = (parse_money(posted)?, parse_money(written_off)?);
        let (folded, days) = (folded.unwrap_or(0), Rollups::new());
        Ok(Some(UsageBooks { folded, lines, posted, written_off, days }))
    }
}

/// Parses the rows of a group, and puts them in order.
fn parse_rows(
    group: RowGroup,
    texts: &RowTexts,
) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
    let parse = |(name, sums): (&String, &String)| {
        Ok((rows::parse_name(group, name)?, rows::parse_sums(sums)?))
    };
    let mut rows: Vec<_> = texts.iter().map(parse).collect::<Result<_, Unavailable>>()?;
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(rows)
}
