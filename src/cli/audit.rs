//! The audit trail of commands that have no store yet.

use crate::conf::AuditSection;
use crate::management::actor::Actor;
use crate::management::audit::{AuditTrail, AuditedChange};

/// Makes a change without a store, and records it before and after.
///
/// # Errors
/// The first line cannot be written, and nothing was changed; or the error of the change itself.
pub(super) async fn run_audited<T>(
    to: &AuditSection,
    change: &AuditedChange,
    apply: impl AsyncFnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let trail = AuditTrail { to, actor: &Actor::CommandLine, store: None };
    trail.record(change, apply).await
}
