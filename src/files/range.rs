//! The `Range` header: which part of a file a client wants (RFC 9110, 14).
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::ops::Range;

/// The part of a file that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ByteRange {
    /// The whole file: status 200.
    Whole,
    /// A range, which is never empty: status 206.
    Part(Range<u64>),
    /// A range that the file does not have: status 416.
    Unsatisfiable,
}

/// Parses the header for a file of `length` bytes. A single range of bytes is supported. Several
/// ranges, other units and malformed ranges are ignored, as the RFC allows.
#[must_use]
pub(crate) fn resolve_range(header: Option<&str>, length: u64) -> ByteRange {
    let Some(range) = header.and_then(parse_range) else { return ByteRange::Whole };
    let part = match range {
        (Some(first), last) => {
            first..last.map_or(length, |last| last.saturating_add(1).min(length))
        }
        (None, last) => length.saturating_sub(last.unwrap_or_default())..length,
    };
    if part.is_empty() { ByteRange::Unsatisfiable } else { ByteRange::Part(part) }
}

/// Parses `a-b` and `a-` into their first byte and, for `a-b`, their last; `-n` has no first byte.
fn parse_range(header: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (unit, range) = header.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim_matches([' ', '\t']).split_once('-')?;
    match (first.is_empty(), last.is_empty()) {
        (true, true) => None,
        (true, false) => Some((None, Some(parse_number(last)?))),
        (false, true) => Some((Some(parse_number(first)?), None)),
        (false, false) => {
            let (first, last) = (parse_number(first)?, parse_number(last)?);
            (first <= last).then_some((Some(first), Some(last)))
        }
    }
}

/// Parses a number; one too large for `u64` becomes the largest, which no file reaches.
fn parse_number(digits: &str) -> Option<u64> {
    let is_valid = digits.bytes().all(|b| b.is_ascii_digit());
    is_valid.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("bytes=0-0", 0..1)]
    #[case("bytes=0-9", 0..10)]
    #[case("bytes=0-", 0..10)]
    #[case("bytes=3-5", 3..6)]
    #[case("bytes=3-500", 3..10)]
    #[case("bytes=9-", 9..10)]
    #[case("bytes=-1", 9..10)]
    #[case("bytes=-10", 0..10)]
    #[case("bytes=-500", 0..10)]
    #[case("bytes=0-99999999999999999999999", 0..10)]
    #[case("bytes=-99999999999999999999999", 0..10)]
    #[case("bytes=0-18446744073709551615", 0..10)]
    #[case("Bytes= 007-008 ", 7..9)]
    fn a_range_of_bytes_is_a_part(#[case] header: &str, #[case] expected: Range<u64>) {
        assert_eq!(resolve_range(Some(header), 10), ByteRange::Part(expected));
    }

    #[rstest]
    fn what_is_not_in_the_file_cannot_be_had(
        #[values(
            "bytes=10-",
            "bytes=10-20",
            "bytes=-0",
            "bytes=18446744073709551615-",
            "bytes=99999999999999999999999-99999999999999999999999"
        )]
        header: &str,
    ) {
        assert_eq!(resolve_range(Some(header), 10), ByteRange::Unsatisfiable);
    }

    #[rstest]
    fn nothing_can_be_had_of_nothing(#[values("bytes=0-", "bytes=0-0", "bytes=-1")] header: &str) {
        assert_eq!(resolve_range(Some(header), 0), ByteRange::Unsatisfiable);
    }

    #[rstest]
    fn anything_else_is_ignored(
        #[values(
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-",
            "bytes=5-3",
            "bytes=0-1,3-4",
            "bytes=0-0,",
            "bytes=+1-2",
            "bytes=1--2",
            "bytes=1 - 2",
            "bytes=0x1-",
            "bytes 0-1",
            "items=0-1",
            "bytes=0-1-2",
            "bytes==0-1",
            "bytes=٣-"
        )]
        header: &str,
    ) {
        assert_eq!(resolve_range(Some(header), 10), ByteRange::Whole);
    }

    #[test]
    fn no_header_is_the_whole_file() {
        assert_eq!(resolve_range(None, 10), ByteRange::Whole);
    }

    proptest! {
        #[test]
        fn a_part_is_what_a_list_of_bytes_has_there(first: u16, last: u16, length: u16) {
            let (a, b) = (u64::from(first), u64::from(last));
            let within = |i: &u64| (a..=b).contains(i);
            let expected: Vec<u64> = (0..u64::from(length)).filter(within).collect();
            let range = resolve_range(Some(&format!("bytes={a}-{b}")), length.into());
            match range {
                ByteRange::Whole => prop_assert!(b < a),
                ByteRange::Unsatisfiable => prop_assert!(a <= b && expected.is_empty()),
                ByteRange::Part(part) => prop_assert_eq!(part.collect::<Vec<_>>(), expected),
            }
        }

        #[test]
        fn a_part_is_never_empty_nor_beyond_the_end(
            header in "(bytes=)?[0-9, -]{0,24}", length: u64
        ) {
            if let ByteRange::Part(part) = resolve_range(Some(&header), length) {
                prop_assert!(part.start < part.end && part.end <= length);
            }
        }
    }
}
