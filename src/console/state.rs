//! What the requests for pages share, and who has sent one.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::http::StatusCode;

use super::address::ConsoleAddress;
use super::customer_limits::{CustomerLimits, TOO_MANY_CHANGES};
use super::error::PageError;
use super::guide::SetupGuide;
use super::live_streams::LiveStreams;
use super::oidc::provider::IdentityProvider;
use super::overview::OverviewCache;
use crate::admin_api::error::AdminError;
use crate::admin_api::state::AdminApi;
use crate::catalogue::Catalogue;
use crate::clock::unix_ms;
use crate::gateway::traffic::live_feed::LiveFeed;
use crate::gateway::traffic::reading::TrafficLog;
use crate::ledger::AccountName;
use crate::management::actor::{Actor, CustomerCaller, OperatorCaller};
use crate::management::context::ManagementContext;
use crate::operators::Role;
use crate::sessions::{Principal, SecretHash};
use crate::usage::PeriodKind;

/// What the requests for pages share.
#[derive(Clone)]
pub(crate) struct Console {
    /// The functions of the API, and what they need.
    pub(crate) api: AdminApi,
    /// Where browsers find the console.
    pub(crate) address: Arc<ConsoleAddress>,
    /// Where customers sign in by a link.
    pub(crate) customer_links: Option<Arc<ConsoleAddress>>,
    /// Whether the pages of operators are not served here.
    pub(crate) is_for_customers: bool,
    /// What customers may do, here and at the other address together.
    pub(crate) limits: Arc<CustomerLimits>,
    /// The sums of all accounts, which are read now and then.
    pub(crate) overview: Arc<OverviewCache>,
    /// The catalogue of the version before the one in force, if this process has had one.
    pub(crate) previous_catalogue: Arc<ArcSwapOption<Catalogue>>,
    /// How clients are set up for this gateway.
    pub(crate) guide: Arc<SetupGuide>,
    /// The identity provider by which operators may sign in; `None` if there is none.
    pub(crate) oidc: Option<Arc<IdentityProvider>>,
    /// The traffic of this gateway.
    pub(crate) traffic: Arc<TrafficLog>,
    /// The calls that have just ended, and the streams that tell of them.
    pub(crate) live: Arc<LiveFeed>,
    pub(crate) streams: Arc<LiveStreams>,
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

    /// Returns the account of a customer.
    pub(super) fn customer(&self) -> Result<&AccountName, PageError> {
        match self {
            Viewer::Customer(account) => Ok(account),
            Viewer::Operator { .. } => {
                Err(PageError::new(StatusCode::FORBIDDEN, "This page is for customers."))
            }
        }
    }

    /// Returns the path below which the pages of keys are.
    pub(super) fn keys_path(&self) -> &'static str {
        match self {
            Viewer::Operator { .. } => "/keys",
            Viewer::Customer(_) => "/my/keys",
        }
    }

    /// Returns the path of the page in the menu to which the pages of keys belong.
    pub(super) fn keys_place(&self) -> &'static str {
        match self {
            Viewer::Operator { .. } => "/accounts",
            Viewer::Customer(_) => "/my/keys",
        }
    }

    /// Returns the path of the pages of webhooks.
    pub(super) fn webhooks_path(&self) -> &'static str {
        match self {
            Viewer::Operator { .. } => "/webhooks",
            Viewer::Customer(_) => "/my/webhooks",
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
    /// Whether a key has signed in, by which a customer only reads.
    pub(super) is_reader: bool,
    /// The digest of the secret of the session.
    pub(super) session: SecretHash,
    /// The token that forms of the session carry.
    pub(super) form_token: String,
    pub(super) address: IpAddr,
    pub(super) request_id: String,
}

impl SignedIn {
    /// Whether this one may change the keys and webhooks of the accounts that it sees.
    pub(super) fn may_change(&self) -> bool {
        self.viewer.role().map_or(!self.is_reader, |role| role >= Role::Operator)
    }

    /// Returns who makes a change.
    fn actor(&self) -> Actor {
        let (address, request_id) = (self.address, self.request_id.clone());
        match &self.viewer {
            Viewer::Operator { name, role } => {
                let (name, role) = (self.audited_name(name), *role);
                Actor::Console(OperatorCaller { name, role, address, request_id })
            }
            Viewer::Customer(account) => {
                let account = account.clone();
                Actor::Customer(CustomerCaller { account, address, request_id })
            }
        }
    }

    /// Returns the name of an operator in the audit trail. No operator of the store has that of an
    /// identity, so nobody is taken for another.
    fn audited_name(&self, name: &str) -> String {
        match &self.principal {
            Principal::Identity { .. } => format!("identity:{name}"),
            Principal::Operator(_) | Principal::Account(_) => name.to_owned(),
        }
    }
}

impl Console {
    /// Makes a change by an operator.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        signed_in: &SignedIn,
        make: impl AsyncFnOnce(ManagementContext<'_>) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, PageError> {
        if signed_in.viewer.role() < Some(Role::Operator) {
            return Err(PageError::new(StatusCode::FORBIDDEN, "This is for operators."));
        }
        Ok(self.api.change(signed_in.actor(), make).await?)
    }

    /// Reads what takes long, on a thread for blocking work.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        signed_in: &SignedIn,
        read: impl AsyncFnOnce(ManagementContext<'_>) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, PageError> {
        Ok(self.api.change(signed_in.actor(), read).await?)
    }

    /// Makes a change of an account by an operator, or by the customer whose account it is, for
    /// whom it was counted before.
    pub(super) async fn change_of<T: Send + 'static>(
        &self,
        account: &AccountName,
        signed_in: &SignedIn,
        make: impl AsyncFnOnce(ManagementContext<'_>) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, PageError> {
        let Viewer::Customer(own) = &signed_in.viewer else {
            return self.change(signed_in, make).await;
        };
        if own != account {
            return Err(PageError::new(StatusCode::FORBIDDEN, "This is another account's."));
        }
        Ok(self.api.change(signed_in.actor(), make).await?)
    }

    /// Counts a change by a customer, before anything is written for it.
    pub(super) fn count_change(&self, signed_in: &SignedIn) -> Result<(), PageError> {
        let Viewer::Customer(account) = &signed_in.viewer else { return Ok(()) };
        if self.limits.changes.take(account, PeriodKind::Day.start_of(unix_ms())) {
            return Ok(());
        }
        Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_CHANGES))
    }
}
