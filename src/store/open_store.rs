//! A store that is open: the money, the notes, the jobs and the replies, wherever they live.

use std::sync::Arc;

use futures_util::future::join_all;

use super::redis::RedisStore;
use crate::idempotency::ReplyStore;
use crate::jobs::JobQueue;
use crate::kv_cache::AccountCache;
use crate::ledger::{Ledger, Unavailable};

/// A store that is open.
#[derive(Clone)]
pub struct OpenStore {
    /// The money.
    pub ledger: Arc<dyn Ledger>,
    /// Cached entries with a lifetime. On a server they use a connection of their own, so money
    /// never waits behind a long entry.
    pub account_cache: Arc<dyn AccountCache>,
    /// The queue of video jobs. On a server it uses a connection of its own too, since a job's body
    /// is even longer.
    pub queue: Arc<dyn JobQueue>,
    /// Idempotency keys and replies. They use a connection of their own as well: a key is looked up
    /// before money is held, and must not wait behind a cache entry.
    pub reply_store: Arc<dyn ReplyStore>,
    /// Waits until an acknowledged write is durable.
    pub durability: DurabilityScope,
    /// The connections to a server; none for an embedded store.
    pub(super) connections: Vec<Arc<RedisStore>>,
}

/// Makes a write durable that the caller could not repeat.
#[derive(Clone)]
pub struct DurabilityScope(Option<Arc<RedisStore>>);

impl DurabilityScope {
    /// Writes, and waits until the write is durable. It may run `write` more than once, so the
    /// write must be idempotent.
    ///
    /// # Errors
    /// Those of the write; [`Unavailable`] if it is not known to be kept.
    pub(crate) async fn write<T, E: From<Unavailable>>(
        &self,
        write: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.0 {
            // An embedded store has written when it says so.
            None => write().await,
            Some(redis) => redis.write_durably(write).await,
        }
    }
}

impl OpenStore {
    pub(super) fn from_embedded<S: Ledger + AccountCache + JobQueue + ReplyStore + 'static>(
        store: Arc<S>,
    ) -> OpenStore {
        OpenStore {
            ledger: store.clone(),
            account_cache: store.clone(),
            queue: store.clone(),
            reply_store: store,
            durability: DurabilityScope(None),
            connections: Vec::new(),
        }
    }

    /// A server, of which money and jobs are asked through these connections.
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
            queue,
            account_cache,
            reply_store,
        }
    }

    /// Connects, so that the first caller need not wait for it. A connection that fails is made
    /// again by the next caller that needs it.
    pub async fn connect(&self) {
        for failed in join_all(self.connections.iter().map(|c| c.connect())).await {
            if let Err(why) = failed {
                log::warn!(
                    event = "store_connect_failed", why:% = why;
                    "store connect failed"
                );
            }
        }
    }
}
