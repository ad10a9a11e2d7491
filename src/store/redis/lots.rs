//! Credit in lots in Redis, as people are shown it, and its expiry on accounts on which nothing
//! happens.

use std::collections::BTreeMap;

use super::keys::AccountKeys;
use super::reply_parts::parse_money;
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::account::Balances;
use crate::ledger::prepaid::records::AccountHead;
use crate::ledger::{AccountName, CreditLot, LotId, OpenLot, Unavailable};
use crate::money::Money;

impl RedisStore {
    /// Returns the open lots of an account beside that of payments, in the order in which they are
    /// drawn. Nothing is available of a lot whose time has come.
    pub(super) async fn read_lots(
        &self,
        account: &AccountName,
    ) -> Result<Vec<OpenLot>, Unavailable> {
        let mut read = redis::cmd("HMGET");
        read.arg(AccountKeys::of(account).account()).arg(&["lots", "available", "held"]);
        let found: Vec<Option<String>> = self.connection().await?.query(&read).await?;
        let [Some(text), Some(available), Some(held)] = &*found else { return Ok(Vec::new()) };
        let (available, held) = (parse_money(available)?, parse_money(held)?);
        let balances = Balances { available, held, ..Balances::default() };
        let account = AccountHead::with_lots(balances, parse_lots(text)?);
        let now = self.server_time().await?;
        let mut open = Vec::new();
        for (id, mut lot) in account.granted_lots() {
            if id.is_expired(now) {
                lot.available = Money::ZERO;
            }
            if !lot.is_empty() {
                open.push(OpenLot { id, lot });
            }
        }
        Ok(open)
    }

    /// Lets credit of an account expire whose time has come. The sweep of holds is more important,
    /// so an error is only logged; the next sweep tries again.
    pub(super) async fn expire_lots_or_warn(&self, account: &AccountName) {
        if let Err(why) = self.expire_lots(account).await {
            log::warn!(
                event = "credit_expiry_failed", account = account.as_str(), error:% = why;
                "credit whose time has come was not taken"
            );
        }
    }

    /// Lets credit of an account expire whose time has come.
    async fn expire_lots(&self, account: &AccountName) -> Result<(), Unavailable> {
        let keys = AccountKeys::of(account);
        let mut call = ScriptCall::default();
        call.key(keys.account()).key(keys.journal());
        let expired = self.run_script(&call, |scripts| &scripts.money.expire_lots).await;
        self.usage_marks.add(account);
        expired.map(drop)
    }

    /// Returns the time of the server, in unix ms.
    pub(super) async fn server_time(&self) -> Result<i64, Unavailable> {
        let (seconds, micros): (i64, i64) =
            self.connection().await?.query(&redis::cmd("TIME")).await?;
        Ok(seconds * 1_000 + micros / 1_000)
    }
}

/// Parses the lots of an account, `NAME AVAILABLE HELD` with commas between them.
fn parse_lots(text: &str) -> Result<BTreeMap<LotId, CreditLot>, Unavailable> {
    let mut lots = BTreeMap::new();
    for one in text.split(',') {
        let unreadable = || Unavailable(format!("the lot '{one}' cannot be read"));
        let words: Vec<&str> = one.split(' ').collect();
        let [name, available, held] = *words else { return Err(unreadable()) };
        let (available, held) = (parse_money(available)?, parse_money(held)?);
        lots.insert(name.parse().map_err(|_| unreadable())?, CreditLot { available, held });
    }
    Ok(lots)
}

/// Whether some of these lots have something left whose time has come at `now` (unix ms). Lots that
/// cannot be read are left to whoever moves money.
pub(super) fn is_credit_due(text: &str, now: i64) -> bool {
    let is_due =
        |(id, lot): (&LotId, &CreditLot)| id.is_expired(now) && lot.available > Money::ZERO;
    parse_lots(text).is_ok_and(|lots| lots.iter().any(is_due))
}
