//! `tollgate key`: issue, list and revoke keys.

use anyhow::{anyhow, bail};
use clap::Subcommand;
use serde_json::json;

use super::account_name::{no_such_account, parse_account};
use super::audit::{self, AuditedChange};
use super::output::{OutputFormat, print_line};
use crate::clock::unix_ms;
use crate::conf::AuditSection;
use crate::ledger::key::ApiKey;
use crate::ledger::{KeyRecord, Ledger};
use crate::store::OpenStore;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Make a key for an account, and show it this once.
    Issue {
        /// The account.
        name: String,
    },
    /// List the keys of an account by their beginnings.
    List {
        /// The account.
        name: String,
    },
    /// Make a key useless.
    Revoke {
        /// Its beginning, as listed.
        prefix: String,
    },
}

pub(super) async fn run(
    store: OpenStore,
    command: &KeyCommand,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    match command {
        KeyCommand::Issue { name } => issue_key(&store, name, audit, out).await,
        KeyCommand::List { name } => list_keys(&*store.ledger, name, out).await,
        KeyCommand::Revoke { prefix } => {
            let at = unix_ms() / 1_000;
            let change = AuditedChange {
                action: "key.revoke",
                key: Some(prefix.clone()),
                ..AuditedChange::default()
            };
            let revoking = async || {
                let revoke = async || store.ledger.revoke_key(prefix, at).await;
                if !store.durability.write(revoke).await? {
                    bail!("there is no key listed as '{prefix}'");
                }
                anyhow::Ok(())
            };
            audit::run_audited(audit, Some(&*store.ledger), &change, revoking).await?;
            if out.json {
                print_line(format_args!("{}", json!({ "prefix": prefix, "revoked": true })))?;
            }
            Ok(())
        }
    }
}

async fn issue_key(
    store: &OpenStore,
    name: &str,
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
    let record =
        KeyRecord { account: name, prefix, created_at: unix_ms() / 1_000, revoked_at: None };
    let change = AuditedChange {
        action: "key.issue",
        account: Some(record.account.clone()),
        key: Some(record.prefix.clone()),
        ..AuditedChange::default()
    };
    let adding = async || {
        let add = async || ledger.add_key(key.hash(), record.clone()).await;
        anyhow::Ok(store.durability.write(add).await?)
    };
    audit::run_audited(audit, Some(ledger), &change, adding).await?;
    if out.json {
        print_line(format_args!("{}", json!({ "key": key.reveal(), "prefix": key.prefix() })))?;
    } else {
        print_line(format_args!("{}", key.reveal()))?;
    }
    Ok(())
}

async fn list_keys(ledger: &dyn Ledger, name: &str, out: OutputFormat) -> anyhow::Result<()> {
    let name = parse_account(name)?;
    if ledger.balances(&name).await?.is_none() {
        return Err(no_such_account(&name));
    }
    for record in ledger.list_keys(&name).await? {
        let KeyRecord { prefix, created_at, revoked_at, .. } = record;
        if out.json {
            let shown = json!({
                "prefix": prefix,
                "created_at": created_at,
                "revoked_at": revoked_at,
            });
            print_line(format_args!("{shown}"))?;
        } else {
            let state = if revoked_at.is_some() { "revoked" } else { "valid" };
            print_line(format_args!("{prefix}…  {state}"))?;
        }
    }
    Ok(())
}
