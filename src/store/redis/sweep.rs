//! Ends holds whose lease has expired, for all accounts. Accounts without open holds are recognised
//! by one pipelined ZCARD each, so idle accounts cost almost nothing.

use std::collections::HashSet;

use super::keys::AccountKeys;
use super::operations::parse_outcome;
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::{AccountName, Outcome, SweepReport, Unavailable};
use crate::metrics::record_write_off;

/// About how many accounts are read at a time (SSCAN's COUNT), and then asked for their holds.
pub(super) const ACCOUNTS_PER_SCAN: u32 = 500;
/// One sweep ends at most this many holds of an account; the next sweep ends the rest.
const SWEEP_MAX: isize = 1_000;

impl RedisStore {
    /// Ends all holds whose lease has expired. Returns their number, and the holds that stay open.
    pub(super) async fn sweep(&self) -> Result<SweepReport, Unavailable> {
        let (mut all, mut swept, mut cursor) = (SweepReport::default(), HashSet::new(), 0);
        loop {
            let (next, names) = self.scan_accounts(cursor, ACCOUNTS_PER_SCAN).await?;
            for name in self.filter_with_holds(names).await? {
                if swept.contains(&name) {
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

    /// Returns those of `names` that have open holds.
    async fn filter_with_holds(
        &self,
        mut names: Vec<AccountName>,
    ) -> Result<Vec<AccountName>, Unavailable> {
        let commands = names.iter().map(|name| {
            let mut count = redis::cmd("ZCARD");
            count.arg(AccountKeys::of(name).open_holds());
            count
        });
        let counts: Vec<u64> = self.connection().await?.query_each(commands.collect()).await?;
        let mut counts = counts.into_iter();
        names.retain(|_| counts.next() != Some(0));
        Ok(names)
    }

    async fn sweep_account(&self, name: &AccountName) -> Result<SweepReport, Unavailable> {
        let keys = AccountKeys::of(name);
        let (seconds, micros): (i64, i64) =
            self.connection().await?.query(&redis::cmd("TIME")).await?;
        let mut due = redis::cmd("ZRANGEBYSCORE");
        due.arg(keys.open_holds()).arg("-inf").arg(seconds * 1_000 + micros / 1_000);
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
