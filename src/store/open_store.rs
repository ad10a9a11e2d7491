//! The interfaces of an open store: ledger, account cache, job queue, replies, operators, sign-ins,
//! usage, statements and archive, for every kind of store.

use std::sync::Arc;

use futures_util::future::join_all;

use super::redis::RedisStore;
use crate::archive::ArchiveStore;
use crate::idempotency::ReplyStore;
use crate::jobs::JobQueue;
use crate::kv_cache::AccountCache;
use crate::ledger::{AccountEraser, Ledger, Unavailable};
use crate::operators::OperatorStore;
use crate::sessions::SessionStore;
use crate::statement::StatementStore;
use crate::usage::UsageStore;
use crate::webhooks::WebhookStore;

/// An open store.
#[derive(Clone)]
pub struct OpenStore {
    /// The accounts, holds and charges.
    pub ledger: Arc<dyn Ledger>,
    /// Cached entries with a time to live. On a server they use a separate connection, so that
    /// operations on money never wait behind a long entry.
    pub account_cache: Arc<dyn AccountCache>,
    /// The queue of video jobs. On a server it uses a separate connection too, since the body of a
    /// job is even longer.
    pub queue: Arc<dyn JobQueue>,
    /// Idempotency keys and replies. On a server they use a separate connection as well: a key is
    /// looked up before money is held, and must not wait behind a cache entry.
    pub reply_store: Arc<dyn ReplyStore>,
    /// The operators, the record of their changes, and the requests that they have named. On a
    /// server they share the connection of the queue.
    pub operators: Arc<dyn OperatorStore>,
    /// The sign-in links and the sessions. On a server they share the connection of the queue.
    pub sessions: Arc<dyn SessionStore>,
    /// The sums of usage. On a server they share the connection of the queue.
    pub usage: Arc<dyn UsageStore>,
    /// The sealed statements. On a server they share the connection of the queue.
    pub statements: Arc<dyn StatementStore>,
    /// The endpoints and messages of webhooks. On a server they share the connection of the queue.
    pub webhooks: Arc<dyn WebhookStore>,
    /// How far journals are archived. On a server it shares the connection of the queue.
    pub archive: Arc<dyn ArchiveStore>,
    /// The deletion of accounts. On a server it shares the connection of the queue.
    pub eraser: Arc<dyn AccountEraser>,
    /// Waits until an acknowledged write is durable.
    pub durability: DurabilityScope,
    /// The connections to a server; empty for an embedded store.
    pub(super) connections: Vec<Arc<RedisStore>>,
}

/// Waits until a write is durable, for writes that their caller could not repeat later.
#[derive(Clone)]
pub struct DurabilityScope(Option<Arc<RedisStore>>);

impl DurabilityScope {
    /// Runs `write`, and waits until it is durable. It may run `write` more than once, so the write
    /// must be idempotent.
    ///
    /// # Errors
    /// Those of the write; [`Unavailable`] if it is unknown whether the write is durable.
    pub(crate) async fn write<T, E: From<Unavailable>>(
        &self,
        write: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.0 {
            // An embedded store acknowledges these writes only when they are on disk.
            None => write().await,
            Some(redis) => redis.write_durably(write).await,
        }
    }
}

impl OpenStore {
    pub(super) fn from_embedded<S>(store: Arc<S>) -> OpenStore
    where
        S: Ledger + AccountCache + JobQueue + ReplyStore + OperatorStore,
        S: SessionStore + UsageStore + StatementStore + ArchiveStore + AccountEraser,
        S: WebhookStore + 'static,
    {
        OpenStore {
            ledger: store.clone(),
            account_cache: store.clone(),
            queue: store.clone(),
            reply_store: store.clone(),
            operators: store.clone(),
            sessions: store.clone(),
            usage: store.clone(),
            statements: store.clone(),
            webhooks: store.clone(),
            archive: store.clone(),
            eraser: store,
            durability: DurabilityScope(None),
            connections: Vec::new(),
        }
    }

    /// Returns a server's store. `money`, `queue` and `reply_store` are connections to it; the
    /// account cache gets another one.
    pub(super) fn from_server(
        ledger: Arc<dyn Ledger>,
        money: Arc<RedisStore>,
        queue: Arc<RedisStore>,
        reply_store: Arc<RedisStore>,
    ) -> OpenStore {
        let account_cache = Arc::new(money.separate_connection());
        OpenStore {
            ledger,
            durability: DurabilityScope(Some(money.clone())),
            connections: vec![money, queue.clone(), account_cache.clone(), reply_store.clone()],
            operators: queue.clone(),
            sessions: queue.clone(),
            usage: queue.clone(),
            statements: queue.clone(),
            webhooks: queue.clone(),
            archive: queue.clone(),
            eraser: queue.clone(),
            queue,
            account_cache,
            reply_store,
        }
    }

    /// Connects to a server now, so that the first caller need not wait for that. A connection that
    /// fails is made again by the next caller that needs it.
    pub async fn connect(&self) {
        for failed in join_all(self.connections.iter().map(|c| c.connect())).await {
            if let Err(why) = failed {
                log::warn!(
                    event = "store_connect_failed", error:% = why;
                    "store connect failed"
                );
            }
        }
    }
}
