//! Idempotency keys in a table, and the bodies of replies in another one, divided into pieces, so
//! that the lookup of a key reads no body. Pieces are read on a separate connection, not on the
//! writer's.

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::embedded_store::SqliteStore;
use super::kept_bytes;
use super::writer::Priority;
use crate::clock::unix_ms;
use crate::idempotency::{
    ClaimMode, ClaimResult, IdempotencyKey, PIECE_BYTES, REPLIES_BYTES_MAX, RUNNING_TTL_LEASES,
    ReplyHead, ReplyParts, ReplyStore, StoredReply,
};
use crate::ledger::{AccountName, Unavailable};

/// One step deletes at most this many expired keys, and at most this many pieces with together at
/// most `PURGE_BYTES_MAX` bytes.
const PURGE_MAX: u32 = 256;
const PURGE_BYTES_MAX: i64 = 4 << 20;

/// The row of an idempotency key.
struct ClaimRecord {
    content: Vec<u8>,
    owner: String,
    lease_until: i64,
    /// `None` while the call runs, empty if it ended without a reply.
    head: Option<String>,
    bytes: u64,
}

fn find_claim(
    c: &Connection,
    account: &AccountName,
    name: &str,
    now: i64,
) -> rusqlite::Result<Option<ClaimRecord>> {
    let mut select = c.prepare_cached(
        "SELECT content, owner, lease_until, head, bytes FROM repeat
         WHERE account = ? AND name = ? AND lives_until > ?",
    )?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(ClaimRecord {
            content: row.get(0)?,
            owner: row.get(1)?,
            lease_until: row.get(2)?,
            head: row.get(3)?,
            bytes: row.get::<_, i64>(4)?.unsigned_abs(),
        })
    };
    select.query_row(params![account.as_str(), name, now], read).optional()
}

/// What is written of a claim, besides its key and its owner.
struct KeyUpdate<'a> {
    /// When the claim of a running call expires, in unix ms.
    lease_until: i64,
    /// Until when the key is remembered, in unix ms.
    lives_until: i64,
    /// The head of the reply as JSON, empty if the reply is not kept; `None` while the call runs.
    head: Option<&'a str>,
    /// The length of the reply's body.
    bytes: usize,
}

fn upsert_claim(
    c: &Connection,
    account: &AccountName,
    key: &IdempotencyKey,
    row: &KeyUpdate<'_>,
) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT INTO repeat (account, name, content, owner, lease_until, lives_until, head, bytes)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (account, name) DO UPDATE SET content = excluded.content,
             owner = excluded.owner, lease_until = excluded.lease_until,
             lives_until = excluded.lives_until, head = excluded.head, bytes = excluded.bytes",
    )?;
    let IdempotencyKey { name, content, owner, .. } = key;
    let KeyUpdate { lease_until, lives_until, head, bytes } = *row;
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let account = account.as_str();
    let values = params![account, name, content, owner, lease_until, lives_until, head, bytes];
    insert.execute(values)?;
    Ok(())
}

fn add_ms(now: i64, ms: u64) -> i64 {
    now.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))
}

fn take_claim(
    c: &Connection,
    account: &AccountName,
    key: &IdempotencyKey,
    mode: &ClaimMode,
    lease_ms: u64,
) -> rusqlite::Result<Result<ClaimResult, Unavailable>> {
    let now = unix_ms();
    let known = find_claim(c, account, &key.name, now)?;
    if let Some(taken) = known.and_then(|known| known.existing_result(key, mode, now)) {
        return Ok(taken);
    }
    let ttl_ms = key.life_ms.max(lease_ms.saturating_mul(RUNNING_TTL_LEASES));
    let (lease_until, lives_until) = (add_ms(now, lease_ms), add_ms(now, ttl_ms));
    let row = KeyUpdate { lease_until, lives_until, head: None, bytes: 0 };
    upsert_claim(c, account, key, &row).map(|()| Ok(ClaimResult::Claimed))
}

impl ClaimRecord {
    /// Returns what a caller that wants to claim the key finds instead; `None` if it may claim the
    /// key.
    fn existing_result(
        self,
        key: &IdempotencyKey,
        mode: &ClaimMode,
        now: i64,
    ) -> Option<Result<ClaimResult, Unavailable>> {
        if *mode == ClaimMode::Replace {
            return None;
        }
        if self.content != key.content {
            return Some(Ok(ClaimResult::ContentMismatch));
        }
        match self.head.as_deref() {
            Some("") => return Some(Ok(ClaimResult::ReplyNotStored { owner: self.owner })),
            Some(head) => {
                let head = serde_json::from_str(head).map_err(|why| Unavailable(why.to_string()));
                let (owner, bytes) = (self.owner, self.bytes);
                let kept = |head: ReplyHead| StoredReply { owner, head, bytes, body: None };
                return Some(head.map(kept).map(ClaimResult::Replied));
            }
            None => {}
        }
        let is_same = self.owner == key.owner;
        if is_same || matches!(mode, ClaimMode::TakeOver(owner) if *owner == self.owner) {
            return None;
        }
        let runs = self.lease_until > now;
        Some(Ok(if runs {
            ClaimResult::Running
        } else {
            ClaimResult::Expired { owner: self.owner }
        }))
    }
}

fn renew_claim(
    c: &Connection,
    account: &AccountName,
    name: &str,
    owner: &str,
    lease_ms: u64,
) -> rusqlite::Result<bool> {
    let now = unix_ms();
    let mut update = c.prepare_cached(
        "UPDATE repeat SET lease_until = ?1, lives_until = max(lives_until, ?2)
         WHERE account = ?3 AND name = ?4 AND owner = ?5 AND head IS NULL AND lives_until > ?6",
    )?;
    let lives_until = add_ms(now, lease_ms.saturating_mul(RUNNING_TTL_LEASES));
    let lease_until = add_ms(now, lease_ms);
    let account = account.as_str();
    Ok(update.execute(params![lease_until, lives_until, account, name, owner, now])? > 0)
}

/// What prevents the end of a call from being recorded under its key.
#[derive(Debug, PartialEq, Eq)]
enum EndConflict {
    NoConflict,
    /// The call has ended before.
    AlreadyEnded,
    /// The key belongs to another call.
    OtherOwner,
}

fn end_conflict(
    c: &Connection,
    account: &AccountName,
    key: &IdempotencyKey,
) -> rusqlite::Result<EndConflict> {
    Ok(match find_claim(c, account, &key.name, unix_ms())? {
        Some(known) if known.owner != key.owner => EndConflict::OtherOwner,
        Some(known) if known.head.is_some() => EndConflict::AlreadyEnded,
        _ => EndConflict::NoConflict,
    })
}

/// A part of a reply's body.
struct BodyPiece<'a> {
    /// The length of the whole body.
    total: usize,
    /// The number of the piece, from 0 on.
    number: usize,
    /// Its bytes.
    bytes: &'a [u8],
}

/// Writes a piece of a body. `false` if there is no room for the whole body, or the call cannot end
/// under its key, so that no caller would find the body.
fn write_piece(
    c: &Connection,
    account: &AccountName,
    key: &IdempotencyKey,
    piece: &BodyPiece<'_>,
    bytes_max: u64,
) -> rusqlite::Result<bool> {
    let BodyPiece { total, number, bytes } = *piece;
    if number == 0 {
        let mut select = c.prepare_cached("SELECT bytes FROM replies WHERE account = ?")?;
        let kept = select.query_row([account.as_str()], |row| row.get::<_, i64>(0)).optional()?;
        let kept = kept.unwrap_or_default().unsigned_abs();
        if kept.saturating_add(total as u64) > REPLIES_BYTES_MAX {
            return Ok(false);
        }
        if end_conflict(c, account, key)? != EndConflict::NoConflict
            || !kept_bytes::make_room(c, bytes_max, total)?
        {
            return Ok(false);
        }
    }
    // A retry after a lost response writes the same piece again, which is ignored.
    let mut insert = c.prepare_cached(
        "INSERT OR IGNORE INTO reply (account, owner, piece, lives_until, body)
         VALUES (?, ?, ?, ?, ?)",
    )?;
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    let lives_until = add_ms(unix_ms(), key.life_ms);
    insert.execute(params![account.as_str(), key.owner, number, lives_until, bytes])?;
    Ok(true)
}

fn end_claim(
    c: &Connection,
    account: &AccountName,
    key: &IdempotencyKey,
    head: &str,
    bytes: usize,
) -> rusqlite::Result<bool> {
    let conflict = end_conflict(c, account, key)?;
    if conflict == EndConflict::NoConflict {
        let now = unix_ms();
        let lives_until = add_ms(now, key.life_ms);
        let row = KeyUpdate { lease_until: now, lives_until, head: Some(head), bytes };
        upsert_claim(c, account, key, &row)?;
    }
    Ok(conflict != EndConflict::OtherOwner)
}

fn release_claim(
    c: &Connection,
    account: &AccountName,
    name: &str,
    owner: &str,
) -> rusqlite::Result<()> {
    let mut delete = c.prepare_cached(
        "DELETE FROM repeat WHERE account = ? AND name = ? AND owner = ? AND head IS NULL",
    )?;
    delete.execute(params![account.as_str(), name, owner]).map(|_| ())
}

fn read_piece(
    c: &Connection,
    account: &AccountName,
    owner: &str,
    number: u32,
) -> rusqlite::Result<Option<Bytes>> {
    let mut select = c.prepare_cached(
        "SELECT body FROM reply WHERE account = ? AND owner = ? AND piece = ? AND lives_until > ?",
    )?;
    let values = params![account.as_str(), owner, number, unix_ms()];
    let body = select.query_row(values, |row| row.get::<_, Vec<u8>>(0)).optional()?;
    Ok(body.map(Bytes::from))
}

/// Deletes expired keys and pieces; returns their number.
pub(super) fn purge_expired(c: &Connection) -> rusqlite::Result<usize> {
    let now = unix_ms();
    let mut delete = c.prepare_cached(
        "DELETE FROM repeat WHERE row IN (
             SELECT row FROM repeat WHERE lives_until <= ? ORDER BY lives_until LIMIT ?)",
    )?;
    let names = delete.execute(params![now, PURGE_MAX])?;
    let mut delete = c.prepare_cached(
        "DELETE FROM reply WHERE row IN (
             SELECT row FROM (
                 SELECT row, sum(length(body)) OVER (ORDER BY lives_until, row) AS bytes FROM (
                     SELECT row, lives_until, body FROM reply WHERE lives_until <= ?
                     ORDER BY lives_until, row LIMIT ?))
             WHERE bytes <= ?)",
    )?;
    Ok(names + delete.execute(params![now, PURGE_MAX, PURGE_BYTES_MAX])?)
}

impl SqliteStore {
    /// Runs a job on idempotency keys. A failure of the job is not a failure of the transaction,
    /// which has operations of other callers as well, unless SQLite has ended the transaction.
    async fn run_claim_job<T, F>(&self, job: F) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let done = self.scheduler.run(Priority::Now, move |txn| match job(txn.conn) {
            Err(why) if !txn.conn.is_autocommit() => Ok(Err(Unavailable(why.to_string()))),
            done => done.map(Ok),
        });
        done.await?
    }
}

#[async_trait]
impl ReplyStore for SqliteStore {
    fn is_durable_at_once(&self) -> bool {
        true
    }

    async fn claim_key(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        mode: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable> {
        let (account, key, mode) = (account.clone(), key.clone(), mode.clone());
        self.run_claim_job(move |c| take_claim(c, &account, &key, &mode, lease_ms)).await?
    }

    async fn renew_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        lease_ms: u64,
    ) -> Result<bool, Unavailable> {
        let (account, name, owner) = (account.clone(), name.to_owned(), owner.to_owned());
        self.run_claim_job(move |c| renew_claim(c, &account, &name, &owner, lease_ms)).await
    }

    async fn complete(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable> {
        let (head, body) = match reply {
            Some(ReplyParts { head, body }) => (serde_json::to_string(&head).ok(), body),
            None => (None, Bytes::new()),
        };
        let (total, bytes_max) = (body.len(), self.kept_bytes_max);
        let mut head = head.unwrap_or_default();
        let mut pieces: Vec<Bytes> =
            body.chunks(PIECE_BYTES).map(|piece| body.slice_ref(piece)).collect();
        // The last piece is written in the same transaction as the end of the call.
        let last = pieces.pop().map(|piece| (pieces.len(), piece));
        for (number, bytes) in pieces.into_iter().enumerate() {
            let (account, key) = (account.clone(), key.clone());
            let writing = move |c: &Connection| {
                let piece = BodyPiece { total, number, bytes: &bytes };
                write_piece(c, &account, &key, &piece, bytes_max)
            };
            if !self.run_claim_job(writing).await? {
                head.clear();
                break;
            }
        }
        let (account, key) = (account.clone(), key.clone());
        self.run_claim_job(move |c| {
            let mut head = head;
            if let Some((number, bytes)) = last.filter(|_| !head.is_empty()) {
                let piece = BodyPiece { total, number, bytes: &bytes };
                if !write_piece(c, &account, &key, &piece, bytes_max)? {
                    head.clear();
                }
            }
            end_claim(c, &account, &key, &head, total)
        })
        .await
    }

    async fn release_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
    ) -> Result<(), Unavailable> {
        let (account, name, owner) = (account.clone(), name.to_owned(), owner.to_owned());
        self.run_claim_job(move |c| release_claim(c, &account, &name, &owner)).await
    }

    async fn read_piece(
        &self,
        account: &AccountName,
        owner: &str,
        number: u32,
    ) -> Result<Option<Bytes>, Unavailable> {
        let (account, owner) = (account.clone(), owner.to_owned());
        self.reader.query(move |c| read_piece(c, &account, &owner, number)).await
    }
}
