//! Notes events: one message for each endpoint that wants the event.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::bounds::{CROSSINGS, ENDPOINTS_MAX, MESSAGES};
use super::crossing::{CrossedLevel, LevelChange};
use super::endpoint::{WebhookEndpoint, owner_text};
use super::event::WebhookEvent;
use super::message::{MessageState, WebhookMessage};
use super::row::{WebhookRow, WebhookRowAdded, WebhookRowKind, WebhookStore};
use crate::ledger::{AccountName, Unavailable};

/// What came of noting an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NotedEvent {
    /// The number of messages that were added.
    pub(crate) messages: u32,
    /// The number of messages that were lost: there was no room, or they made room for others
    /// before they were sent.
    pub(crate) lost: u32,
}

impl NotedEvent {
    /// Adds what came of another event.
    pub(crate) fn add(&mut self, other: NotedEvent) {
        self.messages = self.messages.saturating_add(other.messages);
        self.lost = self.lost.saturating_add(other.lost);
    }
}

/// A subject whose level is watched, such as a window of a budget.
#[derive(Debug)]
pub(crate) struct WatchedLevel<'a> {
    /// The account that it is about; `None` if it is about none.
    pub(crate) account: Option<&'a AccountName>,
    /// Its name, which no other subject has: visible ASCII without `:`.
    pub(crate) subject: String,
    /// When it is forgotten, in unix ms; `None` if never.
    pub(crate) ends_at: Option<i64>,
}

/// Lists the endpoints that may want events of an account (`None` for those of no account): its own
/// ones and those of the operators.
pub(crate) async fn list_endpoints(
    store: &dyn WebhookStore,
    account: Option<&AccountName>,
) -> Result<Vec<WebhookEndpoint>, Unavailable> {
    let kind = WebhookRowKind::Endpoint;
    let mut rows = store.list_rows(kind, Some(""), None, ENDPOINTS_MAX).await?;
    if let Some(account) = account {
        rows.extend(store.list_rows(kind, Some(account.as_str()), None, ENDPOINTS_MAX).await?);
    }
    rows.iter().map(WebhookEndpoint::of_row).collect()
}

/// Notes an event for those of `endpoints` that want it. Again the same event adds nothing.
pub(crate) async fn note_event(
    store: &dyn WebhookStore,
    endpoints: &[WebhookEndpoint],
    event: &WebhookEvent,
    now: i64,
) -> Result<NotedEvent, Unavailable> {
    let mut noted = NotedEvent::default();
    for endpoint in endpoints {
        if !endpoint.wants(event.kind, event.account.as_ref()) {
            continue;
        }
        let row = WebhookMessage::new(event, &endpoint.id, now).to_row();
        match store.add_row(&row, MESSAGES, true).await? {
            WebhookRowAdded::Added => noted.messages += 1,
            WebhookRowAdded::InPlaceOf(body) => {
                noted.messages += 1;
                noted.lost += u32::from(is_pending(&body));
            }
            WebhookRowAdded::Exists => {}
            WebhookRowAdded::Full => noted.lost += 1,
        }
    }
    Ok(noted)
}

/// Whether the body of a message says that it was not sent yet.
fn is_pending(body: &str) -> bool {
    serde_json::from_str::<WebhookMessage>(body)
        .is_ok_and(|message| message.state == MessageState::Pending)
}

/// Notes that a level is `level` now. If it has risen, the event that `event` makes of the number
/// of the rise is noted first: a process that ends between the two notes it again, which adds
/// nothing.
pub(crate) async fn note_level(
    store: &dyn WebhookStore,
    endpoints: &[WebhookEndpoint],
    watched: &WatchedLevel<'_>,
    level: u32,
    now: i64,
    event: impl FnOnce(u64) -> WebhookEvent,
) -> Result<NotedEvent, Unavailable> {
    let known = store.find_row(WebhookRowKind::Crossing, &watched.subject).await?;
    let before = known.as_ref().map_or_else(CrossedLevel::default, |row| {
        serde_json::from_str(&row.body).unwrap_or_default()
    });
    let (after, noted) = match before.change_to(level) {
        LevelChange::None => return Ok(NotedEvent::default()),
        LevelChange::Fallen(after) => (after, NotedEvent::default()),
        LevelChange::Risen(after) => {
            (after, note_event(store, endpoints, &event(after.rises), now).await?)
        }
    };
    // A level can always be written as JSON.
    let body = serde_json::to_string(&after).unwrap_or_default();
    if let Some(row) = known {
        store.replace_row(&WebhookRow { body, due_at: watched.ends_at, ..row }).await?;
        return Ok(noted);
    }
    let row = WebhookRow {
        kind: WebhookRowKind::Crossing,
        id: watched.subject.clone(),
        owner: owner_text(watched.account),
        created_at: now,
        due_at: watched.ends_at,
        version: 1,
        body,
    };
    store.add_row(&row, CROSSINGS, true).await?;
    Ok(noted)
}
