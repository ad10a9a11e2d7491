//! How many requests may be under way: in all, of an account, and from an address whose keys are
//! not known yet. Streams of HTTP/2 count like requests of connections of their own.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Gateway;
use super::api_error::ApiError;
use super::context::RequestContext;
use super::edge::connection_limits::client_network;
use super::limits::Limits;
use super::overload::{reject, reject_tenant};
use super::slow_bodies::SlowBodies;
use super::tenant_budget::{
    BudgetPermit, OverBudget, Resource, ResourcePool, Tenant, TenantBudget, TenantId, TenantShare,
};

/// With up to this number of requests a tenant is not refused for the sake of newcomers.
const TENANT_REQUESTS_MIN: usize = 16;
const ADDRESS_LIMIT_MESSAGE: &str = "too many requests from this address are under way";
const ACCOUNT_LIMIT_MESSAGE: &str = "too many requests of this account are under way";
/// Whoever makes room for others has to be gone within this.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The next one is evicted if nothing was given back within this.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

/// The bounds of requests under way, and what is counted against them.
#[derive(Debug)]
pub struct ConcurrencyLimits {
    by_address: TenantBudget,
    by_account: TenantBudget,
}

impl ConcurrencyLimits {
    /// The bounds that the configuration sets.
    #[must_use]
    pub fn new(limits: &Limits) -> ConcurrencyLimits {
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

impl Gateway {
    /// Takes a place for a request whose key is not known yet.
    ///
    /// # Errors
    /// There are too many requests, from this address or in all, and nobody is slow enough to make
    /// room.
    pub(super) async fn acquire_request_permit(
        &self,
        client: Option<IpAddr>,
    ) -> Result<BudgetPermit, ApiError> {
        // Clients whose address is not known are one.
        let address = client.map_or(Ipv4Addr::UNSPECIFIED.into(), client_network);
        let tenant = self.tenants.tenant(TenantId::Address(address));
        let mut permit = self.concurrency.by_address.permit(&tenant);
        match grow_or_evict(&mut permit, 1, &self.slow_bodies).await {
            Ok(()) => Ok(permit),
            Err(OverBudget::Tenant) => {
                Err(reject_tenant("address_requests", ADDRESS_LIMIT_MESSAGE))
            }
            Err(OverBudget::Pool) => Err(reject("requests")),
        }
    }

    /// Counts a request for its account from now on, and no longer for its address.
    ///
    /// # Errors
    /// The account has too many.
    pub(super) fn count_for_account(
        &self,
        exchange: &mut RequestContext,
        account: &Arc<Tenant>,
    ) -> Result<(), ApiError> {
        exchange.tenant = Some(account.clone());
        let Some(permit) = &mut exchange.request_permit else { return Ok(()) };
        let transferred = permit.transfer(&self.concurrency.by_account, account);
        transferred.map_err(|_| reject_tenant("account_requests", ACCOUNT_LIMIT_MESSAGE))
    }
}

/// Grows a permit. If all of a pool is used, the slowest bodies are evicted until there is room.
pub(super) async fn grow_or_evict(
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
