//! The events that a browser may watch: calls that have ended, and changes of routes. They are
//! noted while somebody watches, and for a while after; else a call pays one atomic load. Of many
//! calls in a second some are noted, and the others are counted: nobody can read them all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::ledger::AccountName;
use crate::money::Money;

/// The number of events that are kept. A reader that is further behind loses the oldest.
pub(crate) const EVENTS_MAX: usize = 64;
/// At most this many calls are noted in a second.
const CALLS_A_SECOND: u32 = 20;
/// Events are noted for this long after somebody has watched, in ms.
const WATCH_MS: i64 = 15 * 60_000;

/// A call that has ended. Nothing of what was asked or answered is in it.
#[derive(Debug, Clone)]
pub(crate) struct EndedCall {
    pub(crate) account: AccountName,
    /// The id of the model; empty if it is not known.
    pub(crate) model: String,
    pub(crate) endpoint: &'static str,
    /// The status that was sent; 0 if none was.
    pub(crate) status: u16,
    /// What was charged; `None` if nothing was.
    pub(crate) charged: Option<Money>,
    /// How long it took, in ms.
    pub(crate) took_ms: u64,
    /// The vendor and the route that served it, or that was tried last; empty if none was.
    pub(crate) route: String,
}

/// A route that is up again, or no longer.
#[derive(Debug, Clone)]
pub(crate) struct RouteChange {
    pub(crate) vendor: String,
    pub(crate) route: String,
    /// `up`, `blocked` or `unresolved`.
    pub(crate) state: &'static str,
    /// Why it is not up; empty if it is.
    pub(crate) reason: &'static str,
}

/// What has happened.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    CallEnded(EndedCall),
    RouteChanged(RouteChange),
}

/// An event of the feed.
#[derive(Debug, Clone)]
pub(crate) struct LiveEvent {
    pub(crate) id: EventId,
    /// When it happened, in unix ms.
    pub(crate) at: i64,
    pub(crate) what: Happening,
}

/// The id of an event: which process has seen it, and its number there, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventId {
    run: i64,
    number: u64,
}

impl EventId {
    /// Reads an id as it was written; `None` if it is none.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<EventId> {
        let (run, number) = text.split_once('-')?;
        Some(EventId { run: run.parse().ok()?, number: number.parse().ok()? })
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}-{}", self.run, self.number)
    }
}

/// The events of this gateway.
pub(crate) struct LiveFeed {
    /// Tells the events of this process from those of others.
    run: i64,
    is_watched: AtomicBool,
    /// The second of the calls that are counted, in unix seconds, and how many they are.
    second: AtomicI64,
    calls_of_second: AtomicU32,
    /// The calls since the newest event that were not noted.
    passed_over: AtomicU64,
    ring: Mutex<EventRing>,
    sender: broadcast::Sender<Arc<LiveEvent>>,
}

#[derive(Default)]
struct EventRing {
    /// When nobody watches any more, in unix ms, if nobody looks again.
    watched_until: i64,
    /// The number of the newest event. Calls that were passed over have numbers too.
    newest: u64,
    events: VecDeque<Arc<LiveEvent>>,
}

/// What a reader of the feed gets next.
#[derive(Debug)]
pub(crate) enum LiveItem {
    Event(Arc<LiveEvent>),
    /// This many events are not to be had any more.
    Lost(u64),
}

/// A reader of the feed.
pub(crate) struct LiveReader {
    /// The number of the last event that the reader knows, or knows to be lost.
    last: u64,
    /// The event after those that are lost.
    next: Option<Arc<LiveEvent>>,
    /// What has happened before the reader came.
    backlog: VecDeque<Arc<LiveEvent>>,
    receiver: broadcast::Receiver<Arc<LiveEvent>>,
}

impl LiveFeed {
    /// Makes a feed without events, for a process that starts at `now` (unix ms).
    pub(crate) fn new(now: i64) -> LiveFeed {
        let (sender, _) = broadcast::channel(EVENTS_MAX);
        LiveFeed {
            run: now,
            is_watched: AtomicBool::new(false),
            second: AtomicI64::default(),
            calls_of_second: AtomicU32::default(),
            passed_over: AtomicU64::default(),
            ring: Mutex::default(),
            sender,
        }
    }

    /// Whether events are to be noted.
    #[must_use]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Whether a call that ends at `now` (unix ms) is to be noted. One that is not, although events
    /// are, is counted.
    #[must_use]
    pub(crate) fn takes_call(&self, now: i64) -> bool {
        if !self.is_watched() {
            return false;
        }
        let second = now.div_euclid(1_000);
        // Threads that get here at once may let one or two more through.
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.calls_of_second.store(0, Ordering::Relaxed);
        }
        if self.calls_of_second.fetch_add(1, Ordering::Relaxed) < CALLS_A_SECOND {
            return true;
        }
        self.passed_over.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Has events noted from `now` (unix ms) on, for a while. Returns whether they were before.
    pub(crate) fn watch(&self, now: i64) -> bool {
        let mut ring = self.lock();
        ring.watched_until = now.saturating_add(WATCH_MS);
        self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Notes an event at `now` (unix ms), and tells it to all readers. It never waits for one.
    pub(crate) fn note(&self, now: i64, what: Happening) {
        let mut ring = self.lock();
        if now > ring.watched_until {
            self.is_watched.store(false, Ordering::Relaxed);
            ring.events.clear();
            self.passed_over.store(0, Ordering::Relaxed);
            return;
        }
        ring.newest += self.passed_over.swap(0, Ordering::Relaxed) + 1;
        let id = EventId { run: self.run, number: ring.newest };
        let event = Arc::new(LiveEvent { id, at: now, what });
        if ring.events.len() >= EVENTS_MAX {
            ring.events.pop_front();
        }
        ring.events.push_back(event.clone());
        // Within the lock, so that a new reader gets each event once.
        let _ = self.sender.send(event);
    }

    /// Returns the events that are kept, the oldest first, and the id of the newest that there was.
    #[must_use]
    pub(crate) fn recent(&self) -> (Vec<Arc<LiveEvent>>, EventId) {
        let ring = self.lock();
        let newest = EventId { run: self.run, number: ring.newest };
        (ring.events.iter().cloned().collect(), newest)
    }

    /// Returns a reader of all events after one, or of all from now on. Of another process's event
    /// nobody here knows what came after it: then the reader gets all that is kept.
    #[must_use]
    pub(crate) fn read_after(&self, after: Option<EventId>) -> LiveReader {
        let ring = self.lock();
        let receiver = self.sender.subscribe();
        let last = match after {
            None => ring.newest,
            Some(after) if after.run == self.run => after.number.min(ring.newest),
            Some(_) => ring.events.front().map_or(ring.newest, |first| first.id.number - 1),
        };
        let later = ring.events.iter().filter(|event| event.id.number > last);
        LiveReader { last, next: None, backlog: later.cloned().collect(), receiver }
    }

    fn lock(&self) -> MutexGuard<'_, EventRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveReader {
    /// Waits for what comes next. A call that is given up loses nothing.
    pub(crate) async fn next(&mut self) -> LiveItem {
        let event = match self.next.take().or_else(|| self.backlog.pop_front()) {
            Some(event) => event,
            None => self.receive().await,
        };
        let number = event.id.number;
        let lost = number.saturating_sub(self.last).saturating_sub(1);
        if lost > 0 {
            self.last = number - 1;
            self.next = Some(event);
            return LiveItem::Lost(lost);
        }
        self.last = number;
        LiveItem::Event(event)
    }

    async fn receive(&mut self) -> Arc<LiveEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return event,
                // The numbers tell how many.
                Err(RecvError::Lagged(_)) => {}
                // Only a feed that is gone closes it.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn change(route: &str) -> Happening {
        let (vendor, route) = ("v".to_owned(), route.to_owned());
        Happening::RouteChanged(RouteChange { vendor, route, state: "up", reason: "" })
    }

    fn next(reader: &mut LiveReader) -> Option<LiveItem> {
        reader.next().now_or_never()
    }

    fn number(item: Option<LiveItem>) -> Option<u64> {
        match item? {
            LiveItem::Event(event) => Some(event.id.number),
            LiveItem::Lost(_) => None,
        }
    }

    #[test]
    fn events_are_noted_while_somebody_watches() {
        let feed = LiveFeed::new(7);
        assert!(!feed.is_watched());
        assert!(!feed.watch(1_000) && feed.is_watched());
        assert!(feed.watch(1_000));
        feed.note(1_000 + WATCH_MS, change("a"));
        assert_eq!(feed.recent().0.len(), 1);
        feed.note(1_001 + WATCH_MS, change("b"));
        assert!(!feed.is_watched());
        assert!(feed.recent().0.is_empty(), "what is old news is not kept");
        assert_eq!(feed.recent().1.to_string(), "7-1");
    }

    #[test]
    fn a_reader_gets_each_event_after_the_one_it_knows_once() {
        let feed = LiveFeed::new(7);
        feed.watch(0);
        feed.note(1, change("a"));
        let known = feed.recent().1;
        feed.note(2, change("b"));
        let mut reader = feed.read_after(EventId::parse(&known.to_string()));
        let mut fresh = feed.read_after(None);
        feed.note(3, change("c"));
        assert_eq!([number(next(&mut reader)), number(next(&mut reader))], [Some(2), Some(3)]);
        assert!(next(&mut reader).is_none());
        assert_eq!(number(next(&mut fresh)), Some(3));
        // One of another process, and one that is still to come.
        let mut other = feed.read_after(EventId::parse("6-99"));
        assert_eq!(number(next(&mut other)), Some(1));
        assert!(next(&mut feed.read_after(EventId::parse("7-99"))).is_none());
        for wrong in ["", "7", "7-", "x-1", "7--1", "7-99999999999999999999999"] {
            assert_eq!(EventId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn of_many_calls_in_a_second_some_are_noted_and_the_others_counted() {
        let feed = LiveFeed::new(7);
        assert!(!feed.takes_call(0), "nobody watches");
        feed.watch(0);
        let mut reader = feed.read_after(None);
        for _ in 0..1_000 {
            if feed.takes_call(5_999) {
                feed.note(5_999, change("a"));
            }
        }
        let noted: Vec<_> = std::iter::from_fn(|| number(next(&mut reader))).collect();
        assert_eq!(noted, (1..=20).collect::<Vec<_>>());
        assert!(feed.takes_call(6_000));
        feed.note(6_000, change("b"));
        assert!(matches!(next(&mut reader), Some(LiveItem::Lost(980))));
        assert_eq!(number(next(&mut reader)), Some(1_001));
        // Who comes back is told the same.
        let mut late = feed.read_after(EventId::parse("7-19"));
        assert_eq!(number(next(&mut late)), Some(20));
        assert!(matches!(next(&mut late), Some(LiveItem::Lost(980))));
    }

    #[test]
    fn a_slow_reader_loses_the_oldest_events_and_is_told_how_many() {
        let feed = LiveFeed::new(7);
        feed.watch(0);
        let mut slow = feed.read_after(None);
        for _ in 0..1_000 {
            feed.note(1, change("a"));
        }
        assert_eq!(feed.recent().0.len(), EVENTS_MAX);
        assert!(matches!(next(&mut slow), Some(LiveItem::Lost(936))));
        let rest: Vec<_> = std::iter::from_fn(|| number(next(&mut slow))).collect();
        assert_eq!(rest, (937..=1_000).collect::<Vec<_>>());
        let mut late = feed.read_after(EventId::parse("7-1"));
        assert!(matches!(next(&mut late), Some(LiveItem::Lost(935))));
        assert_eq!(number(next(&mut late)), Some(937));
    }
}
