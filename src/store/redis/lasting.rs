//! When a write outlives the server that has acknowledged it: on disk, and at a replica if there is
//! one. A gateway can say again what was lost, since it wrote that down; whoever has typed in a
//! payment has not.

use std::time::Duration;

use redis::{FromRedisValue, InfoDict};
use tokio::time::{Instant, sleep};

use super::safety::setting;
use super::{RedisConnection, RedisStore};
use crate::ledger::Unavailable;

/// The server is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// A server that syncs every second and has no sync under way begins the next one within this.
const BEGINS: Duration = Duration::from_millis(1_300);
/// A disk or a replica that is later than this is too late, and so is a server that comes back.
const PATIENCE: Duration = Duration::from_secs(30);

impl RedisStore {
    /// Writes, and waits until that would not be lost any more. Where the server came up again
    /// meanwhile it writes once more, so the same write again must change nothing.
    pub(in crate::store) async fn lasting<T, E: From<Unavailable>>(
        &self,
        write: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let mut before = self.seen().await?.run;
        loop {
            self.begin_log().await?;
            let written = write().await?;
            let why = match self.kept_by(&before).await {
                Ok(()) => return Ok(written),
                Err(why) => why,
            };
            // What went wrong may be that the server ends just now: the next one may lack it.
            before = loop {
                if began.elapsed() > PATIENCE {
                    return Err(why.into());
                }
                sleep(LOOK_EVERY).await;
                if let Ok(seen) = self.seen().await {
                    break seen.run;
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
        let run = self.seen().await?.run;
        self.kept_by(&run).await
    }

    /// Returns when a run of the server keeps whatever it acknowledged by now.
    async fn kept_by(&self, run: &str) -> Result<(), Unavailable> {
        if !self.section.allow_volatile {
            lasts(self.connection().await?).await?;
        }
        if self.seen().await?.run == run {
            return Ok(());
        }
        Err(Unavailable("it is written, but the store came up again".to_owned()))
    }
}

/// Returns when whatever was acknowledged by now is kept.
async fn lasts(connection: &RedisConnection) -> Result<(), Unavailable> {
    let began = Instant::now();
    let all = |values: &[String], value: &str| values.iter().all(|known| known == value);
    let syncs_always = all(&setting(connection, "appendfsync").await?, "always");
    let pauses = !all(&setting(connection, "no-appendfsync-on-rewrite").await?, "no");
    let written = look(connection).await?.offsets;
    let mut idle_since = None;
    while began.elapsed() < PATIENCE {
        let now = look(connection).await?;
        let is_idle = !(now.is_syncing || pauses && now.is_rewriting);
        // Idle once, another sync has begun since and ended: it had all that was written before.
        let is_synced = match idle_since {
            _ if syncs_always => true,
            None => {
                idle_since = is_idle.then(Instant::now);
                false
            }
            Some(since) => is_idle && since.elapsed() > BEGINS,
        };
        let is_copied =
            |(copied, written): (&Option<u64>, &u64)| copied.is_none_or(|c| c >= *written);
        if is_synced && now.copied.iter().zip(&written).all(is_copied) {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
    Err(Unavailable(format!("it is written, but not kept within {PATIENCE:?}")))
}

/// How far masters are.
#[derive(Default)]
struct FsyncPosition {
    is_syncing: bool,
    is_rewriting: bool,
    /// How much each has written for its replicas.
    offsets: Vec<u64>,
    /// How much the best replica of each has of that, if there is one.
    copied: Vec<Option<u64>>,
}

async fn look(connection: &RedisConnection) -> Result<FsyncPosition, Unavailable> {
    let ask = redis::cmd("INFO").arg("persistence").arg("replication").to_owned();
    let mut seen = FsyncPosition::default();
    for info in connection.query_masters(&ask).await? {
        let info = InfoDict::from_redis_value_ref(&info)
            .map_err(|e| Unavailable(format!("INFO cannot be read: {e}")))?;
        let number = |name: &str| info.get::<u64>(name).unwrap_or(0);
        let is_any = |names: [&str; 2]| names.iter().any(|name| number(name) > 0);
        seen.is_syncing |= is_any(["aof_pending_bio_fsync", "aof_buffer_length"]);
        seen.is_rewriting |= is_any(["aof_rewrite_in_progress", "rdb_bgsave_in_progress"]);
        seen.offsets.push(number("master_repl_offset"));
        let replica = |place| info.get::<String>(&format!("slave{place}"));
        let replicas = (0..number("connected_slaves")).filter_map(replica);
        seen.copied.push(replicas.filter_map(|replica| copied(&replica)).max());
    }
    Ok(seen)
}

/// What a replica has: of `ip=…,port=…,state=online,offset=123,lag=0` the offset.
fn copied(replica: &str) -> Option<u64> {
    let told = |name: &str| {
        let part = replica.split(',').find_map(|part| part.strip_prefix(name));
        part.and_then(|part| part.strip_prefix('='))
    };
    told("offset")?.parse().ok().filter(|_| told("state") == Some("online"))
}

#[cfg(test)]
mod tests {
    use super::copied;

    #[test]
    fn only_replicas_that_follow_have_something() {
        assert_eq!(copied("ip=h,port=1,state=online,offset=123,lag=0"), Some(123));
        assert_eq!(copied("ip=h,port=1,state=wait_bgsave,offset=0,lag=0"), None);
        assert_eq!(copied(""), None);
    }
}
