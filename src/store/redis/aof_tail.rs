//! Deals with an append-only file (AOF) of the server that ends in the middle of an operation, as a
//! power cut may leave it.
//!
//! A server that starts with such a file does not apply the cut operation, but it keeps the
//! operation's complete part in the file and appends new writes behind it. At the server's next
//! start that part takes effect, together with the writes that follow it. (Redis 7.0.15 does so
//! unless `aof-load-truncated` is `no`; Valkey has fixed it with its pull request 4342 of August
//! 2026.) Once the server has begun a new AOF, nothing is appended behind the cut operation any
//! more, and the server drops it when it finds it. So nothing is written to a run of the server
//! before that.

use std::time::Duration;

use redis::InfoDict;
use tokio::time::{Instant, sleep};

use super::config_check::read_setting;
use super::shared_store::RedisStore;
use crate::ledger::Unavailable;

/// The server is asked at this interval whether it has begun a new AOF, for at most
/// `REWRITE_TIMEOUT`. After that the caller has to ask again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const REWRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a server still appends to the AOF that it found when it started, according to its INFO.
pub(super) fn appends_to_old_aof(info: &InfoDict) -> bool {
    let number = |name| info.get::<i64>(name);
    number("aof_enabled") == Some(1)
        && number("aof_rewrite_in_progress") != Some(1)
        && number("aof_last_rewrite_time_sec").is_none_or(|seconds| seconds < 0)
}

/// Whether a server is about to begin a new AOF, or has failed to, according to its INFO.
pub(super) fn is_rewriting_aof(info: &InfoDict) -> bool {
    let is_set = |name| info.get::<i64>(name).unwrap_or(0) != 0;
    is_set("aof_rewrite_in_progress")
        || is_set("aof_rewrite_scheduled")
        || info.get::<String>("aof_last_bgrewrite_status").is_some_and(|status| status != "ok")
}

impl RedisStore {
    /// Makes every master begin a new AOF, unless it refuses to load files that end within an
    /// operation. Returns when the masters have begun it. If the operator allows the loss of writes
    /// (`store.allow_volatile`), a failure is only logged.
    pub(in crate::store) async fn start_new_aof(&self) -> Result<(), Unavailable> {
        match self.start_new_aof_if_needed().await {
            Err(why) if self.section.allow_volatile => {
                log::warn!(
                    event = "store_log_rewrite_failed", error:% = why;
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
        // The server refuses this command if another gateway has already sent it. So even after an
        // error the state of the server is checked.
        let started = connection.query_masters(&redis::cmd("BGREWRITEAOF")).await;
        let end = Instant::now() + if started.is_ok() { REWRITE_TIMEOUT } else { POLL_INTERVAL };
        while self.query_server_info().await?.appends_to_old_aof {
            if Instant::now() > end {
                let why = started.err().map_or("it is put off".to_owned(), |why| why.to_string());
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
