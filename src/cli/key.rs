//! `tollgate key`: issue, change, rotate, show, list and revoke keys.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::account_name::{no_such_account, parse_account};
use super::audit::{self, AuditedBudgets, AuditedChange};
use super::budgets::{self, BudgetArgs, LimitChanges};
use super::key_issue::issue_key;
use super::key_rotation::{parse_overlap, rotate_key};
use super::key_scope::{ScopeArgs, ScopeChanges};
use super::key_search::{FoundKeys, find_keys, no_such_key, now_s, parse_key_id};
use super::key_shown::{list_keys, show_key};
use super::output::{OutputFormat, print_line};
use crate::conf::AuditSection;
use crate::ledger::{BudgetOwner, KeyRecord, KeyScope, Ledger};
use crate::store::OpenStore;

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
    store: OpenStore,
    command: &KeyCommand,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ledger = &*store.ledger;
    match command {
        KeyCommand::Issue { account, budgets, scope } => {
            let (limits, scope) = (budgets::parse_limits(budgets)?, scope.parse(now_s())?);
            issue_key(&store, account, &limits, scope, audit, out).await
        }
        KeyCommand::Set { prefix, budgets, scope } => {
            set_key(&store, prefix, &budgets.parse()?, scope, audit, out).await
        }
        KeyCommand::Show { prefix } => {
            show_key(ledger, &find_keys(ledger, prefix).await?.newest, out).await
        }
        KeyCommand::List { name } => {
            let name = parse_account(name)?;
            if ledger.balances(&name).await?.is_none() {
                return Err(no_such_account(&name));
            }
            list_keys(ledger, &name, out).await
        }
        KeyCommand::Rotate { prefix, overlap } => {
            rotate_key(&store, prefix, parse_overlap(overlap.as_deref())?, audit, out).await
        }
        KeyCommand::Revoke { prefix } => revoke_key(&store, prefix, audit, out).await,
    }
}

async fn set_key(
    store: &OpenStore,
    prefix: &str,
    limits: &LimitChanges,
    changes: &ScopeChanges,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    if limits.is_empty() && changes.is_empty() {
        bail!("there is nothing to set: `tollgate key set --help` lists what can be set");
    }
    let (ledger, now) = (&*store.ledger, now_s());
    let found = find_keys(ledger, prefix).await?.without_ended(now);
    let FoundKeys { newest: record, older } = &found;
    let apply = || changes.apply(&record.scope, now);
    let scope = (!changes.is_empty()).then(apply).transpose()?;
    let (account, owner) = (&record.account, BudgetOwner::Key(record.id));
    let change = AuditedChange {
        action: "key.set",
        account: Some(account.clone()),
        key: Some(record.prefix.clone()),
        other_keys: if changes.is_empty() { Vec::new() } else { found.older_prefixes() },
        budgets: AuditedBudgets::new(owner, limits),
        scope,
        ..AuditedChange::default()
    };
    let (new, removed) = budgets::split_limits(limits);
    let setting = async || {
        let set = async || {
            // What opens a key comes after new limits, and what restricts it before old ones go: a
            // command that ends halfway leaves no key that may do more than before and after it.
            budgets::set_limits(ledger, account, owner, &new).await?;
            for KeyRecord { prefix, .. } in older {
                change_scope(ledger, prefix, |scope| changes.apply_to_older(scope, now)).await?;
            }
            change_scope(ledger, &record.prefix, |scope| changes.apply(scope, now)).await?;
            budgets::set_limits(ledger, account, owner, &removed).await
        };
        store.durability.write(set).await
    };
    audit::run_audited(audit, Some(ledger), &change, setting).await?;
    show_key(ledger, &find_keys(ledger, &record.prefix).await?.newest, out).await
}

/// Changes the scope that a key has at this moment. Another command may have changed it since this
/// one began, or since this write was made first, and may have disabled the key.
async fn change_scope(
    ledger: &dyn Ledger,
    prefix: &str,
    apply: impl Fn(&KeyScope) -> anyhow::Result<KeyScope>,
) -> anyhow::Result<()> {
    let found = ledger.find_key_by_prefix(prefix).await?;
    let KeyRecord { scope: old, .. } = found.ok_or_else(|| no_such_key(prefix))?;
    let scope = apply(&old)?;
    if scope != old && !ledger.set_key_scope(prefix, scope).await? {
        return Err(no_such_key(prefix));
    }
    Ok(())
}

/// Revokes the key that is listed under a beginning, or all keys that have an id.
async fn revoke_key(
    store: &OpenStore,
    prefix: &str,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let (ledger, at) = (&*store.ledger, now_s());
    let (prefix, others) = if parse_key_id(prefix).is_some() {
        let found = find_keys(ledger, prefix).await?;
        (found.newest.prefix.clone(), found.older_prefixes())
    } else {
        (prefix.to_owned(), Vec::new())
    };
    let change = AuditedChange {
        action: "key.revoke",
        key: Some(prefix.clone()),
        other_keys: others.clone(),
        ..AuditedChange::default()
    };
    let prefixes: Vec<String> = others.into_iter().chain([prefix]).collect();
    let revoking = async || {
        let revoke = async || {
            for prefix in &prefixes {
                if !ledger.revoke_key(prefix, at).await? {
                    return Err(no_such_key(prefix));
                }
            }
            Ok(())
        };
        store.durability.write(revoke).await
    };
    audit::run_audited(audit, Some(ledger), &change, revoking).await?;
    if out.json {
        for prefix in &prefixes {
            print_line(format_args!("{}", json!({ "prefix": prefix, "revoked": true })))?;
        }
    }
    Ok(())
}
