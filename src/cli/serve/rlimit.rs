//! The limits of open files and connections of the process.

use std::ops::RangeInclusive;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are kept free for files and sockets other than connections.
const RESERVED_DESCRIPTORS: u64 = 128;
/// One of this many descriptors is for connections to the admin address, within these bounds.
const ADMIN_SHARE: u64 = 16;
const ADMIN_CONNECTIONS: RangeInclusive<u64> = 2..=64;
/// At least this many connections are accepted, however low the limit is. The process itself has
/// about forty files open; running out of descriptors would stop the listener for seconds.
const CONNECTIONS_MIN: usize = 4;
/// The limit that is requested if the system has no maximum.
const DEFAULT_DESCRIPTORS_MAX: u64 = 1 << 20;

/// Raises the descriptor limit to the system's maximum. Returns how many connections of clients fit
/// into it, at most `wanted` (0 means no limit), and how many connections to the admin address.
/// `others` are those of addresses that have bounds of their own.
pub(super) fn connections_max(wanted: usize, others: usize) -> (usize, usize) {
    let others = u64::try_from(others).unwrap_or(u64::MAX);
    let (fit, admin) = split_descriptors(raise_limit().saturating_sub(others));
    if wanted > fit {
        log::warn!(
            event = "descriptor_limit_low", wanted, fit;
            "more connections are allowed than the system has descriptors for"
        );
    }
    (if wanted == 0 { fit } else { wanted }, admin)
}

/// Splits the descriptors between clients and the admin address. A request needs two: the
/// connection of its client and one to a vendor.
fn split_descriptors(descriptors: u64) -> (usize, usize) {
    let (min, max) = (*ADMIN_CONNECTIONS.start(), *ADMIN_CONNECTIONS.end());
    let admin = (descriptors / ADMIN_SHARE).clamp(min, max);
    let each = descriptors.saturating_sub(RESERVED_DESCRIPTORS + admin) / 2;
    let fit = usize::try_from(each).unwrap_or(usize::MAX).max(CONNECTIONS_MIN);
    (fit, usize::try_from(admin).unwrap_or(usize::MAX))
}

/// Raises the descriptor limit as far as possible, and returns it.
fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let hard_limit = maximum.unwrap_or(DEFAULT_DESCRIPTORS_MAX);
    let before = current.unwrap_or(hard_limit);
    if before >= hard_limit {
        return before;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(hard_limit), maximum }) {
        Ok(()) => hard_limit,
        Err(why) => {
            log::warn!(
                event = "descriptor_limit_failed", error:% = why, before;
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
