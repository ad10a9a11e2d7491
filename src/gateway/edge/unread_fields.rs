//! Fields of a request head that nobody reads. An official client sends about ten of them, and
//! pingora makes a name, a value and an entry of a map of each, which costs more than all checks of
//! the head. So their lines are removed before pingora reads the head.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, BytesMut};

/// Tells whether a vendor may get a field that the gateway itself does not read.
pub(crate) type ForwardCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// Fields that describe the client. The gateway uses none of them, and sends a vendor its own.
const CLIENT_FIELDS: [&str; 4] = ["accept", "accept-encoding", "accept-language", "user-agent"];
/// Official clients describe their platform in fields whose names begin like this.
const PLATFORM_PREFIX: &str = "x-stainless-";
/// The one of these that the gateway reads: it marks a retry.
const RETRY_COUNT: &str = "x-stainless-retry-count";

/// Whether the gateway itself does not read a field, whatever the case of its name.
#[must_use]
pub(super) fn is_unread(name: &str) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    // It is asked of each field of a head, so most are told by a byte.
    match name.as_bytes().first().map(u8::to_ascii_lowercase) {
        Some(b'x') => has_platform_prefix(name) && !is(RETRY_COUNT),
        Some(b'a' | b'u') => CLIENT_FIELDS.into_iter().any(is),
        _ => false,
    }
}

fn has_platform_prefix(name: &str) -> bool {
    const LENGTH: usize = PLATFORM_PREFIX.len();
    let start = name.as_bytes().first_chunk::<LENGTH>();
    start.is_some_and(|start| {
        start.map(|byte| byte.to_ascii_lowercase()) == PLATFORM_PREFIX.as_bytes()
    })
}

/// Whether a rule for forwarded fields, a name or the beginning of one before a `*`, is for a field
/// that the gateway itself does not read.
#[must_use]
pub(crate) fn is_for_unread(rule: &str) -> bool {
    let Some(start) = rule.strip_suffix('*') else { return is_unread(rule) };
    let start = start.to_ascii_lowercase();
    let fits = |name: &str| name.starts_with(&start) || start.starts_with(name);
    CLIENT_FIELDS.into_iter().chain([PLATFORM_PREFIX]).any(fits)
}

/// Removes lines, which are in order, from the head at the start of `bytes`. It moves only what is
/// before the last of them.
pub(super) fn remove_lines(bytes: &mut BytesMut, lines: &[Range<usize>]) {
    let mut start = lines.last().map_or(0, |last| last.end);
    for (index, line) in lines.iter().enumerate().rev() {
        let kept = index.checked_sub(1).map_or(0, |before| lines[before].end)..line.start;
        start -= kept.len();
        bytes.copy_within(kept, start);
    }
    bytes.advance(start);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_field_that_marks_a_retry_was_removed_with_those_of_the_platform() {
        for name in ["accept", "User-Agent", "X-Stainless-Lang", "x-stainless-retry-counter"] {
            assert!(is_unread(name), "{name}");
        }
        for name in ["x-stainless-retry-count", "X-Stainless-Retry-Count", "accepts", "host", "x"] {
            assert!(!is_unread(name), "{name}");
        }
    }

    #[test]
    fn a_rule_for_a_field_of_the_client_keeps_it() {
        for rule in
            ["user-agent", "user-*", "User-*", "*", "x-*", "x-stainless-*", "x-stainless-os"]
        {
            assert!(is_for_unread(rule), "{rule}");
        }
        for rule in ["x-stainless-retry-count", "vendor-beta", "x-vendor-*", "acceptance"] {
            assert!(!is_for_unread(rule), "{rule}");
        }
    }

    proptest! {
        #[test]
        fn all_other_lines_and_what_follows_the_head_stay(
            lines in prop::collection::vec((0_usize..9, any::<bool>()), 0..9),
        ) {
            let (mut bytes, mut expected, mut removed) = (BytesMut::new(), Vec::new(), Vec::new());
            for (number, (length, is_removed)) in lines.iter().enumerate() {
                let start = bytes.len();
                let digit = b'0' + u8::try_from(number).expect("a digit");
                bytes.extend_from_slice(&vec![digit; *length]);
                if *is_removed {
                    removed.push(start..bytes.len());
                } else {
                    expected.extend_from_slice(&bytes[start..]);
                }
            }
            remove_lines(&mut bytes, &removed);
            prop_assert_eq!(&bytes[..], &expected[..]);
        }
    }
}
