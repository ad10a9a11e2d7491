//! What the requests of operators share.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::AdminError;
use crate::catalogue::Catalogue;
use crate::conf::{AuditSection, WebhooksSection};
use crate::files::VideoFiles;
use crate::gateway::in_flight::InFlight;
use crate::gateway::upstream::routes::RouteTable;
use crate::ledger::{BookName, Ledger, PlanName};
use crate::management::actor::Actor;
use crate::management::books::find_book;
use crate::management::context::ManagementContext;
use crate::management::plans::find_plan;
use crate::store::OpenStore;

/// The most requests that run at a time, also those whose clients have gone.
pub(crate) const REQUESTS_MAX: usize = 64;
/// The most searches of journals at a time: one may read half a million lines.
pub(crate) const SEARCHES_MAX: usize = 4;
/// The most refunds at a time: one may wait for a minute and a half.
pub(crate) const REFUNDS_MAX: usize = 16;

/// What the requests of operators share.
#[derive(Clone)]
pub(crate) struct AdminApi {
    pub(crate) store: OpenStore,
    /// Where the audit trail is.
    pub(crate) audit: AuditSection,
    /// Where messages of webhooks may be sent.
    pub(crate) webhooks: WebhooksSection,
    /// The files of accounts.
    pub(crate) files: Arc<VideoFiles>,
    /// The catalogue in force.
    pub(crate) catalogue: Arc<ArcSwap<Catalogue>>,
    /// The routes to the vendors.
    pub(crate) routes: Arc<RouteTable>,
    /// A permit for each request that may run.
    pub(crate) running: Arc<Semaphore>,
    /// A permit for each search of journals that may run.
    pub(crate) searching: Arc<Semaphore>,
    /// A permit for each refund that may wait for money that is lent.
    pub(crate) refunding: Arc<Semaphore>,
    /// Counts the requests that run, so that a stopping process waits for them.
    pub(crate) in_flight: InFlight,
}

impl AdminApi {
    /// Returns the ledger of the store.
    pub(super) fn ledger(&self) -> &dyn Ledger {
        &*self.store.ledger
    }

    /// Takes one of a few permits. There is no waiting: the others have their own.
    pub(crate) fn take_permit(
        permits: &Arc<Semaphore>,
    ) -> Result<OwnedSemaphorePermit, AdminError> {
        let busy = |_| AdminError::busy("too_many_requests", "too many requests of this kind run");
        permits.clone().try_acquire_owned().map_err(busy)
    }

    /// Makes a change by an actor, on a thread for blocking work: each line of the audit trail is
    /// synced to disk.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        actor: Actor,
        make: impl AsyncFnOnce(ManagementContext<'_>) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, AdminError> {
        let (api, runtime) = (self.clone(), Handle::current());
        let changing = tokio::task::spawn_blocking(move || {
            let context = ManagementContext { store: &api.store, audit: &api.audit, actor: &actor };
            runtime.block_on(make(context))
        });
        changing.await.map_err(|_| AdminError::internal("something went wrong here"))?
    }

    /// Parses the name of a price book, which the rules in force must have.
    pub(super) fn parse_book(&self, name: &str) -> Result<BookName, AdminError> {
        Ok(find_book(&self.catalogue.load().books, name)?.name.clone())
    }

    /// Parses the name of a plan, which the rules in force must have.
    pub(crate) fn parse_plan(&self, name: &str) -> Result<PlanName, AdminError> {
        Ok(find_plan(&self.catalogue.load().plans, name)?.name.clone())
    }
}
