//! `tollgate key`: issue, list and revoke keys.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, bail};
use clap::Subcommand;
use serde_json::json;

use super::audit::{self, AuditedChange};
use super::{OutputFormat, account_name, no_account};
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
        KeyCommand::Issue { name } => issue(&store, name, audit, out).await,
        KeyCommand::List { name } => list(&*store.ledger, name, out).await,
        KeyCommand::Revoke { prefix } => {
            let at = now()?;
            let change = AuditedChange {
                action: "key.revoke",
                key: Some(prefix.clone()),
                ..AuditedChange::default()
            };
            let revoking = async || {
                let revoke = async || store.ledger.revoke_key(prefix, at).await;
                if !store.lasting.write(revoke).await? {
                    bail!("there is no key listed as '{prefix}'");
                }
                anyhow::Ok(())
            };
            audit::record(audit, &*store.ledger, &change, revoking).await?;
            if out.json {
                super::say(format_args!("{}", json!({ "prefix": prefix, "revoked": true })))?;
            }
            Ok(())
        }
    }
}

async fn issue(
    store: &OpenStore,
    name: &str,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let (name, ledger) = (account_name(name)?, &*store.ledger);
    if ledger.balances(&name).await?.is_none() {
        return Err(no_account(&name));
    }
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|why| anyhow!("no random bits: {why}"))?;
    let key = ApiKey::from_random(bits);
    let prefix = key.prefix().to_owned();
    let record = KeyRecord { account: name, prefix, created_at: now()?, revoked_at: None };
    let change = AuditedChange {
        action: "key.issue",
        account: Some(record.account.clone()),
        key: Some(record.prefix.clone()),
        ..AuditedChange::default()
    };
    let adding = async || {
        let add = async || ledger.add_key(key.hash(), record.clone()).await;
        anyhow::Ok(store.lasting.write(add).await?)
    };
    audit::record(audit, ledger, &change, adding).await?;
    if out.json {
        super::say(format_args!("{}", json!({ "key": key.reveal(), "prefix": key.prefix() })))?;
    } else {
        super::say(format_args!("{}", key.reveal()))?;
    }
    Ok(())
}

async fn list(ledger: &dyn Ledger, name: &str, out: OutputFormat) -> anyhow::Result<()> {
    let name = account_name(name)?;
    if ledger.balances(&name).await?.is_none() {
        return Err(no_account(&name));
    }
    for record in ledger.keys(&name).await? {
        let KeyRecord { prefix, created_at, revoked_at, .. } = record;
        if out.json {
            let shown = json!({
                "prefix": prefix,
                "created_at": created_at,
                "revoked_at": revoked_at,
            });
            super::say(format_args!("{shown}"))?;
        } else {
            let state = if revoked_at.is_some() { "revoked" } else { "valid" };
            super::say(format_args!("{prefix}…  {state}"))?;
        }
    }
    Ok(())
}

fn now() -> anyhow::Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?)
}
