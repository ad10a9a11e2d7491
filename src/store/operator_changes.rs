//! Changes of operators that are durable when they are acknowledged, on every kind of store. What
//! gives an operator another token, or takes it away, ends the sessions of the operator.

use std::sync::atomic::{AtomicBool, Ordering};

use super::open_store::OpenStore;
use crate::ledger::Unavailable;
use crate::operators::{OperatorChange, OperatorRecord, TokenHash};
use crate::sessions::Principal;

impl OpenStore {
    /// Adds an operator. It begins without sessions: an operator of the same name may have been
    /// removed while its sessions could not be ended.
    ///
    /// # Errors
    /// [`Unavailable`] if it is unknown whether the change was made, or there is no room.
    pub(crate) async fn add_operator(
        &self,
        hash: TokenHash,
        record: &OperatorRecord,
    ) -> Result<OperatorChange, Unavailable> {
        let add = async || {
            let change = self.operators.add_operator(hash, record.clone()).await?;
            self.end_sessions_after(change, &record.name).await
        };
        self.durability.write(add).await
    }

    /// Replaces the token of an operator, and ends its sessions.
    ///
    /// # Errors
    /// [`Unavailable`] if it is unknown whether the change was made.
    pub(crate) async fn replace_operator_token(
        &self,
        name: &str,
        hash: TokenHash,
        prefix: &str,
        expires_at: Option<i64>,
    ) -> Result<OperatorChange, Unavailable> {
        let replace = async || {
            let change = self.operators.replace_token(name, hash, prefix, expires_at).await?;
            self.end_sessions_after(change, name).await
        };
        self.durability.write(replace).await
    }

    /// Removes an operator, and ends its sessions.
    ///
    /// # Errors
    /// [`Unavailable`] if it is unknown whether the change was made.
    pub(crate) async fn remove_operator(&self, name: &str) -> Result<OperatorChange, Unavailable> {
        let was_removed = AtomicBool::new(false);
        let remove = async || {
            let change = self.operators.remove_operator(name).await?;
            was_removed.fetch_or(change == OperatorChange::Done, Ordering::Relaxed);
            // The write runs again if the server restarts; then the operator may be gone already.
            let is_gone = change == OperatorChange::Unknown && was_removed.load(Ordering::Relaxed);
            let change = if is_gone { OperatorChange::Done } else { change };
            self.end_sessions_after(change, name).await
        };
        self.durability.write(remove).await
    }

    /// Ends the sessions of an operator, and removes its sign-in links, if a change was made.
    async fn end_sessions_after(
        &self,
        change: OperatorChange,
        name: &str,
    ) -> Result<OperatorChange, Unavailable> {
        if change == OperatorChange::Done {
            self.sessions.end_sessions_of(&Principal::Operator(name.to_owned())).await?;
        }
        Ok(change)
    }

    /// Appends a line to the record of changes.
    ///
    /// # Errors
    /// [`Unavailable`] if it is unknown whether the line was appended.
    pub(crate) async fn append_audit(&self, line: &str) -> Result<(), Unavailable> {
        self.durability.write(async || self.operators.append_audit(line).await).await
    }
}
