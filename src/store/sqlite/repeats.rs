//! Names of calls in a table, and the bodies of replies in pieces in another one, so that whoever
//! asks for a name moves no body. Pieces are read beside the writer.

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::{Priority, SqliteStore, kept, now_ms};
use crate::ledger::{AccountName, Unavailable};
use crate::repeats::{
    ClaimMode, ClaimResult, IdempotencyKey, PIECE_BYTES, REPLIES_BYTES_MAX, RUNNING_LEASES,
    ReplyHead, ReplyParts, ReplyStore, StoredReply,
};

/// Names forgotten in one step, at most; and pieces, as long as they have fewer bytes than the
/// next bound.
const FORGET_MAX: u32 = 256;
const FORGET_BYTES_MAX: i64 = 4 << 20;

/// What is known of a name.
struct ClaimRecord {
    content: Vec<u8>,
    owner: String,
    lease_until: i64,
    /// `None` while the call runs, empty if it ended without a reply.
    head: Option<String>,
    bytes: u64,
}

fn find(
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

fn put(
    c: &Connection,
    account: &AccountName,
    naming: &IdempotencyKey,
    (lease_until, lives_until): (i64, i64),
    (head, bytes): (Option<&str>, usize),
) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT INTO repeat (account, name, content, owner, lease_until, lives_until, head, bytes)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (account, name) DO UPDATE SET content = excluded.content,
             owner = excluded.owner, lease_until = excluded.lease_until,
             lives_until = excluded.lives_until, head = excluded.head, bytes = excluded.bytes",
    )?;
    let IdempotencyKey { name, content, owner, .. } = naming;
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let account = account.as_str();
    insert.execute(params![
        account,
        name,
        content,
        owner,
        lease_until,
        lives_until,
        head,
        bytes
    ])?;
    Ok(())
}

fn later(now: i64, ms: u64) -> i64 {
    now.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))
}

fn take(
    c: &Connection,
    account: &AccountName,
    naming: &IdempotencyKey,
    (taking, lease_ms): (&ClaimMode, u64),
) -> rusqlite::Result<Result<ClaimResult, Unavailable>> {
    let now = now_ms();
    let known = find(c, account, &naming.name, now)?;
    if let Some(taken) = known.and_then(|known| known.refuses(naming, taking, now)) {
        return Ok(taken);
    }
    let life_ms = naming.life_ms.max(lease_ms.saturating_mul(RUNNING_LEASES));
    let times = (later(now, lease_ms), later(now, life_ms));
    put(c, account, naming, times, (None, 0)).map(|()| Ok(ClaimResult::Mine))
}

impl ClaimRecord {
    /// What whoever wants to take the name finds instead.
    fn refuses(
        self,
        naming: &IdempotencyKey,
        taking: &ClaimMode,
        now: i64,
    ) -> Option<Result<ClaimResult, Unavailable>> {
        if *taking == ClaimMode::Anew {
            return None;
        }
        if self.content != naming.content {
            return Some(Ok(ClaimResult::OtherContent));
        }
        match self.head.as_deref() {
            Some("") => return Some(Ok(ClaimResult::NotKept)),
            Some(head) => {
                let head = serde_json::from_str(head).map_err(|why| Unavailable(why.to_string()));
                let kept =
                    |head: ReplyHead| StoredReply { owner: self.owner, head, bytes: self.bytes };
                return Some(head.map(kept).map(ClaimResult::Replied));
            }
            None => {}
        }
        let is_same = self.owner == naming.owner;
        if is_same || matches!(taking, ClaimMode::From(owner) if *owner == self.owner) {
            return None;
        }
        let runs = self.lease_until > now;
        Some(Ok(if runs {
            ClaimResult::Running
        } else {
            ClaimResult::Lapsed { owner: self.owner }
        }))
    }
}

fn renew(
    c: &Connection,
    account: &AccountName,
    name: &str,
    owner: &str,
    lease_ms: u64,
) -> rusqlite::Result<bool> {
    let now = now_ms();
    let mut update = c.prepare_cached(
        "UPDATE repeat SET lease_until = ?1, lives_until = max(lives_until, ?2)
         WHERE account = ?3 AND name = ?4 AND owner = ?5 AND head IS NULL AND lives_until > ?6",
    )?;
    let lives_until = later(now, lease_ms.saturating_mul(RUNNING_LEASES));
    let lease_until = later(now, lease_ms);
    let account = account.as_str();
    Ok(update.execute(params![lease_until, lives_until, account, name, owner, now])? > 0)
}

/// What stands in the way of an end.
#[derive(Debug, PartialEq, Eq)]
enum EndConflict {
    Open,
    /// The call has ended before.
    Ended,
    /// The name is another owner's.
    Gone,
}

fn way(
    c: &Connection,
    account: &AccountName,
    naming: &IdempotencyKey,
) -> rusqlite::Result<EndConflict> {
    Ok(match find(c, account, &naming.name, now_ms())? {
        Some(known) if known.owner != naming.owner => EndConflict::Gone,
        Some(known) if known.head.is_some() => EndConflict::Ended,
        _ => EndConflict::Open,
    })
}

/// Writes a piece of a body of so many bytes; `false` if there is no room for that, or nobody would
/// find it.
fn write(
    c: &Connection,
    account: &AccountName,
    naming: &IdempotencyKey,
    (total, number, piece): (usize, usize, &[u8]),
    most: u64,
) -> rusqlite::Result<bool> {
    if number == 0 {
        let mut select = c.prepare_cached("SELECT bytes FROM replies WHERE account = ?")?;
        let kept = select.query_row([account.as_str()], |row| row.get::<_, i64>(0)).optional()?;
        let kept = kept.unwrap_or_default().unsigned_abs();
        if kept.saturating_add(total as u64) > REPLIES_BYTES_MAX {
            return Ok(false);
        }
        if way(c, account, naming)? != EndConflict::Open || !kept::make_room(c, most, total)? {
            return Ok(false);
        }
    }
    // The same again, after an answer that was lost, is the same piece.
    let mut insert = c.prepare_cached(
        "INSERT OR IGNORE INTO reply (account, owner, piece, lives_until, body)
         VALUES (?, ?, ?, ?, ?)",
    )?;
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    let lives_until = later(now_ms(), naming.life_ms);
    insert.execute(params![account.as_str(), naming.owner, number, lives_until, piece])?;
    Ok(true)
}

fn end(
    c: &Connection,
    account: &AccountName,
    naming: &IdempotencyKey,
    (head, bytes): (&str, usize),
) -> rusqlite::Result<bool> {
    let way = way(c, account, naming)?;
    if way == EndConflict::Open {
        let now = now_ms();
        put(c, account, naming, (now, later(now, naming.life_ms)), (Some(head), bytes))?;
    }
    Ok(way != EndConflict::Gone)
}

fn free(c: &Connection, account: &AccountName, name: &str, owner: &str) -> rusqlite::Result<()> {
    let mut delete = c.prepare_cached(
        "DELETE FROM repeat WHERE account = ? AND name = ? AND owner = ? AND head IS NULL",
    )?;
    delete.execute(params![account.as_str(), name, owner]).map(|_| ())
}

fn piece(
    c: &Connection,
    account: &AccountName,
    owner: &str,
    number: u32,
) -> rusqlite::Result<Option<Bytes>> {
    let mut select = c.prepare_cached(
        "SELECT body FROM reply WHERE account = ? AND owner = ? AND piece = ? AND lives_until > ?",
    )?;
    let asked = params![account.as_str(), owner, number, now_ms()];
    let body = select.query_row(asked, |row| row.get::<_, Vec<u8>>(0)).optional()?;
    Ok(body.map(Bytes::from))
}

/// Drops names and pieces whose time has come; tells how many.
pub(super) fn forget(c: &Connection) -> rusqlite::Result<usize> {
    let now = now_ms();
    let mut delete = c.prepare_cached(
        "DELETE FROM repeat WHERE row IN (
             SELECT row FROM repeat WHERE lives_until <= ? ORDER BY lives_until LIMIT ?)",
    )?;
    let names = delete.execute(params![now, FORGET_MAX])?;
    let mut delete = c.prepare_cached(
        "DELETE FROM reply WHERE row IN (
             SELECT row FROM (
                 SELECT row, sum(length(body)) OVER (ORDER BY lives_until, row) AS bytes FROM (
                     SELECT row, lives_until, body FROM reply WHERE lives_until <= ?
                     ORDER BY lives_until, row LIMIT ?))
             WHERE bytes <= ?)",
    )?;
    Ok(names + delete.execute(params![now, FORGET_MAX, FORGET_BYTES_MAX])?)
}

impl SqliteStore {
    /// Does something with the names; a failure is no error of the transaction, in which others'
    /// operations are too, unless it ended the transaction.
    async fn named<T, F>(&self, job: F) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let done = self.writers.run(Priority::Long, move |desk| match job(desk.c) {
            Err(why) if !desk.c.is_autocommit() => Ok(Err(Unavailable(why.to_string()))),
            done => done.map(Ok),
        });
        done.await?
    }
}

#[async_trait]
impl ReplyStore for SqliteStore {
    async fn take(
        &self,
        account: &AccountName,
        naming: &IdempotencyKey,
        taking: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable> {
        let (account, naming, taking) = (account.clone(), naming.clone(), taking.clone());
        self.named(move |c| take(c, &account, &naming, (&taking, lease_ms))).await?
    }

    async fn renew(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        lease_ms: u64,
    ) -> Result<bool, Unavailable> {
        let (account, name, owner) = (account.clone(), name.to_owned(), owner.to_owned());
        self.named(move |c| renew(c, &account, &name, &owner, lease_ms)).await
    }

    async fn end(
        &self,
        account: &AccountName,
        naming: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable> {
        let (head, body) = match reply {
            Some(ReplyParts { head, body }) => (serde_json::to_string(&head).ok(), body),
            None => (None, Bytes::new()),
        };
        let (total, most) = (body.len(), self.kept_bytes_max);
        let mut head = head.unwrap_or_default();
        let mut pieces: Vec<Bytes> =
            body.chunks(PIECE_BYTES).map(|piece| body.slice_ref(piece)).collect();
        // The last one in one transaction with the end.
        let last = pieces.pop().map(|piece| (pieces.len(), piece));
        for (number, piece) in pieces.into_iter().enumerate() {
            let (account, naming) = (account.clone(), naming.clone());
            let writing =
                move |c: &Connection| write(c, &account, &naming, (total, number, &piece), most);
            if !self.named(writing).await? {
                head.clear();
                break;
            }
        }
        let (account, naming) = (account.clone(), naming.clone());
        self.named(move |c| {
            let mut head = head;
            if let Some((number, piece)) = last.filter(|_| !head.is_empty())
                && !write(c, &account, &naming, (total, number, &piece), most)?
            {
                head.clear();
            }
            end(c, &account, &naming, (&head, total))
        })
        .await
    }

    async fn free(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
    ) -> Result<(), Unavailable> {
        let (account, name, owner) = (account.clone(), name.to_owned(), owner.to_owned());
        self.named(move |c| free(c, &account, &name, &owner)).await
    }

    async fn piece(
        &self,
        account: &AccountName,
        owner: &str,
        number: u32,
    ) -> Result<Option<Bytes>, Unavailable> {
        let (account, owner) = (account.clone(), owner.to_owned());
        self.reader.read(move |c| piece(c, &account, &owner, number)).await
    }
}
