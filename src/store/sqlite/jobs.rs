//! Video jobs in a table, with their bodies in another one. Jobs are changed in transactions of the
//! writer. Reads for clients use the reading thread's connection.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::super::job_records::{check_same_order, id_already_used, parse_job, serialize_job};
use super::super::lent_money;
use super::embedded_store::SqliteStore;
use super::write_txn::WriteTxn;
use super::writer::Priority;
use super::{holds, kept_bytes};
use crate::clock::unix_ms;
use crate::jobs::{
    ClaimUpdate, Job, JobClaim, JobCursor, JobFilter, JobList, JobListing, JobPage, JobQueue,
    JobStatus, NewJob, PlaceResult,
};
use crate::ledger::{AccountName, Operation, Outcome, RateReading, Unavailable};

mod claims;
mod listing;
mod status;

use status::status_number;

#[async_trait]
impl JobQueue for SqliteStore {
    fn is_embedded(&self) -> bool {
        true
    }

    async fn place_job(&self, order: NewJob) -> Result<PlaceResult, Unavailable> {
        let job: Arc<str> = serialize_job(&order.job)?.into();
        let (order, bytes_max) = (Arc::new(order), self.kept_bytes_max);
        let place = || {
            let (order, job) = (order.clone(), job.clone());
            self.scheduler.run(Priority::NowDurable, move |txn| {
                place_atomically(txn, &order, &job, bytes_max)
            })
        };
        let is_lent = |placed: &Placement| matches!(placed, Ok(None));
        let placed = lent_money::retry(place, is_lent, self.lent_wait).await??;
        placed.ok_or_else(lent_money::still_lent)
    }

    async fn find_job(&self, account: &AccountName, id: &str) -> Result<Option<Job>, Unavailable> {
        let (account, id) = (account.clone(), id.to_owned());
        let job = self.reader.query(move |c| find_job(c, &account, &id)).await?;
        job.as_deref().map(parse_job).transpose()
    }

    async fn list_jobs(
        &self,
        account: &AccountName,
        page: JobPage,
    ) -> Result<Option<JobList>, Unavailable> {
        let (account, limit) = (account.clone(), page.limit);
        let Some(texts) = self.reader.query(move |c| list_jobs(c, &account, &page)).await? else {
            return Ok(None);
        };
        let jobs =
            texts.iter().take(limit).map(|text| parse_job(text)).collect::<Result<_, _>>()?;
        Ok(Some(JobList { jobs, has_more: texts.len() > limit }))
    }

    async fn list_all_jobs(
        &self,
        filter: &JobFilter,
        after: Option<&JobCursor>,
        limit: usize,
    ) -> Result<JobListing, Unavailable> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.reader.query(move |c| listing::list(c, &filter, after.as_ref(), limit)).await
    }

    async fn delete_job(
        &self,
        account: &AccountName,
        id: &str,
    ) -> Result<Option<Job>, Unavailable> {
        let (account, id) = (account.clone(), id.to_owned());
        let job = self
            .scheduler
            .run(Priority::NowDurable, move |txn| mark_deleted(txn.conn, &account, &id))
            .await?;
        job.as_deref().map(parse_job).transpose()
    }

    async fn claim_due(&self, lease_ms: u64, limit: usize) -> Result<Vec<JobClaim>, Unavailable> {
        self.scheduler
            .run(Priority::Now, move |txn| claims::claim_due(txn.conn, lease_ms, limit))
            .await
    }

    async fn renew_claim(&self, claim: &JobClaim, lease_ms: u64) -> Result<bool, Unavailable> {
        let claim = claims::ClaimRow::of(claim);
        self.scheduler
            .run(Priority::Now, move |txn| claims::renew(txn.conn, &claim, lease_ms))
            .await
    }

    async fn read_body(&self, claim: &JobClaim) -> Result<Option<Bytes>, Unavailable> {
        let claim = claims::ClaimRow::of(claim);
        self.reader.query(move |c| claims::read_body(c, &claim)).await
    }

    async fn save_claim(
        &self,
        claim: &mut JobClaim,
        update: ClaimUpdate,
    ) -> Result<bool, Unavailable> {
        let (claim_row, job, status) =
            (claims::ClaimRow::of(claim), serialize_job(&claim.job)?, claim.job.status());
        let save =
            move |txn: &mut WriteTxn<'_>| claims::save(txn.conn, &claim_row, &job, status, update);
        let Some(deleted) = self.scheduler.run(Priority::NowDurable, save).await? else {
            return Ok(false);
        };
        claim.deleted = deleted;
        claim.revision += 1;
        Ok(true)
    }

    async fn remove_job(&self, claim: &JobClaim) -> Result<bool, Unavailable> {
        let claim = claims::ClaimRow::of(claim);
        self.scheduler.run(Priority::NowDurable, move |txn| claims::remove(txn.conn, &claim)).await
    }

    async fn count_by_status(&self) -> Result<Vec<(JobStatus, u64)>, Unavailable> {
        self.reader.query(count_by_status).await
    }

    async fn get_or_set_secret(&self, candidate: [u8; 32]) -> Result<[u8; 32], Unavailable> {
        self.scheduler
            .run(Priority::NowDurable, move |txn| get_or_set_secret(txn.conn, candidate))
            .await
    }
}

/// Returns the time `ms` after `now`, in unix ms.
fn add_ms(now: i64, ms: u64) -> i64 {
    now.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))
}

/// What came of an order; `None` if the money that it needs is lent to gateways.
type Placement = Result<Option<PlaceResult>, Unavailable>;

/// Places an order, or writes nothing at all. A failed write, for example on a full disk, is not a
/// failure of the transaction, which has operations of other callers as well, unless SQLite has
/// ended the transaction.
fn place_atomically(
    txn: &mut WriteTxn<'_>,
    order: &NewJob,
    job: &str,
    bytes_max: u64,
) -> rusqlite::Result<Placement> {
    let c = txn.conn;
    let account = &order.job.account;
    let Some(before) = txn.head(account)? else {
        return Ok(Ok(Some(PlaceResult::NoAccount)));
    };
    c.prepare_cached("SAVEPOINT place")?.execute([])?;
    let placed = place_job(txn, order, job, bytes_max);
    if !matches!(placed, Ok(Ok(_))) && !c.is_autocommit() {
        c.prepare_cached("ROLLBACK TO place")?.execute([])?;
        txn.restore_head(account, &before);
        txn.evict_hold(account, &order.job.id);
        txn.forget_budgets(account);
        txn.forget_rates(account);
    }
    match placed {
        Err(why) if c.is_autocommit() => Err(why),
        Err(why) => {
            c.prepare_cached("RELEASE place")?.execute([])?;
            Ok(Err(Unavailable(format!("the job cannot be kept: {why}"))))
        }
        Ok(placed) => {
            c.prepare_cached("RELEASE place")?.execute([])?;
            Ok(placed)
        }
    }
}

fn place_job(
    txn: &mut WriteTxn<'_>,
    order: &NewJob,
    job: &str,
    bytes_max: u64,
) -> rusqlite::Result<Placement> {
    let c = txn.conn;
    let (account, id) = (&order.job.account, &order.job.id);
    let Some(row) = txn.account_row(account)?.map(|row| row.id) else {
        return Ok(Ok(Some(PlaceResult::NoAccount)));
    };
    if let Some(earlier) = find_earlier_order(c, row, order)? {
        return Ok(earlier.map(Some));
    }
    let mut open =
        c.prepare_cached("SELECT count(*) FROM video WHERE account = ? AND status < 2")?;
    if open.query_row([row], |r| r.get::<_, i64>(0))? >= i64::from(order.open_max) {
        return Ok(Ok(Some(PlaceResult::TooManyOpen)));
    }
    if !kept_bytes::make_room(c, bytes_max, order.body.len())? {
        return Ok(Err(Unavailable("no room is left for what its vendor needs".to_owned())));
    }
    let rates = match place_hold(txn, order)? {
        Ok(rates) => rates,
        Err(refused) => return Ok(refused),
    };
    let mut insert = c.prepare_cached(
        "INSERT INTO video (account, id, job, status, due, lease_until, revision, deleted, key)
         VALUES (?, ?, ?, ?, ?, 0, ?, 0, ?)",
    )?;
    let (status, now) = (status_number(order.job.status()), unix_ms());
    // Revisions begin far above those of an earlier job with this id, since a worker may still have
    // a claim of that job.
    let revision = now.saturating_mul(1_000);
    let video = insert.insert(params![row, id, job, status, now, revision, order.key])?;
    let mut insert = c.prepare_cached("INSERT INTO video_body (video, body) VALUES (?, ?)")?;
    insert.execute(params![video, &order.body[..]])?;
    Ok(Ok(Some(PlaceResult::New(rates))))
}

/// Holds what an order needs. Returns what each rate limit of the job has left, or what came of the
/// order instead.
fn place_hold(
    txn: &mut WriteTxn<'_>,
    order: &NewJob,
) -> rusqlite::Result<Result<Vec<RateReading>, Placement>> {
    let hold = Operation::Hold {
        id: order.job.id.clone(),
        wanted: order.quote.wanted,
        least: order.quote.least,
        lease_ms: order.lease_ms,
        key: order.job.key_id,
        rates: order.rates.clone(),
    };
    let refused = match holds::apply_operation(txn, &order.job.account, &hold)? {
        Outcome::Held(_) | Outcome::HoldExists { open: true, .. } => return Ok(Ok(Vec::new())),
        Outcome::HeldWithinRates { rates, .. } => return Ok(Ok(rates)),
        Outcome::RateLimited { id, retry_after_ms, rates } => {
            PlaceResult::RateLimited { id, retry_after_ms, rates }
        }
        Outcome::Wait => return Ok(Err(Ok(None))),
        Outcome::Insufficient(available) => PlaceResult::Insufficient(available),
        Outcome::BudgetExceeded { window, left } => PlaceResult::BudgetExceeded { window, left },
        Outcome::BudgetInUse(room) => PlaceResult::BudgetInUse(room),
        Outcome::NoAccount | Outcome::AccountDeleted => PlaceResult::NoAccount,
        _ => return Ok(Err(Err(id_already_used(&order.job.id)))),
    };
    Ok(Err(Ok(Some(refused))))
}

/// Returns the result for an order that was placed before, or whose idempotency key was used
/// before; `None` if the order is new.
fn find_earlier_order(
    c: &Connection,
    account: i64,
    order: &NewJob,
) -> rusqlite::Result<Option<Result<PlaceResult, Unavailable>>> {
    let mut select = c.prepare_cached("SELECT job, key FROM video WHERE account = ? AND id = ?")?;
    let same = select.query_row(params![account, order.job.id], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
    });
    if let Some((job, key)) = same.optional()? {
        let same = parse_job(&job).and_then(|job| check_same_order(order, job, key.as_deref()));
        return Ok(Some(same.map(|()| PlaceResult::New(Vec::new()))));
    }
    let Some(key) = &order.key else { return Ok(None) };
    let mut select =
        c.prepare_cached("SELECT job, deleted FROM video WHERE account = ? AND key = ?")?;
    let first = select.query_row(params![account, key], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?))
    });
    Ok(first.optional()?.map(|(job, deleted)| {
        if deleted {
            Ok(PlaceResult::Deleted)
        } else {
            Ok(PlaceResult::AlreadyPlaced(Box::new(parse_job(&job)?)))
        }
    }))
}

fn find_job(c: &Connection, account: &AccountName, id: &str) -> rusqlite::Result<Option<String>> {
    let mut select = c.prepare_cached(
        "SELECT job FROM video
         WHERE account = (SELECT id FROM account WHERE name = ?) AND id = ? AND deleted = 0",
    )?;
    select.query_row(params![account.as_str(), id], |row| row.get(0)).optional()
}

/// Returns the jobs of a page, and one more if there is one; `None` if the job after which the page
/// begins does not exist.
fn list_jobs(
    c: &Connection,
    account: &AccountName,
    page: &JobPage,
) -> rusqlite::Result<Option<Vec<String>>> {
    if let Some(after) = &page.after
        && find_job(c, account, after)?.is_none()
    {
        return Ok(None);
    }
    let mut select = c.prepare_cached(if page.ascending {
        "SELECT job FROM video WHERE account = (SELECT id FROM account WHERE name = ?1)
             AND deleted = 0 AND id > coalesce(?2, '') ORDER BY id LIMIT ?3"
    } else {
        "SELECT job FROM video WHERE account = (SELECT id FROM account WHERE name = ?1)
             AND deleted = 0 AND id < coalesce(?2, '~') ORDER BY id DESC LIMIT ?3"
    })?;
    let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1);
    let jobs = select.query_map(params![account.as_str(), page.after, limit], |row| row.get(0))?;
    jobs.collect::<rusqlite::Result<_>>().map(Some)
}

fn mark_deleted(
    c: &Connection,
    account: &AccountName,
    id: &str,
) -> rusqlite::Result<Option<String>> {
    let mut update = c.prepare_cached(
        "UPDATE video SET deleted = 1, due = ?
         WHERE account = (SELECT id FROM account WHERE name = ?) AND id = ? AND deleted = 0
         RETURNING job",
    )?;
    update.query_row(params![unix_ms(), account.as_str(), id], |row| row.get(0)).optional()
}

fn count_by_status(c: &Connection) -> rusqlite::Result<Vec<(JobStatus, u64)>> {
    let mut select = c.prepare_cached("SELECT count(*) FROM video WHERE status = ?")?;
    let mut count = |status| select.query_row([status_number(status)], |row| row.get::<_, i64>(0));
    JobStatus::ALL.into_iter().map(|status| Ok((status, count(status)?.unsigned_abs()))).collect()
}

fn get_or_set_secret(c: &Connection, candidate: [u8; 32]) -> rusqlite::Result<[u8; 32]> {
    let mut insert =
        c.prepare_cached("INSERT OR IGNORE INTO secret (row, secret) VALUES (1, ?)")?;
    insert.execute([&candidate[..]])?;
    c.prepare_cached("SELECT secret FROM secret")?.query_row([], |row| row.get(0))
}
