//! The interfaces between an outbox and its store: the store itself, and one server run (from a
//! start or failover to the next), which may lack entries.

use super::job_orders::OrderRecord;
use crate::ledger::{AccountName, Ledger, Operation, Outcome, Unavailable};

/// A store to which an outbox delivers its entries.
pub(in crate::store) trait OutboxTarget: Ledger {
    /// The id of a run of the store.
    type RunId: AsRef<str> + Send;

    /// Whether holds may be made now out of what the store has lent.
    fn may_hold(&self) -> bool;

    /// Applies a settlement or void. Returns its outcome, and the run of the store that has it
    /// durably; `None` for the run if that run may have ended.
    fn deliver(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> impl Future<Output = Result<(Outcome, Option<Self::RunId>), Unavailable>> + Send;
}

/// A run of a store, to which missing entries are replayed.
pub(in crate::store) trait ServerRun: Sync {
    /// Returns the id of the run.
    fn name(&self) -> &str;

    /// Returns the id of the store, if it has one.
    fn store_id(&self) -> Option<&str>;

    /// Applies an operation in this run.
    fn apply_in(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> impl Future<Output = Result<Outcome, Unavailable>> + Send;

    /// Returns for each of an account's holds whether this run knows that it has ended, so that
    /// such an entry need not be sent again.
    fn which_ended(
        &self,
        account: &AccountName,
        ids: &[&str],
    ) -> impl Future<Output = Result<Vec<bool>, Unavailable>> + Send;

    /// Applies a record of a video job, if this run lacks it. Returns whether it did.
    fn replay_job_record(
        &self,
        record: OrderRecord,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send;
}
