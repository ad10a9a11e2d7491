//! A message to an endpoint: what it says, and what came of the tries to send it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::{Deserialize, Serialize};

use super::bounds::{ERROR_CHARS_MAX, MESSAGE_KEPT_MS};
use super::event::WebhookEvent;
use super::row::{WebhookRow, WebhookRowKind};
use super::schedule::{CLAIM_MS, GIVEN_UP_AFTER_MS, next_try};
use crate::ledger::Unavailable;

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MessageState {
    /// It is to be sent.
    Pending,
    /// The endpoint has accepted it.
    Delivered,
    /// It is not sent any more.
    GivenUp,
}

impl MessageState {
    /// Returns the name, as in `given_up`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MessageState::Pending => "pending",
            MessageState::Delivered => "delivered",
            MessageState::GivenUp => "given_up",
        }
    }
}

/// A message. The body of its row has all but its id, its endpoint, its times and its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WebhookMessage {
    #[serde(skip)]
    row: RowParts,
    /// The name of the event's kind.
    pub(crate) event: String,
    /// The account that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) account: Option<String>,
    /// What is sent.
    pub(crate) body: String,
    pub(crate) state: MessageState,
    /// Since when it is sent again, in unix ms, because somebody has asked for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    /// How often it was tried.
    pub(crate) tries: u32,
    /// The last try; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<LastTry>,
}

/// What the row of a message has beside its body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct RowParts {
    id: String,
    endpoint: String,
    created_at: i64,
    due_at: Option<i64>,
    version: u64,
}

/// A try to send a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LastTry {
    /// When it ended, in unix ms.
    pub(crate) at: i64,
    /// The status of the response; `None` if none came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// Why the message was not accepted; `None` if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl WebhookMessage {
    /// Makes the message of an event to an endpoint. It is due at once.
    pub(crate) fn new(event: &WebhookEvent, endpoint: &str, now: i64) -> WebhookMessage {
        let row = RowParts {
            id: event.message_id(endpoint),
            endpoint: endpoint.to_owned(),
            created_at: now,
            due_at: Some(now),
            version: 1,
        };
        WebhookMessage {
            row,
            event: event.kind.name().to_owned(),
            account: event.account.as_ref().map(|name| name.as_str().to_owned()),
            body: event.body(),
            state: MessageState::Pending,
            since: None,
            tries: 0,
            last: None,
        }
    }

    /// Reads a message out of its row.
    pub(crate) fn of_row(row: &WebhookRow) -> Result<WebhookMessage, Unavailable> {
        let read: WebhookMessage = serde_json::from_str(&row.body).map_err(|why| {
            Unavailable(format!("the webhook message {} is broken: {why}", row.id))
        })?;
        let row = RowParts {
            id: row.id.clone(),
            endpoint: row.owner.clone(),
            created_at: row.created_at,
            due_at: row.due_at,
            version: row.version,
        };
        Ok(WebhookMessage { row, ..read })
    }

    /// Returns the row of the message.
    pub(crate) fn to_row(&self) -> WebhookRow {
        let RowParts { id, endpoint, created_at, due_at, version } = self.row.clone();
        // A message can always be written as JSON.
        let body = serde_json::to_string(self).unwrap_or_default();
        let kind = WebhookRowKind::Message;
        WebhookRow { kind, id, owner: endpoint, created_at, due_at, version, body }
    }

    /// Returns the id, which a receiver gets as `webhook-id`.
    pub(crate) fn id(&self) -> &str {
        &self.row.id
    }

    /// Returns the id of the endpoint.
    pub(crate) fn endpoint(&self) -> &str {
        &self.row.endpoint
    }

    /// Returns when the event was noted, in unix ms.
    pub(crate) fn created_at(&self) -> i64 {
        self.row.created_at
    }

    /// Returns when the message is sent, in unix ms; `None` if it is not.
    pub(crate) fn next_try_at(&self) -> Option<i64> {
        self.row.due_at.filter(|_| self.state == MessageState::Pending)
    }

    /// Notes that a process is about to send it. If that process ends, another one may send it when
    /// the time of the claim is over.
    pub(crate) fn claim(&mut self, now: i64) {
        self.row.due_at = Some(now.saturating_add(CLAIM_MS));
    }

    /// Notes that a claim is stored: the message is that of the stored row.
    pub(crate) fn note_stored(&mut self) {
        self.row.version = self.row.version.saturating_add(1);
    }

    /// Notes that it was accepted.
    pub(crate) fn mark_delivered(&mut self, status: u16, now: i64) {
        self.tries = self.tries.saturating_add(1);
        self.last = Some(LastTry { at: now, status: Some(status), error: None });
        self.end(MessageState::Delivered);
    }

    /// Notes that it was not accepted. It is tried again, unless its time is over. `spread` is a
    /// random number.
    pub(crate) fn mark_failed(&mut self, status: Option<u16>, why: &str, now: i64, spread: u32) {
        self.tries = self.tries.saturating_add(1);
        let error: String = why.chars().take(ERROR_CHARS_MAX).collect();
        self.last = Some(LastTry { at: now, status, error: Some(error) });
        match next_try(self.begun_at(), self.tries, now, spread) {
            Some(next) => self.row.due_at = Some(next),
            None => self.end(MessageState::GivenUp),
        }
    }

    /// Notes that it is not sent any more, and why.
    pub(crate) fn give_up(&mut self, why: &str, now: i64) {
        self.last = Some(LastTry { at: now, status: None, error: Some(why.to_owned()) });
        self.end(MessageState::GivenUp);
    }

    /// Lets it be sent again, as if it were new.
    pub(crate) fn send_again(&mut self, now: i64) {
        self.state = MessageState::Pending;
        self.tries = 0;
        self.row.due_at = Some(now);
        self.since = Some(now);
    }

    /// Whether its day is over.
    pub(crate) fn is_too_old(&self, now: i64) -> bool {
        now.saturating_sub(self.begun_at()) > GIVEN_UP_AFTER_MS
    }

    /// Returns when its day began, in unix ms.
    fn begun_at(&self) -> i64 {
        self.since.unwrap_or(self.row.created_at)
    }

    /// Whether it is kept no longer.
    pub(crate) fn is_expired(&self, now: i64) -> bool {
        self.state != MessageState::Pending && self.row.due_at.is_some_and(|due| due <= now)
    }

    /// A message that has ended is due when it is to be deleted.
    fn end(&mut self, state: MessageState) {
        self.state = state;
        // One that was sent again late is kept for another day, in which its end can be seen.
        let kept_from = self.row.created_at.saturating_add(MESSAGE_KEPT_MS);
        let day = self.begun_at().saturating_add(GIVEN_UP_AFTER_MS.saturating_mul(2));
        self.row.due_at = Some(kept_from.max(day));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::webhooks::event::EventKind;

    fn message() -> WebhookMessage {
        let event = WebhookEvent {
            kind: EventKind::Test,
            account: None,
            key: "1".to_owned(),
            at: 5,
            data: json!({}),
        };
        WebhookMessage::new(&event, "we_1", 1_000)
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let mut message = message();
        for step in 0..3 {
            assert_eq!(WebhookMessage::of_row(&message.to_row()), Ok(message.clone()), "{step}");
            message.mark_failed(Some(500), "status 500", 2_000, 0);
        }
        assert_eq!((message.tries, message.next_try_at()), (3, Some(302_000)));
        let row = WebhookRow { body: "[]".to_owned(), ..message.to_row() };
        assert!(WebhookMessage::of_row(&row).is_err());
    }

    #[test]
    fn a_message_that_has_ended_is_due_when_it_is_deleted() {
        let mut delivered = message();
        delivered.mark_delivered(204, 2_000);
        assert_eq!((delivered.state, delivered.next_try_at()), (MessageState::Delivered, None));
        let end = 1_000 + MESSAGE_KEPT_MS;
        assert_eq!(delivered.to_row().due_at, Some(end));
        assert!(!delivered.is_expired(end - 1) && delivered.is_expired(end));
        let mut failed = message();
        while failed.state == MessageState::Pending {
            let due = failed.next_try_at().expect("a time");
            failed.mark_failed(None, &"é".repeat(999), due, 0);
        }
        assert_eq!((failed.state, failed.tries), (MessageState::GivenUp, 10));
        let error = failed.last.and_then(|last| last.error).expect("a reason");
        assert_eq!(error.chars().count(), ERROR_CHARS_MAX);
        assert!(!message().is_expired(i64::MAX));
    }
}
