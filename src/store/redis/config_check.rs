//! What a Redis must be set to before money is kept in it.

use std::collections::HashMap;

use redis::{FromRedisValue, InfoDict};

use super::connection::RedisConnection;
use crate::ledger::Unavailable;

/// The scripts say in their first line what they may do; older servers cannot read that.
const REDIS_MAJOR_MIN: u32 = 7;
/// Settings, and what they may be.
const REQUIRED_SETTINGS: [(&str, &str); 3] = [
    ("appendonly", "'yes'"),
    ("appendfsync", "'everysec' or 'always'"),
    ("maxmemory-policy", "'noeviction'"),
];

/// Redis makes the transactions of its log again as this user, whoever has made them, and drops
/// those that the user may not make, without an error: 7.0.15, and others before pull request
/// 14545.
const AOF_REPLAY_USER: &str = "default";
/// Commands that stand in the log, with arguments.
const REPLAYED_COMMANDS: [&[&str]; 7] = [
    &["HSET", "tollgate:k", "a", "b"],
    &["SET", "tollgate:k", "a"],
    &["ZADD", "tollgate:k", "1", "a"],
    &["INCRBY", "tollgate:k", "1"],
    &["PEXPIREAT", "tollgate:k", "1"],
    &["RPUSH", "tollgate:k", "a"],
    &["DEL", "tollgate:k"],
];

/// Refuses a server that may lose more than a second of writes or drop keys when it is full,
/// unless the operator said that it may. Of a cluster every node is asked.
pub(super) async fn check_server(
    connection: &RedisConnection,
    allow_volatile: bool,
) -> Result<(), Unavailable> {
    for info in connection.query_nodes(redis::cmd("INFO").arg("server")).await? {
        let info = InfoDict::from_redis_value_ref(&info)
            .map_err(|e| Unavailable(format!("INFO cannot be read: {e}")))?;
        let version: String = info.get("redis_version").unwrap_or_default();
        let major = version.split('.').next().and_then(|m| m.parse().ok()).unwrap_or(0u32);
        if major < REDIS_MAJOR_MIN {
            return Err(Unavailable(format!(
                "Redis {version} is too old; {REDIS_MAJOR_MIN} or newer"
            )));
        }
    }
    if allow_volatile {
        return Ok(());
    }
    let mut wrong = Vec::new();
    for (name, allowed) in REQUIRED_SETTINGS {
        let values = read_setting(connection, name).await?;
        wrong.extend(setting_fault(name, allowed, &values));
    }
    wrong.extend(replay_permission_fault(connection).await?);
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong = wrong.join("; ");
    Err(Unavailable(format!(
        "this Redis may lose money: {wrong}. Set it so, or set store.allow_volatile = true"
    )))
}

/// What a server would drop of its log at its next start, if anything.
async fn replay_permission_fault(
    connection: &RedisConnection,
) -> Result<Option<String>, Unavailable> {
    let own: String = connection.query(redis::cmd("ACL").arg("WHOAMI")).await?;
    if own == AOF_REPLAY_USER {
        return Ok(None);
    }
    for words in REPLAYED_COMMANDS {
        let dry = redis::cmd("ACL").arg("DRYRUN").arg(AOF_REPLAY_USER).arg(words).to_owned();
        let answers = connection.query_nodes(&dry).await.map_err(|why| {
            Unavailable(format!(
                "ACL DRYRUN failed ({why}), so nobody knows whether this Redis reads its whole log \
                 at its next start; allow it (+acl|dryrun), or set store.allow_volatile = true"
            ))
        })?;
        let text_of = |answer| String::from_redis_value_ref(answer).unwrap_or_default();
        if answers.iter().any(|answer| text_of(answer) != "OK") {
            return Ok(Some(format!(
                "its user '{AOF_REPLAY_USER}', as which it reads its log at its next start, may \
                 not do {}; let it (`user {AOF_REPLAY_USER} off ~* &* +@all`)",
                words[0]
            )));
        }
    }
    Ok(None)
}

/// What is wrong with the settings of the masters by now, if anything is: they may be changed while
/// the server runs.
pub(super) async fn settings_fault(
    connection: &RedisConnection,
) -> Result<Option<String>, Unavailable> {
    let get =
        redis::cmd("CONFIG").arg("GET").arg(&REQUIRED_SETTINGS.map(|(name, _)| name)).to_owned();
    let mut wrong = Vec::new();
    for answer in connection.query_masters(&get).await? {
        let settings = HashMap::<String, String>::from_redis_value_ref(&answer).unwrap_or_default();
        for (name, allowed) in REQUIRED_SETTINGS {
            wrong.extend(
                settings
                    .get(name)
                    .and_then(|value| setting_fault(name, allowed, std::slice::from_ref(value))),
            );
        }
    }
    wrong.dedup();
    Ok((!wrong.is_empty()).then(|| wrong.join("; ")))
}

fn setting_fault(name: &str, allowed: &str, values: &[String]) -> Option<String> {
    let value = values.iter().find(|value| !allowed.contains(&format!("'{value}'")))?;
    Some(format!("{name} is '{value}', but must be {allowed}"))
}

/// A setting, as every node has it.
pub(super) async fn read_setting(
    connection: &RedisConnection,
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
