//! What requests for videos share: the queue, the files, the signer of URLs.

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

/// Everything about video jobs that a request needs.
pub(crate) struct VideoService {
    /// Where jobs wait.
    pub queue: Arc<dyn JobQueue>,
    /// Where finished videos are kept.
    pub files: Arc<VideoFiles>,
    /// The address under which clients reach the gateway, where that is set.
    pub public_base: Option<String>,
    /// When what happens.
    pub schedule: JobSchedule,
    /// Tells this process' worker that there is something new.
    pub worker_wakeup: Arc<Notify>,
    /// The secrets of addresses; `None` where only the store has it.
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

    /// What seals addresses. The fleet shares its secrets.
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

    /// A secret of addresses: as it is configured, else the store's.
    async fn url_secret(&self, rank: usize) -> Result<[u8; 32], Unavailable> {
        if let Some(Some(secret)) = self.url_secrets.get(rank) {
            return Ok(*secret);
        }
        let mut candidate = [0; 32];
        getrandom::fill(&mut candidate).map_err(|why| Unavailable(why.to_string()))?;
        self.queue.get_or_set_secret(candidate).await
    }

    /// The job, if it is there and its time has not come.
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

/// The id of the job that a request asks for.
pub(in crate::gateway) fn job_id(request_id: &str) -> String {
    format!("{ID_PREFIX}{request_id}")
}

/// Whether a text is an id of a job: no other is looked up anywhere.
pub(in crate::gateway) fn is_job_id(text: &str) -> bool {
    let uuid = text.strip_prefix(ID_PREFIX).and_then(|rest| uuid::Uuid::try_parse(rest).ok());
    uuid.is_some_and(|uuid| text[ID_PREFIX.len()..] == uuid.to_string())
}
