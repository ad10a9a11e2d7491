//! The hours in which the lines of a journal were posted. A store notes the first line of each
//! hour, so a line has the time of its posting for the price of one mark an hour.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// From which line on the lines of a journal were posted in an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HourMark {
    /// The number of the first line, from 1.
    pub(crate) seq: u64,
    /// When the hour began, in unix ms.
    pub(crate) hour: i64,
}

/// Returns the hour of a line by marks in the order of their numbers, in unix ms; `None` if the
/// line is before all of them.
pub(crate) fn hour_of(marks: &[HourMark], seq: u64) -> Option<i64> {
    let after = marks.partition_point(|mark| mark.seq <= seq);
    marks.get(after.checked_sub(1)?).map(|mark| mark.hour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_hour_of_the_last_mark_that_is_not_after_it() {
        let marks = [(3, 100), (3, 200), (8, 300)].map(|(seq, hour)| HourMark { seq, hour });
        let hours = [1, 2, 3, 7, 8, 9].map(|seq| hour_of(&marks, seq));
        assert_eq!(hours, [None, None, Some(200), Some(200), Some(300), Some(300)]);
        assert_eq!(hour_of(&[], 5), None);
    }
}
