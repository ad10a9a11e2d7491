//! `tollgate key issue`: a new key, which is shown this once.

use serde_json::Value;

use super::account_name::parse_account;
use super::budgets::ShownBudgets;
use super::key_scope::scope_json;
use super::output::{OutputFormat, print_line};
use crate::ledger::{BudgetOwner, KeyScope};
use crate::management::budgets::{LimitChanges, unused_budgets};
use crate::management::context::ManagementContext;
use crate::management::keys::{self, IssuedKey};

pub(super) async fn issue_key(
    context: ManagementContext<'_>,
    name: &str,
    limits: &LimitChanges,
    scope: KeyScope,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let name = parse_account(name)?;
    let IssuedKey { key, record } = keys::issue_key(context, &name, limits, scope).await?;
    if out.json {
        let id = record.id;
        let mut shown = Value::Object(scope_json(&record.scope));
        shown["key"] = key.reveal().into();
        shown["prefix"] = key.prefix().into();
        shown["id"] = id.0.to_string().into();
        let unused = unused_budgets(BudgetOwner::Key(id), limits);
        shown["budgets"] = ShownBudgets::new(unused, &[record]).key_json(id);
        print_line(format_args!("{shown}"))?;
    } else {
        print_line(format_args!("{}", key.reveal()))?;
    }
    Ok(())
}
