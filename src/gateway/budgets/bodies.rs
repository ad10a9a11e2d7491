//! Limits of request bodies: how much memory they may use, and how fast they must arrive.

use std::time::Duration;

use crate::gateway::budgets::tenants::{Resource, ResourcePool, TenantBudget, TenantShare};
use crate::gateway::limits::{Limits, Timeouts};

/// A tenant that holds at most this many bytes is not refused only to leave memory for new tenants.
const TENANT_BYTES_MIN: usize = 4 << 20;

/// Creates the budget for the memory of request bodies, except for uploads.
pub(crate) fn new_budget(limits: &Limits) -> TenantBudget {
    let pool = ResourcePool::new(limits.bodies_bytes_max);
    let share = TenantShare { max: limits.bodies_per_account_bytes_max, min: TENANT_BYTES_MIN };
    TenantBudget::new(Resource::BodyBytes, &pool, share)
}

/// The time limits for a client to send a body: one for the whole body, and one for each part of at
/// least a fixed size. A client that sends much at once gains no extra time for the parts that
/// follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyRate {
    /// The time limit for the whole body.
    total_timeout: Duration,
    /// The time limit for each part.
    part_timeout: Duration,
    /// The least size of a part, in bytes.
    part_bytes: u128,
    /// The time from the start of the body until its last part was complete, and the bytes that had
    /// arrived in total by then.
    last_part_at: Duration,
    last_part_bytes: usize,
}

impl BodyRate {
    pub(crate) fn new(limits: &Limits, timeouts: &Timeouts) -> BodyRate {
        let total_timeout = timeouts.body;
        // Without a minimum rate, one part may take as long as the whole body.
        let part_timeout = if limits.body_rate_min == 0 { total_timeout } else { timeouts.head };
        let part_bytes = u128::from(limits.body_rate_min) * part_timeout.as_millis() / 1_000;
        BodyRate {
            total_timeout,
            part_timeout,
            part_bytes,
            last_part_at: Duration::ZERO,
            last_part_bytes: 0,
        }
    }

    /// Records that `bytes` have arrived in total, `after` the body began.
    pub(crate) fn record(&mut self, bytes: usize, after: Duration) {
        if (bytes - self.last_part_bytes) as u128 >= self.part_bytes {
            (self.last_part_bytes, self.last_part_at) = (bytes, after);
        }
    }

    /// Returns the time, counted from the start of the body, by which the next part must be
    /// complete.
    pub(crate) fn deadline(&self) -> Duration {
        (self.last_part_at + self.part_timeout).min(self.total_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: u64) -> BodyRate {
        let limits = Limits { body_rate_min: rate, ..Limits::default() };
        BodyRate::new(&limits, &Timeouts::default())
    }

    #[test]
    fn a_body_has_to_come_part_by_part() {
        let seconds = Duration::from_secs;
        let mut pace = pace(1_000);
        assert_eq!(pace.deadline(), seconds(10));
        pace.record(9_999, seconds(3));
        assert_eq!(pace.deadline(), seconds(10), "that is no part yet");
        pace.record(10_000, seconds(4));
        assert_eq!(pace.deadline(), seconds(14));
        pace.record(500_000, seconds(5));
        assert_eq!(pace.deadline(), seconds(15), "much at once is one part");
        pace.record(510_000, seconds(14));
        assert_eq!(pace.deadline(), seconds(24));
        pace.record(900_000, seconds(119));
        assert_eq!(pace.deadline(), seconds(120));
    }

    #[test]
    fn where_any_speed_will_do_all_of_it_has_its_time() {
        let mut pace = pace(0);
        pace.record(1, Duration::from_secs(100));
        assert_eq!(pace.deadline(), Duration::from_secs(120));
    }
}
