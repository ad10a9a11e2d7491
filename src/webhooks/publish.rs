//! Notes events: one message for each endpoint that wants the event.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::bounds::{ENDPOINTS_MAX, MESSAGES};
use super::crossing::{CrossedLevel, LevelChange};
use super::endpoint::WebhookEndpoint;
use super::event::WebhookEvent;
use super::message::{MessageState, WebhookMessage};
use super::row::{RowBounds, WebhookRow, WebhookRowAdded, WebhookRowKind, WebhookStore};
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
    /// Whose row it is: an account or an endpoint; empty if it is about a route.
    pub(crate) owner: &'a str,
    pub(crate) bounds: RowBounds,
    /// Its name, which no other subject has: visible ASCII without `:`.
    pub(crate) subject: String,
    /// When it is forgotten, in unix ms; `None` if never.
    pub(crate) ends_at: Option<i64>,
}

impl WatchedLevel<'_> {
    /// Returns the row of a level that was not seen before.
    fn first_row(&self, now: i64) -> WebhookRow {
        WebhookRow {
            kind: WebhookRowKind::Crossing,
            id: self.subject.clone(),
            owner: self.owner.to_owned(),
            created_at: now,
            due_at: self.ends_at,
            version: 1,
            // A level can always be written as JSON.
            body: serde_json::to_string(&CrossedLevel::default()).unwrap_or_default(),
        }
    }
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

/// Notes that a level is `level` now. If it has risen, the event that `event` makes of the name of
/// the rise is noted first: a process that ends between the two notes it again, which adds nothing.
/// A level whose row was lost begins anew, and its rises have new names.
pub(crate) async fn note_level(
    store: &dyn WebhookStore,
    endpoints: &[WebhookEndpoint],
    watched: &WatchedLevel<'_>,
    level: u32,
    now: i64,
    event: impl FnOnce(String) -> WebhookEvent,
) -> Result<NotedEvent, Unavailable> {
    let none = NotedEvent::default();
    let row = match store.find_row(WebhookRowKind::Crossing, &watched.subject).await? {
        Some(row) => row,
        None if level == 0 => return Ok(none),
        None => {
            let row = watched.first_row(now);
            match store.add_row(&row, watched.bounds, true).await? {
                WebhookRowAdded::Added | WebhookRowAdded::InPlaceOf(_) => row,
                // Another process has noted it just now, and tells what is to be told.
                WebhookRowAdded::Exists => return Ok(none),
                WebhookRowAdded::Full => return Ok(NotedEvent { lost: 1, ..none }),
            }
        }
    };
    let before: CrossedLevel = serde_json::from_str(&row.body).unwrap_or_default();
    let (after, noted) = match before.change_to(level) {
        LevelChange::None => return Ok(none),
        LevelChange::Fallen(after) => (after, none),
        LevelChange::Risen(after) => {
            let event = event(format!("{} {}", row.created_at, after.rises));
            (after, note_event(store, endpoints, &event, now).await?)
        }
    };
    // A level can always be written as JSON.
    let body = serde_json::to_string(&after).unwrap_or_default();
    store.replace_row(&WebhookRow { body, due_at: watched.ends_at, ..row }).await?;
    Ok(noted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::endpoint::tests::endpoint;
    use super::super::event::EventKind;
    use super::super::row::{DueRow, RowPlace};
    use super::*;

    /// Rows in memory, of a store that fails after some operations, as a process that ends does.
    #[derive(Default)]
    struct MemoryRows {
        rows: Mutex<BTreeMap<(&'static str, String), WebhookRow>>,
        operations_left: Mutex<Option<u32>>,
    }

    impl MemoryRows {
        fn operate(&self) -> Result<(), Unavailable> {
            let mut left = self.operations_left.lock().expect("a lock");
            match *left {
                Some(0) => Err(Unavailable("it has ended".to_owned())),
                Some(some) => {
                    *left = Some(some - 1);
                    Ok(())
                }
                None => Ok(()),
            }
        }

        fn messages(&self) -> usize {
            let rows = self.rows.lock().expect("a lock");
            rows.keys().filter(|(kind, _)| *kind == "message").count()
        }
    }

    #[async_trait]
    impl WebhookStore for MemoryRows {
        async fn add_row(
            &self,
            row: &WebhookRow,
            bounds: RowBounds,
            _: bool,
        ) -> Result<WebhookRowAdded, Unavailable> {
            self.operate()?;
            let mut rows = self.rows.lock().expect("a lock");
            let key = (row.kind.name(), row.id.clone());
            if rows.contains_key(&key) {
                return Ok(WebhookRowAdded::Exists);
            }
            if bounds.of_owner == 0 {
                return Ok(WebhookRowAdded::Full);
            }
            rows.insert(key, row.clone());
            Ok(WebhookRowAdded::Added)
        }

        async fn find_row(
            &self,
            kind: WebhookRowKind,
            id: &str,
        ) -> Result<Option<WebhookRow>, Unavailable> {
            self.operate()?;
            Ok(self.rows.lock().expect("a lock").get(&(kind.name(), id.to_owned())).cloned())
        }

        async fn replace_row(&self, row: &WebhookRow) -> Result<bool, Unavailable> {
            self.operate()?;
            let mut rows = self.rows.lock().expect("a lock");
            let kept = rows.get_mut(&(row.kind.name(), row.id.clone())).expect("a row");
            *kept = WebhookRow { version: row.version + 1, ..row.clone() };
            Ok(true)
        }

        async fn remove_row(&self, _: WebhookRowKind, _: &str) -> Result<bool, Unavailable> {
            Err(Unavailable("nothing is removed here".to_owned()))
        }

        async fn list_rows(
            &self,
            _: WebhookRowKind,
            _: Option<&str>,
            _: Option<&RowPlace>,
            _: u32,
        ) -> Result<Vec<WebhookRow>, Unavailable> {
            Err(Unavailable("nothing is listed here".to_owned()))
        }

        async fn list_due_rows(&self, _: i64, _: u32) -> Result<Vec<DueRow>, Unavailable> {
            Err(Unavailable("nothing is listed here".to_owned()))
        }
    }

    const ROOM: RowBounds = RowBounds { of_owner: 9, in_all: 9 };

    /// Notes a level at a time. Returns what came of it; `None` if the process has ended meanwhile.
    fn note(store: &MemoryRows, bounds: RowBounds, level: u32, now: i64) -> Option<NotedEvent> {
        let watched =
            WatchedLevel { owner: "acme", bounds, subject: "subject".to_owned(), ends_at: None };
        let event = |rise: String| WebhookEvent {
            kind: EventKind::KeyBudget,
            account: AccountName::parse("acme"),
            key: rise,
            at: now,
            data: json!({ "percent": level }),
        };
        let endpoints = [endpoint(None, &[EventKind::KeyBudget])];
        let noting = note_level(store, &endpoints, &watched, level, now, event);
        futures_util::future::FutureExt::now_or_never(noting).expect("at once").ok()
    }

    proptest! {
        /// Whatever ends the process, and however often the same is noted again, each rise is told
        /// once.
        #[test]
        fn each_rise_is_told_once(
            levels in prop::collection::vec((0_u32..4, proptest::option::of(0_u32..5)), 0..30),
        ) {
            let (store, mut previous, mut rises) = (MemoryRows::default(), 0, 0);
            for ((level, ends_after), now) in levels.into_iter().zip(1_i64..) {
                *store.operations_left.lock().expect("a lock") = ends_after;
                let first = note(&store, ROOM, level, now);
                prop_assert!(first.is_some() || ends_after.is_some());
                *store.operations_left.lock().expect("a lock") = None;
                prop_assert!(note(&store, ROOM, level, now + 1).is_some());
                prop_assert_eq!(note(&store, ROOM, level, now + 2), Some(NotedEvent::default()));
                rises += usize::from(level > previous);
                prop_assert_eq!(store.messages(), rises);
                previous = level;
            }
        }
    }

    #[test]
    fn a_level_without_room_was_told_as_if_it_were_the_first() {
        let (store, full) = (MemoryRows::default(), RowBounds { of_owner: 0, in_all: 0 });
        for now in 0..3 {
            let lost = Some(NotedEvent { messages: 0, lost: 1 });
            assert_eq!(note(&store, full, 1, now), lost);
            assert_eq!(note(&store, full, 0, now), Some(NotedEvent::default()));
        }
        assert_eq!(store.messages(), 0);
        // A row that was lost and comes again has rises of another name.
        assert_eq!(note(&store, ROOM, 1, 5).map(|noted| noted.messages), Some(1));
        store.rows.lock().expect("a lock").retain(|(kind, _), _| *kind == "message");
        assert_eq!(note(&store, ROOM, 1, 6).map(|noted| noted.messages), Some(1));
        assert_eq!(store.messages(), 2);
    }
}
