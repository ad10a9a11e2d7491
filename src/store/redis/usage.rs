//! Folds the journals of accounts into usage roll-ups. Lines are read and summed up here; one
//! script writes the new sums and moves the number of the last folded line, if it is still the one
//! that was read. The script is that of the run of the server in which the lines were read: another
//! run, which may lack some of them, refuses it.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use async_trait::async_trait;
use redis::{FromRedisValue, Pipeline, Value};

use super::keys::{AccountKeys, DUE_KEY};
use super::operations::reply_strings;
use super::reply_parts::{parse_money, unexpected};
use super::run_fencing::is_noscript;
use super::run_gate::Requirement;
use super::scripts::{RunScripts, ScriptCall};
use super::shared_store::RedisStore;
use crate::failpoints::failpoint;
use crate::ledger::{AccountName, Unavailable};
use crate::usage::{
    FoldReport, HOURS_KEPT_MS, PeriodKind, PostedEntry, RollupKey, RollupPeriod, RollupSums,
    RollupView, Rollups, UsageBooks, UsageOverflow, UsageQuery, UsageStore, fold,
};

mod journal_hours;
mod rows;

use rows::RowGroup;

/// A step folds lines of at most this many accounts.
const ACCOUNTS_MAX: usize = 64;
/// A script adds at most this many lines of an account: each has up to four rows.
const LINES_AT_A_TIME: u32 = 200;
/// Groups of rows are read in parts of this many.
const GROUPS_AT_A_TIME: usize = 32;
/// About how many accounts are looked at in a second for lines that nobody has marked.
const ACCOUNTS_PER_LOOK: u32 = 250;
/// What is asked of each of them.
const ASKED: usize = 3;
/// Books that change while they are read are read again, at most this often in all.
const BOOK_READINGS_MAX: u32 = 20;

/// How far the journal of an account is folded.
struct FoldState {
    /// The number of the last line that is in the sums; 0 if none is.
    folded: u64,
    /// The number of lines.
    lines: u64,
}

impl RedisStore {
    /// Marks accounts that were looked at and have lines that are not in the sums, or sums of hours
    /// that are too old.
    async fn look_for_lines(&self) -> Result<(), Unavailable> {
        let Some(cursor) = self.usage_marks.begin_look(Instant::now()) else { return Ok(()) };
        let (next, names) = self.scan_accounts(cursor, ACCOUNTS_PER_LOOK).await?;
        let hours = rows::kind_of(PeriodKind::Hour, RollupView::Account);
        let commands = names.iter().flat_map(|name| {
            let keys = AccountKeys::of(name);
            let mut oldest = redis::cmd("ZRANGE");
            oldest.arg(keys.usage_index(&hours)).arg(0).arg(0);
            let folded = redis::cmd("HGET").arg(keys.usage()).arg("seq").to_owned();
            let lines = redis::cmd("LLEN").arg(keys.journal()).to_owned();
            [lines, folded, oldest]
        });
        let told: Vec<Value> = self.connection().await?.query_each(commands.collect()).await?;
        let kept_from = self.server_time().await?.saturating_sub(HOURS_KEPT_MS);
        for (name, of_one) in names.iter().zip(told.chunks_exact(ASKED)) {
            let [lines, folded, oldest] = of_one else { continue };
            let (lines, folded): (u64, Option<u64>) = (read_reply(lines)?, read_reply(folded)?);
            let oldest: Vec<i64> = read_reply(oldest)?;
            let has_old_hours = oldest.first().is_some_and(|start| *start < kept_from);
            if folded.unwrap_or(0) != lines || has_old_hours {
                self.usage_marks.add(name);
            }
        }
        self.usage_marks.end_look(next);
        Ok(())
    }

    /// Marks the accounts that commands and other processes have told to the store.
    async fn take_due(&self) -> Result<(), Unavailable> {
        let mut take = redis::cmd("SPOP");
        take.arg(DUE_KEY).arg(ACCOUNTS_MAX);
        let names: Vec<String> = self.connection().await?.query(&take).await?;
        names.iter().filter_map(|name| AccountName::parse(name)).for_each(|name| {
            self.usage_marks.add(&name);
        });
        Ok(())
    }

    async fn read_fold_state(&self, keys: &AccountKeys) -> Result<FoldState, Unavailable> {
        let mut read = Pipeline::new();
        read.atomic();
        read.cmd("HGET").arg(keys.usage()).arg("seq");
        read.cmd("LLEN").arg(keys.journal());
        let (folded, lines): (Option<u64>, u64) =
            self.connection().await?.query_pipeline(&read).await?;
        Ok(FoldState { folded: folded.unwrap_or(0), lines })
    }

    /// Folds lines of an account, at most `lines_max`. If others do so at the same time, or the
    /// server has changed, nothing is folded, and the account has its turn again.
    async fn fold_account(
        &self,
        account: &AccountName,
        lines_max: u32,
    ) -> Result<FoldReport, Unavailable> {
        let keys = AccountKeys::of(account);
        // What is read from here on is of this run, or the script is refused.
        let run = match &self.run_gate {
            Some(gate) => Some(gate.await_allowed_run(Requirement::KnownRun).await?),
            None => None,
        };
        let FoldState { folded, lines } = self.read_fold_state(&keys).await?;
        if folded > lines {
            let what = format!("the sums have {folded} lines and the journal {lines}");
            return Err(Unavailable(what));
        }
        let lines_max = lines_max.min(LINES_AT_A_TIME);
        let entries = self.read_posted_lines(&keys, folded, lines_max).await?;
        let rows = fold(&entries).map_err(overflow)?;
        let last = entries.last().map_or(folded, |posted| posted.entry.seq);
        let call = self.sums_call(&keys, folded..last, rows).await?;
        failpoint!("usage_summed", if last > folded);
        let is_added = self.add_sums(run.as_deref(), &call).await?;
        failpoint!("usage_written", if is_added && last > folded);
        if !is_added {
            return Ok(FoldReport { lines: 0, has_more: true });
        }
        Ok(FoldReport { lines: last - folded, has_more: last < lines })
    }

    /// Adds what is known of rows to them, and returns the call of the script that writes them.
    /// `folded` are the numbers of the last line that was folded before, and of that of now.
    async fn sums_call(
        &self,
        keys: &AccountKeys,
        folded: Range<u64>,
        mut rows: Rollups,
    ) -> Result<ScriptCall, Unavailable> {
        let kept_from = self.server_time().await?.saturating_sub(HOURS_KEPT_MS);
        rows.retain(|key, _| key.period.kind == PeriodKind::Day || key.period.start >= kept_from);
        let groups = rows::group_rows(rows);
        let commands = groups.iter().map(|(group, rows)| {
            let names: Vec<String> = rows.iter().map(|(key, _)| rows::format_name(key)).collect();
            redis::cmd("HMGET").arg(group.key(keys)).arg(names).to_owned()
        });
        let known: Vec<Vec<Option<String>>> =
            self.connection().await?.query_each(commands.collect()).await?;
        let mut call = ScriptCall::default();
        call.key(keys.usage()).key(keys.journal());
        call.arg(folded.start).arg(folded.end).arg(HOURS_KEPT_MS);
        for ((group, rows), known) in groups.iter().zip(known) {
            call.arg(group.kind()).arg(group.period.start).arg(rows.len());
            for ((key, sums), known) in rows.iter().zip(known) {
                let known = known.as_deref().map(rows::parse_sums).transpose()?.unwrap_or_default();
                let sums = known.checked_add(sums).and_then(|sums| rows::format_sums(&sums));
                call.arg(rows::format_name(key)).arg(sums.map_err(overflow)?);
            }
        }
        Ok(call)
    }

    /// Writes sums. Returns whether they were written.
    async fn add_sums(
        &self,
        run: Option<&RunScripts>,
        call: &ScriptCall,
    ) -> Result<bool, Unavailable> {
        let connection = self.connection().await?;
        let reply = match run {
            Some(run) => match connection.query_raw(&call.evalsha(&run.scripts.usage_add)).await {
                Err(why) if is_noscript(&why) => return Ok(false),
                answered => answered?,
            },
            None => connection.invoke_script(&call.invocation(&self.scripts.usage_add)).await?,
        };
        Ok(reply_strings(&reply)?.first().is_some_and(|word| word == "done"))
    }

    /// Returns when the periods of one kind of rows began, in unix ms, in order.
    async fn list_periods(
        &self,
        keys: &AccountKeys,
        query: (PeriodKind, RollupView, i64, i64),
    ) -> Result<Vec<RowGroup>, Unavailable> {
        let (kind, view, from, to) = query;
        let mut list = redis::cmd("ZRANGEBYSCORE");
        list.arg(keys.usage_index(&rows::kind_of(kind, view))).arg(from).arg(format!("({to}"));
        let starts: Vec<i64> = self.connection().await?.query(&list).await?;
        let group = |start| RowGroup { period: RollupPeriod { kind, start }, view };
        Ok(starts.into_iter().map(group).collect())
    }

    /// Adds the rows of groups, in the order of the groups, until there are `rows_max`.
    async fn read_groups(
        &self,
        keys: &AccountKeys,
        groups: &[RowGroup],
        rows_max: usize,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
        let mut found = Vec::new();
        for groups in groups.chunks(GROUPS_AT_A_TIME) {
            let lengths =
                groups.iter().map(|group| redis::cmd("HLEN").arg(group.key(keys)).to_owned());
            let lengths: Vec<usize> =
                self.connection().await?.query_each(lengths.collect()).await?;
            for (group, length) in groups.iter().zip(lengths) {
                let left = rows_max.saturating_sub(found.len());
                if left == 0 {
                    return Ok(found);
                }
                found.extend(self.read_group(keys, *group, length, left).await?);
            }
        }
        found.truncate(rows_max);
        Ok(found)
    }

    /// Returns the rows of a group in order, if there are at most `rows_max`; else any of them.
    async fn read_group(
        &self,
        keys: &AccountKeys,
        group: RowGroup,
        length: usize,
        rows_max: usize,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
        let key = group.key(keys);
        let mut texts = HashMap::<String, String>::new();
        let mut cursor = 0;
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&key).arg(cursor).arg("COUNT").arg(length.clamp(10, 1_000));
            let (next, some): (u64, Vec<(String, String)>) =
                self.connection().await?.query(&scan).await?;
            texts.extend(some);
            if next == 0 || texts.len() >= rows_max {
                break;
            }
            cursor = next;
        }
        let parse = |(name, sums): (&String, &String)| {
            Ok((rows::parse_name(group, name)?, rows::parse_sums(sums)?))
        };
        let mut rows: Vec<_> = texts.iter().map(parse).collect::<Result<_, Unavailable>>()?;
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        rows.truncate(rows_max);
        Ok(rows)
    }

    /// Reads the balances and the state of the sums at one moment; `None` if there is no such
    /// account.
    async fn read_book_head(&self, keys: &AccountKeys) -> Result<Option<UsageBooks>, Unavailable> {
        let mut read = Pipeline::new();
        read.atomic();
        read.cmd("HMGET").arg(keys.account()).arg(&["posted", "written_off"]);
        read.cmd("HGET").arg(keys.usage()).arg("seq");
        read.cmd("LLEN").arg(keys.journal());
        let (balances, folded, lines): (Vec<Option<String>>, Option<u64>, u64) =
            self.connection().await?.query_pipeline(&read).await?;
        let [Some(posted), Some(written_off)] = &*balances else { return Ok(None) };
        let (posted, written_off) = (parse_money(posted)?, parse_money(written_off)?);
        let (folded, days) = (folded.unwrap_or(0), Rollups::new());
        Ok(Some(UsageBooks { folded, lines, posted, written_off, days }))
    }
}

fn read_reply<T: FromRedisValue>(reply: &Value) -> Result<T, Unavailable> {
    redis::from_redis_value_ref(reply).map_err(unexpected)
}

fn overflow(why: UsageOverflow) -> Unavailable {
    Unavailable(why.to_string())
}

#[async_trait]
impl UsageStore for RedisStore {
    async fn fold_next(&self, lines_max: u32) -> Result<FoldReport, Unavailable> {
        self.look_for_lines().await?;
        self.take_due().await?;
        let (accounts, has_more) = self.usage_marks.take(ACCOUNTS_MAX);
        let (mut report, mut failed) = (FoldReport { lines: 0, has_more }, Ok(()));
        let mut left = lines_max;
        for account in accounts {
            let folded = match left {
                0 => Ok(FoldReport { lines: 0, has_more: true }),
                left => self.fold_account(&account, left).await,
            };
            match folded {
                Ok(folded) => {
                    left = left.saturating_sub(u32::try_from(folded.lines).unwrap_or(u32::MAX));
                    report.lines += folded.lines;
                    report.has_more |= folded.has_more;
                    if folded.has_more {
                        self.usage_marks.add(&account);
                    }
                }
                // The next look at all accounts finds it again.
                Err(why) => failed = Err(Unavailable(format!("account '{account}': {why}"))),
            }
        }
        failed.map(|()| report)
    }

    async fn list_usage(
        &self,
        query: UsageQuery,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
        let UsageQuery { account, kind, view, from, to, rows_max } = query;
        let keys = AccountKeys::of(&account);
        let groups = self.list_periods(&keys, (kind, view, from, to)).await?;
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
        self.read_groups(&keys, &groups, rows_max).await
    }

    async fn read_usage_books(
        &self,
        account: &AccountName,
    ) -> Result<Option<UsageBooks>, Unavailable> {
        let keys = AccountKeys::of(account);
        for _ in 0..BOOK_READINGS_MAX {
            let Some(mut books) = self.read_book_head(&keys).await? else { return Ok(None) };
            for view in RollupView::ALL {
                let all = (PeriodKind::Day, view, i64::MIN, i64::MAX);
                let groups = self.list_periods(&keys, all).await?;
                books.days.extend(self.read_groups(&keys, &groups, usize::MAX).await?);
            }
            if self.read_fold_state(&keys).await?.folded == books.folded {
                return Ok(Some(books));
            }
        }
        Err(Unavailable("the sums change all the time".to_owned()))
    }

    async fn read_posted(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<PostedEntry>, Unavailable> {
        self.read_posted_lines(&AccountKeys::of(account), seq, limit).await
    }
}
