//! Loads the request body for the vendor, from the queue or, if it is large, from the object store.

use anyhow::bail;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use super::parts::JobWorker;
use crate::files::FileReadError;
use crate::jobs::JobClaim;

/// The result of loading a body.
pub(super) enum BodyLocation {
    /// The body was loaded.
    Local(Bytes),
    /// The body is in a folder of another machine, or in a store that does not answer.
    Unreachable,
}

impl JobWorker {
    pub(super) async fn load_body(&self, claim: &JobClaim) -> anyhow::Result<BodyLocation> {
        let Some((name, bytes)) = claim.job.external_body() else {
            return match self.queue.read_body(claim).await? {
                Some(body) => Ok(BodyLocation::Local(body)),
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
        match self.while_renewing(claim, whole).await? {
            Ok(body) => Ok(BodyLocation::Local(body)),
            Err(why) => {
                let job = &claim.job.id;
                log::warn!(
                    event = "video_body_read_failed", job, error:% = why;
                    "video request body read failed"
                );
                Ok(BodyLocation::Unreachable)
            }
        }
    }

    /// Deletes the stored body of a job that is no longer needed.
    pub(super) async fn delete_body(&self, claim: &JobClaim) {
        let Some((name, bytes)) = claim.job.external_body() else { return };
        if let Err(why) = self.bodies.delete(&name, bytes).await {
            log::warn!(
                event = "video_body_delete_failed", job = claim.job.id, error:% = why;
                "video request body delete failed, left to the sweep"
            );
        }
    }
}
