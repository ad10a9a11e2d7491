//! Tells the owner of a key what it is for, and what is left of its budgets.

use super::json_object::{JsonObjectWriter, format_ms, format_seconds, write_list};
use crate::catalogue::plan::PlanLimits;
use crate::gateway::api_error::{ApiError, ServerError};
use crate::gateway::key_uses::minute_of;
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::request::rates::CallerPlans;
use crate::gateway::state::Gateway;
use crate::ledger::{BudgetOwner, BudgetUse, KeyRecord, WindowKind};
use crate::money::Money;

/// The number of requests where none is set, as the clients of this format know it.
const NO_LIMIT: i64 = -1;

/// Answers with what is known of the key of the caller.
///
/// # Errors
/// A plan of the caller is not set up here, or the ledger does not answer.
pub(super) async fn show_key(
    gateway: &Gateway,
    caller: &AuthenticatedCaller,
) -> Result<String, ApiError> {
    let key = &caller.key;
    let plans = CallerPlans::find(&gateway.catalogue.load().plans, key)?;
    let listed = gateway.ledger.list_budgets(&key.account);
    let listed = gateway.with_ledger_timeout("budgets", listed).await;
    let mut budgets = listed.map_err(|_| ServerError::LedgerUnavailable)?;
    budgets.retain(|budget| budget.owner == BudgetOwner::Key(key.id));
    Ok(key_json(key, &budgets, &plans))
}

fn key_json(key: &KeyRecord, budgets: &[BudgetUse], plans: &CallerPlans) -> String {
    let scope = &key.scope;
    // A window counts what was spent since its budget was first set; nothing else is known.
    let spent = |kind: WindowKind| {
        let window = budgets.iter().find(|budget| budget.kind == kind);
        window.map(|budget| budget.used.spent)
    };
    let tightest = budgets.iter().filter_map(|budget| Some((budget.left()?, budget)));
    let tightest = tightest.min_by_key(|(left, _)| *left);
    let limit = tightest.and_then(|(_, budget)| budget.limit);
    let data = JsonObjectWriter::new()
        .text("label", scope.name.as_deref().unwrap_or(&key.prefix))
        .usd("usage", spent(WindowKind::Total))
        .usd("usage_daily", spent(WindowKind::Day))
        .usd("usage_weekly", spent(WindowKind::Week))
        .usd("usage_monthly", spent(WindowKind::Month))
        .usd("limit", limit)
        .usd("limit_remaining", tightest.map(|(left, _)| left))
        .text("limit_reset", tightest.and_then(|(_, budget)| reset_name(budget.kind)))
        .text("expires_at", scope.expires_at.and_then(format_seconds).as_deref())
        .json("is_free_tier", "false")
        .json("is_management_key", "false")
        .json("rate_limit", &rate_limit_json(plans))
        .text("prefix", key.prefix.as_str())
        .text("id", key.id.0.to_string().as_str())
        .text("name", scope.name.as_deref())
        .texts("models", &scope.models)
        .texts("endpoints", &scope.endpoints)
        .json("budgets", &write_list(&budgets.iter().map(budget_json).collect::<Vec<_>>()))
        .text("created_at", format_seconds(key.created_at).as_deref())
        .text("last_used_at", key.last_used_at.map(minute_of).and_then(format_seconds).as_deref());
    JsonObjectWriter::new().json("data", &data.finish()).finish()
}

fn budget_json(budget: &BudgetUse) -> String {
    let resets_at = Some(budget.window.end()).filter(|end| *end < i64::MAX).and_then(format_ms);
    JsonObjectWriter::new()
        .text("window", budget.kind.name())
        .optional_number("limit_nano", budget.limit.map(Money::nano))
        .number("spent_nano", budget.used.spent.nano())
        .number("held_nano", budget.held().nano())
        .text("resets_at", resets_at.as_deref())
        .finish()
}

/// Returns how often the window of a budget begins anew; `None` if it never does.
fn reset_name(kind: WindowKind) -> Option<&'static str> {
    match kind {
        WindowKind::Hour => Some("hourly"),
        WindowKind::Day => Some("daily"),
        WindowKind::Week => Some("weekly"),
        WindowKind::Month => Some("monthly"),
        WindowKind::Total => None,
    }
}

fn rate_limit_json(plans: &CallerPlans) -> String {
    let limits = plans.lowest_limits();
    JsonObjectWriter::new()
        .number("requests", limits.requests_per_minute.unwrap_or(NO_LIMIT))
        .text("interval", "1m")
        .text("note", describe_limits(limits, plans.limit_some_models()).as_str())
        .finish()
}

fn describe_limits(limits: PlanLimits, limits_some_models: bool) -> String {
    let PlanLimits { requests_per_minute, tokens_per_minute, calls } = limits;
    let described = [
        requests_per_minute.map(|units| format!("requests a minute: {units}")),
        tokens_per_minute.map(|units| format!("tokens a minute: {units}")),
        calls.map(|units| format!("calls at a time: {units}")),
        limits_some_models.then(|| "some models have limits of their own".to_owned()),
    ];
    let described: Vec<String> = described.into_iter().flatten().collect();
    if described.is_empty() { "no rate limit".to_owned() } else { described.join("; ") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ledger::key::ApiKey;
    use crate::ledger::prepaid::window::WindowUse;
    use crate::ledger::{AccountName, KeyScope, WindowId};

    /// 2026-11-25 13:14:15.678 UTC.
    const NOW_MS: i64 = 1_795_612_455_678;

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("not negative")
    }

    fn key(scope: KeyScope) -> KeyRecord {
        let account = AccountName::parse("acme").expect("a name");
        KeyRecord::new(&ApiKey::from_random([1; 32]), account, 1_795_600_000, scope)
    }

    fn budget(key: &KeyRecord, kind: WindowKind, limit: Option<i64>, spent: i64) -> BudgetUse {
        let owner = BudgetOwner::Key(key.id);
        let window = WindowId::at(owner, kind, NOW_MS);
        let used = WindowUse { spent: nano(spent), held: nano(30), lent: nano(20) };
        BudgetUse { owner, kind, limit: limit.map(nano), window, used, free: nano(20) }
    }

    fn shown(key: &KeyRecord, budgets: &[BudgetUse]) -> Value {
        let text = key_json(key, budgets, &CallerPlans::default());
        serde_json::from_str::<Value>(&text).expect("JSON")["data"].take()
    }

    #[test]
    fn a_key_without_budgets_tells_no_usage_and_no_limit() {
        let record = KeyRecord { last_used_at: Some(1_795_600_061), ..key(KeyScope::default()) };
        let expected = format!(
            concat!(
                r#"{{"data":{{"label":"sk-tg-01010101","usage":null,"usage_daily":null,"#,
                r#""usage_weekly":null,"usage_monthly":null,"limit":null,"limit_remaining":null,"#,
                r#""limit_reset":null,"expires_at":null,"is_free_tier":false,"#,
                r#""is_management_key":false,"rate_limit":{{"requests":-1,"interval":"1m","#,
                r#""note":"no rate limit"}},"prefix":"sk-tg-01010101","id":"{}","name":null,"#,
                r#""models":[],"endpoints":[],"budgets":[],"#,
                r#""created_at":"2026-11-25T09:46:40Z","last_used_at":"2026-11-25T09:47:00Z"}}}}"#
            ),
            record.id.0
        );
        assert_eq!(key_json(&record, &[], &CallerPlans::default()), expected);
    }

    #[test]
    fn the_tightest_budget_is_the_limit_and_a_removed_one_counts_on() {
        let models = vec!["lmb-*".to_owned()];
        let scope = KeyScope {
            name: Some("ci".to_owned()),
            models,
            expires_at: Some(1_800_000_000),
            ..KeyScope::default()
        };
        let record = key(scope);
        let budgets = [
            budget(&record, WindowKind::Day, Some(5_000_000_000), 1_200_000_000),
            budget(&record, WindowKind::Month, Some(2_000_000_000), 1_500_000_000),
            budget(&record, WindowKind::Total, None, 1_700_000_000),
        ];
        let shown = shown(&record, &budgets);
        let part = |names: &[&str]| names.iter().map(|n| shown[*n].clone()).collect::<Vec<_>>();
        assert_eq!(
            part(&["label", "name", "models"]),
            [json!("ci"), json!("ci"), json!(["lmb-*"])]
        );
        let usage = part(&["usage", "usage_daily", "usage_weekly", "usage_monthly"]);
        assert_eq!(usage, [json!(1.7), json!(1.2), Value::Null, json!(1.5)]);
        let limit = part(&["limit", "limit_remaining", "limit_reset", "expires_at"]);
        let left = json!(0.499_999_99);
        assert_eq!(limit, [json!(2.0), left, json!("monthly"), json!("2027-01-15T08:00:00Z")]);
        let day = json!({
            "window": "day", "limit_nano": 5_000_000_000_u64, "spent_nano": 1_200_000_000,
            "held_nano": 10, "resets_at": "2026-11-26T00:00:00Z",
        });
        let total = json!({
            "window": "total", "limit_nano": null, "spent_nano": 1_700_000_000,
            "held_nano": 10, "resets_at": null,
        });
        assert_eq!((&shown["budgets"][0], &shown["budgets"][2]), (&day, &total));
    }

    #[test]
    fn limits_are_described_by_what_they_count() {
        let limits =
            PlanLimits { requests_per_minute: Some(20), tokens_per_minute: None, calls: Some(4) };
        assert_eq!(describe_limits(limits, false), "requests a minute: 20; calls at a time: 4");
        let none = PlanLimits::default();
        assert_eq!(describe_limits(none, true), "some models have limits of their own");
        assert_eq!(describe_limits(none, false), "no rate limit");
    }
}
