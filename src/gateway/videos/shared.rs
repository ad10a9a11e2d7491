//! The shared state of video requests: the queue, the files, the signer of URLs.

use std::sync::Arc;

use tokio::sync::{Notify, OnceCell};

use crate::clock::unix_ms;
use crate::files::VideoFiles;
use crate::files::signed_url::UrlSigner;
use crate::jobs::schedule::JobSchedule;
use crate::jobs::{Job, JobQueue};
use crate::ledger::{AccountName, Unavailable};

/// How the id of a job begins.
pub(in crate::gateway) const ID_PREFIX: &str = "video_";

/// The shared state of video requests.
pub(crate) struct VideoService {
    /// The queue of jobs.
    pub queue: Arc<dyn JobQueue>,
    /// The store of finished videos.
    pub files: Arc<VideoFiles>,
    /// The base URL under which clients reach the gateway; `None` if it is not configured.
    pub public_base: Option<String>,
    /// The intervals and time limits of jobs.
    pub schedule: JobSchedule,
    /// Wakes the worker of this process after a job has changed.
    pub worker_wakeup: Arc<Notify>,
    /// The secrets that sign URLs, newest first; `None` where the secret is kept in the store.
    url_secrets: Vec<Option<[u8; 32]>>,
    url_signer: OnceCell<UrlSigner>,
}

impl VideoService {
    #[must_use]
    pub(crate) fn new(
        queue: Arc<dyn JobQueue>,
        files: Arc<VideoFiles>,
        public_base: Option<String>,
        schedule: JobSchedule,
        url_secrets: Vec<Option<[u8; 32]>>,
    ) -> VideoService {
        let (worker_wakeup, url_signer) = (Arc::default(), OnceCell::new());
        VideoService { queue, files, public_base, schedule, worker_wakeup, url_secrets, url_signer }
    }

    /// Returns the signer of URLs, made on first use. All nodes of the fleet share its secrets.
    pub(super) async fn url_signer(&self) -> Result<&UrlSigner, Unavailable> {
        let found = self.url_signer.get_or_try_init(|| async {
            let newest = self.url_secret(0).await?;
            let other = match self.url_secrets.len() {
                0 | 1 => None,
                _ => Some(self.url_secret(1).await?),
            };
            Ok(UrlSigner::new(newest, other))
        });
        found.await
    }

    /// Returns the secret of this rank: the configured one, or else the one in the store, which is
    /// created if it does not exist.
    async fn url_secret(&self, rank: usize) -> Result<[u8; 32], Unavailable> {
        if let Some(Some(secret)) = self.url_secrets.get(rank) {
            return Ok(*secret);
        }
        let mut candidate = [0; 32];
        getrandom::fill(&mut candidate).map_err(|why| Unavailable(why.to_string()))?;
        self.queue.get_or_set_secret(candidate).await
    }

    /// Returns the job, if it exists and has not expired.
    pub(super) async fn find_job(
        &self,
        account: &AccountName,
        id: &str,
    ) -> Result<Option<Job>, Unavailable> {
        if !is_job_id(id) {
            return Ok(None);
        }
        let found = self.queue.find_job(account, id).await?;
        Ok(found.filter(|job| !job.is_expired(&self.schedule, unix_ms())))
    }
}

/// Makes the id of a job from the id of the request that creates it.
pub(in crate::gateway) fn job_id(request_id: &str) -> String {
    format!("{ID_PREFIX}{request_id}")
}

/// Whether the text is a well-formed job id. No other text is looked up in the store.
pub(in crate::gateway) fn is_job_id(text: &str) -> bool {
    let uuid = text.strip_prefix(ID_PREFIX).and_then(|rest| uuid::Uuid::try_parse(rest).ok());
    uuid.is_some_and(|uuid| text[ID_PREFIX.len()..] == uuid.to_string())
}
