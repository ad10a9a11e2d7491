//! Finds keys by what people call them: their beginnings and their ids.

use super::error::{ManagementError, no_such_key};
use crate::clock::unix_ms;
use crate::ledger::{KeyId, KeyRecord, Ledger, Unavailable};

/// One minute, in seconds.
const MINUTE_S: i64 = 60;

/// The keys that a command is about: the one that is listed under a beginning, or all that have one
/// id, since a key keeps its id when it is rotated.
#[derive(Debug)]
pub(crate) struct FoundKeys {
    /// The key that was made last.
    pub(crate) newest: KeyRecord,
    /// The others, oldest first.
    pub(crate) older: Vec<KeyRecord>,
    /// Whether the command is about all keys of an id.
    pub(crate) is_by_id: bool,
}

impl FoundKeys {
    /// Takes keys, oldest first; `None` if there are none.
    fn new(mut keys: Vec<KeyRecord>, is_by_id: bool) -> Option<FoundKeys> {
        let newest = keys.pop()?;
        Some(FoundKeys { newest, older: keys, is_by_id })
    }

    /// Leaves out the keys that have ended at the time `now` (unix seconds). If all have, the
    /// newest stays.
    pub(crate) fn without_ended(self, now: i64) -> FoundKeys {
        let FoundKeys { newest, mut older, is_by_id } = self;
        older.retain(|key| !has_ended(key, now));
        if has_ended(&newest, now)
            && let Some(alive) = older.pop()
        {
            return FoundKeys { newest: alive, older, is_by_id };
        }
        FoundKeys { newest, older, is_by_id }
    }

    /// Returns the beginnings of the older keys.
    pub(crate) fn older_prefixes(&self) -> Vec<String> {
        self.older.iter().map(|key| key.prefix.clone()).collect()
    }
}

/// Whether a key is revoked, or has expired at the time `now` (unix seconds).
pub(crate) fn has_ended(key: &KeyRecord, now: i64) -> bool {
    key.revoked_at.is_some() || key.scope.is_expired(now)
}

/// Finds keys by a beginning, as it is listed, or by an id.
pub(crate) async fn find_keys(
    ledger: &dyn Ledger,
    prefix: &str,
) -> Result<FoundKeys, ManagementError> {
    let id = parse_key_id(prefix);
    let keys = match id {
        Some(id) => find_keys_by_id(ledger, id).await?,
        None => ledger.find_key_by_prefix(prefix).await?.into_iter().collect(),
    };
    FoundKeys::new(keys, id.is_some()).ok_or_else(|| no_such_key(prefix))
}

/// Returns the time in unix seconds.
pub(crate) fn now_s() -> i64 {
    unix_ms() / 1_000
}

/// Returns the state of a key, in a word.
pub(crate) fn state_of(record: &KeyRecord) -> &'static str {
    if record.revoked_at.is_some() {
        "revoked"
    } else if record.scope.is_expired(now_s()) {
        "expired"
    } else if record.scope.disabled {
        "disabled"
    } else {
        "valid"
    }
}

/// Returns the minute in which a key was last used, in unix seconds. Gateways do not note it more
/// exactly.
pub(crate) fn last_use(record: &KeyRecord) -> Option<i64> {
    record.last_used_at.map(|at| at.saturating_sub(at.rem_euclid(MINUTE_S)))
}

/// Parses the id of a key; `None` if the text is none, and is the beginning of a key.
pub(crate) fn parse_key_id(text: &str) -> Option<KeyId> {
    text.parse().ok().map(KeyId)
}

/// Looks through the keys of all accounts: stores find a key by its digest or its beginning.
async fn find_keys_by_id(ledger: &dyn Ledger, id: KeyId) -> Result<Vec<KeyRecord>, Unavailable> {
    for account in ledger.list_accounts().await? {
        let mut keys = ledger.list_keys(&account).await?;
        keys.retain(|key| key.id == id);
        if !keys.is_empty() {
            return Ok(keys);
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::key::ApiKey;
    use crate::ledger::{AccountName, KeyScope};

    fn key(number: u8, revoked_at: Option<i64>, expires_at: Option<i64>) -> KeyRecord {
        let account = AccountName::parse("acme").expect("a name");
        let scope = KeyScope { expires_at, ..KeyScope::default() };
        let record = KeyRecord::new(&ApiKey::from_random([number; 32]), account, 1, scope);
        KeyRecord { revoked_at, ..record }
    }

    #[test]
    fn keys_that_have_ended_are_left_out_unless_all_have() {
        let left = |keys: Vec<KeyRecord>| {
            let found = FoundKeys::new(keys, true).expect("keys").without_ended(100);
            (found.newest.prefix.clone(), found.older_prefixes())
        };
        let [alive, other] = [key(1, None, Some(101)), key(2, None, None)];
        let [expired, revoked] = [key(3, None, Some(100)), key(4, Some(7), None)];
        let name = |key: &KeyRecord| key.prefix.clone();
        let all = vec![expired.clone(), alive.clone(), revoked.clone(), other.clone()];
        assert_eq!(left(all), (name(&other), vec![name(&alive)]));
        let ended_last = vec![alive.clone(), other.clone(), revoked.clone()];
        assert_eq!(left(ended_last), (name(&other), vec![name(&alive)]));
        assert_eq!(left(vec![alive.clone(), expired.clone()]), (name(&alive), Vec::new()));
        assert_eq!(left(vec![revoked, expired.clone()]), (name(&expired), Vec::new()));
        assert!(FoundKeys::new(Vec::new(), true).is_none());
    }
}
