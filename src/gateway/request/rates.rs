//! The plans of a caller, and what a call takes of their rate limits.

use std::sync::Arc;

use crate::catalogue::plan::PlanLimits;
use crate::catalogue::{Model, Plan, Plans, PriceBook};
use crate::gateway::api_error::{ApiError, ScopeError};
use crate::gateway::request::scope_check;
use crate::ledger::prepaid::rate::RATE_UNITS_MAX;
use crate::ledger::{
    BudgetOwner, KeyId, KeyRecord, KeyScope, PlanName, RateAsk, RateId, RateKind, RateLimit,
    matches_pattern,
};

/// The plans by which the calls of a key are limited.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallerPlans {
    /// The plan of the account.
    account: Option<Arc<Plan>>,
    /// The plan of the key, if it names one.
    key: Option<Arc<Plan>>,
}

impl CallerPlans {
    /// Finds the plans of a key and its account. An account that names none has the default plan.
    /// The calls of a key that names none count for its account alone.
    ///
    /// # Errors
    /// A plan is not set up here. Then nobody knows what it allows.
    pub(crate) fn find(plans: &Plans, key: &KeyRecord) -> Result<CallerPlans, ApiError> {
        let find = |name: &PlanName| {
            let unknown = || ApiError::from(ScopeError::UnknownPlan(name.clone()));
            plans.find(name).cloned().ok_or_else(unknown)
        };
        let account = match &key.account_settings.plan {
            Some(name) => Some(find(name)?),
            None => plans.default_plan().cloned(),
        };
        Ok(CallerPlans { account, key: key.scope.plan.as_ref().map(find).transpose()? })
    }

    /// Checks that the plans are for a model.
    ///
    /// # Errors
    /// One of them is not.
    pub(crate) fn check_model(&self, model: &Model) -> Result<(), ApiError> {
        match self.iter().find(|(_, plan)| !allows_model(plan, &model.id)) {
            Some((_, plan)) => {
                let (model, allowed) = (model.id.clone(), plan.models.clone());
                Err(ScopeError::ModelNotAllowed { model, allowed }.into())
            }
            None => Ok(()),
        }
    }

    /// Whether the plans are for some models only.
    #[must_use]
    pub(crate) fn restrict_models(&self) -> bool {
        self.iter().any(|(_, plan)| !plan.is_shadow && !plan.models.is_empty())
    }

    /// Returns the limits of all models together: where both plans have one, the lower of them. A
    /// plan in shadow mode has none.
    #[must_use]
    pub(crate) fn lowest_limits(&self) -> PlanLimits {
        let lower = |one: Option<i64>, other: Option<i64>| one.into_iter().chain(other).min();
        let plans = self.iter().filter(|(_, plan)| !plan.is_shadow);
        plans.fold(PlanLimits::default(), |lowest, (_, plan)| PlanLimits {
            requests_per_minute: lower(lowest.requests_per_minute, plan.limits.requests_per_minute),
            tokens_per_minute: lower(lowest.tokens_per_minute, plan.limits.tokens_per_minute),
            calls: lower(lowest.calls, plan.limits.calls),
        })
    }

    /// Whether some models have limits of their own.
    #[must_use]
    pub(crate) fn limit_some_models(&self) -> bool {
        self.iter().any(|(_, plan)| !plan.is_shadow && !plan.narrower.is_empty())
    }

    /// Returns what a call of a model takes, whose tokens are estimated if there is any plan. Each
    /// limit is named once.
    #[must_use]
    pub(crate) fn asks(
        &self,
        key: &KeyRecord,
        model: &Model,
        estimate_tokens: impl FnOnce() -> u64,
    ) -> Vec<RateAsk> {
        if self.account.is_none() && self.key.is_none() {
            return Vec::new();
        }
        self.all_asks(key.id, Some(&model.id), estimate_tokens())
    }

    /// Returns what a request takes that costs nothing: it counts as a request, and has no tokens
    /// and no place. `model` is the id of the one that it names, if it names any.
    #[must_use]
    pub(crate) fn free_asks(&self, key: KeyId, model: Option<&str>) -> Vec<RateAsk> {
        let mut asks = self.all_asks(key, model, 0);
        asks.retain(|ask| ask.id.kind == RateKind::Requests);
        asks
    }

    fn all_asks(&self, key: KeyId, model: Option<&str>, tokens: u64) -> Vec<RateAsk> {
        let mut asks = Vec::with_capacity(6);
        for (is_key, plan) in self.iter() {
            let owner = if is_key { BudgetOwner::Key(key) } else { BudgetOwner::Account };
            add_asks(&mut asks, plan, owner, 0, plan.limits, tokens);
            for (row, narrower) in (1..).zip(&plan.narrower) {
                if model.is_some_and(|id| matches_any(&narrower.models, id)) {
                    add_asks(&mut asks, plan, owner, row, narrower.limits, tokens);
                }
            }
        }
        asks
    }

    /// The plans, each with whether it is that of the key.
    fn iter(&self) -> impl Iterator<Item = (bool, &Plan)> {
        let account = self.account.iter().map(|plan| (false, &**plan));
        account.chain(self.key.iter().map(|plan| (true, &**plan)))
    }
}

/// The models that a caller may use, and what it pays for them.
pub(crate) struct ModelAccess<'a> {
    /// The scope of the key; `None` if it restricts nothing.
    pub(crate) scope: Option<&'a KeyScope>,
    /// The plans of the caller.
    pub(crate) plans: &'a CallerPlans,
    /// The price book of the caller; `None` if it pays the list prices.
    pub(crate) book: Option<&'a PriceBook>,
}

impl ModelAccess<'_> {
    /// Whether the caller may use any model, at list prices.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        self.scope.is_none() && !self.plans.restrict_models() && self.book.is_none()
    }

    /// Whether the caller may use a model on any endpoint.
    #[must_use]
    pub(crate) fn allows(&self, model: &Model) -> bool {
        let in_scope = self.scope.is_none_or(|scope| scope_check::is_listed(scope, model));
        in_scope && self.plans.check_model(model).is_ok()
    }
}

/// A plan in shadow mode refuses nothing.
fn allows_model(plan: &Plan, id: &str) -> bool {
    plan.is_shadow || plan.models.is_empty() || matches_any(&plan.models, id)
}

fn matches_any(patterns: &[String], id: &str) -> bool {
    patterns.iter().any(|pattern| matches_pattern(pattern, id))
}

fn add_asks(
    asks: &mut Vec<RateAsk>,
    plan: &Plan,
    owner: BudgetOwner,
    row: u16,
    limits: PlanLimits,
    tokens: u64,
) {
    let tokens = i64::try_from(tokens).unwrap_or(RATE_UNITS_MAX).min(RATE_UNITS_MAX);
    let PlanLimits { requests_per_minute, tokens_per_minute, calls } = limits;
    let mut add = |kind, limit: Option<RateLimit>, amount| {
        let id = RateId { owner, kind, row };
        asks.extend(limit.map(|limit| RateAsk { id, limit, amount, is_shadow: plan.is_shadow }));
    };
    // As much as a minute allows may come at once.
    let a_minute = |units: i64| RateLimit { per_minute: units, burst: units };
    let places = |units: i64| RateLimit { per_minute: 0, burst: units };
    add(RateKind::Requests, requests_per_minute.map(a_minute), 1);
    add(RateKind::Tokens, tokens_per_minute.map(a_minute), tokens);
    add(RateKind::Calls, calls.map(places), 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::plan::ModelLimits;
    use crate::gateway::settlement::test_calls::CATALOGUE;
    use crate::ledger::key::ApiKey;
    use crate::ledger::{AccountName, AccountSettings};

    fn plan(name: &str) -> Plan {
        Plan {
            name: PlanName::parse(name).expect("a name"),
            limits: PlanLimits { calls: Some(8), ..PlanLimits::default() },
            narrower: Vec::new(),
            models: Vec::new(),
            is_shadow: false,
        }
    }

    fn key(of_account: Option<&str>, of_key: Option<&str>) -> KeyRecord {
        let name = |name: Option<&str>| name.and_then(PlanName::parse);
        let scope = KeyScope { plan: name(of_key), ..KeyScope::default() };
        let account = AccountName::parse("acme").expect("a name");
        let record = KeyRecord::new(&ApiKey::from_random([1; 32]), account, 1, scope);
        let account_settings =
            AccountSettings { plan: name(of_account), ..AccountSettings::default() };
        KeyRecord { account_settings, ..record }
    }

    /// The names of the limits that a call of a key asks for, with what it takes.
    fn asked(plans: &[Plan], key: &KeyRecord, model: &str) -> Result<Vec<String>, String> {
        let plans = Plans::new(plans.to_vec());
        let found = CallerPlans::find(&plans, key).map_err(|_| "unknown".to_owned())?;
        let model = CATALOGUE.find(model).expect("a model");
        found.check_model(model).map_err(|_| "not allowed".to_owned())?;
        let asks = found.asks(key, model, || 70);
        let text = |ask: RateAsk| {
            let owner = if ask.id.owner == BudgetOwner::Account { "account" } else { "key" };
            let RateLimit { per_minute, burst } = ask.limit;
            let shadow = if ask.is_shadow { "~" } else { "" };
            let (kind, row, amount) = (ask.id.kind.name(), ask.id.row, ask.amount);
            format!("{shadow}{owner}/{kind}/{row} {amount} of {per_minute}/{burst}")
        };
        Ok(asks.into_iter().map(text).collect())
    }

    fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
        texts.map(str::to_owned).to_vec()
    }

    #[test]
    fn the_default_plan_is_for_accounts_that_name_none_and_a_key_has_its_own_beside() {
        let large =
            Plan { limits: PlanLimits { calls: Some(9), ..plan("a").limits }, ..plan("pro") };
        let all = [plan("default"), large];
        let asked = |of_account, of_key| asked(&all, &key(of_account, of_key), "lmb-5.5");
        assert_eq!(asked(None, None), Ok(texts(["account/calls/0 1 of 0/8"])));
        assert_eq!(asked(Some("pro"), None), Ok(texts(["account/calls/0 1 of 0/9"])));
        let both = ["account/calls/0 1 of 0/8", "key/calls/0 1 of 0/9"];
        assert_eq!(asked(None, Some("pro")), Ok(texts(both)));
        let unknown = Err("unknown".to_owned());
        assert_eq!((asked(Some("x"), None), asked(None, Some("x"))), (unknown.clone(), unknown));
        assert_eq!(super::tests::asked(&[], &key(None, None), "lmb-5.5"), Ok(texts([])));
    }

    #[test]
    fn the_limits_of_some_models_come_on_top_for_these() {
        let limits =
            PlanLimits { requests_per_minute: Some(20), tokens_per_minute: Some(40), calls: None };
        let of = |model: &str| ModelLimits { models: vec![model.to_owned()], limits };
        let narrower = vec![of("lma-*"), of("lmb-5*")];
        let all = [Plan { narrower, is_shadow: true, ..plan("default") }];
        let expected = [
            "~account/calls/0 1 of 0/8",
            "~account/requests/2 1 of 20/20",
            "~account/tokens/2 70 of 40/40",
        ];
        assert_eq!(asked(&all, &key(None, None), "lmb-5.5"), Ok(texts(expected)));
        assert_eq!(asked(&all, &key(None, None), "lmb-4o"), Ok(texts([expected[0]])));
    }

    #[test]
    fn of_what_costs_nothing_only_requests_count_also_of_the_models_that_are_named() {
        let limits = PlanLimits { tokens_per_minute: Some(9), ..plan("a").limits };
        let account = Plan { limits, ..plan("a") };
        let requests =
            |units| PlanLimits { requests_per_minute: Some(units), ..PlanLimits::default() };
        let narrower = vec![ModelLimits { models: vec!["lma-*".to_owned()], limits: requests(2) }];
        let key = Plan { narrower, limits: requests(5), ..plan("b") };
        let plans = CallerPlans { account: Some(account.into()), key: Some(key.into()) };
        let found = |model| {
            let asks = plans.free_asks(KeyId(7), model);
            asks.iter().map(|ask| (ask.id.to_string(), ask.limit.burst)).collect::<Vec<_>>()
        };
        let of_all = ("key:7/requests/0".to_owned(), 5);
        assert_eq!(found(None), std::slice::from_ref(&of_all));
        assert_eq!(found(Some("lmb-5")), std::slice::from_ref(&of_all));
        assert_eq!(found(Some("lma-5")), [of_all, ("key:7/requests/1".to_owned(), 2)]);
    }

    #[test]
    fn the_lower_limits_of_both_plans_are_told_and_those_of_a_shadow_are_not() {
        let limits = |requests, tokens, calls| PlanLimits {
            requests_per_minute: requests,
            tokens_per_minute: tokens,
            calls,
        };
        let of = |limits, is_shadow| Some(Arc::new(Plan { limits, is_shadow, ..plan("a") }));
        let account = of(limits(Some(20), None, Some(8)), false);
        let key = limits(Some(5), Some(9), Some(9));
        let both = CallerPlans { account: account.clone(), key: of(key, false) };
        assert_eq!(both.lowest_limits(), limits(Some(5), Some(9), Some(8)));
        let shadow = CallerPlans { account, key: of(key, true) };
        assert_eq!(shadow.lowest_limits(), limits(Some(20), None, Some(8)));
        assert_eq!(CallerPlans::default().lowest_limits(), PlanLimits::default());
        assert!(!both.limit_some_models());
    }

    #[test]
    fn a_plan_is_for_its_models_unless_it_is_a_shadow() {
        let models = vec!["lma-*".to_owned()];
        let strict = Plan { models, ..plan("default") };
        let shadow = Plan { is_shadow: true, ..strict.clone() };
        let asked = |plan: Plan| asked(&[plan], &key(None, None), "lmb-5.5");
        assert_eq!(asked(strict), Err("not allowed".to_owned()));
        assert_eq!(asked(shadow), Ok(texts(["~account/calls/0 1 of 0/8"])));
    }
}
