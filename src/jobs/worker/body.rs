//! The body that a vendor is sent: from the queue, or from the object store if it is long.

use anyhow::bail;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use super::{JobClaim, JobWorker};
use crate::files::FileReadError;

/// Where a body is.
pub(super) enum BodyLocation {
    /// Here.
    Here(Bytes),
    /// In the folder of another machine, or in a store that does not answer.
    Elsewhere,
}

impl JobWorker {
    pub(super) async fn vendor_body(&self, claim: &JobClaim) -> anyhow::Result<BodyLocation> {
        let Some((name, bytes)) = claim.job.body_name() else {
            return match self.queue.body(claim).await? {
                Some(body) => Ok(BodyLocation::Here(body)),
                None => bail!("there is no body to send"),
            };
        };
        let whole = async {
            let mut pieces = self.bodies.read(&name, bytes).await?;
            let mut whole = BytesMut::with_capacity(usize::try_from(bytes).unwrap_or_default());
            while let Some(piece) = pieces.next().await {
                whole.extend_from_slice(&piece?);
            }
            Ok::<_, FileReadError>(whole.freeze())
        };
        match self.kept(claim, whole).await? {
            Ok(body) => Ok(BodyLocation::Here(body)),
            Err(why) => {
                let job = &claim.job.id;
                log::warn!(
                    event = "video_body_read_failed", job, why:% = why;
                    "video request body cannot be read here"
                );
                Ok(BodyLocation::Elsewhere)
            }
        }
    }

    /// Deletes a body that nobody needs any more.
    pub(super) async fn forget_body(&self, claim: &JobClaim) {
        let Some((name, bytes)) = claim.job.body_name() else { return };
        if let Err(why) = self.bodies.delete(&name, bytes).await {
            log::warn!(
                event = "video_body_delete_failed", job = claim.job.id, why:% = why;
                "video request body left to the sweep"
            );
        }
    }
}
