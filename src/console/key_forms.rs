//! The forms of keys, and what they ask for.

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::error::PageError;
use super::state::Viewer;
use crate::admin_api::amounts::Moment;
use crate::admin_api::budgets::BudgetAmounts;
use crate::gateway::request::scope_check::ACCOUNT;
use crate::hex::to_hex;
use crate::ledger::{AccountName, KeyScope, parse_network};
use crate::management::budgets::LimitChanges;
use crate::management::error::scope_fault;
use crate::management::field_patch::FieldPatch;
use crate::management::key_rotation::OVERLAP_S_MAX;
use crate::management::key_scope::ScopePatch;

/// A key that is to be issued.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyForm {
    /// A name of the form, which a page gives it: the same form issues one key.
    pub(super) request: String,
    name: Option<String>,
    /// Patterns of models with commas between them.
    models: Option<String>,
    /// Networks with commas between them.
    from: Option<String>,
    /// The day at whose beginning the key ends.
    expires: Option<String>,
    day_usd: Option<String>,
    month_usd: Option<String>,
    total_usd: Option<String>,
    /// Whether the key is for the account's own pages instead of for calls.
    account: Option<String>,
}

impl KeyForm {
    /// Returns the scope and the budgets of the key. `now` is in unix seconds.
    pub(super) fn parse(self, now: i64) -> Result<(KeyScope, LimitChanges), PageError> {
        let until = self.expires.map(Moment::Text);
        let expires_at = until.map(|day| day.parse_future("Works until", now)).transpose()?;
        let changes = ScopePatch {
            name: FieldPatch::set_if_given(self.name),
            models: Some(parts_of(self.models.as_deref())),
            from: Some(networks_of(self.from.as_deref())?),
            endpoints: self.account.is_some().then(|| vec![ACCOUNT.to_owned()]),
            expires_at: FieldPatch::set_if_given(expires_at),
            ..ScopePatch::default()
        };
        let limits = [self.day_usd, self.month_usd, self.total_usd];
        let limits = BudgetAmounts::of_given(limits).parse()?;
        Ok((changes.apply(&KeyScope::default())?, limits))
    }
}

/// What a key may do from now on. What was left empty is removed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeySettingsForm {
    name: Option<String>,
    models: Option<String>,
    from: Option<String>,
    day_usd: Option<String>,
    month_usd: Option<String>,
    total_usd: Option<String>,
}

impl KeySettingsForm {
    /// Returns the changes of the scope and of the budgets.
    pub(super) fn parse(self) -> Result<(ScopePatch, LimitChanges), PageError> {
        let changes = ScopePatch {
            name: FieldPatch::Set(self.name),
            models: Some(parts_of(self.models.as_deref())),
            from: Some(networks_of(self.from.as_deref())?),
            ..ScopePatch::default()
        };
        let limits = [self.day_usd, self.month_usd, self.total_usd];
        Ok((changes, BudgetAmounts::of_all(limits).parse()?))
    }
}

/// How long an old key works beside a new one if nobody says so, in seconds. A button that is
/// pressed twice shows no key: then the old one is still there to be rotated again.
const OVERLAP_S: i64 = 3_600;

/// A key that is to be replaced.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRotationForm {
    /// A name of the form, as of [`KeyForm`].
    pub(super) request: String,
    /// How long the old key goes on working, in hours.
    overlap_h: Option<String>,
}

impl KeyRotationForm {
    /// Returns how long the old key goes on working, in seconds.
    pub(super) fn overlap_s(&self) -> Result<i64, PageError> {
        let Some(text) = &self.overlap_h else { return Ok(OVERLAP_S) };
        let seconds = text.parse::<u32>().ok().and_then(|hours| hours.checked_mul(3_600));
        let seconds = seconds.filter(|seconds| *seconds <= OVERLAP_S_MAX).ok_or_else(|| {
            let most = OVERLAP_S_MAX / 3_600;
            PageError::invalid(format!("Overlap: '{text}' is no number of hours from 0 to {most}."))
        })?;
        Ok(i64::from(seconds))
    }
}

/// Returns the parts of a text that have commas between them.
fn parts_of(text: Option<&str>) -> Vec<String> {
    let parts = text.unwrap_or_default().split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn networks_of(text: Option<&str>) -> Result<Vec<ipnet::IpNet>, PageError> {
    let networks = parts_of(text);
    let networks = networks.iter().map(|text| parse_network(text)).collect::<Result<_, _>>();
    Ok(networks.map_err(|fault| scope_fault(&fault))?)
}

/// Returns the name under which a store keeps the forms that somebody has sent. Those of a customer
/// are apart from those of an operator who has the same name.
pub(super) fn owner_of(viewer: &Viewer) -> String {
    match viewer {
        Viewer::Operator { name, .. } if AccountName::parse(name).is_some() => name.clone(),
        // An identity may have a name that no operator can have.
        Viewer::Operator { name, .. } => digested("identity", name),
        Viewer::Customer(account) => digested("customer", account.as_str()),
    }
}

fn digested(kind: &str, name: &str) -> String {
    let digest = to_hex(&Sha256::digest(name));
    format!("{kind}.{}", digest.get(..40).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::Role;

    #[test]
    fn a_customer_sends_no_forms_in_the_name_of_an_operator() {
        let account = AccountName::parse("ada").expect("a name");
        let of = |name: &str| Viewer::Operator { name: name.to_owned(), role: Role::Owner };
        let viewers = [Viewer::Customer(account), of("ada"), of("ada@example.com")];
        let owners = viewers.each_ref().map(owner_of);
        assert!(owners.iter().all(|owner| AccountName::parse(owner).is_some()), "{owners:?}");
        assert!(owners[1] == "ada" && owners[0] != owners[1] && owners[1] != owners[2]);
    }

    #[test]
    fn an_overlap_is_a_number_of_hours() {
        let of = |hours: Option<&str>| {
            let overlap_h = hours.map(str::to_owned);
            KeyRotationForm { request: String::new(), overlap_h }.overlap_s().ok()
        };
        assert_eq!(
            [of(None), of(Some("0")), of(Some("24"))],
            [Some(OVERLAP_S), Some(0), Some(86_400)]
        );
        for wrong in ["-1", "1.5", "8761", "1193047", "99999999999", "x"] {
            assert_eq!(of(Some(wrong)), None, "{wrong}");
        }
    }
}
