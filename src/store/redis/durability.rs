//! Waits until a write survives the loss of the server that acknowledged it: on disk, and on a
//! replica if there is one. A gateway can repeat lost writes from its outbox; an operator who has
//! entered a payment cannot.

use std::time::Duration;

use redis::{FromRedisValue, InfoDict};
use tokio::time::{Instant, sleep};

use super::config_check::read_setting;
use super::connection::RedisConnection;
use super::shared_store::RedisStore;
use crate::ledger::Unavailable;

/// The server is looked at so often.
const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// A server that syncs every second and has no sync under way begins the next one within this.
const FSYNC_START_MAX: Duration = Duration::from_millis(1_300);
/// Time limit for the disk, for a replica, and for a server that restarts.
const DURABLE_TIMEOUT: Duration = Duration::from_secs(30);

impl RedisStore {
    /// Writes, and waits until that would not be lost any more. Where the server came up again
    /// meanwhile it writes once more, so the same write again must change nothing.
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
            // What went wrong may be that the server ends just now: the next one may lack it.
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

    /// Returns when the server keeps whatever it acknowledged by now, unless it came up again
    /// meanwhile.
    pub(in crate::store) async fn persist(&self) -> Result<(), Unavailable> {
        if self.section.allow_volatile {
            return Ok(());
        }
        let run = self.query_server_info().await?.run_id;
        self.await_durable_in_run(&run).await
    }

    /// Returns when a run of the server keeps whatever it acknowledged by now.
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

/// Returns when whatever was acknowledged by now is kept.
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
        // Idle once, another sync has begun since and ended: it had all that was written before.
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

/// How far masters are.
#[derive(Default)]
struct FsyncPosition {
    is_syncing: bool,
    is_rewriting: bool,
    /// How much each has written for its replicas.
    master_offsets: Vec<u64>,
    /// How much the best replica of each has of that, if there is one.
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

/// What a replica has: of `ip=…,port=…,state=online,offset=123,lag=0` the offset.
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
