//! Ends holds whose lease has expired, and lets credit expire, for all accounts. Accounts without
//! open holds and without such credit are recognised by two pipelined commands each, so idle
//! accounts cost almost nothing.

use std::collections::HashSet;

use super::keys::AccountKeys;
use super::lots::is_credit_due;
use super::operations::parse_outcome;
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::{AccountName, Outcome, SweepReport, Unavailable};
use crate::metrics::record_write_off;

/// About how many accounts are read at a time (SSCAN's COUNT), and then asked for their holds.
pub(super) const ACCOUNTS_PER_SCAN: u32 = 500;
/// What is asked of each account that was read: how many holds it has, and its lots.
const ASKED: usize = 2;
/// One sweep ends at most this many holds of an account; the next sweep ends the rest.
const SWEEP_MAX: isize = 1_000;
/// One sweep lets credit of at most this many accounts expire, so that holds do not wait for it.
const EXPIRIES_MAX: u32 = 1_000;

/// An account that has something to sweep.
struct ToSweep {
    name: AccountName,
    has_holds: bool,
    has_due_credit: bool,
}

impl RedisStore {
    /// Ends all holds whose lease has expired, and lets credit expire whose time has come. Returns
    /// the number of these holds, and those that stay open.
    pub(super) async fn sweep(&self) -> Result<SweepReport, Unavailable> {
        let (mut all, mut swept, mut cursor) = (SweepReport::default(), HashSet::new(), 0);
        let mut expiries = 0;
        loop {
            let (next, names) = self.scan_accounts(cursor, ACCOUNTS_PER_SCAN).await?;
            for one in self.filter_to_sweep(names).await? {
                let ToSweep { name, has_holds, has_due_credit } = one;
                if swept.contains(&name) {
                    continue;
                }
                if has_due_credit && expiries < EXPIRIES_MAX {
                    expiries += 1;
                    self.expire_lots_or_warn(&name).await;
                }
                if !has_holds {
                    continue;
                }
                let one = self.sweep_account(&name).await?;
                all.expired += one.expired;
                all.open += one.open;
                all.held = all.held.checked_add(one.held).unwrap_or(all.held);
                swept.insert(name);
            }
            if next == 0 {
                return Ok(all);
            }
            cursor = next;
        }
    }

    /// Returns those of `names` that have open holds, or credit whose time has come.
    async fn filter_to_sweep(&self, names: Vec<AccountName>) -> Result<Vec<ToSweep>, Unavailable> {
        let commands = names.iter().flat_map(|name| {
            let keys = AccountKeys::of(name);
            let holds = redis::cmd("ZCARD").arg(keys.open_holds()).to_owned();
            [holds, redis::cmd("HGET").arg(keys.account()).arg("lots").to_owned()]
        });
        let known: Vec<Option<String>> =
            self.connection().await?.query_each(commands.collect()).await?;
        let has_lots = known.chunks_exact(ASKED).any(|of_one| of_one[1].is_some());
        let now = if has_lots { self.server_time().await? } else { 0 };
        let of_account = |(name, of_one): (AccountName, &[Option<String>])| ToSweep {
            name,
            has_holds: of_one[0].as_deref() != Some("0"),
            has_due_credit: of_one[1].as_deref().is_some_and(|lots| is_credit_due(lots, now)),
        };
        let all = names.into_iter().zip(known.chunks_exact(ASKED)).map(of_account);
        Ok(all.filter(|one| one.has_holds || one.has_due_credit).collect())
    }

    async fn sweep_account(&self, name: &AccountName) -> Result<SweepReport, Unavailable> {
        let keys = AccountKeys::of(name);
        let mut due = redis::cmd("ZRANGEBYSCORE");
        due.arg(keys.open_holds()).arg("-inf").arg(self.server_time().await?);
        due.arg("LIMIT").arg(0).arg(SWEEP_MAX);
        let due: Vec<String> = self.connection().await?.query(&due).await?;
        let mut swept = SweepReport::default();
        for id in due {
            if id.starts_with(AllotmentId::PREFIX) {
                swept.expired += u64::from(self.expire_allotment(name, &id).await?);
                continue;
            }
            let mut call = ScriptCall::default();
            call.key(keys.account())
                .key(keys.hold(&id))
                .key(keys.open_holds())
                .key(keys.journal())
                .arg(&id);
            let reply = self.run_script(&call, |s| &s.money.expire).await?;
            self.usage_marks.add(name);
            if parse_outcome(&reply)? == Outcome::Done {
                swept.expired += 1;
                let lost = reply.get(1).and_then(|lost| lost.parse().ok()).unwrap_or(0);
                record_write_off(name.as_str(), &id, lost);
            }
        }
        let open: u64 =
            self.connection().await?.query(redis::cmd("ZCARD").arg(keys.open_holds())).await?;
        let shown = self.read_shown_balances(&keys).await?.unwrap_or_default();
        swept.open = open.saturating_sub(shown.allotments) + shown.open_calls;
        swept.held = shown.balances.held;
        Ok(swept)
    }
}
