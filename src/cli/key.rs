//! `tollgate key`: issue, change, show, list and revoke keys.

use anyhow::{anyhow, bail};
use clap::Subcommand;
use serde_json::{Value, json};

use super::account_name::{no_such_account, parse_account};
use super::audit::{self, AuditedBudgets, AuditedChange};
use super::budgets::{self, BudgetArgs, LimitChanges, ShownBudgets};
use super::key_scope::{ScopeArgs, ScopeChanges, scope_json};
use super::key_shown::{list_keys, show_key};
use super::output::{OutputFormat, print_line};
use crate::clock::unix_ms;
use crate::conf::AuditSection;
use crate::ledger::key::ApiKey;
use crate::ledger::prepaid::window::WindowUse;
use crate::ledger::{
    BudgetOwner, BudgetUse, KeyId, KeyRecord, KeyScope, Ledger, Unavailable, WindowId,
};
use crate::money::Money;
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
        /// Its beginning, as listed, or its id.
        prefix: String,
        #[command(flatten)]
        budgets: BudgetArgs,
        #[command(flatten)]
        scope: ScopeChanges,
    },
    /// Show a key with its budgets and what it may be used for.
    Show {
        /// Its beginning, as listed, or its id.
        prefix: String,
    },
    /// List the keys of an account by their beginnings.
    List {
        /// The account.
        name: String,
    },
    /// Make a key useless.
    Revoke {
        /// Its beginning, as listed, or its id.
        prefix: String,
    },
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
            set_key(&store, prefix, &budgets.parse_any()?, scope, audit, out).await
        }
        KeyCommand::Show { prefix } => {
            show_key(ledger, &find_key(ledger, prefix).await?, out).await
        }
        KeyCommand::List { name } => {
            let name = parse_account(name)?;
            if ledger.balances(&name).await?.is_none() {
                return Err(no_such_account(&name));
            }
            list_keys(ledger, &name, out).await
        }
        KeyCommand::Revoke { prefix } => revoke_key(&store, prefix, audit, out).await,
    }
}

async fn issue_key(
    store: &OpenStore,
    name: &str,
    limits: &LimitChanges,
    scope: KeyScope,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let (name, ledger) = (parse_account(name)?, &*store.ledger);
    if ledger.balances(&name).await?.is_none() {
        return Err(no_such_account(&name));
    }
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|why| anyhow!("no random bits: {why}"))?;
    let key = ApiKey::from_random(bits);
    let prefix = key.prefix().to_owned();
    let id = key.hash().key_id();
    let record =
        KeyRecord { id, account: name, prefix, created_at: now_s(), revoked_at: None, scope };
    let owner = BudgetOwner::Key(id);
    let change = AuditedChange {
        action: "key.issue",
        account: Some(record.account.clone()),
        key: Some(record.prefix.clone()),
        budgets: AuditedBudgets::new(owner, limits),
        scope: (record.scope != KeyScope::default()).then(|| record.scope.clone()),
        ..AuditedChange::default()
    };
    let adding = async || {
        let add = async || {
            // The budgets must be in force before the key works.
            budgets::set_limits(ledger, &record.account, owner, limits).await?;
            anyhow::Ok(ledger.add_key(key.hash(), record.clone()).await?)
        };
        store.durability.write(add).await
    };
    audit::run_audited(audit, Some(ledger), &change, adding).await?;
    if out.json {
        let mut shown = Value::Object(scope_json(&record.scope));
        shown["key"] = key.reveal().into();
        shown["prefix"] = key.prefix().into();
        shown["id"] = id.0.to_string().into();
        let budgets = ShownBudgets::new(unused_budgets(owner, limits), &[record]);
        shown["budgets"] = budgets.key_json(id);
        print_line(format_args!("{shown}"))?;
    } else {
        print_line(format_args!("{}", key.reveal()))?;
    }
    Ok(())
}

/// Returns the budgets of a key that was never used. The store is not asked for them: if it did not
/// answer, the key would never be shown.
fn unused_budgets(owner: BudgetOwner, limits: &LimitChanges) -> Vec<BudgetUse> {
    let now = unix_ms();
    let budgets = limits.iter().map(|(kind, limit)| BudgetUse {
        owner,
        kind: *kind,
        limit: *limit,
        window: WindowId::at(owner, *kind, now),
        used: WindowUse::default(),
        free: Money::ZERO,
    });
    budgets.collect()
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
    let ledger = &*store.ledger;
    let (record, now) = (find_key(ledger, prefix).await?, now_s());
    let apply = || changes.apply(&record.scope, now);
    let scope = (!changes.is_empty()).then(apply).transpose()?;
    let (account, owner) = (&record.account, BudgetOwner::Key(record.id));
    let change = AuditedChange {
        action: "key.set",
        account: Some(account.clone()),
        key: Some(record.prefix.clone()),
        budgets: AuditedBudgets::new(owner, limits),
        scope,
        ..AuditedChange::default()
    };
    let limits = limits.iter().map(|(kind, limit)| (*kind, *limit));
    let (new, removed): (LimitChanges, LimitChanges) = limits.partition(|(_, l)| l.is_some());
    let setting = async || {
        let set = async || {
            // What opens a key comes after new limits, and what restricts it before old ones go: a
            // command that ends halfway leaves no key that may do more than before and after it.
            budgets::set_limits(ledger, account, owner, &new).await?;
            change_scope(ledger, &record.prefix, changes, now).await?;
            budgets::set_limits(ledger, account, owner, &removed).await
        };
        store.durability.write(set).await
    };
    audit::run_audited(audit, Some(ledger), &change, setting).await?;
    show_key(ledger, &find_key(ledger, &record.prefix).await?, out).await
}

/// Changes the scope that a key has at this moment. Another command may have changed it since this
/// one began, or since this write was made first, and may have disabled the key.
async fn change_scope(
    ledger: &dyn Ledger,
    prefix: &str,
    changes: &ScopeChanges,
    now: i64,
) -> anyhow::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let found = ledger.find_key_by_prefix(prefix).await?;
    let record = found.ok_or_else(|| no_such_key(prefix))?;
    if !ledger.set_key_scope(prefix, changes.apply(&record.scope, now)?).await? {
        return Err(no_such_key(prefix));
    }
    Ok(())
}

async fn revoke_key(
    store: &OpenStore,
    prefix: &str,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ledger = &*store.ledger;
    let prefix = match parse_key_id(prefix) {
        Some(_) => find_key(ledger, prefix).await?.prefix,
        None => prefix.to_owned(),
    };
    let at = now_s();
    let change = AuditedChange {
        action: "key.revoke",
        key: Some(prefix.clone()),
        ..AuditedChange::default()
    };
    let revoking = async || {
        let revoke = async || ledger.revoke_key(&prefix, at).await;
        if !store.durability.write(revoke).await? {
            return Err(no_such_key(&prefix));
        }
        Ok(())
    };
    audit::run_audited(audit, Some(ledger), &change, revoking).await?;
    if out.json {
        print_line(format_args!("{}", json!({ "prefix": prefix, "revoked": true })))?;
    }
    Ok(())
}

/// Finds a key by its beginning, as it is listed, or by its id.
async fn find_key(ledger: &dyn Ledger, prefix: &str) -> anyhow::Result<KeyRecord> {
    let found = match parse_key_id(prefix) {
        Some(id) => find_key_by_id(ledger, id).await?,
        None => ledger.find_key_by_prefix(prefix).await?,
    };
    found.ok_or_else(|| no_such_key(prefix))
}

/// Returns the time in unix seconds.
fn now_s() -> i64 {
    unix_ms() / 1_000
}

/// Parses the id of a key; `None` if the text is none, and is the beginning of a key.
fn parse_key_id(text: &str) -> Option<KeyId> {
    text.parse().ok().map(KeyId)
}

/// Looks through the keys of all accounts: stores find a key by its digest or its beginning.
async fn find_key_by_id(ledger: &dyn Ledger, id: KeyId) -> Result<Option<KeyRecord>, Unavailable> {
    for account in ledger.list_accounts().await? {
        let keys = ledger.list_keys(&account).await?;
        if let Some(record) = keys.into_iter().find(|key| key.id == id) {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

fn no_such_key(prefix: &str) -> anyhow::Error {
    anyhow!("there is no key listed as '{prefix}'")
}
