//! What every change needs: the store, the audit trail, and who makes the change.

use super::actor::Actor;
use super::audit::{AuditTrail, AuditedChange};
use super::error::ManagementError;
use crate::conf::AuditSection;
use crate::ledger::Ledger;
use crate::store::OpenStore;

/// What every change needs.
#[derive(Clone, Copy)]
pub(crate) struct ManagementContext<'a> {
    pub(crate) store: &'a OpenStore,
    /// Where the audit trail is.
    pub(crate) audit: &'a AuditSection,
    /// Who makes the change.
    pub(crate) actor: &'a Actor,
}

impl<'a> ManagementContext<'a> {
    /// Returns the ledger of the store.
    pub(crate) fn ledger(self) -> &'a dyn Ledger {
        &*self.store.ledger
    }

    /// Makes a change that is durable when this returns, and records it before and after. The
    /// change may be made more than once until it is durable, so it must be idempotent.
    pub(crate) async fn change<T>(
        self,
        change: &AuditedChange,
        apply: impl AsyncFn() -> Result<T, ManagementError>,
    ) -> Result<T, ManagementError> {
        self.record(change, async || self.store.durability.write(apply).await).await
    }

    /// Makes a change and records it before and after.
    pub(crate) async fn record<T>(
        self,
        change: &AuditedChange,
        apply: impl AsyncFnOnce() -> Result<T, ManagementError>,
    ) -> Result<T, ManagementError> {
        let trail = AuditTrail { to: self.audit, actor: self.actor, store: Some(self.store) };
        trail.record(change, apply).await
    }
}
