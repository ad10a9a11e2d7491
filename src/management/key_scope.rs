//! The scopes of keys: how they are given and changed.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::error::{ManagementError, scope_fault};
use super::field_patch::FieldPatch;
use crate::gateway::request::scope_check::known_endpoints;
use crate::ledger::{KeyScope, PlanName};

/// The changes of a key's scope. `None` leaves a member as it is.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ScopePatch {
    /// The name, or none.
    pub(crate) name: FieldPatch<String>,
    /// The tags that are set, and the ones that are removed (`None`).
    pub(crate) tags: BTreeMap<String, Option<String>>,
    pub(crate) models: Option<Vec<String>>,
    pub(crate) endpoints: Option<Vec<String>>,
    pub(crate) from: Option<Vec<IpNet>>,
    /// The expiry in unix seconds, or none.
    pub(crate) expires_at: FieldPatch<i64>,
    pub(crate) disabled: Option<bool>,
    /// The plan, or none.
    pub(crate) plan: FieldPatch<PlanName>,
}

impl ScopePatch {
    /// Whether nothing is to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        *self == ScopePatch::default()
    }

    /// Returns what becomes of the scope of a key.
    pub(crate) fn apply(&self, scope: &KeyScope) -> Result<KeyScope, ManagementError> {
        let mut scope = scope.clone();
        self.name.apply_to(&mut scope.name);
        self.expires_at.apply_to(&mut scope.expires_at);
        self.plan.apply_to(&mut scope.plan);
        set(&mut scope.models, self.models.as_ref());
        set(&mut scope.endpoints, self.endpoints.as_ref());
        set(&mut scope.from, self.from.as_ref());
        set(&mut scope.disabled, self.disabled.as_ref());
        for (name, value) in &self.tags {
            match value {
                Some(value) => scope.tags.insert(name.clone(), value.clone()),
                None => scope.tags.remove(name),
            };
        }
        scope.check().map_err(|fault| scope_fault(&fault))?;
        Ok(scope)
    }

    /// Returns what becomes of the scope of a key that another one has replaced. Its end may come
    /// earlier and never later.
    pub(crate) fn apply_to_older(&self, scope: &KeyScope) -> Result<KeyScope, ManagementError> {
        let changed = self.apply(scope)?;
        let ends = [scope.expires_at, changed.expires_at];
        Ok(KeyScope { expires_at: ends.into_iter().flatten().min(), ..changed })
    }
}

fn set<T: Clone>(member: &mut T, value: Option<&T>) {
    if let Some(value) = value {
        member.clone_from(value);
    }
}

/// Checks that there are endpoints of these names.
pub(crate) fn check_endpoints(names: &[String]) -> Result<(), ManagementError> {
    let known = known_endpoints();
    match names.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let names = known.join(", ");
            let message = format!("'{name}' is no endpoint; the endpoints are {names}");
            Err(ManagementError::Invalid { field: "endpoints", message })
        }
    }
}
