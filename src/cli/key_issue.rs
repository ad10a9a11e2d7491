//! `tollgate key issue`: a new key, which is shown this once.

use anyhow::anyhow;
use serde_json::Value;

use super::account_name::{no_such_account, parse_account};
use super::audit::{self, AuditedBudgets, AuditedChange};
use super::budgets::{self, LimitChanges, ShownBudgets};
use super::key_scope::scope_json;
use super::key_search::now_s;
use super::output::{OutputFormat, print_line};
use crate::clock::unix_ms;
use crate::conf::AuditSection;
use crate::ledger::key::ApiKey;
use crate::ledger::prepaid::window::WindowUse;
use crate::ledger::{BudgetOwner, BudgetUse, KeyRecord, KeyScope, WindowId};
use crate::money::Money;
use crate::store::OpenStore;

pub(super) async fn issue_key(
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
    let key = make_key()?;
    let record = KeyRecord::new(&key, name, now_s(), scope);
    let id = record.id;
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

/// Makes a key of random bits.
pub(super) fn make_key() -> anyhow::Result<ApiKey> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|why| anyhow!("no random bits: {why}"))?;
    Ok(ApiKey::from_random(bits))
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
