//! The scopes of keys: how they are given and changed.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::error::{ManagementError, no_such_key, scope_fault};
use super::field_patch::FieldPatch;
use crate::gateway::request::scope_check::known_endpoints;
use crate::ledger::{KeyRecord, KeyScope, Ledger, PlanName, Replaced, Replacement};

/// The most attempts to change what others change at the same time.
pub(super) const CHANGE_ATTEMPTS_MAX: u32 = 16;

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
    /// Returns the changes that lead from one scope to another one, without the expiry.
    pub(crate) fn between(from: &KeyScope, to: &KeyScope) -> ScopePatch {
        let removed = from.tags.keys().filter(|name| !to.tags.contains_key(*name));
        let removed = removed.map(|name| (name.clone(), None));
        let set = to.tags.iter().filter(|(name, value)| from.tags.get(*name) != Some(value));
        let set = set.map(|(name, value)| (name.clone(), Some(value.clone())));
        ScopePatch {
            name: FieldPatch::between(from.name.as_ref(), to.name.as_ref()),
            tags: removed.chain(set).collect(),
            models: (from.models != to.models).then(|| to.models.clone()),
            endpoints: (from.endpoints != to.endpoints).then(|| to.endpoints.clone()),
            from: (from.from != to.from).then(|| to.from.clone()),
            expires_at: FieldPatch::Keep,
            disabled: (from.disabled != to.disabled).then_some(to.disabled),
            plan: FieldPatch::between(from.plan.as_ref(), to.plan.as_ref()),
        }
    }

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

/// Changes the scope that a key has at this moment, and returns what it was before. Others may
/// change it at the same time: then this change is made on top of theirs.
pub(super) async fn change_scope(
    ledger: &dyn Ledger,
    prefix: &str,
    apply: impl Fn(&KeyScope) -> Result<KeyScope, ManagementError>,
) -> Result<KeyScope, ManagementError> {
    for _ in 0..CHANGE_ATTEMPTS_MAX {
        let found = ledger.find_key_by_prefix(prefix).await?;
        let KeyRecord { scope: before, .. } = found.ok_or_else(|| no_such_key(prefix))?;
        // Also if nothing changes: an earlier attempt may have ended before gateways were told.
        let after = apply(&before)?;
        let change = Replacement { before: before.clone(), after };
        match ledger.set_key_scope(prefix, change).await? {
            Replaced::Done => return Ok(before),
            Replaced::Changed => {}
            Replaced::Unknown => return Err(no_such_key(prefix)),
        }
    }
    let message = format!("others are changing the key {prefix} at this moment: change it again");
    Err(ManagementError::Conflict { code: "key_changed", message })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changes_between_two_scopes_lead_from_one_to_the_other() {
        let text = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let tags = |tags: &[(&str, &str)]| {
            tags.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let full = KeyScope {
            name: Some("ci".to_owned()),
            tags: tags(&[("team", "a"), ("env", "test")]),
            models: text(&["lmb-*"]),
            endpoints: text(&["chat"]),
            from: vec!["10.0.0.0/8".parse().expect("a network")],
            disabled: true,
            plan: PlanName::parse("free"),
            ..KeyScope::default()
        };
        let other = KeyScope {
            name: Some("cd".to_owned()),
            tags: tags(&[("team", "b"), ("zone", "eu")]),
            plan: PlanName::parse("trial"),
            ..full.clone()
        };
        let scopes = [KeyScope::default(), full, other];
        for (from, to) in scopes.iter().flat_map(|from| scopes.iter().map(move |to| (from, to))) {
            let changes = ScopePatch::between(from, to);
            assert_eq!(changes.is_empty(), from == to);
            assert_eq!(changes.apply(from).expect("a scope"), *to, "{from:?}");
        }
    }

    #[test]
    fn the_expiry_is_not_among_the_changes_between_two_scopes() {
        let ending = KeyScope { expires_at: Some(9), ..KeyScope::default() };
        assert!(ScopePatch::between(&KeyScope::default(), &ending).is_empty());
    }
}
