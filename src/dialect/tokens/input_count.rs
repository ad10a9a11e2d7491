//! The number of input tokens of a call, for the case that the vendor reports none.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use once_cell::sync::Lazy;

type Counter = Box<dyn FnOnce() -> u64 + Send>;

/// A number of input tokens that is counted when it is first asked for: nearly all vendors report
/// it. Clones share the count.
#[derive(Debug, Clone)]
pub struct InputCount(Arc<Lazy<u64, Counter>>);

impl InputCount {
    /// Makes a count from a function, which is called once at most. What it owns is dropped then,
    /// or with the last clone.
    #[must_use]
    pub fn when_needed(count: impl FnOnce() -> u64 + Send + 'static) -> InputCount {
        InputCount(Arc::new(Lazy::new(Box::new(count))))
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        **self.0
    }
}

impl From<u64> for InputCount {
    fn from(tokens: u64) -> InputCount {
        InputCount::when_needed(move || tokens)
    }
}

impl PartialEq for InputCount {
    fn eq(&self, other: &InputCount) -> bool {
        self.tokens() == other.tokens()
    }
}

impl Eq for InputCount {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn it_is_counted_once_and_only_if_it_is_asked_for() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = calls.clone();
        let count = InputCount::when_needed(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            7
        });
        let clone = count.clone();
        assert_eq!((calls.load(Ordering::Relaxed), Arc::strong_count(&calls)), (0, 2));
        assert_eq!((count.tokens(), clone.tokens()), (7, 7));
        assert_eq!((calls.load(Ordering::Relaxed), Arc::strong_count(&calls)), (1, 1));
    }
}
