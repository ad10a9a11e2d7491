//! What a Redis must be set to before money is kept in it.

use redis::{InfoDict, RedisResult};

use super::Connection;
use crate::ledger::Unavailable;

/// The scripts say in their first line what they may do; older servers cannot read that.
const MAJOR_MIN: u32 = 7;

/// Refuses a server that may lose more than a second of writes or drop keys when it is full,
/// unless the operator said that it may.
pub(super) async fn check(
    connection: &Connection,
    allow_volatile: bool,
) -> Result<(), Unavailable> {
    let info: InfoDict = connection.query(redis::cmd("INFO").arg("server")).await?;
    let version: String = info.get("redis_version").unwrap_or_default();
    let major = version.split('.').next().and_then(|m| m.parse().ok()).unwrap_or(0u32);
    if major < MAJOR_MIN {
        return Err(Unavailable(format!("Redis {version} is too old; {MAJOR_MIN} or newer")));
    }
    if allow_volatile {
        return Ok(());
    }
    let mut wrong = Vec::new();
    let appendonly = setting(connection, "appendonly").await?;
    let fsync = setting(connection, "appendfsync").await?;
    if appendonly != "yes" || !matches!(fsync.as_str(), "everysec" | "always") {
        wrong.push(format!(
            "appendonly is '{appendonly}' and appendfsync '{fsync}', \
             but must be 'yes' and 'everysec' or 'always'"
        ));
    }
    let policy = setting(connection, "maxmemory-policy").await?;
    if policy != "noeviction" {
        wrong.push(format!("maxmemory-policy is '{policy}', but must be 'noeviction'"));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong = wrong.join("; ");
    Err(Unavailable(format!(
        "this Redis may lose money: {wrong}. Set it so, or set store.allow_volatile = true"
    )))
}

async fn setting(connection: &Connection, name: &str) -> Result<String, Unavailable> {
    let get = redis::cmd("CONFIG").arg("GET").arg(name).to_owned();
    let pair: RedisResult<Vec<String>> = connection.query_raw(&get).await;
    let pair = pair.map_err(|why| {
        Unavailable(format!(
            "CONFIG GET {name} failed ({why}), so nobody knows whether this Redis keeps what it \
             acknowledges; allow it, or set store.allow_volatile = true"
        ))
    })?;
    Ok(pair.into_iter().nth(1).unwrap_or_default())
}
