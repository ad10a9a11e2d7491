//! The streams of `/live` that are open: there are a few for the gateway and fewer for one
//! operator, and all of them end when the gateway stops.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The most streams at a time.
const STREAMS_MAX: usize = 16;
/// The most streams of one operator at a time.
const STREAMS_PER_OPERATOR_MAX: usize = 4;

/// The streams that are open.
pub(crate) struct LiveStreams {
    /// How many each operator has. Those who have none are left out.
    by_operator: Mutex<BTreeMap<String, usize>>,
    stopping: watch::Sender<bool>,
}

/// One stream; dropping it makes room for another.
pub(super) struct StreamPermit {
    streams: Arc<LiveStreams>,
    operator: String,
}

/// Why there is no room for another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamsFull {
    OfGateway,
    OfOperator,
}

impl LiveStreams {
    /// Makes the streams of a gateway that begins.
    pub(crate) fn new() -> LiveStreams {
        LiveStreams { by_operator: Mutex::default(), stopping: watch::Sender::new(false) }
    }

    /// Takes a place for a stream. There is no waiting.
    pub(super) fn open(self: &Arc<Self>, operator: &str) -> Result<StreamPermit, StreamsFull> {
        let mut open = self.lock();
        if open.values().sum::<usize>() >= STREAMS_MAX {
            return Err(StreamsFull::OfGateway);
        }
        let own = open.get(operator).copied().unwrap_or_default();
        if own >= STREAMS_PER_OPERATOR_MAX {
            return Err(StreamsFull::OfOperator);
        }
        open.insert(operator.to_owned(), own + 1);
        Ok(StreamPermit { streams: self.clone(), operator: operator.to_owned() })
    }

    /// Ends all streams, also those that are still to come.
    pub(super) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.by_operator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamPermit {
    /// Returns what becomes true when the stream has to end.
    pub(super) fn stopping(&self) -> watch::Receiver<bool> {
        self.streams.stopping.subscribe()
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        if let Some(own) = open.get_mut(&self.operator) {
            *own = own.saturating_sub(1);
        }
        open.retain(|_, own| *own > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_sixteen_streams_and_four_for_one_operator() {
        let streams = Arc::new(LiveStreams::new());
        let names = ["a", "b", "c", "d"];
        let mut open: Vec<_> = names
            .iter()
            .flat_map(|name| (0..4).map(|_| streams.open(name).expect("a place")))
            .collect();
        assert_eq!(streams.open("a").err(), Some(StreamsFull::OfGateway));
        let first = open.remove(0);
        assert!(!*first.stopping().borrow());
        drop(first);
        assert_eq!(streams.open("b").err(), Some(StreamsFull::OfOperator));
        assert!(streams.open("e").is_ok(), "one was given back");
        assert!(streams.open("a").is_ok());
        drop(open);
        assert!(streams.lock().is_empty(), "nobody is kept who has none");
        streams.stop();
        assert!(*streams.open("a").expect("a place").stopping().borrow());
    }
}
