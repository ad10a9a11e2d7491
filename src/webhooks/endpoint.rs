//! An endpoint: where messages are sent, which events it wants, and its secrets.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::{Deserialize, Serialize};

use super::event::EventKind;
use super::row::{WebhookRow, WebhookRowKind};
use super::secret::WebhookSecret;
use crate::ledger::{AccountName, Unavailable};
use crate::money::Money;

/// At most this many old secrets are kept.
const OLD_SECRETS_MAX: usize = 2;

/// An endpoint. The body of its row has all but its id, its owner and when it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WebhookEndpoint {
    /// The id: `we_` and 32 hexadecimal digits.
    #[serde(skip)]
    pub(crate) id: String,
    /// The account whose it is; `None` if it is the operators', who are told of all accounts.
    #[serde(skip)]
    pub(crate) account: Option<AccountName>,
    /// When it was made, in unix ms.
    #[serde(skip)]
    pub(crate) created_at: i64,
    /// The version of its row.
    #[serde(skip)]
    pub(crate) version: u64,
    /// Its address.
    pub(crate) url: String,
    /// The names of the events that it wants.
    pub(crate) events: Vec<String>,
    /// It is told if less than this is available, in nano-USD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) low_balance: Option<Money>,
    /// The secret by which messages are signed.
    pub(crate) secret: WebhookSecret,
    /// The secrets before that one, by which they are signed too for a while, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) old_secrets: Vec<OldSecret>,
    /// Why nothing is sent; `None` if messages are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disabled: Option<String>,
}

/// A secret that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OldSecret {
    pub(crate) secret: WebhookSecret,
    /// Until when messages are signed by it too, in unix ms.
    pub(crate) until: i64,
}

impl WebhookEndpoint {
    /// Reads an endpoint out of its row.
    pub(crate) fn of_row(row: &WebhookRow) -> Result<WebhookEndpoint, Unavailable> {
        let broken = |why: &dyn std::fmt::Display| {
            Unavailable(format!("the webhook endpoint {} is broken: {why}", row.id))
        };
        let read: WebhookEndpoint = serde_json::from_str(&row.body).map_err(|why| broken(&why))?;
        let account = if row.owner.is_empty() {
            None
        } else {
            let account = AccountName::parse(&row.owner);
            Some(account.ok_or_else(|| broken(&"its owner is no account"))?)
        };
        let (id, created_at) = (row.id.clone(), row.created_at);
        Ok(WebhookEndpoint { id, account, created_at, version: row.version, ..read })
    }

    /// Returns the row of the endpoint.
    pub(crate) fn to_row(&self) -> WebhookRow {
        WebhookRow {
            kind: WebhookRowKind::Endpoint,
            id: self.id.clone(),
            owner: owner_text(self.account.as_ref()),
            created_at: self.created_at,
            due_at: None,
            version: self.version,
            // An endpoint can always be written as JSON.
            body: serde_json::to_string(self).unwrap_or_default(),
        }
    }

    /// Whether it wants an event of a kind, about an account.
    pub(crate) fn wants(&self, kind: EventKind, account: Option<&AccountName>) -> bool {
        let is_of_owner = match &self.account {
            Some(own) => account == Some(own) && kind.is_of_account(),
            None => true,
        };
        let is_chosen =
            kind == EventKind::Test || self.events.iter().any(|name| name == kind.name());
        is_of_owner && is_chosen && self.disabled.is_none()
    }

    /// Returns the signatures of a message that is sent at `now` (unix ms), with spaces between
    /// them.
    pub(crate) fn signatures(&self, message_id: &str, now: i64, body: &str) -> String {
        let seconds = now.div_euclid(1_000);
        let mut signatures = self.secret.sign(message_id, seconds, body);
        for old in self.old_secrets.iter().filter(|old| old.until > now) {
            signatures.push(' ');
            signatures.push_str(&old.secret.sign(message_id, seconds, body));
        }
        signatures
    }

    /// Keeps a secret that was replaced at `now` (unix ms), and those before it that are still
    /// good. One that is good no longer ends the others too: somebody else may know them.
    pub(crate) fn keep_old_secret(&mut self, old: OldSecret, now: i64) {
        if old.until <= now {
            self.old_secrets.clear();
            return;
        }
        self.old_secrets.retain(|old| old.until > now);
        self.old_secrets.push(old);
        let extra = self.old_secrets.len().saturating_sub(OLD_SECRETS_MAX);
        self.old_secrets.drain(..extra);
    }

    /// Returns until when messages are signed by an old secret too, in unix ms; `None` if they are
    /// not at `now`.
    pub(crate) fn old_secret_until(&self, now: i64) -> Option<i64> {
        self.old_secrets.iter().map(|old| old.until).filter(|until| *until > now).max()
    }
}

/// Returns the owner of the rows of an account, or of the operators (`None`).
pub(crate) fn owner_text(account: Option<&AccountName>) -> String {
    account.map(|name| name.as_str().to_owned()).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn endpoint(account: Option<&str>, events: &[EventKind]) -> WebhookEndpoint {
        WebhookEndpoint {
            id: "we_1".to_owned(),
            account: account.map(|name| AccountName::parse(name).expect("a name")),
            created_at: 7,
            version: 3,
            url: "https://hooks.example.com/".to_owned(),
            events: events.iter().map(|kind| kind.name().to_owned()).collect(),
            low_balance: Money::from_nano(5).ok(),
            secret: WebhookSecret::from_random([1; 32]),
            old_secrets: Vec::new(),
            disabled: None,
        }
    }

    #[test]
    fn an_endpoint_is_read_as_it_was_written() {
        for account in [None, Some("acme")] {
            let endpoint = endpoint(account, &EventKind::CHOSEN);
            assert_eq!(WebhookEndpoint::of_row(&endpoint.to_row()), Ok(endpoint));
        }
        let row = WebhookRow { body: "{}".to_owned(), ..endpoint(None, &[]).to_row() };
        assert!(WebhookEndpoint::of_row(&row).is_err());
    }

    #[test]
    fn an_account_is_told_of_itself_and_operators_of_all() {
        let names = ["acme", "other"].map(|name| AccountName::parse(name).expect("a name"));
        let [acme, other] = [Some(&names[0]), Some(&names[1])];
        let own = endpoint(Some("acme"), &EventKind::CHOSEN);
        let all = endpoint(None, &[EventKind::BalanceLow, EventKind::RouteDown]);
        assert!(own.wants(EventKind::BalanceLow, acme) && !own.wants(EventKind::BalanceLow, other));
        assert!(!own.wants(EventKind::RouteDown, None) && !own.wants(EventKind::RouteDown, acme));
        assert!(all.wants(EventKind::BalanceLow, other) && all.wants(EventKind::RouteDown, None));
        assert!(!all.wants(EventKind::KeyBudget, acme) && all.wants(EventKind::Test, None));
        let off = WebhookEndpoint { disabled: Some("gone".to_owned()), ..all };
        assert!(!off.wants(EventKind::BalanceLow, other));
    }

    #[test]
    fn for_a_while_messages_are_signed_by_both_secrets() {
        let secrets = [2, 3, 4].map(|byte| WebhookSecret::from_random([byte; 32]));
        let mut endpoint = endpoint(None, &[]);
        let new = endpoint.secret.sign("msg_1", 9, "{}");
        for (secret, until) in secrets.iter().zip([9_000, 10_000, 20_000]) {
            endpoint.keep_old_secret(OldSecret { secret: secret.clone(), until }, 8_000);
        }
        let [_, second, third] = secrets.each_ref().map(|secret| secret.sign("msg_1", 9, "{}"));
        assert_eq!(endpoint.signatures("msg_1", 9_999, "{}"), format!("{new} {second} {third}"));
        assert_eq!(endpoint.old_secret_until(9_999), Some(20_000));
        let only = endpoint.secret.sign("msg_1", 20, "{}");
        assert_eq!(endpoint.signatures("msg_1", 20_000, "{}"), only);
        assert_eq!(endpoint.old_secret_until(20_000), None);
        endpoint.keep_old_secret(OldSecret { secret: secrets[0].clone(), until: 7 }, 7);
        assert!(endpoint.old_secrets.is_empty());
    }
}
