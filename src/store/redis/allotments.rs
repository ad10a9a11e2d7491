//! Allotments in Redis: each update is one script, which does what the pure state machine of the
//! ledger does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use redis::{RedisError, RedisResult, Value};

use super::keys::AccountKeys;
use super::operations::reply_strings;
use super::rate_texts::{format_rate_demands, parse_rate_statuses};
use super::reply_parts::{parse_money, parse_part, unexpected};
use super::run_fencing::is_noscript;
use super::run_gate::{Requirement, RunGate};
use super::scripts::{RunScripts, ScriptCall};
use super::shared_store::RedisStore;
use super::sweep::ACCOUNTS_PER_SCAN;
use crate::ledger::account::Balances;
use crate::ledger::prepaid::answer::{AllotmentStatus, LedgerAnswer, WindowSlice};
use crate::ledger::prepaid::records::{AllotmentId, CallEnd};
use crate::ledger::prepaid::update::AllotmentUpdate;
use crate::ledger::prepaid::window::{WindowId, format_windows, parse_windows};
use crate::ledger::{AccountName, KeyId, Unavailable};
use crate::metrics::record_write_off;
use crate::money::Money;

/// The balances of an account as people are shown them, and what is lent of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ShownBalances {
    /// What gateways have free counts as available.
    pub(super) balances: Balances,
    /// The number of allotments, each of which is also one of the account's open holds.
    pub(super) allotments: u64,
    /// The number of calls whose holds were made out of allotments.
    pub(super) open_calls: u64,
}

impl RedisStore {
    /// Does what an update of an allotment asks; `None` if there is no such account. Nothing is
    /// lent by a run that may lack something yet.
    ///
    /// # Errors
    /// [`Unavailable`] if the store does not answer, or its run is not known.
    pub async fn update_allotment(
        &self,
        account: &AccountName,
        update: &AllotmentUpdate,
    ) -> Result<Option<LedgerAnswer>, Unavailable> {
        if !update.is_bounded() {
            return Ok(Some(LedgerAnswer::TooMany));
        }
        let keys = AccountKeys::of(account);
        let Some(gate) = &self.run_gate else {
            let call = update_call(&keys, update, true);
            let call = call.invocation(&self.scripts.allotments.lend);
            let reply = self.connection().await?.invoke_script(&call).await?;
            self.usage_marks.add(account);
            return parse_answer(account, update, &reply_strings(&reply)?);
        };
        let run = gate.await_allowed_run(Requirement::KnownRun).await?;
        let answered = match self.update_in_run(gate, &run, &keys, update).await {
            Err(why) if is_noscript(&why) => {
                let run = gate.await_new_run(&run, Requirement::KnownRun).await?;
                self.update_in_run(gate, &run, &keys, update).await
            }
            answered => answered,
        };
        // Even if no answer has come, lines may have been added.
        self.usage_marks.add(account);
        let reply = match answered {
            // The script itself refuses to go on, since what it reads cannot be right.
            Err(why) if why.code() == Some("ERR") => {
                log::error!(
                    event = "allotment_books_wrong", account = account.as_str(),
                    allotment = update.allotment.0, error:% = why;
                    "update refused by its script"
                );
                return Ok(Some(LedgerAnswer::OutOfRange));
            }
            answered => reply_strings(&answered?)?,
        };
        let answer = parse_answer(account, update, &reply)?;
        if answer.is_none() {
            self.confirm_absence(&keys.account()).await?;
        }
        Ok(answer)
    }

    async fn update_in_run(
        &self,
        gate: &RunGate,
        run: &Arc<RunScripts>,
        keys: &AccountKeys,
        update: &AllotmentUpdate,
    ) -> RedisResult<Value> {
        let connection = self.connection().await.map_err(to_redis_error)?;
        let scripts = &run.scripts.allotments;
        let open = gate.allowed_run(Requirement::WritableOutbox);
        if open.is_ok_and(|open| Arc::ptr_eq(&open, run)) {
            let lending = update_call(keys, update, true).evalsha(&scripts.lend);
            match connection.query_raw(&lending).await {
                Err(why) if is_out_of_memory(&why) => {}
                answered => return answered,
            }
        }
        let update = update_call(keys, update, false).evalsha(&scripts.update);
        connection.query_raw(&update).await
    }

    /// Ends an allotment whose lease has run out. Returns whether it did.
    pub(super) async fn expire_allotment(
        &self,
        account: &AccountName,
        id: &str,
    ) -> Result<bool, Unavailable> {
        let call = allotment_call(&AccountKeys::of(account), id);
        let reply = self.run_script(&call, |s| &s.allotments.expire).await?;
        self.usage_marks.add(account);
        let Some(("done", notes)) = reply.split_first().map(|(word, notes)| (&**word, notes))
        else {
            return Ok(false);
        };
        log_notes(account, notes);
        Ok(true)
    }

    /// Returns the allotments that hold something, or may, whose ids contain `run`, with their
    /// accounts and when they were lent first (unix ms). It looks at every account.
    pub(in crate::store) async fn list_allotments(
        &self,
        run: &str,
    ) -> Result<Vec<(AccountName, AllotmentId, i64)>, Unavailable> {
        let (mut found, mut cursor) = (BTreeSet::new(), 0);
        loop {
            let (next, names) = self.scan_accounts(cursor, ACCOUNTS_PER_SCAN).await?;
            let commands = names.iter().map(|name| {
                redis::cmd("SMEMBERS").arg(AccountKeys::of(name).allotments()).to_owned()
            });
            let ids: Vec<Vec<String>> =
                self.connection().await?.query_each(commands.collect()).await?;
            for (name, ids) in names.into_iter().zip(ids) {
                let of_run = ids.into_iter().filter(|id| id.contains(run));
                found.extend(of_run.map(|id| (name.clone(), AllotmentId(id))));
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let known: Vec<_> = found.into_iter().collect();
        let lent_at = self.read_allotments(&known, "lent_at").await?;
        let listed = known.into_iter().zip(lent_at);
        Ok(listed.map(|((account, id), at)| (account, id, at.unwrap_or(0))).collect())
    }

    /// Returns the numbers of the last ends that the store has of allotments; 0 for an allotment
    /// that it does not know.
    pub(in crate::store) async fn read_last_seqs(
        &self,
        allotments: &[(AccountName, AllotmentId)],
    ) -> Result<Vec<u64>, Unavailable> {
        let seqs = self.read_allotments(allotments, "last_seq").await?;
        Ok(seqs.into_iter().map(|seq| seq.map_or(0, i64::unsigned_abs)).collect())
    }

    async fn read_allotments(
        &self,
        allotments: &[(AccountName, AllotmentId)],
        field: &str,
    ) -> Result<Vec<Option<i64>>, Unavailable> {
        let mut values = Vec::with_capacity(allotments.len());
        for few in allotments.chunks(ACCOUNTS_PER_SCAN as usize) {
            let commands = few.iter().map(|(account, id)| {
                let hold = AccountKeys::of(account).hold(&id.0);
                redis::cmd("HGET").arg(hold).arg(field).to_owned()
            });
            values.extend(
                self.connection().await?.query_each::<Option<i64>>(commands.collect()).await?,
            );
        }
        Ok(values)
    }

    /// Reads the balances of an account, in which what gateways have free counts as available.
    pub(super) async fn read_shown_balances(
        &self,
        keys: &AccountKeys,
    ) -> Result<Option<ShownBalances>, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(keys.account()).key(keys.allotments());
        let call = call.invocation(&self.scripts.allotments.balances);
        let reply = reply_strings(&self.connection().await?.invoke_script(&call).await?)?;
        let [credit, available, held, posted, written_off, lent @ ..] = &*reply else {
            return Ok(None);
        };
        let mut shown = ShownBalances::default();
        let mut free = Money::ZERO;
        for allotment in lent.chunks_exact(3) {
            let unneeded = parse_money(&allotment[0])?.saturating_sub(parse_money(&allotment[1])?);
            free = free.checked_add(unneeded).unwrap_or(free);
            shown.allotments += 1;
            shown.open_calls += parse_part::<u64>(&allotment[2])?;
        }
        let held = parse_money(held)?;
        free = free.min(held);
        let available = parse_money(available)?;
        shown.balances = Balances {
            credit: parse_money(credit)?,
            available: available.checked_add(free).unwrap_or(available),
            held: held.saturating_sub(free),
            posted: parse_money(posted)?,
            written_off: parse_money(written_off)?,
        };
        Ok(Some(shown))
    }
}

/// Returns the keys of a script on an allotment, and its first argument.
fn allotment_call(keys: &AccountKeys, id: &str) -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(keys.account()).key(keys.hold(id)).key(keys.open_holds()).key(keys.journal());
    call.key(keys.allotment_calls(id)).key(keys.allotments());
    call.arg(id);
    call
}

fn update_call(keys: &AccountKeys, update: &AllotmentUpdate, may_lend: bool) -> ScriptCall {
    let mut call = allotment_call(keys, &update.allotment.0);
    call.arg(update.step).arg(update.lent_at).arg(update.first_seq);
    call.arg(u8::from(update.earlier_lost)).arg(u8::from(update.retires));
    call.arg(update.lease_ms).arg(u8::from(may_lend));
    call.arg(update.ends.len()).arg(update.checkpoints.len());
    call.arg(u8::from(update.demand.is_some()));
    let demand = update.demand.clone().unwrap_or_default();
    for amount in [demand.needed, demand.kept, demand.free, demand.quote] {
        call.arg(amount.nano());
    }
    call.arg(demand.open_calls);
    match covered_sum(&update.ends) {
        Some(sum) => call.arg(sum.nano()),
        None => call.arg(""),
    };
    call.arg(format_amounts(demand.needed_in)).arg(format_amounts(demand.kept_in));
    call.arg(format_amounts(demand.keys.into_iter().map(|(KeyId(id), free)| (id, free))));
    call.arg(format_rate_demands(&demand.rates));
    let mut calls = update.ends.iter().chain(&update.checkpoints);
    let has_windows = calls.any(|end| !end.windows.is_empty());
    call.arg(u8::from(has_windows));
    for end in update.ends.iter().chain(&update.checkpoints) {
        call.arg(&end.call).arg(end.held.nano());
        match end.charge {
            Some(charge) => call.arg(charge.nano()),
            None => call.arg(""),
        };
        call.arg(&end.line);
        if has_windows {
            call.arg(format_windows(&end.windows));
        }
    }
    call
}

/// Writes amounts by name as one text, which is empty if there are none.
fn format_amounts<N: Display>(amounts: impl IntoIterator<Item = (N, Money)>) -> String {
    let parts = amounts.into_iter().map(|(name, amount)| format!("{name} {}", amount.nano()));
    parts.collect::<Vec<_>>().join(",")
}

/// Returns the sum of the charges of ends; `None` if one of them is not charged, or not covered by
/// its hold.
fn covered_sum(ends: &[CallEnd]) -> Option<Money> {
    ends.iter().try_fold(Money::ZERO, |sum, end| {
        let charge = end.charge.filter(|charge| *charge <= end.held)?;
        sum.checked_add(charge).ok()
    })
}

/// Parses the reply to an update; `None` if there is no such account.
fn parse_answer(
    account: &AccountName,
    update: &AllotmentUpdate,
    reply: &[String],
) -> Result<Option<LedgerAnswer>, Unavailable> {
    let words: Vec<&str> = reply.iter().map(String::as_str).collect();
    let (answer, notes) = match &*words {
        [
            "status",
            step,
            last_seq,
            lent_at,
            held,
            tight,
            budgets,
            rates,
            free_for,
            held_for,
            ..,
        ] => {
            let held = parse_money(held)?;
            let needed = update.demand.as_ref().map_or(held, |demand| demand.needed);
            let BudgetStatus { revision, slices, current } = parse_budgets(budgets)?;
            // No key is ever refused here.
            let keys = update.demand.iter().flat_map(|demand| demand.keys.keys().copied());
            let status = AllotmentStatus {
                step: parse_part(step)?,
                last_seq: parse_part(last_seq)?,
                lent_at: parse_part(lent_at)?,
                held,
                free: held.saturating_sub(needed),
                free_for_ms: parse_expiry(free_for)?,
                held_for_ms: parse_expiry(held_for)?,
                slices,
                current,
                rates: parse_rate_statuses(rates)?,
                tight: *tight == "1",
                refused_keys: BTreeSet::new(),
                lent_keys: keys.collect(),
                open_to_all: budgets.is_empty(),
                revision,
            };
            (LedgerAnswer::Status(Box::new(status)), 10)
        }
        ["ended", last_seq, ..] => {
            (LedgerAnswer::AllotmentEnded { last_seq: parse_part(last_seq)? }, 2)
        }
        ["missing_ends", last_seq] => {
            (LedgerAnswer::MissingEnds { last_seq: parse_part(last_seq)? }, 2)
        }
        ["unknown"] => (LedgerAnswer::UnknownAllotment, 1),
        ["too_many"] => (LedgerAnswer::TooMany, 1),
        ["out_of_range"] => (LedgerAnswer::OutOfRange, 1),
        ["no_account"] => return Ok(None),
        _ => return Err(unexpected(reply)),
    };
    log_notes(account, &reply[notes..]);
    Ok(Some(answer))
}

/// Parses in how many ms credit expires; the text is empty if it never does.
fn parse_expiry(text: &str) -> Result<Option<i64>, Unavailable> {
    if text.is_empty() { Ok(None) } else { parse_part(text).map(Some) }
}

/// What the answer to an update tells of budgets.
#[derive(Default)]
struct BudgetStatus {
    revision: u64,
    slices: BTreeMap<WindowId, WindowSlice>,
    current: BTreeSet<WindowId>,
}

/// Parses `REVISION;SLICES;WINDOWS`. The text is empty if the account has no budgets.
fn parse_budgets(text: &str) -> Result<BudgetStatus, Unavailable> {
    if text.is_empty() {
        return Ok(BudgetStatus::default());
    }
    let parts: Vec<&str> = text.split(';').collect();
    let [revision, slices, current] = *parts else { return Err(unexpected(text)) };
    let slices = slices.split(',').filter(|slice| !slice.is_empty()).map(parse_slice);
    let current = parse_windows(current).map_err(|_| unexpected(text))?;
    Ok(BudgetStatus {
        revision: parse_part(revision)?,
        slices: slices.collect::<Result<_, _>>()?,
        current: current.into_iter().collect(),
    })
}

/// Parses `WINDOW AMOUNT MS`, without the ms for a window that never ends.
fn parse_slice(text: &str) -> Result<(WindowId, WindowSlice), Unavailable> {
    let mut parts = text.split(' ');
    let (Some(window), Some(amount)) = (parts.next(), parts.next()) else {
        return Err(unexpected(text));
    };
    let (window, amount) = (parse_part(window)?, parse_money(amount)?);
    let for_ms = parts.next().map(parse_part).transpose()?;
    Ok((window, WindowSlice { amount, for_ms }))
}

/// Logs what a script has noted: three texts for each note.
fn log_notes(account: &AccountName, notes: &[String]) {
    for note in notes.chunks_exact(3) {
        let (call, amount) = (&*note[1], note[2].parse().unwrap_or(0));
        if note[0] == "written_off" {
            record_write_off(account.as_str(), call, amount);
        } else {
            log::error!(
                event = "charge_lost", op = "settle", request_id = call;
                "hold voided before settlement; charge lost"
            );
        }
    }
}

fn is_out_of_memory(why: &RedisError) -> bool {
    why.code() == Some("OOM")
}

fn to_redis_error(why: Unavailable) -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "not connected", why.0))
}
