//! `tollgate operator`: add, list, rotate and revoke the tokens of operators, who manage a gateway
//! through its API.

use anyhow::{anyhow, bail};
use clap::Subcommand;
use serde_json::json;

use super::audit::{self, AuditedChange};
use super::key_scope::parse_expiry;
use super::key_search::now_s;
use super::output::{OutputFormat, print_line};
use crate::conf::AuditSection;
use crate::ledger::AccountName;
use crate::operators::{OperatorChange, OperatorRecord, OperatorToken, Role};
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
    store: OpenStore,
    command: &OperatorCommand,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    match command {
        OperatorCommand::Add { name, role, expires } => {
            let expires_at = parse_expiry_option(expires.as_deref())?;
            let (name, role) = (parse_name(name)?, role.as_deref().map(parse_role).transpose()?);
            add(&store, &name, role, expires_at, audit, out).await
        }
        OperatorCommand::List => list(&store, out).await,
        OperatorCommand::Rotate { name, expires } => {
            let expires_at = parse_expiry_option(expires.as_deref())?;
            rotate(&store, &parse_name(name)?, expires_at, audit, out).await
        }
        OperatorCommand::Revoke { name } => revoke(&store, &parse_name(name)?, audit, out).await,
    }
}

/// Parses the name of an operator. The rules are those of account names.
fn parse_name(text: &str) -> anyhow::Result<String> {
    match AccountName::parse(text) {
        Some(name) => Ok(name.as_str().to_owned()),
        None => {
            bail!("'{text}' is no name of an operator: 1 to 64 letters, digits, '-', '_' and '.'")
        }
    }
}

fn parse_role(text: &str) -> anyhow::Result<Role> {
    Role::of_name(text).ok_or_else(|| {
        let names = Role::ALL.map(Role::name).join(", ");
        anyhow!("'{text}' is no role; the roles are {names}")
    })
}

fn parse_expiry_option(text: Option<&str>) -> anyhow::Result<Option<i64>> {
    text.map(|text| parse_expiry(text, now_s())).transpose()
}

/// Makes a token of random bits.
fn make_token() -> anyhow::Result<OperatorToken> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|why| anyhow!("no random bits: {why}"))?;
    Ok(OperatorToken::from_random(bits))
}

async fn add(
    store: &OpenStore,
    name: &str,
    role: Option<Role>,
    expires_at: Option<i64>,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    // Without an owner nobody could manage operators through the API.
    let is_owner_by_default = role.is_none() && store.operators.list_operators().await?.is_empty();
    let default = if is_owner_by_default { Role::Owner } else { Role::Operator };
    let token = make_token()?;
    let record = OperatorRecord {
        name: name.to_owned(),
        role: role.unwrap_or(default),
        prefix: token.prefix().to_owned(),
        created_at: now_s(),
        expires_at,
    };
    let adding = async || Ok(store.add_operator(token.hash(), &record).await?);
    make_change(store, "operator.add", &record, audit, adding).await?;
    if is_owner_by_default {
        eprintln!(
            "tollgate: '{name}' is the first operator, and so an owner; --role gives another role"
        );
    }
    print_token(&token, &record, out)
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

async fn rotate(
    store: &OpenStore,
    name: &str,
    expires_at: Option<i64>,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let (old, token) = (find(store, name).await?, make_token()?);
    let record = OperatorRecord { prefix: token.prefix().to_owned(), expires_at, ..old };
    let rotating = async || {
        let (hash, prefix) = (token.hash(), &record.prefix);
        Ok(store.replace_operator_token(name, hash, prefix, expires_at).await?)
    };
    make_change(store, "operator.rotate", &record, audit, rotating).await?;
    print_token(&token, &record, out)
}

async fn revoke(
    store: &OpenStore,
    name: &str,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let record = find(store, name).await?;
    let revoking = async || Ok(store.remove_operator(name).await?);
    make_change(store, "operator.revoke", &record, audit, revoking).await?;
    if out.json {
        print_line(format_args!("{}", json!({ "name": name, "revoked": true })))?;
    }
    Ok(())
}

/// Returns the operator of a name.
async fn find(store: &OpenStore, name: &str) -> anyhow::Result<OperatorRecord> {
    let operators = store.operators.list_operators().await?;
    let found = operators.into_iter().find(|operator| operator.name == name);
    found.ok_or_else(|| no_such_operator(name))
}

fn no_such_operator(name: &str) -> anyhow::Error {
    anyhow!("there is no operator '{name}'")
}

/// Makes a change of an operator, which has two lines in the audit trail. One that was made has a
/// line in the store as well.
async fn make_change(
    store: &OpenStore,
    action: &'static str,
    record: &OperatorRecord,
    audit: &AuditSection,
    apply: impl AsyncFnOnce() -> anyhow::Result<OperatorChange>,
) -> anyhow::Result<()> {
    let name = &record.name;
    let change = AuditedChange {
        action,
        operator: Some(name.clone()),
        role: Some(record.role),
        ..AuditedChange::default()
    };
    let making = async || match apply().await? {
        OperatorChange::Done => Ok(()),
        OperatorChange::Unknown => Err(no_such_operator(name)),
        OperatorChange::AlreadyExists => Err(anyhow!(
            "there is an operator '{name}' already; `tollgate operator rotate {name}` makes \
             another token"
        )),
        OperatorChange::LastOwner => Err(anyhow!(
            "'{name}' is the last owner whose token does not expire, and stays so; add another \
             owner first"
        )),
    };
    audit::run_audited(audit, None, &change, making).await?;
    if let Err(why) = store.append_audit(&audit::line_of_done(&change)).await {
        // The change cannot be undone, and its token must be shown.
        eprintln!("tollgate: the store has no line about this change: {why:#}");
    }
    Ok(())
}

/// Prints a new token, which is shown this once.
fn print_token(
    token: &OperatorToken,
    record: &OperatorRecord,
    out: OutputFormat,
) -> anyhow::Result<()> {
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
