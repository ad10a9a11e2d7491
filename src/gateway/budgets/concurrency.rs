//! Limits the requests in flight: in total, for each account, and for each address until the API
//! key of a request is known. Each HTTP/2 stream counts as one request, like a request on a
//! separate connection.

use std::time::{Duration, Instant};

use crate::gateway::budgets::slow_bodies::SlowBodies;
use crate::gateway::budgets::tenants::{
    BudgetPermit, OverBudget, Resource, ResourcePool, TenantBudget, TenantShare,
};
use crate::gateway::limits::Limits;

/// A tenant with at most this many requests is not refused only to leave room for new tenants.
const TENANT_REQUESTS_MIN: usize = 16;
/// Evicted bodies must make room within this time, or else the waiting request is refused.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The next body is evicted if there is still no room after this time.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

/// The limits of requests in flight, with the current counts.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimits {
    pub(crate) by_address: TenantBudget,
    pub(crate) by_account: TenantBudget,
}

impl ConcurrencyLimits {
    /// Creates the limits that the configuration sets.
    #[must_use]
    pub(crate) fn new(limits: &Limits) -> ConcurrencyLimits {
        let pool = ResourcePool::new(limits.requests_max);
        let budget = |max| {
            let share = TenantShare { max, min: TENANT_REQUESTS_MIN };
            TenantBudget::new(Resource::Requests, &pool, share)
        };
        ConcurrencyLimits {
            by_address: budget(limits.requests_per_address_max),
            by_account: budget(limits.requests_per_account_max),
        }
    }
}

/// Grows a permit. If the pool is used up, the slowest bodies are evicted one by one until there is
/// room.
pub(crate) async fn grow_or_evict(
    permit: &mut BudgetPermit,
    amount: usize,
    slow_bodies: &SlowBodies,
) -> Result<(), OverBudget> {
    let Err(mut over) = permit.grow(amount) else { return Ok(()) };
    let (end, resource) = (Instant::now() + EVICTION_TIMEOUT, permit.resource());
    while over == OverBudget::Pool && Instant::now() < end && slow_bodies.evict_slowest(resource) {
        permit.pool().wait_for_release(EVICTION_INTERVAL).await;
        match permit.grow(amount) {
            Ok(()) => return Ok(()),
            Err(still) => over = still,
        }
    }
    Err(over)
}
