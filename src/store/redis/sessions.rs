//! Sign-in links and sessions in Redis. All their keys have one hash tag, which is no name of an
//! account, so they are in one slot of a cluster. Each expires by itself.

use async_trait::async_trait;

use super::reply_parts::{parse_part, unexpected};
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::Unavailable;
use crate::sessions::{Principal, SecretHash, SecretKind, Session, SessionStore, check_sign_in};

/// Returns the beginning of the keys of the records of all links or all sessions.
fn records_prefix(kind: SecretKind) -> String {
    format!("tollgate:{{:sessions}}:{}:", kind.name())
}

fn record_key(kind: SecretKind, hash: SecretHash) -> String {
    records_prefix(kind) + &hash.hex()
}

/// Returns the key of the list of the digests of a principal's links or sessions, the oldest first.
/// A digest counts only if it has a record. A name may contain anything: the hash tag comes before
/// it.
fn index_key(kind: SecretKind, principal: &Principal) -> String {
    format!("tollgate:{{:sessions}}:{}s:{}", kind.name(), principal.subject())
}

/// Parses a record, `CREATED EXPIRES PRINCIPAL`, with times in unix ms; `None` if its principal is
/// of a kind that this version does not know.
fn parse_record(text: &str) -> Option<Session> {
    let mut parts = text.splitn(3, ' ');
    let mut next_seconds = || Some(parts.next()?.parse::<i64>().ok()? / 1_000);
    let (created_at, expires_at) = (next_seconds()?, next_seconds()?);
    let principal = Principal::parse(parts.next()?)?;
    Some(Session { principal, created_at, expires_at })
}

impl RedisStore {
    async fn add_sign_in(
        &self,
        kind: SecretKind,
        hash: SecretHash,
        principal: &Principal,
        ttl_ms: u32,
    ) -> Result<(), Unavailable> {
        check_sign_in(principal, ttl_ms)?;
        let mut call = ScriptCall::default();
        call.key(record_key(kind, hash)).key(index_key(kind, principal)).key(records_prefix(kind));
        call.arg(hash.hex()).arg(principal.to_string()).arg(ttl_ms).arg(kind.kept_max());
        self.run_script(&call, |s| &s.sessions.add).await.map(drop)
    }

    /// Reads a record with one command, GET or GETDEL.
    async fn read_sign_in(
        &self,
        command: &str,
        record_key: &str,
    ) -> Result<Option<Session>, Unavailable> {
        let read = redis::cmd(command).arg(record_key).to_owned();
        let record: Option<String> = self.connection().await?.query(&read).await?;
        if record.is_none() {
            self.confirm_absence(record_key).await?;
        }
        Ok(record.as_deref().and_then(parse_record))
    }
}

#[async_trait]
impl SessionStore for RedisStore {
    async fn add_link(
        &self,
        hash: SecretHash,
        principal: &Principal,
        ttl_ms: u32,
    ) -> Result<(), Unavailable> {
        self.add_sign_in(SecretKind::Link, hash, principal, ttl_ms).await
    }

    async fn find_link(&self, hash: SecretHash) -> Result<Option<Principal>, Unavailable> {
        let link = self.read_sign_in("GET", &record_key(SecretKind::Link, hash)).await?;
        Ok(link.map(|link| link.principal))
    }

    async fn use_link(&self, hash: SecretHash) -> Result<Option<Principal>, Unavailable> {
        let link = self.read_sign_in("GETDEL", &record_key(SecretKind::Link, hash)).await?;
        Ok(link.map(|link| link.principal))
    }

    async fn add_session(
        &self,
        hash: SecretHash,
        principal: &Principal,
        ttl_ms: u32,
    ) -> Result<(), Unavailable> {
        self.add_sign_in(SecretKind::Session, hash, principal, ttl_ms).await
    }

    async fn find_session(&self, hash: SecretHash) -> Result<Option<Session>, Unavailable> {
        self.read_sign_in("GET", &record_key(SecretKind::Session, hash)).await
    }

    async fn end_session(&self, hash: SecretHash) -> Result<(), Unavailable> {
        let key = record_key(SecretKind::Session, hash);
        let delete = redis::cmd("DEL").arg(&key).to_owned();
        let deleted: u32 = self.connection().await?.query(&delete).await?;
        if deleted == 0 {
            self.confirm_absence(&key).await?;
        }
        Ok(())
    }

    async fn end_sessions_of(&self, principal: &Principal) -> Result<u32, Unavailable> {
        let mut call = ScriptCall::default();
        for kind in [SecretKind::Link, SecretKind::Session] {
            call.key(index_key(kind, principal)).key(records_prefix(kind));
        }
        let reply = self.run_script(&call, |s| &s.sessions.end_all).await?;
        let ended = reply.first().ok_or_else(|| unexpected("no number"))?;
        let ended = parse_part(ended)?;
        if ended == 0 {
            self.confirm_absence(&index_key(SecretKind::Session, principal)).await?;
        }
        Ok(ended)
    }
}
