//! Replacing a stored value that somebody else may replace at the same moment.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// A value that takes the place of another one, if that one is still stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement<T> {
    /// The value as it was read.
    pub before: T,
    /// The value that takes its place.
    pub after: T,
}

/// What came of a [`Replacement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// The new value is stored, now or since an earlier attempt.
    Done,
    /// Another value is stored than the one that was read, and nothing was changed.
    Changed,
    /// There is nothing of this name.
    Unknown,
}

impl<T: PartialEq> Replacement<T> {
    /// Compares with the value that is stored. Returns what came of the replacement if nothing is
    /// to be written.
    pub(crate) fn compare(&self, stored: &T) -> Option<Replaced> {
        if *stored == self.after {
            Some(Replaced::Done)
        } else if *stored == self.before {
            None
        } else {
            Some(Replaced::Changed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_replaced_only_if_it_is_the_one_that_was_read() {
        let replacement = Replacement { before: 1, after: 2 };
        let expected = [(1, None), (2, Some(Replaced::Done)), (3, Some(Replaced::Changed))];
        for (stored, came) in expected {
            assert_eq!(replacement.compare(&stored), came, "{stored}");
        }
        assert_eq!(Replacement { before: 1, after: 1 }.compare(&1), Some(Replaced::Done));
    }
}
