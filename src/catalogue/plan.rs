//! Plans: the rate limits of accounts and keys, and the models that they are for.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use crate::fast_map::FastMap;
use crate::ledger::PlanName;

/// The name of the plan of accounts that name none.
pub const DEFAULT_PLAN: &str = "default";

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The name.
    pub name: PlanName,
    /// The limits of all models together.
    pub limits: PlanLimits,
    /// Further limits of some models, in the order of the file.
    pub narrower: Vec<ModelLimits>,
    /// Patterns of the models that the plan is for, in which `*` stands for any text. None stand
    /// for all models.
    pub models: Vec<String>,
    /// Whether the limits are only counted, and refuse nothing.
    pub is_shadow: bool,
}

/// Limits of a plan. Each of them may be missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanLimits {
    /// Requests a minute. As many may come at once.
    pub requests_per_minute: Option<i64>,
    /// Tokens of input and billed output a minute. As many may come at once.
    pub tokens_per_minute: Option<i64>,
    /// Calls at a time.
    pub calls: Option<i64>,
}

/// Limits of some models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelLimits {
    /// Patterns of the models.
    pub models: Vec<String>,
    /// The limits of these models together.
    pub limits: PlanLimits,
}

/// All plans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plans {
    /// In order of their names.
    plans: Vec<Arc<Plan>>,
    /// The index in `plans` for each name, since each call looks for one.
    by_name: FastMap<PlanName, usize>,
}

impl Plans {
    /// Makes the plans of a file, in which no name stands twice.
    #[must_use]
    pub(crate) fn new(mut plans: Vec<Plan>) -> Plans {
        plans.sort_by(|one, other| one.name.cmp(&other.name));
        let plans: Vec<Arc<Plan>> = plans.into_iter().map(Arc::new).collect();
        let by_name = plans.iter().enumerate().map(|(at, plan)| (plan.name.clone(), at)).collect();
        Plans { plans, by_name }
    }

    /// Returns the plan of a name.
    #[must_use]
    pub fn find(&self, name: &PlanName) -> Option<&Arc<Plan>> {
        self.find_text(name.as_str())
    }

    /// Returns the plan of accounts that name none; `None` if there is no such plan. Then they have
    /// no limits.
    #[must_use]
    pub fn default_plan(&self) -> Option<&Arc<Plan>> {
        self.find_text(DEFAULT_PLAN)
    }

    /// Returns all plans, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Plan>> {
        self.plans.iter()
    }

    /// Returns how many plans there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.plans.len()
    }

    fn find_text(&self, name: &str) -> Option<&Arc<Plan>> {
        self.by_name.get(name).and_then(|at| self.plans.get(*at))
    }
}
