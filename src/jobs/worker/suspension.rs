//! Queued jobs of a suspended account: they wait until the account is resumed.

use super::parts::{JobWorker, NextStep};
use super::retry::retry_until_done;
use crate::jobs::JobClaim;

/// A job whose account is suspended is due again after this many ms.
const SUSPENDED_RETRY_MS: u64 = 5_000;

impl JobWorker {
    /// Sends a queued job to a vendor, or lets it wait if its account is suspended. A job that
    /// waits for too long fails like one that no vendor has taken in time, and costs nothing.
    pub(super) async fn submit_unless_suspended(
        &self,
        claim: &mut JobClaim,
    ) -> anyhow::Result<NextStep> {
        let account = claim.job.account.clone();
        let asking = retry_until_done(|| self.ledger.account_settings(&account));
        let settings = self.while_renewing(claim, asking).await??;
        if settings.is_some_and(|settings| settings.suspended) {
            return self.save(claim, Some(SUSPENDED_RETRY_MS)).await;
        }
        self.submit(claim).await
    }
}
