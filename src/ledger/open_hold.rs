//! Open holds as operators see them: what is held of accounts, for which calls, and until when.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use super::account_name::AccountName;
use super::journal_search::time_of_id;
use super::prepaid::lot::LotAmounts;
use super::prepaid::records::{Allotment, AllotmentId, DirectHold, DirectHoldState};
use super::prepaid::window::{BudgetOwner, KeyId};
use crate::money::Money;

/// The prefix of the id of a video job, which is also the id of its hold.
const JOB_PREFIX: &str = "video_";

/// An open hold of an account. The sum of all `held` is what the account's balances show as held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenHold {
    /// The account.
    pub account: AccountName,
    /// The id of the hold: that of the call, of the video job or of the allotment.
    pub id: String,
    /// The id of the call's API key, if the store knows it.
    pub key: Option<KeyId>,
    /// The beginning of the call's API key, if a checkpoint tells it.
    pub key_prefix: Option<String>,
    /// What is held. Of an allotment this is what the calls of its gateway hold.
    pub held: Money,
    /// When the lease expires unless it is renewed, in unix ms.
    pub lease_until: i64,
    /// Whether it is the hold of one call, or an allotment.
    pub kind: OpenHoldKind,
}

/// What an open hold is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenHoldKind {
    /// The hold of one call or one video job.
    Direct {
        /// What the call has cost so far, which is posted if the lease expires; `None` if it has
        /// not said so.
        checkpoint: Option<Money>,
    },
    /// What a gateway has borrowed for the calls of a busy account.
    Allotment {
        /// What of it no call needs. It counts as available.
        free: Money,
        /// How many calls had holds out of it when its gateway last said so.
        open_calls: u32,
        /// When it was lent first, in unix ms.
        lent_at: i64,
    },
}

/// The place of an open hold in a list: holds are ordered by account, then by the end of the lease,
/// then by id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldCursor {
    /// The account.
    pub account: AccountName,
    /// The end of the lease, in unix ms.
    pub lease_until: i64,
    /// The id of the hold.
    pub id: String,
}

/// A text is not that of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no cursor of a hold")]
pub struct HoldCursorError;

/// What is read of the journal line of a checkpoint.
#[derive(Deserialize)]
struct CheckpointLine {
    key_id: Option<KeyId>,
    key_prefix: Option<String>,
}

impl OpenHold {
    /// Makes the entry of a hold that the store itself keeps; `None` if it is not open.
    #[must_use]
    pub(crate) fn of_call(account: &AccountName, id: &str, hold: &DirectHold) -> Option<OpenHold> {
        let DirectHoldState::Open { checkpoint } = &hold.state else { return None };
        let line = checkpoint.as_ref().and_then(|(_, line)| serde_json::from_str(line).ok());
        let line = line.unwrap_or(CheckpointLine { key_id: None, key_prefix: None });
        let windows = hold.windows.iter().map(|window| window.owner);
        let mut owners = windows.chain(hold.rates.iter().map(|ask| ask.id.owner));
        let of_budget = || {
            owners.find_map(|owner| match owner {
                BudgetOwner::Key(id) => Some(id),
                BudgetOwner::Account => None,
            })
        };
        Some(OpenHold {
            account: account.clone(),
            id: id.to_owned(),
            key: hold.key.or(line.key_id).or_else(of_budget),
            key_prefix: line.key_prefix,
            held: hold.held,
            lease_until: hold.lease_until,
            kind: OpenHoldKind::Direct { checkpoint: checkpoint.as_ref().map(|(cost, _)| *cost) },
        })
    }

    /// Makes the entry of an allotment that has drawn these lots, at `now` (unix ms), from what its
    /// gateway last said.
    #[must_use]
    pub(crate) fn of_allotment(
        account: &AccountName,
        id: &str,
        told: &LentAllotment<'_>,
        now: i64,
    ) -> OpenHold {
        let LentAllotment { drawn, needed, open_calls, lent_at, lease_until } = *told;
        let free = free_of(drawn, needed, now);
        OpenHold {
            account: account.clone(),
            id: id.to_owned(),
            key: None,
            key_prefix: None,
            held: drawn.total().unwrap_or_default().saturating_sub(free),
            lease_until,
            kind: OpenHoldKind::Allotment { free, open_calls, lent_at },
        }
    }

    /// Returns the place of the hold in a list.
    #[must_use]
    pub fn cursor(&self) -> HoldCursor {
        let (account, id) = (self.account.clone(), self.id.clone());
        HoldCursor { account, lease_until: self.lease_until, id }
    }

    /// Returns when the hold was made, in unix ms; `None` if its id does not tell.
    #[must_use]
    pub fn made_at(&self) -> Option<i64> {
        match self.kind {
            OpenHoldKind::Direct { .. } => time_of_id(&self.id),
            OpenHoldKind::Allotment { lent_at, .. } => Some(lent_at),
        }
    }

    /// Returns the id of the video job for which the hold is; `None` if it is for another call.
    #[must_use]
    pub fn job_id(&self) -> Option<&str> {
        self.id.starts_with(JOB_PREFIX).then_some(self.id.as_str())
    }
}

/// What a store has of an allotment that holds something, or may.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LentAllotment<'a> {
    /// The lots that it has drawn.
    pub(crate) drawn: &'a LotAmounts,
    /// What its gateway needed when it last said so.
    pub(crate) needed: Money,
    /// How many calls were open then.
    pub(crate) open_calls: u32,
    /// When it was lent first, in unix ms.
    pub(crate) lent_at: i64,
    /// When the lease expires, in unix ms.
    pub(crate) lease_until: i64,
}

impl<'a> LentAllotment<'a> {
    /// Returns what is told of an allotment.
    #[must_use]
    pub(crate) fn of(allotment: &'a Allotment) -> LentAllotment<'a> {
        let Allotment { drawn, needed, open_calls, lent_at, lease_until, .. } = allotment;
        LentAllotment {
            drawn,
            needed: *needed,
            open_calls: *open_calls,
            lent_at: *lent_at,
            lease_until: *lease_until,
        }
    }
}

/// Returns what a gateway has free at `now` (unix ms) of an allotment that has drawn these lots,
/// and so is available as far as anybody is told. What it has free of a lot that has expired is
/// not.
#[must_use]
pub(crate) fn free_of(drawn: &LotAmounts, needed: Money, now: i64) -> Money {
    let free = drawn.total().unwrap_or_default().saturating_sub(needed);
    let mut lots = drawn.clone().split_last(free).unwrap_or_default();
    let expired = lots.split_expired(now).unwrap_or_default();
    free.saturating_sub(expired.total().unwrap_or_default())
}

/// Returns the open holds among the records of an account, in their order, at `now` (unix ms).
#[must_use]
pub fn list_open_holds(
    account: &AccountName,
    holds: &BTreeMap<String, DirectHold>,
    allotments: &BTreeMap<AllotmentId, Allotment>,
    now: i64,
) -> Vec<OpenHold> {
    let direct = holds.iter().filter_map(|(id, hold)| OpenHold::of_call(account, id, hold));
    let lent = allotments.iter().filter(|(_, allotment)| allotment.is_out());
    let lent = lent.map(|(id, allotment)| {
        OpenHold::of_allotment(account, &id.0, &LentAllotment::of(allotment), now)
    });
    let mut open: Vec<OpenHold> = direct.chain(lent).collect();
    open.sort_by_cached_key(OpenHold::cursor);
    open
}

impl fmt::Display for HoldCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No name of an account has a colon.
        write!(f, "{}:{}:{}", self.account, self.lease_until, self.id)
    }
}

impl FromStr for HoldCursor {
    type Err = HoldCursorError;

    fn from_str(text: &str) -> Result<HoldCursor, HoldCursorError> {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or(HoldCursorError);
        let account = AccountName::parse(next()?).ok_or(HoldCursorError)?;
        let lease_until = next()?.parse().map_err(|_| HoldCursorError)?;
        Ok(HoldCursor { account, lease_until, id: next()?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{LotId, WindowId, WindowKind};

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("money")
    }

    fn account() -> AccountName {
        AccountName::parse("acme").expect("a name")
    }

    fn hold(checkpoint: Option<(Money, String)>) -> DirectHold {
        DirectHold {
            key: None,
            wanted: nano(9),
            least: nano(1),
            held: nano(9),
            drawn: LotAmounts::default(),
            windows: Vec::new(),
            rates: Vec::new(),
            lease_until: 100,
            state: DirectHoldState::Open { checkpoint },
        }
    }

    #[test]
    fn the_key_of_a_hold_is_told_by_a_checkpoint_or_by_a_budget() {
        let told = |hold: &DirectHold| {
            let open = OpenHold::of_call(&account(), "h", hold).expect("it is open");
            (open.key, open.key_prefix)
        };
        assert_eq!(told(&hold(None)), (None, None));
        let line = r#"{"request_id":"h","key_id":7,"key_prefix":"sk-tg-01"}"#.to_owned();
        let prefix = Some("sk-tg-01".to_owned());
        assert_eq!(told(&hold(Some((nano(3), line)))), (Some(KeyId(7)), prefix));
        let owner = BudgetOwner::Key(KeyId(8));
        let windows = [BudgetOwner::Account, owner].map(|o| WindowId::at(o, WindowKind::Day, 0));
        let in_budget = DirectHold { windows: windows.into(), ..hold(None) };
        assert_eq!(told(&in_budget), (Some(KeyId(8)), None));
        let ended = DirectHold { state: DirectHoldState::Voided, ..hold(None) };
        assert_eq!(OpenHold::of_call(&account(), "h", &ended), None);
    }

    #[test]
    fn what_no_call_needs_is_free_unless_its_lot_has_expired() {
        let mut drawn = LotAmounts::default();
        drawn.add(LotId::PAID, nano(10)).expect("a sum");
        let gift = "50/promotion".parse().expect("a lot");
        drawn.add(gift, nano(5)).expect("a sum");
        for (needed, now, held, free) in [(3, 49, 3, 12), (3, 50, 5, 10), (6, 50, 6, 9)] {
            let told = LentAllotment {
                drawn: &drawn,
                needed: nano(needed),
                open_calls: 2,
                lent_at: 1,
                lease_until: 99,
            };
            let open = OpenHold::of_allotment(&account(), "allotment_1", &told, now);
            let kind = OpenHoldKind::Allotment { free: nano(free), open_calls: 2, lent_at: 1 };
            assert_eq!((open.held, open.kind), (nano(held), kind), "{needed} {now}");
            assert_eq!(open.made_at(), Some(1));
        }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let id = "video_019ac3a1-5e00-7000-8000-000000000000".to_owned();
        let cursor = HoldCursor { account: account(), lease_until: -5, id };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for text in ["", "acme", "acme:1", "a b:1:x", "acme:x:y", ":1:x"] {
            assert_eq!(text.parse::<HoldCursor>(), Err(HoldCursorError), "{text}");
        }
    }

    #[test]
    fn the_id_tells_when_a_hold_was_made_and_whether_it_is_for_a_video() {
        let with_id = |id: &str| OpenHold::of_call(&account(), id, &hold(None)).expect("open");
        let call = with_id("019ac3a1-5e00-7000-8000-000000000000");
        assert_eq!((call.made_at(), call.job_id()), (Some(0x019a_c3a1_5e00), None));
        let job = with_id("video_019ac3a1-5e00-7000-8000-000000000000");
        assert_eq!((job.made_at(), job.job_id()), (call.made_at(), Some(job.id.as_str())));
        assert_eq!(with_id("x").made_at(), None);
    }
}
