//! What an outbox stands before: a store, and a run of it that may lack something.

use super::job_orders::OrderRecord;
use crate::ledger::{AccountName, Ledger, Operation, Outcome, Unavailable};

/// A store that an outbox stands before.
pub(in crate::store) trait OutboxTarget: Ledger {
    /// Names a run of the store.
    type RunId: AsRef<str> + Send;

    /// Applies a settlement or void. Returns the run of the store that has it durably, unless that
    /// run may have ended.
    fn deliver(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> impl Future<Output = Result<(Outcome, Option<Self::RunId>), Unavailable>> + Send;
}

/// A run of a store, to which missing entries are replayed.
pub(in crate::store) trait ServerRun: Sync {
    /// Which one it is.
    fn name(&self) -> &str;

    /// What the store is called, if it has a name.
    fn store_id(&self) -> Option<&str>;

    /// Applies an operation in this run.
    fn apply_in(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> impl Future<Output = Result<Outcome, Unavailable>> + Send;

    /// Tells of each of an account's holds whether this run knows its end, so that nobody has to be
    /// told it again.
    fn which_ended(
        &self,
        account: &AccountName,
        ids: &[&str],
    ) -> impl Future<Output = Result<Vec<bool>, Unavailable>> + Send;

    /// Makes again what is noted of a video job, if this run lacks it; tells whether it did.
    fn restore_job(
        &self,
        noted: OrderRecord,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send;
}
