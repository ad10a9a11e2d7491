//! What the commands print of keys.

use serde_json::{Value, json};

use super::budgets::ShownBudgets;
use super::key_scope::{scope_json, scope_lines};
use super::output::{OutputFormat, print_line};
use crate::ledger::{AccountName, KeyId, KeyRecord, Ledger};
use crate::management::key_search::{last_use, state_of};

/// Prints all keys of an account.
pub(super) async fn list_keys(
    ledger: &dyn Ledger,
    account: &AccountName,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let keys = ledger.list_keys(account).await?;
    let budgets = ShownBudgets::new(ledger.list_budgets(account).await?, &keys);
    for record in &keys {
        if out.json {
            print_line(format_args!("{}", key_json(record, &budgets)))?;
            continue;
        }
        let (prefix, state, last_use) = (&record.prefix, state_of(record), tell_last_use(record));
        print_line(format_args!("{prefix}…  {state}  last used {last_use}"))?;
        for (what, text) in scope_lines(&record.scope) {
            print_line(format_args!("  {what}  {text}"))?;
        }
        budgets.print_key(record.id, "  budget  ")?;
    }
    Ok(())
}

/// Prints one key.
pub(super) async fn show_key(
    ledger: &dyn Ledger,
    record: &KeyRecord,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let KeyRecord { id: KeyId(id), account, prefix, created_at, .. } = record;
    let uses = ledger.list_budgets(account).await?;
    let budgets = ShownBudgets::new(uses, std::slice::from_ref(record));
    if out.json {
        let mut shown = key_json(record, &budgets);
        shown["account"] = account.as_str().into();
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    let created = jiff::Timestamp::from_second(*created_at)?;
    print_line(format_args!("key          {prefix}…"))?;
    print_line(format_args!("id           {id}"))?;
    print_line(format_args!("account      {account}"))?;
    print_line(format_args!("created      {created}"))?;
    print_line(format_args!("last used    {}", tell_last_use(record)))?;
    print_line(format_args!("state        {}", state_of(record)))?;
    for (what, text) in scope_lines(&record.scope) {
        print_line(format_args!("{what:<13}{text}"))?;
    }
    budgets.print_key(record.id, "budget       ")
}

fn tell_last_use(record: &KeyRecord) -> String {
    let at = last_use(record).and_then(|at| jiff::Timestamp::from_second(at).ok());
    at.map_or_else(|| "-".to_owned(), |at| at.to_string())
}

fn key_json(record: &KeyRecord, budgets: &ShownBudgets) -> Value {
    let mut members = scope_json(&record.scope);
    let own = [
        ("prefix", json!(record.prefix)),
        ("id", json!(record.id.0.to_string())),
        ("created_at", json!(record.created_at)),
        ("revoked_at", json!(record.revoked_at)),
        ("last_used_at", json!(last_use(record))),
        ("budgets", budgets.key_json(record.id)),
    ];
    members.extend(own.into_iter().map(|(name, value)| (name.to_owned(), value)));
    Value::Object(members)
}
