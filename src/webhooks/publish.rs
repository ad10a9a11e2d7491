//! Notes events: one message for each endpoint that wants the event.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::bounds::{
    ENDPOINTS_OF_ACCOUNT_MAX, ENDPOINTS_OF_OPERATORS_MAX, FALLEN_KEPT_MS, MESSAGES,
    MESSAGES_OF_OPERATORS,
};
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
    let mut rows = store.list_rows(kind, Some(""), None, ENDPOINTS_OF_OPERATORS_MAX).await?;
    if let Some(account) = account {
        let own = Some(account.as_str());
        rows.extend(store.list_rows(kind, own, None, ENDPOINTS_OF_ACCOUNT_MAX).await?);
    }
    // One that is broken must not silence the others. The watcher tells of it.
    Ok(rows.iter().filter_map(|row| WebhookEndpoint::of_row(row).ok()).collect())
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
        let is_shared = endpoint.account.is_none();
        let bounds = if is_shared { MESSAGES_OF_OPERATORS } else { MESSAGES };
        match store.add_row(&row, bounds, true).await? {
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

/// The name of a rise, and the level that was reached.
#[derive(Debug, Clone)]
pub(crate) struct Rise {
    /// A text that no other rise of the subject has.
    pub(crate) name: String,
    pub(crate) level: u32,
}

/// Notes that a level is `level` now. `known` is its row, which was read before the level itself:
/// if somebody has noted another level since, nothing is noted here.
///
/// A rise is stored before it is told, and stays untold until its event, which `event` makes, is
/// noted. So a process that ends in between loses none and tells none twice.
pub(crate) async fn note_level(
    store: &dyn WebhookStore,
    endpoints: &[WebhookEndpoint],
    watched: &WatchedLevel<'_>,
    known: Option<WebhookRow>,
    level: u32,
    now: i64,
    event: impl Fn(Rise) -> WebhookEvent,
) -> Result<NotedEvent, Unavailable> {
    let mut noted = NotedEvent::default();
    let mut row = match known {
        Some(row) => row,
        None if level == 0 => return Ok(noted),
        None => {
            let row = watched.first_row(now);
            match store.add_row(&row, watched.bounds, false).await? {
                WebhookRowAdded::Added | WebhookRowAdded::InPlaceOf(_) => row,
                // Another process has noted it just now; or there are too many of them.
                WebhookRowAdded::Exists | WebhookRowAdded::Full => return Ok(noted),
            }
        }
    };
    let mut stored: CrossedLevel = serde_json::from_str(&row.body).unwrap_or_default();
    if !stored.is_untold {
        let (after, due_at) = match stored.change_to(level) {
            LevelChange::None => return Ok(noted),
            LevelChange::Fallen(after) if level == 0 => {
                (after, Some(now.saturating_add(FALLEN_KEPT_MS)))
            }
            LevelChange::Fallen(after) | LevelChange::Risen(after) => (after, watched.ends_at),
        };
        if !replace_level(store, &mut row, after, due_at).await? {
            return Ok(noted);
        }
        stored = after;
    }
    if stored.is_untold {
        let name = format!("{} {}", row.created_at, stored.rises);
        let rise = Rise { name, level: stored.level };
        noted = note_event(store, endpoints, &event(rise), now).await?;
        let told = CrossedLevel { is_untold: false, ..stored };
        replace_level(store, &mut row, told, watched.ends_at).await?;
    }
    Ok(noted)
}

/// Replaces a level that nobody has replaced since it was read. Returns whether that is so.
async fn replace_level(
    store: &dyn WebhookStore,
    row: &mut WebhookRow,
    level: CrossedLevel,
    due_at: Option<i64>,
) -> Result<bool, Unavailable> {
    // A level can always be written as JSON.
    row.body = serde_json::to_string(&level).unwrap_or_default();
    row.due_at = due_at;
    let is_replaced = store.replace_row(row).await?;
    row.version = row.version.saturating_add(1);
    Ok(is_replaced)
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
            if kept.version != row.version {
                return Ok(false);
            }
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

        async fn list_due_rows(
            &self,
            _: WebhookRowKind,
            _: i64,
            _: u32,
        ) -> Result<Vec<DueRow>, Unavailable> {
            Err(Unavailable("nothing is listed here".to_owned()))
        }
    }

    const ROOM: RowBounds = RowBounds { of_owner: 9, in_all: None };

    /// Notes a level at a time. Returns what came of it; `None` if the process has ended meanwhile.
    fn note(store: &MemoryRows, bounds: RowBounds, level: u32, now: i64) -> Option<NotedEvent> {
        let known = at_once(store.find_row(WebhookRowKind::Crossing, "subject")).ok()?;
        note_known(store, bounds, known, level, now)
    }

    fn at_once<T>(future: impl Future<Output = T>) -> T {
        futures_util::future::FutureExt::now_or_never(future).expect("at once")
    }

    fn note_known(
        store: &MemoryRows,
        bounds: RowBounds,
        known: Option<WebhookRow>,
        level: u32,
        now: i64,
    ) -> Option<NotedEvent> {
        let watched =
            WatchedLevel { owner: "acme", bounds, subject: "subject".to_owned(), ends_at: None };
        let event = |rise: Rise| WebhookEvent {
            kind: EventKind::KeyBudget,
            account: AccountName::parse("acme"),
            key: rise.name,
            at: now,
            data: json!({ "percent": rise.level }),
        };
        let endpoints = [endpoint(None, &[EventKind::KeyBudget])];
        at_once(note_level(store, &endpoints, &watched, known, level, now, event)).ok()
    }

    proptest! {
        /// Whatever ends the process, each rise that was stored is told once, and the last level is
        /// told in the end.
        #[test]
        fn each_rise_is_told_once(
            levels in prop::collection::vec((0_u32..4, proptest::option::of(0_u32..6)), 0..30),
        ) {
            let store = MemoryRows::default();
            for ((level, ends_after), now) in levels.into_iter().zip(1_i64..) {
                *store.operations_left.lock().expect("a lock") = ends_after;
                let first = note(&store, ROOM, level, now);
                prop_assert!(first.is_some() || ends_after.is_some());
                *store.operations_left.lock().expect("a lock") = None;
                // A level that was stored is told although it has changed since.
                for step in 1..=2 {
                    prop_assert!(note(&store, ROOM, level, now + step).is_some());
                }
                prop_assert_eq!(note(&store, ROOM, level, now + 3), Some(NotedEvent::default()));
                let row = at_once(store.find_row(WebhookRowKind::Crossing, "subject"));
                let stored = row.expect("an answer").map(|row| {
                    serde_json::from_str::<CrossedLevel>(&row.body).expect("a level")
                });
                let stored = stored.unwrap_or_default();
                prop_assert!(stored.level == level && !stored.is_untold);
                prop_assert_eq!(store.messages() as u64, stored.rises);
            }
        }
    }

    #[test]
    fn a_look_that_was_overtaken_told_a_level_again() {
        let store = MemoryRows::default();
        assert_eq!(note(&store, ROOM, 50, 1).map(|noted| noted.messages), Some(1));
        // One process has read the row, and then that 50 % are spent; another one sees 80 %.
        let stale = at_once(store.find_row(WebhookRowKind::Crossing, "subject")).expect("a row");
        assert_eq!(note(&store, ROOM, 80, 2).map(|noted| noted.messages), Some(1));
        assert_eq!(note_known(&store, ROOM, stale, 0, 3), Some(NotedEvent::default()));
        assert_eq!(note(&store, ROOM, 80, 4), Some(NotedEvent::default()));
        assert_eq!(store.messages(), 2);
    }

    #[test]
    fn a_level_that_was_lost_begins_anew() {
        let (store, full) = (MemoryRows::default(), RowBounds { of_owner: 0, in_all: None });
        assert_eq!(note(&store, full, 1, 0), Some(NotedEvent::default()));
        assert_eq!(note(&store, ROOM, 1, 5).map(|noted| noted.messages), Some(1));
        store.rows.lock().expect("a lock").retain(|(kind, _), _| *kind == "message");
        assert_eq!(note(&store, ROOM, 1, 6).map(|noted| noted.messages), Some(1));
        assert_eq!(store.messages(), 2);
    }
}
