//! A log of the server that ends within an operation, as a power cut may leave it.
//!
//! A server that starts with such a log keeps what is whole of the operation in it, without having
//! done it, and writes on behind that: at its next start the half comes into force, together with
//! what follows it. (Redis 7.0.15 does so unless `aof-load-truncated` is `no`; Valkey has mended it
//! with its pull request 4342 of August 2026.) Once the server has begun another file of its log,
//! nothing comes behind the half any more, and it is dropped when it is found. So no run of the
//! server is written to before that.

use std::time::Duration;

use redis::InfoDict;
use tokio::time::{Instant, sleep};

use super::config_check::read_setting;
use super::shared_store::RedisStore;
use crate::ledger::Unavailable;

/// The server is looked at so often, and so long at most: whoever needs it asks again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const REWRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a server writes to the file of its log that it found when it started, by what it says of
/// itself.
pub(super) fn appends_to_old_aof(info: &InfoDict) -> bool {
    let number = |name| info.get::<i64>(name);
    number("aof_enabled") == Some(1)
        && number("aof_rewrite_in_progress") != Some(1)
        && number("aof_last_rewrite_time_sec").is_none_or(|seconds| seconds < 0)
}

/// Whether a server is about to begin another file of its log, or has failed to.
pub(super) fn is_rewriting_aof(info: &InfoDict) -> bool {
    let is_set = |name| info.get::<i64>(name).unwrap_or(0) != 0;
    is_set("aof_rewrite_in_progress")
        || is_set("aof_rewrite_scheduled")
        || info.get::<String>("aof_last_bgrewrite_status").is_some_and(|status| status != "ok")
}

impl RedisStore {
    /// Has every master begin another file of its log, unless it refuses logs that end within an
    /// operation. Returns when they have; where the settings are the operator's word, it does what
    /// the server lets it do.
    pub(in crate::store) async fn start_new_aof(&self) -> Result<(), Unavailable> {
        match self.start_new_aof_if_needed().await {
            Err(why) if self.section.allow_volatile => {
                log::warn!(
                    event = "store_log_rewrite_failed", why:% = why;
                    "AOF rewrite failed, a truncated tail may be replayed"
                );
                Ok(())
            }
            done => done,
        }
    }

    async fn start_new_aof_if_needed(&self) -> Result<(), Unavailable> {
        if !self.query_server_info().await?.appends_to_old_aof {
            return Ok(());
        }
        let connection = self.connection().await?;
        let load_truncated = read_setting(connection, "aof-load-truncated").await?;
        if load_truncated.iter().all(|value| value == "no") {
            return Ok(());
        }
        // Another gateway may have been quicker, and then it says so: it is looked at in any case.
        let asked = connection.query_masters(&redis::cmd("BGREWRITEAOF")).await;
        let end = Instant::now() + if asked.is_ok() { REWRITE_TIMEOUT } else { POLL_INTERVAL };
        while self.query_server_info().await?.appends_to_old_aof {
            if Instant::now() > end {
                let why = asked.err().map_or("it is put off".to_owned(), |why| why.to_string());
                return Err(Unavailable(format!(
                    "BGREWRITEAOF has not begun ({why}), and the server's log may end within an \
                     operation; allow it, or set aof-load-truncated to no"
                )));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
