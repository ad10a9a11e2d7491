//! The clock of this machine, for the stores and the outbox that are on it.

/// Now, in unix ms.
pub(super) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|d| i64::try_from(d.as_millis()).ok()).unwrap_or_default()
}
