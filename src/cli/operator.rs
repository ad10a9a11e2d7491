//! `tollgate operator`: add, list, rotate and revoke the tokens of operators, who manage a gateway
//! through its API.

use clap::Subcommand;
use serde_json::json;

use super::key_scope::parse_expiry;
use super::output::{OutputFormat, print_line};
use crate::management::context::ManagementContext;
use crate::management::key_search::now_s;
use crate::management::operators::{self, IssuedToken, parse_operator_name, parse_role};
use crate::operators::{OperatorRecord, Role};
use crate::store::OpenStore;

#[derive(Debug, Subcommand)]
pub(super) enum OperatorCommand {
    /// Add an operator, and show the token this once.
    Add {
        /// The name, by which the audit trail names the operator.
        name: String,
        /// What the operator may do: support reads, operator manages accounts and keys, and owner
        /// manages operators too. By default operator; the first one is an owner.
        #[arg(long)]
        role: Option<String>,
        /// Refuse the token after this time, such as 90d, or from this date on, such as 2027-01-31.
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// List the operators by name.
    List,
    /// Make another token for an operator, whose earlier one stops working, and show it this once.
    Rotate {
        /// The name.
        name: String,
        /// Refuse the token after this time, such as 90d, or from this date on, such as 2027-01-31.
        /// By default it does not expire, whenever the earlier one did.
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// Remove an operator, whose token stops working.
    Revoke {
        /// The name.
        name: String,
    },
}

pub(super) async fn run(
    context: ManagementContext<'_>,
    command: &OperatorCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    match command {
        OperatorCommand::Add { name, role, expires } => {
            let expires_at = parse_expiry_option(expires.as_deref())?;
            let name = parse_operator_name(name)?;
            let role = role.as_deref().map(parse_role).transpose()?;
            add(context, name, role, expires_at, out).await
        }
        OperatorCommand::List => list(context.store, out).await,
        OperatorCommand::Rotate { name, expires } => {
            let expires_at = parse_expiry_option(expires.as_deref())?;
            let name = parse_operator_name(name)?;
            let issued = operators::rotate_operator(context, &name, expires_at).await?;
            print_token(&issued, out)
        }
        OperatorCommand::Revoke { name } => {
            let name = parse_operator_name(name)?;
            operators::remove_operator(context, &name).await?;
            if out.json {
                print_line(format_args!("{}", json!({ "name": name, "revoked": true })))?;
            }
            Ok(())
        }
    }
}

fn parse_expiry_option(text: Option<&str>) -> anyhow::Result<Option<i64>> {
    text.map(|text| parse_expiry(text, now_s())).transpose()
}

async fn add(
    context: ManagementContext<'_>,
    name: String,
    role: Option<Role>,
    expires_at: Option<i64>,
    out: OutputFormat,
) -> anyhow::Result<()> {
    // Without an owner nobody could manage operators through the API.
    let operators = &context.store.operators;
    let is_owner_by_default = role.is_none() && operators.list_operators().await?.is_empty();
    let default = if is_owner_by_default { Role::Owner } else { Role::Operator };
    let role = role.unwrap_or(default);
    let issued = operators::add_operator(context, name, role, expires_at).await?;
    if is_owner_by_default {
        eprintln!(
            "tollgate: '{}' is the first operator, and so an owner; --role gives another role",
            issued.record.name
        );
    }
    print_token(&issued, out)
}

async fn list(store: &OpenStore, out: OutputFormat) -> anyhow::Result<()> {
    let now = now_s();
    for record in store.operators.list_operators().await? {
        let OperatorRecord { name, role, prefix, created_at, expires_at } = &record;
        let role = role.name();
        if out.json {
            let shown = json!({
                "name": name,
                "role": role,
                "prefix": prefix,
                "created_at": created_at,
                "expires_at": expires_at,
            });
            print_line(format_args!("{shown}"))?;
            continue;
        }
        let state = if record.is_expired(now) { "expired" } else { "valid" };
        let expires = expires_at.map_or_else(|| "-".to_owned(), tell_moment);
        print_line(format_args!("{name}  {role}  {prefix}…  {state}  expires {expires}"))?;
    }
    Ok(())
}

/// Prints a new token, which is shown this once.
fn print_token(issued: &IssuedToken, out: OutputFormat) -> anyhow::Result<()> {
    let IssuedToken { token, record } = issued;
    let OperatorRecord { name, role, prefix, expires_at, .. } = record;
    if out.json {
        let shown = json!({
            "token": token.reveal(),
            "name": name,
            "role": role.name(),
            "prefix": prefix,
            "expires_at": expires_at,
        });
        print_line(format_args!("{shown}"))?;
    } else {
        print_line(format_args!("{}", token.reveal()))?;
    }
    Ok(())
}

fn tell_moment(at: i64) -> String {
    jiff::Timestamp::from_second(at).map_or_else(|_| at.to_string(), |at| at.to_string())
}
