//! Counts requests in flight: each first for the address of its client and then, once its API key
//! is known, for its account.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::gateway::api_error::ApiError;
use crate::gateway::budgets::concurrency::grow_or_evict;
use crate::gateway::budgets::overload::{reject, reject_tenant};
use crate::gateway::budgets::tenants::{BudgetPermit, OverBudget, Tenant, TenantId};
use crate::gateway::context::RequestContext;
use crate::gateway::edge::connection_limits::client_network;
use crate::gateway::state::Gateway;

pub(crate) const ADDRESS_LIMIT_MESSAGE: &str = "too many requests from this address are under way";

pub(crate) const ACCOUNT_LIMIT_MESSAGE: &str = "too many requests of this account are under way";

impl Gateway {
    /// Counts a request whose API key is not known yet for the address of its client.
    ///
    /// # Errors
    /// There are too many requests in flight from this address; or too many in total, and no
    /// request body is slow enough to be evicted.
    pub(crate) async fn acquire_request_permit(
        &self,
        client: Option<IpAddr>,
    ) -> Result<BudgetPermit, ApiError> {
        // All clients whose address is not known count as one client.
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
    /// The account has too many requests in flight. The request counts for the account all the
    /// same.
    pub(crate) fn count_for_account(
        &self,
        ctx: &mut RequestContext,
        account: &Arc<Tenant>,
    ) -> Result<(), ApiError> {
        ctx.tenant = Some(account.clone());
        let Some(permit) = &mut ctx.request_permit else { return Ok(()) };
        let transferred = permit.transfer(&self.concurrency.by_account, account);
        transferred.map_err(|_| reject_tenant("account_requests", ACCOUNT_LIMIT_MESSAGE))
    }
}
