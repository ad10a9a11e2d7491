//! The list of open holds, for operators. Each step reads a bounded number of records.

use super::keys::AccountKeys;
use super::reply_parts::{parse_money, parse_part};
use super::shared_store::RedisStore;
use super::sweep::ACCOUNTS_PER_SCAN;
use crate::ledger::open_hold::LentAllotment;
use crate::ledger::prepaid::lot::LotAmounts;
use crate::ledger::prepaid::rate::parse_rate_asks;
use crate::ledger::prepaid::records::{AllotmentId, DirectHold, DirectHoldState};
use crate::ledger::prepaid::window::parse_windows;
use crate::ledger::{AccountName, HoldCursor, Ledger, OpenHold, Unavailable};
use crate::money::Money;

/// The records of at most this many holds are read at a time.
const HOLDS_AT_A_TIME: usize = 256;
/// The fields of a hold that are read.
const FIELDS: [&str; 10] = [
    "state",
    "held",
    "posted",
    "line",
    "windows",
    "rates",
    "lots",
    "needed",
    "open_calls",
    "lent_at",
];

/// The fields of a hold, in the order of [`FIELDS`].
struct StoredHold(Vec<Option<String>>);

/// An account, as far as its holds are read.
struct HoldsOf<'a> {
    name: &'a AccountName,
    /// Whether the account has lots. If it has none, all that was drawn counts as payments.
    has_lots: bool,
    /// The time of the server, in unix ms.
    now: i64,
}

impl RedisStore {
    /// Returns open holds in the order of their cursors, of one account or of all.
    pub(super) async fn read_holds(
        &self,
        account: Option<&AccountName>,
        after: Option<&HoldCursor>,
        limit: usize,
    ) -> Result<Vec<OpenHold>, Unavailable> {
        let mut found = Vec::new();
        if let Some(account) = account {
            self.read_holds_of(account, after, limit, &mut found).await?;
            return Ok(found);
        }
        let first = after.map(|cursor| &cursor.account);
        let mut names = self.list_accounts().await?;
        names.retain(|name| first.is_none_or(|first| name >= first));
        for names in names.chunks(ACCOUNTS_PER_SCAN as usize) {
            let commands = names
                .iter()
                .map(|name| redis::cmd("ZCARD").arg(AccountKeys::of(name).open_holds()).to_owned());
            let counts: Vec<u64> = self.connection().await?.query_each(commands.collect()).await?;
            for (name, _) in names.iter().zip(counts).filter(|(_, count)| *count > 0) {
                self.read_holds_of(name, after, limit, &mut found).await?;
                if found.len() >= limit {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// Adds the open holds of an account that come after a cursor, until there are `limit`.
    async fn read_holds_of(
        &self,
        name: &AccountName,
        after: Option<&HoldCursor>,
        limit: usize,
        found: &mut Vec<OpenHold>,
    ) -> Result<(), Unavailable> {
        let keys = AccountKeys::of(name);
        let begin = HoldCursor { account: name.clone(), lease_until: 0, id: String::new() };
        let mut cursor = after.map_or(&begin, |after| after.max(&begin)).clone();
        if cursor.account != *name {
            return Ok(());
        }
        let lots = redis::cmd("HEXISTS").arg(keys.account()).arg("lots").to_owned();
        let has_lots = self.connection().await?.query(&lots).await?;
        let of_account = HoldsOf { name, has_lots, now: self.server_time().await? };
        let mut count = HOLDS_AT_A_TIME;
        while found.len() < limit {
            let mut range = redis::cmd("ZRANGEBYSCORE");
            range.arg(keys.open_holds()).arg(cursor.lease_until).arg("+inf");
            range.arg("WITHSCORES").arg("LIMIT").arg(0).arg(count);
            let listed: Vec<(String, String)> = self.connection().await?.query(&range).await?;
            let is_all = listed.len() < count;
            let place = |(id, score): (String, String)| {
                // A lease that never ends is beyond what fits.
                let lease_until = score.parse().unwrap_or(i64::MAX);
                HoldCursor { account: name.clone(), lease_until, id }
            };
            let mut places: Vec<HoldCursor> = listed.into_iter().map(place).collect();
            // Holds with the same end of their lease are ordered by their ids.
            places.retain(|place| *place > cursor);
            match places.last() {
                Some(last) => cursor = last.clone(),
                None if is_all => break,
                // So many leases end together that none of those read was new.
                None => count = count.saturating_mul(2),
            }
            for places in places.chunks(HOLDS_AT_A_TIME) {
                self.add_holds(&of_account, &keys, places, limit, found).await?;
            }
            if is_all {
                break;
            }
        }
        Ok(())
    }

    /// Reads the records of holds, and adds those that are still open, until there are `limit`.
    async fn add_holds(
        &self,
        of_account: &HoldsOf<'_>,
        keys: &AccountKeys,
        places: &[HoldCursor],
        limit: usize,
        found: &mut Vec<OpenHold>,
    ) -> Result<(), Unavailable> {
        let commands = places.iter().map(|place| {
            let mut read = redis::cmd("HMGET");
            read.arg(keys.hold(&place.id)).arg(&FIELDS);
            read
        });
        let records: Vec<Vec<Option<String>>> =
            self.connection().await?.query_each(commands.collect()).await?;
        for (place, record) in places.iter().zip(records) {
            if found.len() < limit {
                found.extend(of_account.read(place, &StoredHold(record))?);
            }
        }
        Ok(())
    }
}

impl HoldsOf<'_> {
    /// Reads a hold; `None` if it has ended meanwhile. Its place in the list is the one that the
    /// list had for it.
    fn read(
        &self,
        place: &HoldCursor,
        stored: &StoredHold,
    ) -> Result<Option<OpenHold>, Unavailable> {
        if stored.text("state") != Some("open") {
            return Ok(None);
        }
        let held = stored.money("held")?;
        if place.id.starts_with(AllotmentId::PREFIX) {
            let lots = stored.text("lots").filter(|_| self.has_lots).unwrap_or_default();
            let drawn = LotAmounts::parse(lots, held).map_err(|why| unreadable(place, &why))?;
            let told = LentAllotment {
                drawn: &drawn,
                needed: stored.money("needed")?,
                open_calls: stored.number("open_calls")?,
                lent_at: stored.number("lent_at")?,
                lease_until: place.lease_until,
            };
            return Ok(Some(OpenHold::of_allotment(self.name, &place.id, &told, self.now)));
        }
        let posted = stored.text("posted").map(parse_money).transpose()?;
        let line = stored.text("line").map(str::to_owned);
        let windows = stored.text("windows").unwrap_or_default();
        let direct = DirectHold {
            key: None,
            wanted: held,
            least: held,
            held,
            drawn: LotAmounts::default(),
            // What cannot be read of these, a later version has written.
            windows: parse_windows(windows).unwrap_or_default(),
            rates: parse_rate_asks(stored.text("rates").unwrap_or_default()).unwrap_or_default(),
            lease_until: place.lease_until,
            state: DirectHoldState::Open { checkpoint: posted.zip(line) },
        };
        Ok(OpenHold::of_call(self.name, &place.id, &direct))
    }
}

impl StoredHold {
    fn text(&self, field: &str) -> Option<&str> {
        let at = FIELDS.iter().position(|known| *known == field)?;
        self.0.get(at)?.as_deref()
    }

    fn money(&self, field: &str) -> Result<Money, Unavailable> {
        parse_money(self.text(field).unwrap_or("0"))
    }

    fn number<T: std::str::FromStr>(&self, field: &str) -> Result<T, Unavailable> {
        parse_part(self.text(field).unwrap_or("0"))
    }
}

fn unreadable(place: &HoldCursor, why: &dyn std::error::Error) -> Unavailable {
    Unavailable(format!("the hold {} cannot be read: {why}", place.id))
}
