//! Checks the settings that a Redis server must have before money is kept in it.

use std::collections::HashMap;

use redis::{FromRedisValue, InfoDict};

use super::connection::RedisConnection;
use crate::ledger::Unavailable;
use crate::store::data_version::version_fault;

/// The lowest supported major version of Redis. The first line of each script declares its flags,
/// which older servers cannot read.
const REDIS_MAJOR_MIN: u32 = 7;
/// The required settings, with the allowed values of each in quotes.
const REQUIRED_SETTINGS: [(&str, &str); 3] = [
    ("appendonly", "'yes'"),
    ("appendfsync", "'everysec' or 'always'"),
    ("maxmemory-policy", "'noeviction'"),
];

/// The key of the version of the data. Without it they have the first version.
pub(super) const DATA_VERSION_KEY: &str = "tollgate:schema-version";

/// When Redis loads its append-only file (AOF), it runs the transactions in it as this user,
/// whichever user had made them. It drops those that this user may not run, without an error:
/// 7.0.15 does so, and other versions before pull request 14545.
const AOF_REPLAY_USER: &str = "default";
/// The commands that the AOF contains, with sample arguments.
const REPLAYED_COMMANDS: [&[&str]; 7] = [
    &["HSET", "tollgate:k", "a", "b"],
    &["SET", "tollgate:k", "a"],
    &["ZADD", "tollgate:k", "1", "a"],
    &["INCRBY", "tollgate:k", "1"],
    &["PEXPIREAT", "tollgate:k", "1"],
    &["RPUSH", "tollgate:k", "a"],
    &["DEL", "tollgate:k"],
];

/// Refuses a server that is too old, or whose data are those of a later version. Unless the
/// operator allows the loss of writes (`store.allow_volatile`), also refuses a server that may lose
/// more than one second of writes, or that may drop keys when its memory is full. In a cluster
/// every node is checked.
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
    let version = redis::cmd("GET").arg(DATA_VERSION_KEY).to_owned();
    let version: Option<u32> = connection.query(&version).await?;
    if let Some(fault) = version.and_then(version_fault) {
        return Err(Unavailable(fault));
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

/// Returns why a server would drop part of its AOF at its next start; `None` if it would not.
async fn replay_permission_fault(
    connection: &RedisConnection,
) -> Result<Option<String>, Unavailable> {
    let own: String = connection.query(redis::cmd("ACL").arg("WHOAMI")).await?;
    if own == AOF_REPLAY_USER {
        return Ok(None);
    }
    for command in REPLAYED_COMMANDS {
        let dry = redis::cmd("ACL").arg("DRYRUN").arg(AOF_REPLAY_USER).arg(command).to_owned();
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
                command[0]
            )));
        }
    }
    Ok(None)
}

/// Returns what is wrong with the masters' settings now; `None` if nothing is. They may be changed
/// while the server runs.
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

/// Returns the value of a setting on each node.
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
