//! Folds the journals of accounts into usage roll-ups. Lines are read and summed up here; one
//! script writes the new sums and moves the number of the last folded line, if it is still the one
//! that was read. The script is that of the run of the server in which the lines were read: another
//! run, which may lack some of them, refuses it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use redis::{FromRedisValue, Pipeline, Value};

use super::archive::JOURNAL_BASE_FIELD;
use super::keys::{AccountKeys, DUE_KEY};
use super::operations::reply_strings;
use super::reply_parts::unexpected;
use super::run_fencing::is_noscript;
use super::run_gate::Requirement;
use super::scripts::{RunScripts, ScriptCall, ScriptSelector};
use super::shared_store::RedisStore;
use crate::failpoints::failpoint;
use crate::ledger::{AccountName, Ledger, Unavailable};
use crate::usage::{
    FoldReport, HOURS_KEPT_MS, PeriodKind, PostedEntry, RollupKey, RollupSums, RollupView, Rollups,
    UsageBooks, UsageOverflow, UsageQuery, UsageRows, UsageStore, fold,
};

mod journal_hours;
mod reading;
mod rows;

/// A step folds lines of at most this many accounts.
const ACCOUNTS_MAX: usize = 64;
/// A script adds at most this many lines of an account: each has up to four rows.
const LINES_AT_A_TIME: u32 = 200;
/// About how many accounts are looked at in a second for lines that nobody has marked.
const ACCOUNTS_PER_LOOK: u32 = 250;
/// What is asked of each of them.
const ASKED: usize = 4;

/// How far the journal of an account is folded.
struct FoldState {
    /// The number of the last line that is in the sums; 0 if none is.
    folded: u64,
    /// The number of the last line.
    lines: u64,
    /// The number of the last line that is no longer in the journal; 0 if all are.
    base: u64,
}

/// What a step knows of the server.
struct FoldStep {
    /// The run in which all of the step is done; `None` if any run may do it.
    run: Option<Arc<RunScripts>>,
    /// Sums of hours that began before this are not kept, in unix ms.
    kept_from: i64,
}

/// How an account had its turn.
struct FoldedAccount {
    /// The number of lines that were folded.
    lines: u64,
    /// Whether more of its lines are to be folded.
    has_more: bool,
}

impl RedisStore {
    async fn begin_step(&self) -> Result<FoldStep, Unavailable> {
        // What is read from here on is of this run, or the scripts are refused.
        let run = match &self.run_gate {
            Some(gate) => Some(gate.await_allowed_run(Requirement::KnownRun).await?),
            None => None,
        };
        let kept_from = self.server_time().await?.saturating_sub(HOURS_KEPT_MS);
        Ok(FoldStep { run, kept_from })
    }

    /// Looks at some accounts. Marks those that have lines that are not in the sums, and deletes
    /// sums of hours that are too old.
    async fn look_for_lines(
        &self,
        step: &FoldStep,
        failed: &mut Vec<String>,
    ) -> Result<(), Unavailable> {
        let Some(cursor) = self.usage_marks.begin_look(Instant::now()) else { return Ok(()) };
        let (next, names) = self.scan_accounts(cursor, ACCOUNTS_PER_LOOK).await?;
        let hours = rows::kind_of(PeriodKind::Hour, RollupView::Account);
        let commands = names.iter().flat_map(|name| {
            let keys = AccountKeys::of(name);
            let mut oldest = redis::cmd("ZRANGE");
            oldest.arg(keys.usage_index(&hours)).arg(0).arg(0);
            let folded = redis::cmd("HGET").arg(keys.usage()).arg("seq").to_owned();
            let lines = redis::cmd("LLEN").arg(keys.journal()).to_owned();
            let base = redis::cmd("HGET").arg(keys.account()).arg(JOURNAL_BASE_FIELD).to_owned();
            [lines, base, folded, oldest]
        });
        let told = self.connection().await?.query_each::<Value>(commands.collect()).await;
        // The others have their turn, whatever is wrong with these.
        let told = told.unwrap_or_else(|why| {
            failed.push(format!("accounts could not be looked at: {why}"));
            Vec::new()
        });
        for (name, of_one) in names.iter().zip(told.chunks_exact(ASKED)) {
            let [lines, base, folded, oldest] = of_one else { continue };
            let folded: Option<u64> = read_reply(folded).unwrap_or_default();
            let base: Option<u64> = read_reply(base).unwrap_or_default();
            let lines = read_reply(lines).map(|lines: u64| lines.saturating_add(base.unwrap_or(0)));
            // What cannot be read is told when the account has its turn.
            if lines != Ok(folded.unwrap_or(0)) {
                self.usage_marks.add(name);
            }
            let oldest: Vec<i64> = read_reply(oldest).unwrap_or_default();
            // The script keeps them longer if the account has later ones.
            if oldest.first().is_some_and(|start| *start < step.kept_from) {
                let folded = folded.unwrap_or(0);
                let call = begin_call(&AccountKeys::of(name), folded..folded);
                let deleted = self.run_sums(step, &call, |scripts| &scripts.usage_purge).await;
                failed.extend(deleted.err().map(|why| failure(name, &why)));
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
        for name in names.iter().filter_map(|name| AccountName::parse(name)) {
            self.usage_marks.add(&name);
        }
        Ok(())
    }

    async fn read_fold_state(&self, keys: &AccountKeys) -> Result<FoldState, Unavailable> {
        let mut read = Pipeline::new();
        read.atomic();
        read.cmd("HGET").arg(keys.usage()).arg("seq");
        read.cmd("LLEN").arg(keys.journal());
        read.cmd("HGET").arg(keys.account()).arg(JOURNAL_BASE_FIELD);
        let (folded, lines, base): (Option<u64>, u64, Option<u64>) =
            self.connection().await?.query_pipeline(&read).await?;
        let base = base.unwrap_or(0);
        Ok(FoldState { folded: folded.unwrap_or(0), lines: base.saturating_add(lines), base })
    }

    /// Folds lines of an account, at most `lines_max`; `None` if others do so at the same time, or
    /// if the server has changed. Then nothing was folded.
    async fn fold_account(
        &self,
        step: &FoldStep,
        account: &AccountName,
        lines_max: u32,
    ) -> Result<Option<FoldedAccount>, Unavailable> {
        let keys = AccountKeys::of(account);
        let FoldState { folded, lines, base } = self.read_fold_state(&keys).await?;
        if folded < base {
            return Err(Unavailable(format!(
                "lines 1 to {base} are in the archive, so the sums cannot be made from the store"
            )));
        }
        if folded == lines {
            return Ok(Some(FoldedAccount { lines: 0, has_more: false }));
        }
        if folded > lines {
            let what = format!("the sums have {folded} lines and the journal {lines}");
            return Err(Unavailable(what));
        }
        let lines_max = lines_max.min(LINES_AT_A_TIME);
        let entries = self.read_posted_lines(&keys, folded, lines_max).await?;
        let mut rows = fold(&entries).map_err(overflow)?;
        rows.retain(|key, _| {
            key.period.kind == PeriodKind::Day || key.period.start >= step.kept_from
        });
        let last = entries.last().map_or(folded, |posted| posted.entry.seq);
        let call = self.sums_call(&keys, folded..last, rows).await?;
        failpoint!("usage_summed", if last > folded);
        let is_added = self.run_sums(step, &call, |scripts| &scripts.usage_add).await?;
        failpoint!("usage_written", if is_added);
        let folded = FoldedAccount { lines: last - folded, has_more: last < lines };
        Ok(is_added.then_some(folded))
    }

    /// Adds what is known of rows to them, and returns the call of the script that writes them.
    /// `folded` are the numbers of the last line that was folded before, and of that of now.
    async fn sums_call(
        &self,
        keys: &AccountKeys,
        folded: Range<u64>,
        rows: Rollups,
    ) -> Result<ScriptCall, Unavailable> {
        let groups = rows::group_rows(rows);
        let known = self.read_known(keys, &groups).await?;
        let mut call = begin_call(keys, folded);
        for ((group, rows), known) in groups.iter().zip(known) {
            call.key(keys.usage_index(&group.kind())).key(group.key(keys));
            call.arg(group.period.start).arg(rows.len());
            for ((key, sums), known) in rows.iter().zip(known) {
                let known = known.as_deref().map(rows::parse_sums).transpose()?.unwrap_or_default();
                let sums = known.checked_add(sums).and_then(|sums| rows::format_sums(&sums));
                call.arg(rows::format_name(key)).arg(sums.map_err(overflow)?);
            }
        }
        Ok(call)
    }

    /// Runs a script that writes sums. Returns whether they were written.
    async fn run_sums(
        &self,
        step: &FoldStep,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<bool, Unavailable> {
        let connection = self.connection().await?;
        let reply = match &step.run {
            Some(run) => match connection.query_raw(&call.evalsha(pick(&run.scripts))).await {
                Err(why) if is_noscript(&why) => {
                    // It is another run: whoever probes the server should do so at once.
                    self.run_gate.iter().for_each(|gate| gate.wakeup.notify_one());
                    return Ok(false);
                }
                answered => answered?,
            },
            None => connection.invoke_script(&call.invocation(pick(&self.scripts))).await?,
        };
        Ok(reply_strings(&reply)?.first().is_some_and(|word| word == "done"))
    }
}

/// Returns the call of a script of the sums without any rows. With them it writes sums; without, it
/// deletes those of hours that are too old.
fn begin_call(keys: &AccountKeys, folded: Range<u64>) -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(keys.usage()).key(keys.account()).key(keys.journal());
    call.arg(folded.start).arg(folded.end).arg(HOURS_KEPT_MS);
    call
}

fn failure(account: &AccountName, why: &Unavailable) -> String {
    format!("account '{account}': {why}")
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
        let (step, mut report) = (self.begin_step().await?, FoldReport::default());
        self.look_for_lines(&step, &mut report.failed).await?;
        self.take_due().await?;
        let marked = self.usage_marks.len();
        report.has_more = marked > ACCOUNTS_MAX;
        let mut left = lines_max;
        for _ in 0..marked.min(ACCOUNTS_MAX) {
            if left == 0 {
                report.has_more = true;
                break;
            }
            let Some(account) = self.usage_marks.take() else { break };
            let folded = self.fold_account(&step, &account, left).await;
            if !matches!(folded, Ok(Some(FoldedAccount { has_more: false, .. }))) {
                self.usage_marks.add(&account);
            }
            match folded {
                Ok(Some(FoldedAccount { lines, has_more })) => {
                    left = left.saturating_sub(u32::try_from(lines).unwrap_or(u32::MAX));
                    report.lines += lines;
                    if lines > 0 {
                        report.accounts.push(account.clone());
                    }
                    report.has_more |= has_more;
                }
                Ok(None) => {}
                Err(why) => {
                    // If it is the server that fails, so will the others.
                    self.ping().await?;
                    report.failed.push(failure(&account, &why));
                }
            }
        }
        Ok(report)
    }

    async fn list_usage(
        &self,
        query: UsageQuery,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
        let UsageQuery { account, kind, rows, from, to, rows_max } = query;
        let keys = AccountKeys::of(&account);
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
        let view = match rows {
            UsageRows::Key(_) => RollupView::Account,
            UsageRows::Account | UsageRows::Keys => rows.view(),
        };
        let groups = self.list_groups(&keys, kind, view, from..to).await?;
        match rows {
            UsageRows::Key(key) => self.read_groups_of_key(&keys, &groups, key, rows_max).await,
            UsageRows::Account | UsageRows::Keys => {
                self.read_groups(&keys, &groups, rows_max).await
            }
        }
    }

    async fn read_usage_books(
        &self,
        account: &AccountName,
    ) -> Result<Option<UsageBooks>, Unavailable> {
        self.read_books(&AccountKeys::of(account), &RollupView::ALL).await
    }

    async fn read_account_books(
        &self,
        account: &AccountName,
    ) -> Result<Option<UsageBooks>, Unavailable> {
        self.read_books(&AccountKeys::of(account), &[RollupView::Account]).await
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
