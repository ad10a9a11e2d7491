//! Budgets in requests and replies.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::amounts::parse_usd;
use super::error::AdminError;
use crate::ledger::{BudgetOwner, BudgetUse, KeyId, KeyRecord, WindowKind};
use crate::management::budgets::{LimitChanges, reset_ms};
use crate::management::field_patch::FieldPatch;
use crate::money::Money;

/// The limits of windows, in USD. A window that is missing stays as it is; null removes its limit.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "day": "5" }))]
pub(crate) struct BudgetAmounts {
    /// The most of each hour.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    hour: FieldPatch<String>,
    /// The most of each day (UTC).
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "5")]
    day: FieldPatch<String>,
    /// The most of each week, from Monday (UTC).
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    week: FieldPatch<String>,
    /// The most of each month (UTC).
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    month: FieldPatch<String>,
    /// The most in total.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    total: FieldPatch<String>,
}

impl BudgetAmounts {
    /// Returns the limits of a day, a month and in total that are given, in USD.
    pub(crate) fn of_given(limits: [Option<String>; 3]) -> BudgetAmounts {
        let [day, month, total] = limits.map(FieldPatch::set_if_given);
        BudgetAmounts { day, month, total, ..BudgetAmounts::default() }
    }

    /// Returns the limits of a day, a month and in total, in USD. One that is not given is removed.
    pub(crate) fn of_all(limits: [Option<String>; 3]) -> BudgetAmounts {
        let [day, month, total] = limits.map(FieldPatch::Set);
        BudgetAmounts { day, month, total, ..BudgetAmounts::default() }
    }

    /// Returns the limits of a day and a month, in USD. One that is not given is removed.
    pub(crate) fn of_account(day: Option<String>, month: Option<String>) -> BudgetAmounts {
        let [day, month] = [day, month].map(FieldPatch::Set);
        BudgetAmounts { day, month, ..BudgetAmounts::default() }
    }

    /// Returns the limits that are set and removed.
    pub(crate) fn parse(&self) -> Result<LimitChanges, AdminError> {
        let windows = [
            (WindowKind::Hour, &self.hour),
            (WindowKind::Day, &self.day),
            (WindowKind::Week, &self.week),
            (WindowKind::Month, &self.month),
            (WindowKind::Total, &self.total),
        ];
        let mut changes = LimitChanges::new();
        for (kind, given) in windows {
            let FieldPatch::Set(given) = given else { continue };
            let field = format!("budgets.{}", kind.name());
            let limit = given.as_deref().map(|text| parse_usd(&field, text)).transpose()?;
            changes.insert(kind, limit);
        }
        Ok(changes)
    }
}

/// A budget, and what is used of its window that runs now.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BudgetReply {
    /// Whose budget it is: `account` or `key`.
    #[schema(example = "account")]
    owner: &'static str,
    /// The beginning of the key; null for the account's own budget.
    key: Option<String>,
    /// The window: `hour`, `day`, `week`, `month` or `total`.
    #[schema(example = "day")]
    window: &'static str,
    /// The limit, in nano-USD; null if it was removed.
    limit_nano: Option<i64>,
    /// The limit, in USD.
    limit_usd: Option<String>,
    /// What was spent in the window, in nano-USD.
    spent_nano: i64,
    /// What was spent in the window, in USD.
    spent_usd: String,
    /// What running calls hold of the window, in nano-USD.
    held_nano: i64,
    /// What running calls hold of the window, in USD.
    held_usd: String,
    /// When the window ends, in unix seconds; null if it never does.
    resets_at: Option<i64>,
}

impl BudgetReply {
    /// Returns a budget. `keys` are those that it may be about.
    pub(super) fn new(budget: &BudgetUse, keys: &[KeyRecord]) -> BudgetReply {
        let (owner, key) = match budget.owner {
            BudgetOwner::Account => ("account", None),
            BudgetOwner::Key(id) => ("key", Some(name_key(id, keys))),
        };
        BudgetReply {
            owner,
            key,
            window: budget.kind.name(),
            limit_nano: budget.limit.map(Money::nano),
            limit_usd: budget.limit.map(|limit| limit.to_string()),
            spent_nano: budget.used.spent.nano(),
            spent_usd: budget.used.spent.to_string(),
            held_nano: budget.held().nano(),
            held_usd: budget.held().to_string(),
            resets_at: reset_ms(budget).map(|ms| ms / 1_000),
        }
    }
}

/// Returns the beginning of the newest key of an id, or the id of a key that is not listed.
fn name_key(id: KeyId, keys: &[KeyRecord]) -> String {
    let record = keys.iter().rfind(|record| record.id == id);
    record.map_or_else(|| id.0.to_string(), |record| record.prefix.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_set_removed_or_left() {
        let of = |text: &str| serde_json::from_str::<BudgetAmounts>(text);
        let changes = of(r#"{"day":"5","hour":null}"#).expect("budgets").parse().expect("amounts");
        let five = Money::parse_usd("5").ok();
        let expected = [(WindowKind::Hour, None), (WindowKind::Day, five)];
        assert_eq!(changes, LimitChanges::from(expected));
        assert!(of("{}").expect("budgets").parse().expect("amounts").is_empty());
        assert!(of(r#"{"dya":"5"}"#).is_err() && of(r#"{"day":5}"#).is_err());
        assert!(of(r#"{"day":"-5"}"#).expect("a text").parse().is_err());
    }
}
