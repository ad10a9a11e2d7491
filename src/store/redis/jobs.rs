//! Video jobs in Redis. The record of a job is in its account's slot, with the body for the vendor
//! beside it. An index in its own slot lists which jobs are due.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;

use super::super::job_records::{
    check_same_order, id_already_used, parse_claimed_job, parse_job, serialize_job,
};
use super::super::lent_money;
use super::keys::AccountKeys;
use super::operations::{key_text, parse_outcome, reply_strings};
use super::rate_texts::{format_asks, parse_readings};
use super::run_gate::Requirement;
use super::scripts::{ScriptCall, ScriptSelector};
use super::shared_store::RedisStore;
use crate::jobs::{
    ClaimUpdate, Job, JobClaim, JobCursor, JobFilter, JobList, JobListing, JobPage, JobQueue,
    JobStatus, NewJob, PlaceResult,
};
use crate::ledger::{AccountName, Outcome, Unavailable};

mod index;
mod index_repair;
mod listing;

use index::{DueEntry, IndexUpdate, RECHECK_AFTER_MS, index_member};

/// Longer durations are cut to this, in ms: a script adds them to its clock, in a double.
const DURATION_MS_MAX: u64 = 1 << 52;
/// One call of `claim_due` looks for due jobs at most this many times: some entries of the index
/// turn out not to be due.
const CLAIM_ROUNDS_MAX: u32 = 8;
/// At most this many attempts are made to place an order, while the job that used its idempotency
/// key before is being removed.
const PLACE_ATTEMPTS_MAX: u32 = 3;

const SECRET_KEY: &str = "tollgate:secret";

#[async_trait]
impl JobQueue for RedisStore {
    fn is_embedded(&self) -> bool {
        false
    }

    async fn place_job(&self, order: NewJob) -> Result<PlaceResult, Unavailable> {
        if let Some(gate) = &self.run_gate {
            gate.allowed_run(Requirement::WritableOutbox)?;
        }
        if !self.has_room(order.body.len()) {
            return Err(Unavailable("no room is left for what its vendor needs".to_owned()));
        }
        let job = serialize_job(&order.job)?;
        let member = index_member(&order.job.account, &order.job.id);
        for _ in 0..PLACE_ATTEMPTS_MAX {
            let scheduled = self.index_add(&member).await?;
            let place = || self.place_once(&order, &job, &scheduled, Requirement::WritableOutbox);
            let reply = lent_money::retry(place, |reply| is_lent(reply), self.lent_wait).await?;
            match reply.first().map(String::as_str) {
                Some("placed") => {
                    self.update_index(&member, &reply).await;
                    self.record_kept_bytes(&order.job.account, text_at(&reply, 4)?);
                    return parse_readings(reply.get(5..).unwrap_or_default())
                        .map(PlaceResult::New);
                }
                Some("known") => {
                    self.update_index(&member, &reply).await;
                    let key = reply.get(5).filter(|key| !key.is_empty());
                    return check_same_order(
                        &order,
                        parse_job(text_at(&reply, 4)?)?,
                        key.map(String::as_str),
                    )
                    .map(|()| PlaceResult::New(Vec::new()));
                }
                _ => self.cancel_index_add(scheduled).await,
            }
            if let Some(placed) = self.refused_result(&order, &reply).await? {
                return Ok(placed);
            }
        }
        Err(Unavailable("the idempotency key's job comes and goes".to_owned()))
    }

    async fn find_job(&self, account: &AccountName, id: &str) -> Result<Option<Job>, Unavailable> {
        let record = self.find_record(account, id).await?;
        Ok(record.and_then(|(job, deleted)| (!deleted).then_some(job)))
    }

    async fn list_jobs(
        &self,
        account: &AccountName,
        page: JobPage,
    ) -> Result<Option<JobList>, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(AccountKeys::of(account).videos());
        let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1);
        call.arg(u8::from(page.ascending)).arg(limit);
        page.after.iter().for_each(|after| {
            call.arg(after);
        });
        let reply = self.run_read_script(&call, |s| &s.videos.page).await?;
        let Some(("page", ids)) = reply.split_first().map(|(result, ids)| (result.as_str(), ids))
        else {
            return Ok(None);
        };
        let found = ids.iter().take(page.limit).map(|id| self.find_job(account, id));
        let found: Result<Vec<_>, _> = join_all(found).await.into_iter().collect();
        // A job may have been deleted after its id was read.
        let jobs = found?.into_iter().flatten().collect();
        Ok(Some(JobList { jobs, has_more: ids.len() > page.limit }))
    }

    async fn list_all_jobs(
        &self,
        filter: &JobFilter,
        after: Option<&JobCursor>,
        limit: usize,
    ) -> Result<JobListing, Unavailable> {
        self.read_jobs(filter, after, limit).await
    }

    async fn delete_job(
        &self,
        account: &AccountName,
        id: &str,
    ) -> Result<Option<Job>, Unavailable> {
        // Without this check, attempts to delete ids that never existed would leave entries in the
        // index.
        if self.find_record(account, id).await?.is_none() {
            return Ok(None);
        }
        let (keys, member) = (AccountKeys::of(account), index_member(account, id));
        let scheduled = self.schedule_recheck(&member).await?;
        let mut call = ScriptCall::default();
        call.key(keys.video(id)).key(keys.videos()).arg(id).arg(&scheduled.deadline);
        let reply = self.run_script(&call, |s| &s.videos.delete).await?;
        match reply.first().map(String::as_str) {
            Some("deleted") => {
                self.update_index(&member, &reply).await;
                parse_job(text_at(&reply, 4)?).map(Some)
            }
            Some("hidden") => {
                self.update_index(&member, &reply).await;
                Ok(None)
            }
            Some("gone") => Ok(None),
            Some("late") => Err(deadline_error()),
            _ => Err(unexpected_reply(&reply)),
        }
    }

    async fn claim_due(&self, lease_ms: u64, limit: usize) -> Result<Vec<JobClaim>, Unavailable> {
        self.repair_index().await;
        let mut claims = Vec::new();
        for _ in 0..CLAIM_ROUNDS_MAX {
            let due = self.due_entries(limit - claims.len()).await;
            let due = match due {
                // The jobs that are claimed already are returned in spite of the error.
                Err(_) if !claims.is_empty() => break,
                due => due?,
            };
            let is_full_round = due.len() == limit - claims.len();
            let claiming = due.iter().map(|entry| self.claim_entry(entry, lease_ms));
            let claimed = join_all(claiming).await;
            let failed = claimed.iter().find_map(|look| look.as_ref().err().cloned());
            claims.extend(claimed.into_iter().filter_map(Result::ok).flatten());
            match failed {
                Some(why) if claims.is_empty() => return Err(why),
                Some(_) => break,
                None if claims.len() == limit || !is_full_round => break,
                None => {}
            }
        }
        Ok(claims)
    }

    async fn renew_claim(&self, claim: &JobClaim, lease_ms: u64) -> Result<bool, Unavailable> {
        let mut call = claim_call(claim, |_, _| Vec::new());
        call.arg(claim.revision).arg(lease_ms.min(DURATION_MS_MAX));
        let reply = self.run_claim_script(&call, |s| &s.videos.renew, claim).await?;
        Ok(reply.is_some())
    }

    async fn read_body(&self, claim: &JobClaim) -> Result<Option<Bytes>, Unavailable> {
        let body = AccountKeys::of(&claim.job.account).video_body(&claim.job.id);
        self.connection().await?.query(redis::cmd("GET").arg(body)).await
    }

    async fn save_claim(
        &self,
        claim: &mut JobClaim,
        update: ClaimUpdate,
    ) -> Result<bool, Unavailable> {
        let (job, status) = (serialize_job(&claim.job)?, claim.job.status());
        let mut call = claim_call(claim, |keys, id| vec![keys.video_body(id), keys.videos_open()]);
        call.arg(&claim.job.id).arg(claim.revision).arg(u8::from(claim.deleted));
        call.arg(job).arg(status.name());
        match update.due_ms {
            Some(due_ms) => call.arg(due_ms.min(DURATION_MS_MAX)),
            None => call.arg(""),
        };
        call.arg(u8::from(update.forget_body));
        let reply = self.run_claim_script(&call, |s| &s.videos.save, claim).await?;
        let Some(reply) = reply else { return Ok(false) };
        claim.revision = number_at(&reply, 4)?;
        claim.deleted = text_at(&reply, 5)? == "1";
        Ok(true)
    }

    async fn remove_job(&self, claim: &JobClaim) -> Result<bool, Unavailable> {
        let mut call = claim_call(claim, |keys, id| {
            vec![keys.video_body(id), keys.video_keys(), keys.videos(), keys.videos_open()]
        });
        call.arg(&claim.job.id).arg(claim.revision).arg(RECHECK_AFTER_MS);
        let reply = self.run_claim_script(&call, |s| &s.videos.remove, claim).await?;
        Ok(reply.is_some())
    }

    async fn count_by_status(&self) -> Result<Vec<(JobStatus, u64)>, Unavailable> {
        let mut sizes = redis::pipe();
        for status in JobStatus::ALL {
            sizes.cmd("SCARD").arg(index::status_key(status));
        }
        let sizes: Vec<u64> = self.connection().await?.query_pipeline(&sizes).await?;
        Ok(JobStatus::ALL.into_iter().zip(sizes).collect())
    }

    async fn get_or_set_secret(&self, candidate: [u8; 32]) -> Result<[u8; 32], Unavailable> {
        let connection = self.connection().await?;
        // GET comes first, because a server whose memory is full refuses SET even if the key
        // already exists.
        let mut known: Option<Vec<u8>> =
            connection.query(redis::cmd("GET").arg(SECRET_KEY)).await?;
        if known.is_none() {
            let mut set = redis::cmd("SET");
            set.arg(SECRET_KEY).arg(&candidate[..]).arg("NX").arg("GET");
            known = connection.query(&set).await?;
        }
        let Some(known) = known else { return Ok(candidate) };
        known
            .try_into()
            .map_err(|_| Unavailable("the fleet's secret has another length".to_owned()))
    }
}

impl RedisStore {
    /// Runs a script that only reads, in whatever run the server is in, and returns its reply.
    async fn run_read_script(
        &self,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<Vec<String>, Unavailable> {
        reply_strings(
            &self.connection().await?.invoke_script(&call.invocation(pick(&self.scripts))).await?,
        )
    }

    /// Runs a script on a claimed job, and writes its reply to the index. `None` if the claim was
    /// lost.
    async fn run_claim_script(
        &self,
        call: &ScriptCall,
        pick: ScriptSelector,
        claim: &JobClaim,
    ) -> Result<Option<Vec<String>>, Unavailable> {
        let reply = self.run_script(call, pick).await?;
        if reply.first().is_none_or(|result| result == "gone") {
            return Ok(None);
        }
        self.update_index(&index_member(&claim.job.account, &claim.job.id), &reply).await;
        Ok(Some(reply))
    }

    async fn place_once(
        &self,
        order: &NewJob,
        job: &str,
        scheduled: &IndexUpdate,
        needs: Requirement,
    ) -> Result<Vec<String>, Unavailable> {
        let (keys, id) = (AccountKeys::of(&order.job.account), &order.job.id);
        let mut call = ScriptCall::default();
        call.key(keys.account()).key(keys.hold(id)).key(keys.open_holds());
        call.key(keys.video(id)).key(keys.video_body(id)).key(keys.video_keys());
        call.key(keys.videos()).key(keys.videos_open()).key(keys.tag());
        call.arg(id).arg(order.quote.wanted.nano()).arg(order.quote.least.nano());
        call.arg(order.lease_ms.min(DURATION_MS_MAX)).arg(&scheduled.deadline).arg(order.open_max);
        call.arg(order.key.as_deref().unwrap_or_default());
        call.arg(order.job.status().name()).arg(job).arg(&order.body[..]);
        call.arg(key_text(order.job.key_id)).arg(format_asks(&order.rates));
        let place: ScriptSelector = |s| &s.videos.place;
        match &self.run_gate {
            Some(gate) => reply_strings(&self.run_gated(gate, needs, &call, place).await?.0),
            None => self.run_script(&call, place).await,
        }
    }

    /// Places a job again that a run of the server has lost, with its hold, its body and its key.
    /// Returns whether the run had lost it. If its hold has ended, nothing is placed: it was
    /// removed since, or another gateway has made it and its charge came first. In the second case
    /// its key is kept, so that a repeat is no other job.
    pub(in crate::store) async fn restore_job(&self, order: &NewJob) -> Result<bool, Unavailable> {
        let Job { account, id, .. } = &order.job;
        if self.find_record(account, id).await?.is_some() {
            return Ok(false);
        }
        let (job, member) = (serialize_job(&order.job)?, index_member(account, id));
        let scheduled = self.index_add(&member).await?;
        let place = || self.place_once(order, &job, &scheduled, Requirement::KnownRun);
        let reply = lent_money::retry(place, |reply| is_lent(reply), self.lent_wait).await?;
        let result = reply.first().map(String::as_str);
        if let Some("placed" | "known") = result {
            self.update_index(&member, &reply).await;
            return Ok(result == Some("placed"));
        }
        self.cancel_index_add(scheduled).await;
        if result == Some("late") {
            return Err(deadline_error());
        }
        // With any other reply nothing is missing: the hold has ended, or the client has ordered
        // the job again.
        if let Some(
            "insufficient" | "budget_exceeded" | "budget_in_use" | "wait" | "no_account"
            | "deleted",
        ) = result
        {
            log::error!(
                event = "video_job_lost", job = id, error:? = result;
                "video job lost by the store, not restored"
            );
        }
        Ok(false)
    }

    /// Returns the result of an order that was not placed; `None` if placing it may be tried again.
    async fn refused_result(
        &self,
        order: &NewJob,
        reply: &[String],
    ) -> Result<Option<PlaceResult>, Unavailable> {
        match reply.first().map(String::as_str) {
            Some("used") => {
                let first = self.find_record(&order.job.account, text_at(reply, 1)?).await?;
                return Ok(first.map(|(job, deleted)| {
                    if deleted {
                        PlaceResult::Deleted
                    } else {
                        PlaceResult::AlreadyPlaced(Box::new(job))
                    }
                }));
            }
            Some("lost") => return Ok(Some(PlaceResult::Lost)),
            Some("wait") => return Err(lent_money::still_lent()),
            Some("crowded") => return Ok(Some(PlaceResult::TooManyOpen)),
            Some("late") => return Err(deadline_error()),
            _ => {}
        }
        match parse_outcome(reply)? {
            Outcome::Insufficient(available) => Ok(Some(PlaceResult::Insufficient(available))),
            Outcome::BudgetExceeded { window, left } => {
                Ok(Some(PlaceResult::BudgetExceeded { window, left }))
            }
            Outcome::BudgetInUse(room) => Ok(Some(PlaceResult::BudgetInUse(room))),
            Outcome::RateLimited { id, retry_after_ms, rates } => {
                Ok(Some(PlaceResult::RateLimited { id, retry_after_ms, rates }))
            }
            Outcome::AccountDeleted => Ok(Some(PlaceResult::NoAccount)),
            Outcome::NoAccount => {
                let account = AccountKeys::of(&order.job.account).account();
                self.confirm_absence(&account).await?;
                Ok(Some(PlaceResult::NoAccount))
            }
            _ => Err(id_already_used(&order.job.id)),
        }
    }

    /// Returns a job, and whether its client deleted it; `None` if the job does not exist.
    async fn find_record(
        &self,
        account: &AccountName,
        id: &str,
    ) -> Result<Option<(Job, bool)>, Unavailable> {
        let mut get = redis::cmd("HMGET");
        get.arg(AccountKeys::of(account).video(id)).arg(&["job", "deleted"]);
        let (job, deleted): (Option<String>, Option<bool>) =
            self.connection().await?.query(&get).await?;
        job.map(|job| Ok((parse_job(&job)?, deleted.unwrap_or_default()))).transpose()
    }

    /// Reads the job of an index entry that is due. Claims the job if its record shows that it is
    /// due, and otherwise corrects the index.
    async fn claim_entry(
        &self,
        entry: &DueEntry,
        lease_ms: u64,
    ) -> Result<Option<JobClaim>, Unavailable> {
        let Some((account, id)) = entry.job() else {
            self.remove_index_entry(entry).await;
            return Ok(None);
        };
        let mut call = ScriptCall::default();
        call.key(AccountKeys::of(&account).video(id)).arg(lease_ms.min(DURATION_MS_MAX));
        let reply = self.run_script(&call, |s| &s.videos.claim).await?;
        match reply.first().map(String::as_str) {
            Some("claimed") => {
                self.update_index(&entry.member, &reply).await;
                let (revision, deleted) = (number_at(&reply, 4)?, text_at(&reply, 5)? == "1");
                let job = parse_claimed_job(text_at(&reply, 6)?);
                Ok(job.map(|job| JobClaim { job, deleted, revision }))
            }
            Some("later") => {
                self.update_index(&entry.member, &reply).await;
                Ok(None)
            }
            Some("gone") => {
                self.remove_index_entry(entry).await;
                Ok(None)
            }
            _ => Err(unexpected_reply(&reply)),
        }
    }
}

/// Returns a call with the key of the claimed job's record and with further keys of its account.
fn claim_call(claim: &JobClaim, further: impl Fn(&AccountKeys, &str) -> Vec<String>) -> ScriptCall {
    let (keys, id) = (AccountKeys::of(&claim.job.account), &claim.job.id);
    let mut call = ScriptCall::default();
    call.key(keys.video(id));
    for key in further(&keys, id) {
        call.key(key);
    }
    call
}

fn text_at(reply: &[String], at: usize) -> Result<&str, Unavailable> {
    reply.get(at).map(String::as_str).ok_or_else(|| unexpected_reply(reply))
}

fn number_at(reply: &[String], at: usize) -> Result<u64, Unavailable> {
    text_at(reply, at)?.parse().map_err(|_| unexpected_reply(reply))
}

/// Whether a job was not placed since its money is lent.
fn is_lent(reply: &[String]) -> bool {
    reply.first().is_some_and(|word| word == "wait")
}

fn deadline_error() -> Unavailable {
    Unavailable("the server took too long to begin".to_owned())
}

fn unexpected_reply(reply: &[String]) -> Unavailable {
    Unavailable(format!("unexpected answer: {:?}", reply.first()))
}
