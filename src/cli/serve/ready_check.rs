//! Whether this process can sell calls: it reaches the ledger, and knows the address of a vendor.

use std::sync::Arc;
use std::time::Duration;

use crate::gateway::upstream::routes::RouteTable;
use crate::store::maintenance::Maintenance;

/// Checks whether this process is ready.
#[derive(Clone)]
pub(super) struct ReadyCheck {
    pub(super) maintenance: Arc<Maintenance>,
    pub(super) routes: Arc<RouteTable>,
    /// The ledger must answer within this time.
    pub(super) ledger_timeout: Duration,
}

impl ReadyCheck {
    /// Checks whether this process is ready.
    ///
    /// # Errors
    /// What is missing.
    pub(super) async fn check(&self) -> Result<(), String> {
        self.check_ledger().await?;
        if self.has_address() { Ok(()) } else { Err("no address of a vendor is known".to_owned()) }
    }

    /// Checks whether the ledger answers, and paid calls can be admitted.
    ///
    /// # Errors
    /// Why not.
    pub(super) async fn check_ledger(&self) -> Result<(), String> {
        let checking = self.maintenance.check_ready();
        match tokio::time::timeout(self.ledger_timeout, checking).await {
            Ok(checked) => checked.map_err(|why| why.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    /// Whether the address of at least one vendor is known.
    pub(super) fn has_address(&self) -> bool {
        self.routes.all().any(|route| route.address().is_some())
    }

    /// Returns how many routes calls may take at a time (unix ms), and how many there are.
    pub(super) fn count_routes(&self, now_ms: i64) -> (usize, usize) {
        let up = self.routes.all().filter(|route| route.state_at(now_ms).0 == "up").count();
        (up, self.routes.all().count())
    }
}
