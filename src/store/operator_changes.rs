//! Changes of operators that are durable when they are acknowledged, on every kind of store.

use std::sync::atomic::{AtomicBool, Ordering};

use super::open_store::OpenStore;
use crate::ledger::Unavailable;
use crate::operators::{OperatorChange, OperatorRecord, TokenHash};

impl OpenStore {
    /// Adds an operator.
    ///
    /// # Errors
    /// [`Unavailable`] if it is unknown whether the change was made, or there is no room.
    pub(crate) async fn add_operator(
        &self,
        hash: TokenHash,
        record: &OperatorRecord,
    ) -> Result<OperatorChange, Unavailable> {
        let add = async || self.operators.add_operator(hash, record.clone()).await;
        self.durability.write(add).await
    }

    /// Replaces the token of an operator.
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
        let replace = async || self.operators.replace_token(name, hash, prefix, expires_at).await;
        self.durability.write(replace).await
    }

    /// Removes an operator.
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
            Ok(if is_gone { OperatorChange::Done } else { change })
        };
        self.durability.write(remove).await
    }

    /// Appends a line to the record of changes.
    ///
    /// # Errors
    /// [`Unavailable`] if it is unknown whether the line was appended.
    pub(crate) async fn append_audit(&self, line: &str) -> Result<(), Unavailable> {
        self.durability.write(async || self.operators.append_audit(line).await).await
    }
}
