//! What endpoints are told: the kinds of events, and the body of a message.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::hex::to_hex;
use crate::ledger::AccountName;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum EventKind {
    /// What an account has available fell below the amount that its endpoint names.
    BalanceLow,
    /// What was spent of a budget reached 50, 80 or 100 % of its limit.
    KeyBudget,
    /// A payment came in.
    PaymentReceived,
    /// A video is ready.
    VideoCompleted,
    /// A video will not come.
    VideoFailed,
    /// No call may take a route to a vendor.
    RouteDown,
    /// Somebody has asked for a message to see whether it arrives.
    Test,
}

impl EventKind {
    /// The kinds that an endpoint can ask for.
    pub(crate) const CHOSEN: [EventKind; 6] = [
        EventKind::BalanceLow,
        EventKind::KeyBudget,
        EventKind::PaymentReceived,
        EventKind::VideoCompleted,
        EventKind::VideoFailed,
        EventKind::RouteDown,
    ];

    /// Returns the name, as in `balance.low`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EventKind::BalanceLow => "balance.low",
            EventKind::KeyBudget => "key.budget",
            EventKind::PaymentReceived => "payment.received",
            EventKind::VideoCompleted => "video.completed",
            EventKind::VideoFailed => "video.failed",
            EventKind::RouteDown => "route.down",
            EventKind::Test => "webhook.test",
        }
    }

    /// Whether the event is of an account, so that the endpoints of the account can ask for it.
    pub(crate) fn is_of_account(self) -> bool {
        self != EventKind::RouteDown
    }
}

/// Something that has happened.
#[derive(Debug, Clone)]
pub(crate) struct WebhookEvent {
    pub(crate) kind: EventKind,
    /// The account that it is about; `None` if it is about none.
    pub(crate) account: Option<AccountName>,
    /// A text that only this event of its kind has. The same event has it each time it is noted.
    pub(crate) key: String,
    /// When it happened, in unix ms.
    pub(crate) at: i64,
    /// What it says beside that.
    pub(crate) data: Value,
}

impl WebhookEvent {
    /// Returns the id of the message of this event to an endpoint: `msg_` and 32 hexadecimal
    /// digits.
    pub(crate) fn message_id(&self, endpoint: &str) -> String {
        let text = format!("{}\n{}\n{endpoint}", self.kind.name(), self.key);
        let digest = to_hex(&Sha256::digest(text));
        format!("msg_{}", digest.get(..32).unwrap_or_default())
    }

    /// Returns the body of the messages: `type`, `timestamp` and `data`.
    pub(crate) fn body(&self) -> String {
        let mut data = self.data.clone();
        if let (Some(account), Value::Object(fields)) = (&self.account, &mut data) {
            fields.insert("account".to_owned(), account.as_str().into());
        }
        let timestamp = moment_text(self.at);
        json!({ "type": self.kind.name(), "timestamp": timestamp, "data": data }).to_string()
    }
}

/// Returns a moment (unix ms) as in `2026-11-28T12:00:00.000Z`.
pub(crate) fn moment_text(at: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(at).unwrap_or_default();
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> WebhookEvent {
        WebhookEvent {
            kind: EventKind::PaymentReceived,
            account: AccountName::parse("acme"),
            key: "acme tx-1".to_owned(),
            at: 1_795_867_200_000,
            data: json!({ "amount_usd": "25.00" }),
        }
    }

    #[test]
    fn the_body_says_what_happened_when_to_whom() {
        let body: Value = serde_json::from_str(&event().body()).expect("JSON");
        let expected = json!({
            "type": "payment.received",
            "timestamp": "2026-11-28T12:00:00.000Z",
            "data": { "amount_usd": "25.00", "account": "acme" },
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn the_same_event_has_the_same_id_at_the_same_endpoint() {
        let (one, other) = (event(), WebhookEvent { key: "acme tx-2".to_owned(), ..event() });
        let later = WebhookEvent { at: 7, ..event() };
        assert_eq!(one.message_id("we_1"), later.message_id("we_1"));
        assert_ne!(one.message_id("we_1"), one.message_id("we_2"));
        assert_ne!(one.message_id("we_1"), other.message_id("we_1"));
        assert_eq!(one.message_id("we_1").len(), 36);
    }
}
