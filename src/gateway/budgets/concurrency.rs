//! How many requests may be under way: in all, of an account, and from an address whose keys are
//! not known yet. Streams of HTTP/2 count like requests of connections of their own.

use std::time::{Duration, Instant};

use crate::gateway::budgets::slow_bodies::SlowBodies;
use crate::gateway::budgets::tenants::{
    BudgetPermit, OverBudget, Resource, ResourcePool, TenantBudget, TenantShare,
};
use crate::gateway::limits::Limits;

/// With up to this number of requests a tenant is not refused for the sake of newcomers.
const TENANT_REQUESTS_MIN: usize = 16;
/// Whoever makes room for others has to be gone within this.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The next one is evicted if nothing was given back within this.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

/// The bounds of requests under way, and what is counted against them.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimits {
    pub(crate) by_address: TenantBudget,
    pub(crate) by_account: TenantBudget,
}

impl ConcurrencyLimits {
    /// The bounds that the configuration sets.
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

/// Grows a permit. If all of a pool is used, the slowest bodies are evicted until there is room.
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
