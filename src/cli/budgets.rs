//! Budgets on the command line: how they are given, set and shown.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::Args;
use serde_json::{Map, Value, json};

use super::amount::parse_amount;
use super::output::print_line;
use crate::ledger::{BudgetOwner, BudgetUse, KeyId, KeyRecord};
use crate::management::budgets::{LimitChanges, parse_window, reset_ms};
use crate::money::Money;

/// The changes of limits that a command is asked to make.
#[derive(Debug, Args)]
pub(super) struct BudgetArgs {
    /// Allow at most so much in each hour, day, week or month, or in total, such as day=5.
    #[arg(long = "budget", value_name = "WINDOW=USD")]
    limits: Vec<String>,
    /// Remove the limit of a window, such as day.
    #[arg(long = "no-budget", value_name = "WINDOW")]
    removed: Vec<String>,
}

impl BudgetArgs {
    /// Parses what was given, which may be nothing.
    pub(super) fn parse(&self) -> anyhow::Result<LimitChanges> {
        let mut changes = parse_limits(&self.limits)?;
        for window in &self.removed {
            add_change(&mut changes, window, None)?;
        }
        Ok(changes)
    }
}

/// Parses limits such as `day=5`.
pub(super) fn parse_limits(limits: &[String]) -> anyhow::Result<LimitChanges> {
    let mut changes = LimitChanges::new();
    for text in limits {
        let Some((window, usd)) = text.split_once('=') else {
            bail!("'{text}' is no budget: write the window and the amount in USD, as in day=5");
        };
        add_change(&mut changes, window, Some(parse_amount(usd)?))?;
    }
    Ok(changes)
}

fn add_change(
    changes: &mut LimitChanges,
    window: &str,
    limit: Option<Money>,
) -> anyhow::Result<()> {
    let kind = parse_window(window)?;
    if changes.insert(kind, limit).is_some() {
        bail!("the budget of the window '{window}' is given twice");
    }
    Ok(())
}

/// The budgets of an account and of its keys, with the beginnings of the keys.
pub(super) struct ShownBudgets {
    uses: Vec<BudgetUse>,
    prefixes: BTreeMap<KeyId, String>,
}

impl ShownBudgets {
    /// Takes budgets, and the keys that some of them may be about.
    pub(super) fn new(uses: Vec<BudgetUse>, keys: &[KeyRecord]) -> ShownBudgets {
        let prefixes = keys.iter().map(|key| (key.id, key.prefix.clone())).collect();
        ShownBudgets { uses, prefixes }
    }

    /// Returns all budgets as JSON.
    pub(super) fn to_json(&self) -> Value {
        self.uses.iter().map(|budget| self.budget_json(budget)).collect()
    }

    /// Returns the budgets of one key as JSON.
    pub(super) fn key_json(&self, key: KeyId) -> Value {
        self.of_key(key).map(|budget| self.budget_json(budget)).collect()
    }

    fn of_key(&self, key: KeyId) -> impl Iterator<Item = &BudgetUse> {
        self.uses.iter().filter(move |budget| budget.owner == BudgetOwner::Key(key))
    }

    fn budget_json(&self, budget: &BudgetUse) -> Value {
        let mut fields = Map::new();
        match budget.owner {
            BudgetOwner::Account => {
                fields.insert("owner".to_owned(), "account".into());
            }
            BudgetOwner::Key(key) => {
                fields.insert("owner".to_owned(), "key".into());
                fields.insert("key".to_owned(), self.name_key(key).into());
            }
        }
        fields.insert("window".to_owned(), budget.kind.name().into());
        fields.insert("limit_nano".to_owned(), json!(budget.limit));
        fields.insert("spent_nano".to_owned(), json!(budget.used.spent));
        fields.insert("held_nano".to_owned(), json!(budget.held()));
        fields.insert("resets_at".to_owned(), json!(reset_ms(budget).map(|ms| ms / 1_000)));
        Value::Object(fields)
    }

    /// Returns the beginning of a key, or the id of a key that is not listed.
    fn name_key(&self, key: KeyId) -> String {
        self.prefixes.get(&key).cloned().unwrap_or_else(|| key.0.to_string())
    }

    /// Prints all budgets, a line each.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        for budget in &self.uses {
            let words = describe_budget(budget)?;
            match budget.owner {
                BudgetOwner::Account => print_line(format_args!("budget       {words}"))?,
                BudgetOwner::Key(key) => {
                    print_line(format_args!("budget       {}…  {words}", self.name_key(key)))?;
                }
            }
        }
        Ok(())
    }

    /// Prints the budgets of one key, a line each that begins with `before`.
    pub(super) fn print_key(&self, key: KeyId, before: &str) -> anyhow::Result<()> {
        for budget in self.of_key(key) {
            print_line(format_args!("{before}{}", describe_budget(budget)?))?;
        }
        Ok(())
    }
}

fn describe_budget(budget: &BudgetUse) -> anyhow::Result<String> {
    let name = budget.kind.name();
    let limit = match (budget.limit, budget.left()) {
        (Some(limit), Some(left)) => format!("limit {limit}, left {left}"),
        _ => "no limit".to_owned(),
    };
    let (spent, held) = (budget.used.spent, budget.held());
    let end = match reset_ms(budget) {
        Some(ms) => format!(", until {}", jiff::Timestamp::from_millisecond(ms)?),
        None => String::new(),
    };
    Ok(format!("{name}: {limit}, spent {spent}, held {held} USD{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::prepaid::window::WindowUse;
    use crate::ledger::{WindowId, WindowKind};

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("not negative")
    }

    fn args(limits: &[&str], removed: &[&str]) -> BudgetArgs {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        BudgetArgs { limits: owned(limits), removed: owned(removed) }
    }

    #[test]
    fn limits_are_set_and_removed_by_the_names_of_their_windows() {
        let changes = args(&["day=5", "total=0.25"], &["hour"]).parse().expect("changes");
        let expected = [
            (WindowKind::Hour, None),
            (WindowKind::Day, Some(nano(5_000_000_000))),
            (WindowKind::Total, Some(nano(250_000_000))),
        ];
        assert_eq!(changes, LimitChanges::from(expected));
        assert!(args(&[], &[]).parse().expect("nothing").is_empty());
    }

    #[test]
    fn what_is_no_budget_is_refused_with_what_would_be_right() {
        let cases: [(&[&str], &[&str], &str); 7] = [
            (&["dya=5"], &[], "the windows are hour, day, week, month, total"),
            (&[], &["year"], "'year' is no window of a budget"),
            (&["5"], &[], "as in day=5"),
            (&["day=five"], &[], "'five' is no amount in USD"),
            (&["day=-1"], &[], "'-1' is no amount in USD"),
            (&["day=5", "day=6"], &[], "'day' is given twice"),
            (&["day=5"], &["day"], "'day' is given twice"),
        ];
        for (limits, removed, told) in cases {
            let why = args(limits, removed).parse().expect_err("no budget").to_string();
            assert!(why.contains(told), "{limits:?} {removed:?}: {why}");
        }
    }

    #[test]
    fn a_budget_is_shown_with_what_is_left_and_when_its_window_ends() {
        // 2026-11-25 13:14:15.678 UTC.
        let window = WindowId::at(BudgetOwner::Account, WindowKind::Day, 1_795_612_455_678);
        // A gateway has borrowed 0.20 that no call needs.
        let (spent, held, free) = (nano(1_200_000_000), nano(500_000_000), nano(200_000_000));
        let used = WindowUse { spent, held, lent: free };
        let (owner, kind, limit) = (window.owner, window.kind, Some(nano(5_000_000_000)));
        let day = BudgetUse { owner, kind, limit, window, used, free };
        let words =
            "day: limit 5.00, left 3.50, spent 1.20, held 0.30 USD, until 2026-11-26T00:00:00Z";
        assert_eq!(describe_budget(&day).expect("words"), words);
        let owner = BudgetOwner::Key(KeyId(7));
        let window = WindowId::at(owner, WindowKind::Total, 1_795_612_455_678);
        let total = BudgetUse { owner, kind: WindowKind::Total, limit: None, window, used, free };
        let words = "total: no limit, spent 1.20, held 0.30 USD";
        assert_eq!(describe_budget(&total).expect("words"), words);
        let shown = ShownBudgets::new(vec![day, total], &[]);
        let day = json!({
            "owner": "account", "window": "day", "limit_nano": 5_000_000_000_u64,
            "spent_nano": 1_200_000_000, "held_nano": 300_000_000, "resets_at": 1_795_651_200,
        });
        let total = json!({
            "owner": "key", "key": "7", "window": "total", "limit_nano": null,
            "spent_nano": 1_200_000_000, "held_nano": 300_000_000, "resets_at": null,
        });
        assert_eq!(shown.to_json(), json!([day, total]));
        assert_eq!(shown.key_json(KeyId(7)), json!([total]));
    }
}
