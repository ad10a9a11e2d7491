//! Where jobs wait: the same on every store, and money moves with them or not at all.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tollgate::jobs::{
    ClaimUpdate, Job, JobClaim, JobFailCode, JobOutcome, JobPage, JobQueue, JobStage, JobStatus,
    NewJob, PlaceResult, RunningJob,
};
use tollgate::ledger::account::Balances;
use tollgate::ledger::{AccountName, KeyId, Ledger, Operation, Outcome};
use tollgate::money::price::Quote;
use tollgate::money::{BilledUnits, Money, UsageBasis, VideoResolution};
use tollgate::store::OpenStore;

use super::redis_server::RedisServer;
use super::script::LONG_MS;
use super::subject::{name, opened};

mod crashes;
mod crowd;
mod random;
mod suite;

/// Longer than any test waits.
const LEASE_MS: u64 = 60_000;
/// A lease that runs out in the course of a test, and what surely is after its end.
const SHORT_MS: u64 = 40;
const SHORT_GONE: Duration = Duration::from_millis(60);
/// What a job costs in these tests.
const COST: i64 = 10;

/// Keeps the claim.
const KEEP: ClaimUpdate = ClaimUpdate { due_ms: None, forget_body: false };
/// Gives the job back; it is due at once.
const GIVE_BACK: ClaimUpdate = ClaimUpdate { due_ms: Some(0), forget_body: false };

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

/// A store as two nodes of a fleet see it.
async fn two(url: &str) -> [OpenStore; 2] {
    [opened(url).await, opened(url).await]
}

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

async fn funded(ledger: &dyn Ledger, account: &str, credit: i64) -> AccountName {
    let account = name(account);
    assert_eq!(ledger.open_account(&account).await, Ok(true));
    let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(credit) };
    assert_eq!(ledger.submit(&account, credit).await, Ok(Outcome::Done));
    account
}

async fn balances(ledger: &dyn Ledger, account: &AccountName) -> Balances {
    let balances = ledger.balances(account).await.expect("balances").expect("the account");
    assert!(balances.is_balanced(), "{balances:?}");
    balances
}

fn job(account: &AccountName, id: &str) -> Job {
    Job {
        id: id.to_owned(),
        account: account.clone(),
        key_prefix: "tg_ä\"{}".to_owned(),
        key_id: Some(KeyId(u64::MAX >> 1)),
        model: "film".to_owned(),
        requested_model: Some("a film".to_owned()),
        vendor: "vendor_d".to_owned(),
        seconds: 4,
        resolution: VideoResolution::P720,
        size: "1280x720".to_owned(),
        created_ms: 1_800_000_000_123,
        held: nano(COST),
        price_version: "1".to_owned(),
        booked: None,
        cost: None,
        external_body: None,
        trace: None,
        progress: 0,
        stage: JobStage::Queued { refused: 0 },
    }
}

pub(super) fn order(account: &AccountName, id: &str) -> NewJob {
    NewJob {
        job: job(account, id),
        body: Bytes::from(format!("body of {id}")),
        key: None,
        quote: Quote::exactly(nano(COST)),
        rates: Vec::new(),
        lease_ms: LONG_MS,
        open_max: 1_000,
    }
}

fn keyed(account: &AccountName, id: &str, key: &str) -> NewJob {
    NewJob { key: Some(key.to_owned()), ..order(account, id) }
}

async fn place(queue: &dyn JobQueue, order: NewJob) -> PlaceResult {
    queue.place_job(order).await.expect("an answer")
}

/// Places jobs that are taken.
async fn placed(queue: &dyn JobQueue, account: &AccountName, ids: &[&str]) {
    for id in ids {
        assert_eq!(place(queue, order(account, id)).await, PlaceResult::New(Vec::new()), "{id}");
    }
}

/// What a stage of this status may be.
fn stage(status: JobStatus) -> JobStage {
    let at_ms = 1_800_000_000_456;
    let (route, vendor_id) = ("r".to_owned(), "v".to_owned());
    match status {
        JobStatus::Queued => JobStage::Submitting { route, refused: 1 },
        JobStatus::InProgress => JobStage::Running(RunningJob {
            route,
            depth: 1,
            vendor_id,
            finished_ms: None,
            unanswered_polls: 0,
            not_found_polls: 0,
            copy_failures: 2,
        }),
        JobStatus::Completed => {
            let usage =
                BilledUnits::Video { seconds: 4, resolution: VideoResolution::P720, ticks: None };
            let charge = nano(9_007_199_254_740_993);
            let basis = UsageBasis::Fixed;
            JobStage::Ended {
                outcome: JobOutcome::Completed { route, depth: 1, vendor_id, charge, usage, basis },
                at_ms,
            }
        }
        JobStatus::Failed => {
            let (code, message) = (JobFailCode::TimedOut, "it took too long".to_owned());
            JobStage::Ended { outcome: JobOutcome::Failed { code, message }, at_ms }
        }
    }
}

/// Claims whatever is due.
async fn claim_all(queue: &dyn JobQueue) -> Vec<JobClaim> {
    queue.claim_due(LEASE_MS, 1_000).await.expect("claims")
}

fn ids(claims: &[JobClaim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.job.id.as_str()).collect()
}

/// Claims the one job that is due.
async fn claim_one(queue: &dyn JobQueue, lease_ms: u64) -> JobClaim {
    let mut claims = queue.claim_due(lease_ms, 1_000).await.expect("claims");
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims.remove(0)
}

async fn save(queue: &dyn JobQueue, claim: &mut JobClaim, next: ClaimUpdate) -> bool {
    queue.save_claim(claim, next).await.expect("an answer")
}

/// Takes a claimed job to a status and gives it back, due after so long.
async fn moved(queue: &dyn JobQueue, mut claim: JobClaim, to: JobStatus, due_ms: u64) {
    claim.job.stage = stage(to);
    let next = ClaimUpdate { due_ms: Some(due_ms), forget_body: false };
    assert!(save(queue, &mut claim, next).await, "{claim:?}");
}

async fn found(queue: &dyn JobQueue, account: &AccountName, id: &str) -> Option<Job> {
    queue.find_job(account, id).await.expect("an answer")
}

/// A page in words: the ids, `+` if there are more, or `?` where it would begin after nothing.
async fn listed(
    queue: &dyn JobQueue,
    account: &AccountName,
    ascending: bool,
    limit: usize,
    after: Option<&str>,
) -> String {
    let page = JobPage { after: after.map(str::to_owned), limit, ascending };
    let Some(listed) = queue.list_jobs(account, page).await.expect("a page") else {
        return "?".to_owned();
    };
    let mut words: Vec<_> = listed.jobs.iter().map(|job| job.id.as_str()).collect();
    words.extend(listed.has_more.then_some("+"));
    words.join(" ")
}

/// How many jobs are queued, in progress, completed, failed.
async fn counts(queue: &dyn JobQueue) -> [u64; 4] {
    let counts = queue.count_by_status().await.expect("counts");
    assert!(counts.iter().map(|count| count.0).eq(JobStatus::ALL), "{counts:?}");
    [0, 1, 2, 3].map(|n: usize| counts[n].1)
}

#[tokio::test]
async fn sqlite_keeps_jobs() {
    let folder = tempfile::tempdir().expect("a folder");
    suite::conforms(&two(&sqlite_url(folder.path())).await).await;
}

#[tokio::test]
async fn redis_keeps_jobs() {
    suite::conforms(&two(&RedisServer::shared().fresh_url()).await).await;
}

#[tokio::test]
async fn a_redis_cluster_keeps_jobs() {
    let node = RedisServer::start_cluster();
    suite::conforms(&two(&node.cluster_url()).await).await;
}

#[tokio::test]
async fn a_master_behind_sentinel_keeps_jobs() {
    let master = RedisServer::start();
    let sentinel = RedisServer::start_sentinel(&master);
    let url = format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port());
    suite::conforms(&two(&url).await).await;
}
