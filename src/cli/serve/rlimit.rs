//! How many files and connections the process may have open.

use std::ops::RangeInclusive;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is open beside connections.
const RESERVED_DESCRIPTORS: u64 = 128;
/// Of all descriptors one in so many is for connections to the admin address, and of these so many
/// at most and at least.
const ADMIN_SHARE: u64 = 16;
const ADMIN_CONNECTIONS: RangeInclusive<u64> = 2..=64;
/// At least this many connections are accepted, however low the limit is. The process itself has
/// about forty files open; running out of descriptors would stop the listener for seconds.
const CONNECTIONS_MIN: usize = 4;
/// Where the system names no bound, so much is asked for.
const DEFAULT_DESCRIPTORS_MAX: u64 = 1 << 20;

/// Asks the system for as much as it gives, and tells how many connections of clients that is good
/// for, and how many to the admin address. If fewer of the first are wanted, it is these; 0 stands
/// for all.
pub(super) fn connections_max(wanted: usize) -> (usize, usize) {
    let descriptors = raise_limit();
    let (fit, admin) = split_descriptors(descriptors);
    if wanted > fit {
        log::warn!(
            event = "descriptor_limit_low", wanted, fit;
            "more connections are allowed than the system has descriptors for"
        );
    }
    (if wanted == 0 { fit } else { wanted }, admin)
}

/// A request has one connection of its client's, and one to a vendor.
fn split_descriptors(descriptors: u64) -> (usize, usize) {
    let (least, most) = (*ADMIN_CONNECTIONS.start(), *ADMIN_CONNECTIONS.end());
    let admin = (descriptors / ADMIN_SHARE).clamp(least, most);
    let each = descriptors.saturating_sub(RESERVED_DESCRIPTORS + admin) / 2;
    let fit = usize::try_from(each).unwrap_or(usize::MAX).max(CONNECTIONS_MIN);
    (fit, usize::try_from(admin).unwrap_or(usize::MAX))
}

/// Descriptors that the process may have, after it has asked for more.
fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.unwrap_or(DEFAULT_DESCRIPTORS_MAX);
    let before = current.unwrap_or(most);
    if before >= most {
        return before;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }) {
        Ok(()) => most,
        Err(why) => {
            log::warn!(
                event = "descriptor_limit_failed", why:% = why, before;
                "descriptor limit not raised"
            );
            before
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_not_needed_otherwise_is_for_clients() {
        assert_eq!(split_descriptors(0), (4, 2));
        assert_eq!(split_descriptors(64), (4, 4));
        assert_eq!(split_descriptors(1_024), (416, 64));
        assert_eq!(split_descriptors(1 << 20), (524_192, 64));
    }
}
