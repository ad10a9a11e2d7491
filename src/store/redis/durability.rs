//! Waits until a write would survive the loss of the server that acknowledged it: until it is on
//! disk and, if there is a replica, on a replica too. A gateway can repeat lost writes from its
//! outbox; an operator who has entered a payment cannot.

use std::time::Duration;

use redis::{FromRedisValue, InfoDict};
use tokio::time::{Instant, sleep};

use super::config_check::read_setting;
use super::connection::RedisConnection;
use super::shared_store::RedisStore;
use crate::ledger::Unavailable;

/// The time between two questions to the server about its progress.
const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// A server that syncs to disk every second, and has no sync under way, begins the next one within
/// this time.
const FSYNC_START_MAX: Duration = Duration::from_millis(1_300);
/// The time limit for a write to become durable. It covers the disk, a replica and a restart of the
/// server.
const DURABLE_TIMEOUT: Duration = Duration::from_secs(30);

impl RedisStore {
    /// Runs `write`, and waits until what it wrote would survive the loss of the server. If the
    /// server restarts meanwhile, `write` runs again, so it must change nothing the second time.
    pub(in crate::store) async fn write_durably<T, E: From<Unavailable>>(
        &self,
        write: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let mut before = self.query_server_info().await?.run_id;
        loop {
            self.start_new_aof().await?;
            let written = write().await?;
            let why = match self.await_durable_in_run(&before).await {
                Ok(()) => return Ok(written),
                Err(why) => why,
            };
            // The error may mean that the server is going down now, and then its next run may lack
            // the write.
            before = loop {
                if began.elapsed() > DURABLE_TIMEOUT {
                    return Err(why.into());
                }
                sleep(POLL_INTERVAL).await;
                if let Ok(seen) = self.query_server_info().await {
                    break seen.run_id;
                }
            };
        }
    }

    /// Waits until everything that the server has acknowledged so far would survive. Fails if the
    /// server restarted meanwhile.
    pub(in crate::store) async fn persist(&self) -> Result<(), Unavailable> {
        if self.section.allow_volatile {
            return Ok(());
        }
        let run = self.query_server_info().await?.run_id;
        self.await_durable_in_run(&run).await
    }

    /// Waits until every write acknowledged so far would survive the loss of the server. Fails if
    /// the server restarted meanwhile, so that its run id is no longer `run`.
    async fn await_durable_in_run(&self, run: &str) -> Result<(), Unavailable> {
        if !self.section.allow_volatile {
            await_durable(self.connection().await?).await?;
        }
        if self.query_server_info().await?.run_id == run {
            return Ok(());
        }
        Err(Unavailable("it is written, but the store came up again".to_owned()))
    }
}

/// Waits until everything acknowledged so far is on disk and, if there is a replica, on a replica.
async fn await_durable(connection: &RedisConnection) -> Result<(), Unavailable> {
    let began = Instant::now();
    let all = |values: &[String], value: &str| values.iter().all(|known| known == value);
    let syncs_always = all(&read_setting(connection, "appendfsync").await?, "always");
    let pauses = !all(&read_setting(connection, "no-appendfsync-on-rewrite").await?, "no");
    let written = query_fsync_position(connection).await?.master_offsets;
    let mut idle_since = None;
    while began.elapsed() < DURABLE_TIMEOUT {
        let now = query_fsync_position(connection).await?;
        let is_idle = !(now.is_syncing || pauses && now.is_rewriting);
        // No sync was under way once, and none is under way after the time in which another one
        // must begin. So a sync began and ended in between, and it covered everything written
        // before.
        let is_synced = match idle_since {
            _ if syncs_always => true,
            None => {
                idle_since = is_idle.then(Instant::now);
                false
            }
            Some(since) => is_idle && since.elapsed() > FSYNC_START_MAX,
        };
        let is_copied =
            |(copied, written): (&Option<u64>, &u64)| copied.is_none_or(|c| c >= *written);
        if is_synced && now.replica_offsets.iter().zip(&written).all(is_copied) {
            return Ok(());
        }
        sleep(POLL_INTERVAL).await;
    }
    Err(Unavailable(format!("it is written, but not kept within {DURABLE_TIMEOUT:?}")))
}

/// How far the masters' writes are on disk and on replicas.
#[derive(Default)]
struct FsyncPosition {
    is_syncing: bool,
    is_rewriting: bool,
    /// The replication offset of each master, in bytes.
    master_offsets: Vec<u64>,
    /// The offset of the most advanced replica of each master; `None` if it has no replica that is
    /// online.
    replica_offsets: Vec<Option<u64>>,
}

async fn query_fsync_position(connection: &RedisConnection) -> Result<FsyncPosition, Unavailable> {
    let ask = redis::cmd("INFO").arg("persistence").arg("replication").to_owned();
    let mut seen = FsyncPosition::default();
    for info in connection.query_masters(&ask).await? {
        let info = InfoDict::from_redis_value_ref(&info)
            .map_err(|e| Unavailable(format!("INFO cannot be read: {e}")))?;
        let number = |name: &str| info.get::<u64>(name).unwrap_or(0);
        let is_any = |names: [&str; 2]| names.iter().any(|name| number(name) > 0);
        seen.is_syncing |= is_any(["aof_pending_bio_fsync", "aof_buffer_length"]);
        seen.is_rewriting |= is_any(["aof_rewrite_in_progress", "rdb_bgsave_in_progress"]);
        seen.master_offsets.push(number("master_repl_offset"));
        let replica = |place| info.get::<String>(&format!("slave{place}"));
        let replicas = (0..number("connected_slaves")).filter_map(replica);
        seen.replica_offsets.push(replicas.filter_map(|replica| replica_offset(&replica)).max());
    }
    Ok(seen)
}

/// Returns the offset from a replica's INFO line, `ip=…,port=…,state=online,offset=123,lag=0`;
/// `None` if the replica is not online.
fn replica_offset(replica: &str) -> Option<u64> {
    let field = |name: &str| {
        let part = replica.split(',').find_map(|part| part.strip_prefix(name));
        part.and_then(|part| part.strip_prefix('='))
    };
    field("offset")?.parse().ok().filter(|_| field("state") == Some("online"))
}

#[cfg(test)]
mod tests {
    use super::replica_offset;

    #[test]
    fn only_replicas_that_follow_have_something() {
        assert_eq!(replica_offset("ip=h,port=1,state=online,offset=123,lag=0"), Some(123));
        assert_eq!(replica_offset("ip=h,port=1,state=wait_bgsave,offset=0,lag=0"), None);
        assert_eq!(replica_offset(""), None);
    }
}
