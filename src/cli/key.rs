//! `tollgate key`: issue, change, rotate, show, list and revoke keys.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::account_name::parse_account;
use super::budgets::{self, BudgetArgs};
use super::key_issue::issue_key;
use super::key_rotation::{parse_overlap, rotate_key};
use super::key_scope::{ScopeArgs, ScopeChanges};
use super::key_shown::{list_keys, show_key};
use super::output::{OutputFormat, print_line};
use crate::management::accounts::require_account;
use crate::management::budgets::LimitChanges;
use crate::management::context::ManagementContext;
use crate::management::key_search::{find_keys, now_s};
use crate::management::keys;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Make a key for an account, and show it this once.
    Issue {
        /// The account.
        account: String,
        /// Allow at most so much in each hour, day, week or month, or in total, such as day=5.
        #[arg(long = "budget", value_name = "WINDOW=USD")]
        budgets: Vec<String>,
        #[command(flatten)]
        scope: ScopeArgs,
    },
    /// Change the budgets of a key, what it may be used for, and what it is called.
    Set {
        /// Its beginning, as listed, or its id, which stands for all keys of the id that work.
        prefix: String,
        #[command(flatten)]
        budgets: BudgetArgs,
        #[command(flatten)]
        scope: ScopeChanges,
    },
    /// Show a key with its budgets and what it may be used for.
    Show {
        /// Its beginning, as listed, or its id, which stands for the newest key of the id.
        prefix: String,
    },
    /// List the keys of an account by their beginnings.
    List {
        /// The account.
        name: String,
    },
    /// Make a key with the id, the budgets and the scope of another one, which ends, and show it
    /// this once.
    Rotate {
        /// The beginning of the old key, as listed, or its id, which stands for all keys of the id
        /// that work.
        prefix: String,
        /// Let the old key work for this long, such as 1h or 7d. By default it is revoked.
        #[arg(long, value_name = "TIME")]
        overlap: Option<String>,
    },
    /// Make a key useless.
    Revoke {
        /// Its beginning, as listed, or its id, which stands for all keys of the id.
        prefix: String,
    },
}

impl KeyCommand {
    /// The name of the plan that is given.
    pub(super) fn plan(&self) -> Option<&str> {
        match self {
            KeyCommand::Issue { scope, .. } => scope.plan(),
            KeyCommand::Set { scope, .. } => scope.plan(),
            KeyCommand::Show { .. }
            | KeyCommand::List { .. }
            | KeyCommand::Rotate { .. }
            | KeyCommand::Revoke { .. } => None,
        }
    }
}

pub(super) async fn run(
    context: ManagementContext<'_>,
    command: &KeyCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ledger = context.ledger();
    match command {
        KeyCommand::Issue { account, budgets, scope } => {
            let (limits, scope) = (budgets::parse_limits(budgets)?, scope.parse(now_s())?);
            issue_key(context, account, &limits, scope, out).await
        }
        KeyCommand::Set { prefix, budgets, scope } => {
            set_key(context, prefix, &budgets.parse()?, scope, out).await
        }
        KeyCommand::Show { prefix } => {
            show_key(ledger, &find_keys(ledger, prefix).await?.newest, out).await
        }
        KeyCommand::List { name } => {
            let name = parse_account(name)?;
            require_account(ledger, &name).await?;
            list_keys(ledger, &name, out).await
        }
        KeyCommand::Rotate { prefix, overlap } => {
            rotate_key(context, prefix, parse_overlap(overlap.as_deref())?, out).await
        }
        KeyCommand::Revoke { prefix } => revoke_key(context, prefix, out).await,
    }
}

async fn set_key(
    context: ManagementContext<'_>,
    prefix: &str,
    limits: &LimitChanges,
    changes: &ScopeChanges,
    out: OutputFormat,
) -> anyhow::Result<()> {
    if limits.is_empty() && changes.is_empty() {
        bail!("there is nothing to set: `tollgate key set --help` lists what can be set");
    }
    let record = keys::set_key(context, prefix, limits, &changes.parse(now_s())?).await?;
    show_key(context.ledger(), &record, out).await
}

/// Revokes the key that is listed under a beginning, or all keys that have an id.
async fn revoke_key(
    context: ManagementContext<'_>,
    prefix: &str,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let prefixes = keys::revoke_key(context, prefix).await?;
    if out.json {
        for prefix in &prefixes {
            print_line(format_args!("{}", json!({ "prefix": prefix, "revoked": true })))?;
        }
    }
    Ok(())
}
