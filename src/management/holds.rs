//! Open holds: what is held of accounts at the moment, and for what.

use super::accounts::require_account;
use super::error::ManagementError;
use crate::ledger::{AccountName, HoldCursor, Ledger, OpenHold, OpenHoldKind};
use crate::money::Money;

/// What people are told of an open hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HoldView {
    pub(crate) hold: OpenHold,
    /// `call`, `job` or `allotment`.
    pub(crate) kind: &'static str,
    /// What the call has cost so far, which is charged if the lease expires.
    pub(crate) checkpoint: Option<Money>,
    /// What an allotment has in all, what of it no call needs, and how many calls it has.
    pub(crate) lent: Option<LentView>,
}

/// What people are told of an allotment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LentView {
    /// What the gateway has borrowed.
    pub(crate) lent: Money,
    /// What of it counts as available.
    pub(crate) free: Money,
    /// How many calls had holds out of it when the gateway last said so.
    pub(crate) open_calls: u32,
}

impl HoldView {
    fn new(hold: OpenHold) -> HoldView {
        let (kind, checkpoint, lent) = match hold.kind {
            OpenHoldKind::Direct { checkpoint } => {
                (if hold.job_id().is_some() { "job" } else { "call" }, checkpoint, None)
            }
            OpenHoldKind::Allotment { free, open_calls, .. } => {
                let lent = hold.held.checked_add(free).unwrap_or(hold.held);
                ("allotment", None, Some(LentView { lent, free, open_calls }))
            }
        };
        HoldView { hold, kind, checkpoint, lent }
    }
}

/// Returns open holds of an account, or of all accounts, ordered by account and by the end of their
/// leases: those after a cursor, at most `limit`.
pub(crate) async fn list_holds(
    ledger: &dyn Ledger,
    account: Option<&AccountName>,
    after: Option<&HoldCursor>,
    limit: u32,
) -> Result<Vec<HoldView>, ManagementError> {
    if let Some(account) = account {
        require_account(ledger, account).await?;
    }
    let holds = ledger.list_holds(account, after, limit).await?;
    Ok(holds.into_iter().map(HoldView::new).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_for_a_call_for_a_job_or_lent_to_a_gateway() {
        let nano = |nano| Money::from_nano(nano).expect("money");
        let view = |id: &str, kind| {
            let account = AccountName::parse("acme").expect("a name");
            let (key, key_prefix, held) = (None, None, nano(5));
            let id = id.to_owned();
            HoldView::new(OpenHold { account, id, key, key_prefix, held, lease_until: 9, kind })
        };
        let direct = OpenHoldKind::Direct { checkpoint: Some(nano(2)) };
        let call = view("x", direct);
        assert_eq!((call.kind, call.checkpoint, call.lent), ("call", Some(nano(2)), None));
        assert_eq!(view("video_x", direct).kind, "job");
        let allotment = OpenHoldKind::Allotment { free: nano(7), open_calls: 3, lent_at: 1 };
        let told = view("allotment_x", allotment);
        let lent = LentView { lent: nano(12), free: nano(7), open_calls: 3 };
        assert_eq!((told.kind, told.checkpoint, told.lent), ("allotment", None, Some(lent)));
    }
}
