//! What the requests for pages share, and who has sent one.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::StatusCode;

use super::address::ConsoleAddress;
use super::error::PageError;
use super::overview::OverviewCache;
use crate::admin_api::error::AdminError;
use crate::admin_api::state::AdminApi;
use crate::ledger::AccountName;
use crate::management::actor::{Actor, OperatorCaller};
use crate::management::context::ManagementContext;
use crate::operators::Role;
use crate::sessions::{Principal, SecretHash};

/// What the requests for pages share.
#[derive(Clone)]
pub(crate) struct Console {
    /// The functions of the API, and what they need.
    pub(crate) api: AdminApi,
    /// Where browsers find the console.
    pub(crate) address: Arc<ConsoleAddress>,
    /// The sums of all accounts, which are read now and then.
    pub(crate) overview: Arc<OverviewCache>,
}

/// Who sees the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Viewer {
    /// An operator.
    Operator {
        /// The name, by which the audit trail names the operator.
        name: String,
        role: Role,
    },
    /// A customer, who sees one account.
    Customer(AccountName),
}

impl Viewer {
    /// Returns the name that pages show.
    pub(super) fn name(&self) -> &str {
        match self {
            Viewer::Operator { name, .. } => name,
            Viewer::Customer(account) => account.as_str(),
        }
    }

    /// Returns the role of an operator; `None` of a customer.
    pub(super) fn role(&self) -> Option<Role> {
        match self {
            Viewer::Operator { role, .. } => Some(*role),
            Viewer::Customer(_) => None,
        }
    }
}

/// A browser that has signed in.
#[derive(Debug, Clone)]
pub(super) struct SignedIn {
    pub(super) viewer: Viewer,
    /// Who has signed in, as the store has it.
    pub(super) principal: Principal,
    /// The digest of the secret of the session.
    pub(super) session: SecretHash,
    /// The token that forms of the session carry.
    pub(super) form_token: String,
    pub(super) address: IpAddr,
    pub(super) request_id: String,
}

impl SignedIn {
    /// Returns the operator who asks; `None` for a customer.
    fn actor(&self) -> Option<Actor> {
        let Viewer::Operator { name, role } = &self.viewer else { return None };
        let caller = OperatorCaller {
            name: name.clone(),
            role: *role,
            address: self.address,
            request_id: self.request_id.clone(),
        };
        Some(Actor::Console(caller))
    }
}

impl Console {
    /// Makes a change by an operator.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        signed_in: &SignedIn,
        make: impl AsyncFnOnce(ManagementContext<'_>) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, PageError> {
        let refused = || PageError::new(StatusCode::FORBIDDEN, "This is for operators.");
        Ok(self.api.change(signed_in.actor().ok_or_else(refused)?, make).await?)
    }
}
