//! Which API key an id stands for. A key that replaces another one has its id, so several keys of
//! an account may have the same.

use crate::ledger::{KeyId, KeyRecord};

/// Parses the id of a key; `None` if the text is none. A number is never the beginning of a key.
pub(super) fn parse_key_id(text: &str) -> Option<KeyId> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok().map(KeyId)).flatten()
}

/// Returns the key that an id stands for, of the keys of an account: the newest one that is not
/// revoked, or else the newest one.
pub(super) fn pick_key(keys: Vec<KeyRecord>, id: KeyId) -> Option<KeyRecord> {
    let of_id = keys.into_iter().filter(|key| key.id == id);
    of_id.max_by(|a, b| rank(a).cmp(&rank(b)))
}

fn rank(key: &KeyRecord) -> (bool, i64, &str) {
    (key.revoked_at.is_none(), key.created_at, &key.prefix)
}

#[cfg(test)]
mod tests {
    use super::{parse_key_id, pick_key};
    use crate::ledger::key::ApiKey;
    use crate::ledger::{AccountName, KeyId, KeyRecord, KeyScope};

    #[test]
    fn an_id_stands_for_the_newest_key_that_is_not_revoked() {
        let account = AccountName::parse("ada").expect("a name");
        let issue = |seed: u8, created_at: i64, id: u64| {
            let scope = KeyScope { id: Some(KeyId(id)), ..KeyScope::default() };
            KeyRecord::new(&ApiKey::from_random([seed; 32]), account.clone(), created_at, scope)
        };
        let (first, second, other) = (issue(1, 10, 7), issue(2, 20, 7), issue(3, 30, 8));
        let keys = || vec![first.clone(), second.clone(), other.clone()];
        assert_eq!(pick_key(keys(), KeyId(7)), Some(second.clone()));
        assert_eq!(pick_key(keys(), KeyId(9)), None);
        let second = KeyRecord { revoked_at: Some(25), ..second };
        assert_eq!(pick_key(vec![first.clone(), second.clone()], KeyId(7)), Some(first));
        assert_eq!(pick_key(vec![second.clone()], KeyId(7)), Some(second));
    }

    #[test]
    fn the_beginning_of_a_key_is_no_id() {
        assert_eq!(parse_key_id("7"), Some(KeyId(7)));
        for text in ["", "sk-tg-01010101", "+7", "-7", "0x7", "18446744073709551616"] {
            assert_eq!(parse_key_id(text), None, "{text}");
        }
    }
}
