//! Bodies of requests: how much memory they may take up, and how fast they must come.

use std::time::Duration;

use super::limits::{Limits, Timeouts};
use super::tenant_budget::{Resource, ResourcePool, TenantBudget, TenantShare};

/// With up to this number of bytes a tenant is not refused for the sake of newcomers.
const TENANT_BYTES_MIN: usize = 4 << 20;

/// The memory that bodies of requests may take up, uploads apart.
pub(super) fn budget(limits: &Limits) -> TenantBudget {
    let pool = ResourcePool::new(limits.bodies_bytes_max);
    let share = TenantShare { max: limits.bodies_per_account_bytes_max, min: TENANT_BYTES_MIN };
    TenantBudget::new(Resource::BodyBytes, &pool, share)
}

/// How long a client may take for a body: not too long in all, nor for each part of it that has to
/// come in a certain time. So a client that sent much at once does not live on that.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyRate {
    /// For all of it.
    most: Duration,
    /// For a part.
    part: Duration,
    /// Bytes that make a part.
    part_bytes: u128,
    /// When the last part was there, and how much that was in all.
    since: Duration,
    before: usize,
}

impl BodyRate {
    pub(super) fn new(limits: &Limits, timeouts: &Timeouts) -> BodyRate {
        let most = timeouts.body;
        // Whatever speed will do is a part that may take as long as all.
        let part = if limits.body_rate_min == 0 { most } else { timeouts.head };
        let part_bytes = u128::from(limits.body_rate_min) * part.as_millis() / 1_000;
        BodyRate { most, part, part_bytes, since: Duration::ZERO, before: 0 }
    }

    /// So much has come in all, after such a time.
    pub(super) fn came(&mut self, bytes: usize, after: Duration) {
        if (bytes - self.before) as u128 >= self.part_bytes {
            (self.before, self.since) = (bytes, after);
        }
    }

    /// The time by which more has to come.
    pub(super) fn deadline(&self) -> Duration {
        (self.since + self.part).min(self.most)
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
        pace.came(9_999, seconds(3));
        assert_eq!(pace.deadline(), seconds(10), "that is no part yet");
        pace.came(10_000, seconds(4));
        assert_eq!(pace.deadline(), seconds(14));
        pace.came(500_000, seconds(5));
        assert_eq!(pace.deadline(), seconds(15), "much at once is one part");
        pace.came(510_000, seconds(14));
        assert_eq!(pace.deadline(), seconds(24));
        pace.came(900_000, seconds(119));
        assert_eq!(pace.deadline(), seconds(120));
    }

    #[test]
    fn where_any_speed_will_do_all_of_it_has_its_time() {
        let mut pace = pace(0);
        pace.came(1, Duration::from_secs(100));
        assert_eq!(pace.deadline(), Duration::from_secs(120));
    }
}
