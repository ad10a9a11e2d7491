//! Limits of accounts and keys, by the names of their windows.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::error::ManagementError;
use super::living::{missing_account, require_living};
use crate::clock::unix_ms;
use crate::ledger::prepaid::window::WindowUse;
use crate::ledger::{AccountName, BudgetOwner, BudgetUse, Ledger, WindowId, WindowKind};
use crate::money::Money;

/// The limits that are set, by their windows; `None` removes one.
pub(crate) type LimitChanges = BTreeMap<WindowKind, Option<Money>>;

/// Finds the window of a budget by its name.
pub(crate) fn parse_window(name: &str) -> Result<WindowKind, ManagementError> {
    WindowKind::of_name(name).ok_or_else(|| {
        let known = WindowKind::ALL.map(WindowKind::name).join(", ");
        let message = format!("'{name}' is no window of a budget; the windows are {known}");
        ManagementError::Invalid { field: "budgets", message }
    })
}

/// Splits changes into the new limits and the removed ones.
pub(crate) fn split_limits(changes: &LimitChanges) -> (LimitChanges, LimitChanges) {
    changes.iter().map(|(kind, limit)| (*kind, *limit)).partition(|(_, limit)| limit.is_some())
}

/// Returns the limits as JSON, by the names of their windows, in nano-USD.
pub(crate) fn limits_json<'a>(
    limits: impl IntoIterator<Item = (&'a WindowKind, &'a Option<Money>)>,
) -> Value {
    let fields = limits.into_iter().map(|(kind, limit)| (kind.name().to_owned(), json!(limit)));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// Sets and removes limits of an account or of one of its keys. The same again changes nothing.
pub(crate) async fn set_limits(
    ledger: &dyn Ledger,
    account: &AccountName,
    owner: BudgetOwner,
    changes: &LimitChanges,
) -> Result<(), ManagementError> {
    if changes.is_empty() {
        return Ok(());
    }
    require_living(ledger, account).await?;
    let known = ledger.list_budgets(account).await?;
    let is_known =
        |kind: WindowKind| known.iter().any(|budget| budget.owner == owner && budget.kind == kind);
    let (set, removed): (Vec<_>, Vec<_>) = changes.iter().partition(|(_, limit)| limit.is_some());
    // A budget that was never set has no limit to remove.
    let removed = removed.into_iter().filter(|(kind, _)| is_known(**kind));
    // New limits come first: in between, more is limited rather than less.
    for (kind, limit) in set.into_iter().chain(removed) {
        if !ledger.set_budget(account, owner, *kind, *limit).await? {
            return Err(missing_account(ledger, account).await);
        }
    }
    Ok(())
}

/// Returns the budgets of a key that was never used. The store is not asked for them: if it did not
/// answer, the key would never be shown.
pub(crate) fn unused_budgets(owner: BudgetOwner, limits: &LimitChanges) -> Vec<BudgetUse> {
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

/// Returns when the window that runs now ends, in unix ms; `None` if it never does.
pub(crate) fn reset_ms(budget: &BudgetUse) -> Option<i64> {
    Some(budget.window.end()).filter(|end| *end < i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_split_and_told_by_the_names_of_their_windows() {
        let five = Some(Money::from_nano(5).expect("not negative"));
        let changes = LimitChanges::from([(WindowKind::Hour, None), (WindowKind::Day, five)]);
        assert_eq!(limits_json(&changes), json!({ "hour": null, "day": 5 }));
        let (new, removed) = split_limits(&changes);
        assert_eq!(new, LimitChanges::from([(WindowKind::Day, five)]));
        assert_eq!(removed, LimitChanges::from([(WindowKind::Hour, None)]));
        let why = parse_window("dya").expect_err("no window").to_string();
        assert!(why.contains("the windows are hour, day, week, month, total"), "{why}");
    }
}
