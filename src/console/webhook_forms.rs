//! The forms of webhooks, and what they ask for.

use serde::Deserialize;

use super::error::PageError;
use crate::admin_api::amounts::{parse_account_name, parse_usd};
use crate::ledger::AccountName;
use crate::management::field_patch::FieldPatch;
use crate::management::webhooks::{EndpointPatch, NewEndpoint, OVERLAP_S, OVERLAP_S_MAX};
use crate::money::Money;

/// The fields of events, and the events.
pub(super) const EVENT_FIELDS: [(&str, &str); 6] = [
    ("balance_low", "balance.low"),
    ("key_budget", "key.budget"),
    ("payment_received", "payment.received"),
    ("video_completed", "video.completed"),
    ("video_failed", "video.failed"),
    ("route_down", "route.down"),
];

/// What an endpoint is told, and where.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EndpointForm {
    /// A name of the form, which a page gives it: the same form adds one endpoint.
    #[serde(default)]
    pub(super) request: String,
    account: Option<String>,
    url: String,
    low_balance_usd: Option<String>,
    balance_low: Option<String>,
    key_budget: Option<String>,
    payment_received: Option<String>,
    video_completed: Option<String>,
    video_failed: Option<String>,
    route_down: Option<String>,
    enabled: Option<String>,
}

impl EndpointForm {
    /// Returns the events that are ticked.
    fn events(&self) -> Vec<String> {
        let ticked = [
            &self.balance_low,
            &self.key_budget,
            &self.payment_received,
            &self.video_completed,
            &self.video_failed,
            &self.route_down,
        ];
        let ticked = EVENT_FIELDS.iter().zip(ticked).filter(|(_, ticked)| ticked.is_some());
        ticked.map(|((_, event), _)| (*event).to_owned()).collect()
    }

    fn low_balance(&self) -> Result<Option<Money>, PageError> {
        let parse = |text: &String| parse_usd("Low balance, USD", text);
        Ok(self.low_balance_usd.as_ref().map(parse).transpose()?)
    }

    /// Returns the new endpoint of a customer, or of whom the form names.
    pub(super) fn parse(self, customer: Option<&AccountName>) -> Result<NewEndpoint, PageError> {
        let named = |text: &String| parse_account_name("Account", text);
        let account = match customer {
            Some(account) => Some(account.clone()),
            None => self.account.as_ref().map(named).transpose()?,
        };
        let (events, low_balance) = (self.events(), self.low_balance()?);
        Ok(NewEndpoint { account, url: self.url, events, low_balance })
    }

    /// Returns the changes of an endpoint.
    pub(super) fn parse_patch(self) -> Result<EndpointPatch, PageError> {
        Ok(EndpointPatch {
            events: Some(self.events()),
            low_balance: FieldPatch::Set(self.low_balance()?),
            enabled: Some(self.enabled.is_some()),
            url: Some(self.url),
        })
    }
}

/// A secret that is to be replaced.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SecretRotationForm {
    /// A name of the form, as of [`EndpointForm`].
    pub(super) request: String,
    overlap_h: Option<String>,
}

impl SecretRotationForm {
    /// Returns how long messages are signed by the old secret too, in seconds.
    pub(super) fn overlap_s(&self) -> Result<u32, PageError> {
        let Some(text) = &self.overlap_h else { return Ok(OVERLAP_S) };
        let seconds = text.parse::<u32>().ok().and_then(|hours| hours.checked_mul(3_600));
        seconds.filter(|seconds| *seconds <= OVERLAP_S_MAX).ok_or_else(|| {
            let most = OVERLAP_S_MAX / 3_600;
            PageError::invalid(format!("Overlap: '{text}' is no number of hours from 0 to {most}."))
        })
    }
}

/// A message that is to be sent again.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResendForm {
    pub(super) message: String,
}
