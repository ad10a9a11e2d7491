//! Links by which an operator or a customer signs in to the console, and the end of sessions there.

use std::sync::atomic::{AtomicU32, Ordering};

use super::accounts::require_account;
use super::audit::AuditedChange;
use super::context::ManagementContext;
use super::error::ManagementError;
use super::living::require_living;
use super::operators::find_operator;
use super::random::random_bits;
use crate::operators::Role;
use crate::sessions::{Principal, SessionSecret};

/// A link works for this long, in ms: ten minutes.
const LINK_MS: u32 = 10 * 60 * 1_000;

/// Makes a link for somebody, and returns its secret. It works once.
pub(crate) async fn make_link(
    context: ManagementContext<'_>,
    principal: &Principal,
) -> Result<SessionSecret, ManagementError> {
    let change = change_of(context, "console.link", principal).await?;
    match principal {
        Principal::Operator(_) => {}
        Principal::Account(account) => require_living(context.ledger(), account).await?,
        Principal::Identity { .. } => {
            let message = "who is known to an identity provider signs in there".to_owned();
            return Err(ManagementError::Invalid { field: "name", message });
        }
    }
    let secret = SessionSecret::from_random(random_bits()?);
    let adding = async || {
        let sessions = &context.store.sessions;
        Ok(sessions.add_link(secret.hash(), principal, LINK_MS).await?)
    };
    context.record(&change, adding).await?;
    Ok(secret)
}

/// Ends all sessions of somebody, and removes the unused links. Returns how many sessions there
/// were.
pub(crate) async fn end_sessions(
    context: ManagementContext<'_>,
    principal: &Principal,
) -> Result<u32, ManagementError> {
    let change = change_of(context, "console.end_sessions", principal).await?;
    // A second attempt finds none of those that the first one has ended.
    let count = AtomicU32::new(0);
    let ending = async || {
        let ended = context.store.sessions.end_sessions_of(principal).await?;
        count.fetch_max(ended, Ordering::Relaxed);
        Ok(())
    };
    context.change(&change, ending).await?;
    Ok(count.into_inner())
}

/// Returns the line of the audit trail of a change about somebody who is known.
async fn change_of(
    context: ManagementContext<'_>,
    action: &'static str,
    principal: &Principal,
) -> Result<AuditedChange, ManagementError> {
    let mut change = AuditedChange { action, ..AuditedChange::default() };
    match principal {
        Principal::Operator(name) => {
            find_operator(context.store, name).await?;
            change.operator = Some(name.clone());
        }
        Principal::Account(account) => {
            require_account(context.ledger(), account).await?;
            change.account = Some(account.clone());
        }
        // Which identities there are, the provider alone knows.
        Principal::Identity { name, .. } => change.identity = Some(name.clone()),
    }
    Ok(change)
}

/// Parses the name that an identity provider tells of somebody.
pub(crate) fn parse_identity(name: &str) -> Result<Principal, ManagementError> {
    // Sessions of all roles end together, so any role will do.
    let principal = Principal::Identity { name: name.to_owned(), role: Role::Support };
    if principal.is_sound() {
        return Ok(principal);
    }
    let message = "an identity has 1 to 255 printable ASCII characters without spaces".to_owned();
    Err(ManagementError::Invalid { field: "identity", message })
}
