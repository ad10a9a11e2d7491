//! Links by which an operator or a customer signs in to the console.

use super::accounts::require_account;
use super::audit::AuditedChange;
use super::context::ManagementContext;
use super::error::ManagementError;
use super::keys::random_bits;
use super::living::require_living;
use super::operators::find_operator;
use crate::sessions::{Principal, SessionSecret};

/// A link works for this long, in ms: ten minutes.
const LINK_MS: u32 = 10 * 60 * 1_000;

/// Makes a link for somebody, and returns its secret. It works once.
pub(crate) async fn make_link(
    context: ManagementContext<'_>,
    principal: &Principal,
) -> Result<SessionSecret, ManagementError> {
    let mut change = AuditedChange { action: "console.link", ..AuditedChange::default() };
    match principal {
        Principal::Operator(name) => {
            find_operator(context.store, name).await?;
            change.operator = Some(name.clone());
        }
        Principal::Account(account) => {
            require_account(context.ledger(), account).await?;
            require_living(context.ledger(), account).await?;
            change.account = Some(account.clone());
        }
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
