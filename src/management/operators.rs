//! Operators: adding them, replacing their tokens and removing them.

use super::audit::AuditedChange;
use super::context::ManagementContext;
use super::error::{ManagementError, no_such_operator};
use super::key_search::now_s;
use super::random::random_bits;
use crate::ledger::AccountName;
use crate::operators::{OperatorChange, OperatorRecord, OperatorToken, Role};
use crate::store::OpenStore;

/// A new token, which is shown this once, and whose it is.
pub(crate) struct IssuedToken {
    pub(crate) token: OperatorToken,
    pub(crate) record: OperatorRecord,
}

/// Checks the name of an operator. The rules are those of account names.
pub(crate) fn parse_operator_name(text: &str) -> Result<String, ManagementError> {
    match AccountName::parse(text) {
        Some(name) => Ok(name.as_str().to_owned()),
        None => Err(ManagementError::Invalid {
            field: "name",
            message: format!(
                "'{text}' is no name of an operator: 1 to 64 letters, digits, '-', '_' and '.'"
            ),
        }),
    }
}

/// Parses the name of a role.
pub(crate) fn parse_role(text: &str) -> Result<Role, ManagementError> {
    Role::of_name(text).ok_or_else(|| {
        let names = Role::ALL.map(Role::name).join(", ");
        let message = format!("'{text}' is no role; the roles are {names}");
        ManagementError::Invalid { field: "role", message }
    })
}

/// Adds an operator. The token expires at `expires_at` (unix seconds), or never.
pub(crate) async fn add_operator(
    context: ManagementContext<'_>,
    name: String,
    role: Role,
    expires_at: Option<i64>,
) -> Result<IssuedToken, ManagementError> {
    let token = make_token()?;
    let prefix = token.prefix().to_owned();
    let record = OperatorRecord { name, role, prefix, created_at: now_s(), expires_at };
    let adding = async || {
        let added = context.store.add_operator(token.hash(), &record).await?;
        outcome(added, &record.name)
    };
    context.record(&audited("operator.add", &record), adding).await?;
    Ok(IssuedToken { token, record })
}

/// Replaces the token of an operator. The earlier one does not work any more, and the sessions of
/// the operator end. The new one expires at `expires_at`, or never, whenever the earlier one did.
pub(crate) async fn rotate_operator(
    context: ManagementContext<'_>,
    name: &str,
    expires_at: Option<i64>,
) -> Result<IssuedToken, ManagementError> {
    let store = context.store;
    let (old, token) = (find_operator(store, name).await?, make_token()?);
    let record = OperatorRecord { prefix: token.prefix().to_owned(), expires_at, ..old };
    let replacing = async || {
        let (hash, prefix) = (token.hash(), &record.prefix);
        let replaced = store.replace_operator_token(name, hash, prefix, expires_at).await?;
        outcome(replaced, name)
    };
    context.record(&audited("operator.rotate", &record), replacing).await?;
    Ok(IssuedToken { token, record })
}

/// Removes an operator, and ends its sessions. The last owner whose token does not expire stays.
pub(crate) async fn remove_operator(
    context: ManagementContext<'_>,
    name: &str,
) -> Result<(), ManagementError> {
    let record = find_operator(context.store, name).await?;
    let removing = async || outcome(context.store.remove_operator(name).await?, name);
    context.record(&audited("operator.revoke", &record), removing).await
}

/// Returns the operator of a name.
pub(crate) async fn find_operator(
    store: &OpenStore,
    name: &str,
) -> Result<OperatorRecord, ManagementError> {
    let operators = store.operators.list_operators().await?;
    let found = operators.into_iter().find(|operator| operator.name == name);
    found.ok_or_else(|| no_such_operator(name))
}

fn make_token() -> Result<OperatorToken, ManagementError> {
    Ok(OperatorToken::from_random(random_bits()?))
}

fn audited(action: &'static str, record: &OperatorRecord) -> AuditedChange {
    AuditedChange {
        action,
        operator: Some(record.name.clone()),
        role: Some(record.role),
        ..AuditedChange::default()
    }
}

fn outcome(change: OperatorChange, name: &str) -> Result<(), ManagementError> {
    match change {
        OperatorChange::Done => Ok(()),
        OperatorChange::AlreadyExists => {
            let message = format!(
                "there is an operator '{name}' already; `tollgate operator rotate {name}` makes \
                 another token"
            );
            Err(ManagementError::AlreadyExists { what: "operator", message })
        }
        OperatorChange::Unknown => Err(no_such_operator(name)),
        OperatorChange::LastOwner => Err(ManagementError::Conflict {
            code: "last_owner",
            message: format!(
                "'{name}' is the last owner whose token does not expire, and stays so; add another \
                 owner first"
            ),
        }),
    }
}
