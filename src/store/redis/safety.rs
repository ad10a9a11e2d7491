//! What a Redis must be set to before money is kept in it.

use redis::{FromRedisValue, InfoDict};

use super::Connection;
use crate::ledger::Unavailable;

/// The scripts say in their first line what they may do; older servers cannot read that.
const MAJOR_MIN: u32 = 7;

/// Refuses a server that may lose more than a second of writes or drop keys when it is full,
/// unless the operator said that it may. Of a cluster every node is asked.
pub(super) async fn check(
    connection: &Connection,
    allow_volatile: bool,
) -> Result<(), Unavailable> {
    for info in connection.query_nodes(redis::cmd("INFO").arg("server")).await? {
        let info = InfoDict::from_redis_value_ref(&info)
            .map_err(|e| Unavailable(format!("INFO cannot be read: {e}")))?;
        let version: String = info.get("redis_version").unwrap_or_default();
        let major = version.split('.').next().and_then(|m| m.parse().ok()).unwrap_or(0u32);
        if major < MAJOR_MIN {
            return Err(Unavailable(format!("Redis {version} is too old; {MAJOR_MIN} or newer")));
        }
    }
    if allow_volatile {
        return Ok(());
    }
    let mut wrong = Vec::new();
    for (name, allowed) in [
        ("appendonly", "'yes'"),
        ("appendfsync", "'everysec' or 'always'"),
        ("maxmemory-policy", "'noeviction'"),
    ] {
        let mut values = setting(connection, name).await?;
        values.retain(|value| !allowed.contains(&format!("'{value}'")));
        if let Some(value) = values.first() {
            wrong.push(format!("{name} is '{value}', but must be {allowed}"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong = wrong.join("; ");
    Err(Unavailable(format!(
        "this Redis may lose money: {wrong}. Set it so, or set store.allow_volatile = true"
    )))
}

/// A setting, as every node has it.
pub(super) async fn setting(
    connection: &Connection,
    name: &str,
) -> Result<Vec<String>, Unavailable> {
    let get = redis::cmd("CONFIG").arg("GET").arg(name).to_owned();
    let answers = connection.query_nodes(&get).await.map_err(|why| {
        Unavailable(format!(
            "CONFIG GET {name} failed ({why}), so nobody knows whether this Redis keeps what it \
             acknowledges; allow it, or set store.allow_volatile = true"
        ))
    })?;
    let value = |answer| Vec::<String>::from_redis_value_ref(answer).ok()?.into_iter().nth(1);
    Ok(answers.iter().map(|answer| value(answer).unwrap_or_default()).collect())
}
