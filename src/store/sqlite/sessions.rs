//! Sign-in links and sessions, in one table.

use async_trait::async_trait;
use rusqlite::Connection;

use super::embedded_store::SqliteStore;
use super::session_rows;
use super::writer::Priority;
use crate::ledger::Unavailable;
use crate::sessions::{Principal, SecretHash, SecretKind, Session, SessionStore, check_sign_in};

/// A sweep deletes what has expired in at most this many steps.
const PURGE_STEPS_MAX: u32 = 100;

impl SqliteStore {
    async fn add_sign_in(
        &self,
        kind: SecretKind,
        hash: SecretHash,
        principal: &Principal,
        ttl_ms: u32,
    ) -> Result<(), Unavailable> {
        check_sign_in(principal, ttl_ms)?;
        let principal = principal.clone();
        self.write_alone(move |c| session_rows::add(c, kind, hash, &principal, ttl_ms)).await
    }

    /// Deletes links and sessions that have expired. The steps are small, so that no call waits
    /// long for the writer.
    pub(super) async fn purge_sign_ins(&self) -> Result<(), Unavailable> {
        for _ in 0..PURGE_STEPS_MAX {
            let purge = self.scheduler.run(Priority::Now, |t| session_rows::purge_expired(t.conn));
            if purge.await? == 0 {
                break;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl SessionStore for SqliteStore {
    async fn add_link(
        &self,
        hash: SecretHash,
        principal: &Principal,
        ttl_ms: u32,
    ) -> Result<(), Unavailable> {
        self.add_sign_in(SecretKind::Link, hash, principal, ttl_ms).await
    }

    async fn find_link(&self, hash: SecretHash) -> Result<Option<Principal>, Unavailable> {
        let finding = move |c: &Connection| session_rows::find(c, SecretKind::Link, hash);
        Ok(self.reader.query(finding).await?.map(|link| link.principal))
    }

    async fn use_link(&self, hash: SecretHash) -> Result<Option<Principal>, Unavailable> {
        let link = self.write_alone(move |c| session_rows::take_link(c, hash)).await?;
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
        self.scheduler
            .run(Priority::Now, move |t| session_rows::find(t.conn, SecretKind::Session, hash))
            .await
    }

    async fn end_session(&self, hash: SecretHash) -> Result<(), Unavailable> {
        self.write_alone(move |c| session_rows::end_session(c, hash)).await
    }

    async fn end_sessions_of(&self, principal: &Principal) -> Result<u32, Unavailable> {
        let principal = principal.clone();
        self.write_alone(move |c| session_rows::end_all(c, &principal)).await
    }
}
