//! What is counted of calls and of routes, and the differences between two readings.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::percentile::{BUCKETS, BucketCounts};

/// How a call has ended, as far as its status tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusClass {
    /// It was answered. A stream may still have broken after its beginning.
    Answered,
    /// The client's request was refused, or the client has gone before there was an answer.
    ClientError,
    /// A vendor failed: 502, 504, 529.
    VendorError,
    /// The gateway could not serve it: all other 5xx. Some 503 tell that a vendor is overloaded.
    GatewayError,
}

impl StatusClass {
    /// Returns what a status tells. It is 0 if nothing was sent.
    #[must_use]
    pub(crate) fn of_status(status: u16) -> StatusClass {
        match status {
            100..=399 => StatusClass::Answered,
            502 | 504 | 529 => StatusClass::VendorError,
            500.. => StatusClass::GatewayError,
            0..=99 | 400..=499 => StatusClass::ClientError,
        }
    }
}

/// The calls of some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CallCounts {
    pub(crate) answered: u64,
    pub(crate) client_errors: u64,
    pub(crate) vendor_errors: u64,
    pub(crate) gateway_errors: u64,
    /// The times to the first byte of all answers, those of errors too.
    pub(crate) first_bytes: BucketCounts,
}

impl CallCounts {
    /// Returns the number of calls.
    #[must_use]
    pub(crate) fn calls(&self) -> u64 {
        self.answered.saturating_add(self.errors())
    }

    /// Returns the number of calls that ended in an error.
    #[must_use]
    pub(crate) fn errors(&self) -> u64 {
        let of_others = self.client_errors.saturating_add(self.vendor_errors);
        of_others.saturating_add(self.gateway_errors)
    }

    /// Counts calls that have ended alike.
    pub(crate) fn count(&mut self, end: StatusClass, calls: u64) {
        let counted = match end {
            StatusClass::Answered => &mut self.answered,
            StatusClass::ClientError => &mut self.client_errors,
            StatusClass::VendorError => &mut self.vendor_errors,
            StatusClass::GatewayError => &mut self.gateway_errors,
        };
        *counted = counted.saturating_add(calls);
    }

    /// Adds other calls.
    pub(crate) fn add(&mut self, other: &CallCounts) {
        *self = self.each(other, u64::saturating_add);
    }

    /// Returns what was counted since an earlier reading.
    #[must_use]
    pub(crate) fn since(&self, earlier: &CallCounts) -> CallCounts {
        self.each(earlier, counted_since)
    }

    fn each(&self, other: &CallCounts, count: fn(u64, u64) -> u64) -> CallCounts {
        let mut first_bytes = [0; BUCKETS];
        let pairs = self.first_bytes.iter().zip(&other.first_bytes);
        for (slot, (one, two)) in first_bytes.iter_mut().zip(pairs) {
            *slot = count(*one, *two);
        }
        CallCounts {
            answered: count(self.answered, other.answered),
            client_errors: count(self.client_errors, other.client_errors),
            vendor_errors: count(self.vendor_errors, other.vendor_errors),
            gateway_errors: count(self.gateway_errors, other.gateway_errors),
            first_bytes,
        }
    }
}

/// What happened on a route in some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RouteCounts {
    /// Calls that were sent to it, or would have been if its host had an address.
    pub(crate) attempts: u64,
    /// Attempts that failed, after which the next route was tried.
    pub(crate) failed: u64,
    /// Attempts that failed after the vendor may have begun paid work.
    pub(crate) lost: u64,
}

impl RouteCounts {
    /// Adds what happened at another time.
    pub(crate) fn add(&mut self, other: &RouteCounts) {
        *self = self.each(other, u64::saturating_add);
    }

    fn each(&self, other: &RouteCounts, count: fn(u64, u64) -> u64) -> RouteCounts {
        RouteCounts {
            attempts: count(self.attempts, other.attempts),
            failed: count(self.failed, other.failed),
            lost: count(self.lost, other.lost),
        }
    }
}

/// The name of a route: its vendor and its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteName {
    pub(crate) vendor: String,
    pub(crate) route: String,
}

/// What the counters of the process said at one time, from its start on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrafficReading {
    pub(crate) calls: CallCounts,
    /// The routes of the configuration, and no others.
    pub(crate) routes: BTreeMap<RouteName, RouteCounts>,
}

impl TrafficReading {
    /// Returns what was counted since an earlier reading. Routes without anything are left out.
    #[must_use]
    pub(crate) fn since(&self, earlier: &TrafficReading) -> TrafficReading {
        let routes = self.routes.iter().map(|(name, counts)| {
            let before = earlier.routes.get(name).copied().unwrap_or_default();
            (name.clone(), counts.each(&before, counted_since))
        });
        TrafficReading {
            calls: self.calls.since(&earlier.calls),
            routes: routes.filter(|(_, counts)| *counts != RouteCounts::default()).collect(),
        }
    }
}

/// Returns how much a counter has counted. One that is below what it was has begun anew.
fn counted_since(now: u64, earlier: u64) -> u64 {
    now.checked_sub(earlier).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_tells_whose_error_it_is() {
        let of = |statuses: &[u16], end: StatusClass| {
            for status in statuses {
                assert_eq!(StatusClass::of_status(*status), end, "{status}");
            }
        };
        of(&[200, 201, 204, 302], StatusClass::Answered);
        of(&[0, 400, 401, 402, 403, 404, 409, 413, 429, 499], StatusClass::ClientError);
        of(&[502, 504, 529], StatusClass::VendorError);
        of(&[500, 503, 505], StatusClass::GatewayError);
    }

    #[test]
    fn a_counter_that_begins_anew_has_counted_what_it_shows() {
        let reading = |answered: u64, lost: u64| {
            let calls = CallCounts { answered, client_errors: 3, ..CallCounts::default() };
            let name = RouteName { vendor: "v".to_owned(), route: "r".to_owned() };
            let routes = [(name, RouteCounts { lost, ..RouteCounts::default() })];
            TrafficReading { calls, routes: routes.into() }
        };
        let later = reading(5, 2).since(&reading(3, 2));
        assert_eq!((later.calls.answered, later.calls.client_errors), (2, 0));
        assert!(later.routes.is_empty(), "nothing happened on the route");
        let again = reading(2, 1).since(&reading(5, 9));
        assert_eq!((again.calls.answered, again.calls.client_errors), (2, 0));
        assert_eq!(again.routes.values().map(|counts| counts.lost).sum::<u64>(), 1);
    }

    proptest! {
        /// However often a counter begins anew, the differences add up to all that it ever counted.
        #[test]
        fn differences_add_up_to_what_was_counted(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..1_000), 1..50),
        ) {
            let (mut counter, mut last, mut summed, mut truth) = (0_u64, 0_u64, 0_u64, 0_u64);
            for (begins_anew, counted) in steps {
                // One that begins anew and is above what it was looks like one that goes on.
                if begins_anew && counted < last {
                    counter = 0;
                }
                counter += counted;
                truth += counted;
                summed += counted_since(counter, last);
                last = counter;
            }
            prop_assert_eq!(summed, truth);
        }
    }
}
