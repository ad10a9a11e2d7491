//! Cache entries in Redis. Each entry has its own key under the hash tag of its account. The server
//! drops entries when they expire. Sorted lists beside them show which entries are evicted first if
//! there are too many.

use async_trait::async_trait;
use bytes::Bytes;

use super::super::cache_lookup;
use super::keys::AccountKeys;
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::kv_cache::{self, AccountCache, CacheRefusal, Namespace};
use crate::ledger::{AccountName, Unavailable};

/// At most this many names are written by one script, so that the next command does not wait long.
const NAMES_BATCH: usize = 256;

/// Longer times to live are cut to this, in ms: the server adds them to its clock, and has 63 bits
/// for the sum.
const TTL_MS_MAX: u64 = 1 << 52;

#[async_trait]
impl AccountCache for RedisStore {
    async fn put(
        &self,
        account: &AccountName,
        names: &[String],
        entry: Bytes,
        ttl_ms: u64,
    ) -> Result<(), CacheRefusal> {
        kv_cache::check_size(names, &entry)?;
        let bytes = names.iter().map(|name| name.len() + entry.len()).sum();
        if ttl_ms > 0 && !self.has_room(bytes) {
            return Err(Unavailable("no room is left for cache entries".to_owned()).into());
        }
        let keys = AccountKeys::of(account);
        for namespace in [Namespace::Ids, Namespace::Other] {
            let in_namespace: Vec<&String> =
                names.iter().filter(|name| Namespace::of(name) == namespace).collect();
            for batch in in_namespace.chunks(NAMES_BATCH) {
                let mut call = ScriptCall::default();
                call.key(keys.tag());
                for key in keys.cache_entries(namespace) {
                    call.key(key);
                }
                call.arg(&entry[..]).arg(ttl_ms.min(TTL_MS_MAX)).arg(namespace.entries_max());
                for name in batch {
                    call.key(keys.cache_entry(name)).arg(name);
                }
                let reply = self.run_script(&call, |s| &s.storage.put).await?;
                reply.get(1).iter().for_each(|bytes| self.record_kept_bytes(account, bytes));
            }
        }
        Ok(())
    }

    async fn get_many(
        &self,
        account: &AccountName,
        names: &[String],
    ) -> Result<Vec<Option<Bytes>>, Unavailable> {
        let keys = AccountKeys::of(account);
        let keys = &keys;
        cache_lookup::find_entries(names, |batch| async move {
            let mut read = redis::cmd("MGET");
            batch.iter().for_each(|name| {
                read.arg(keys.cache_entry(name));
            });
            self.connection().await?.query(&read).await
        })
        .await
    }
}
