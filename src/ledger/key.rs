//! API keys of clients: 256 random bits, of which only a digest is kept.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use sha2::{Digest, Sha256};

use super::account_name::AccountName;
use super::account_settings::AccountSettings;
use super::key_scope::KeyScope;
use super::prepaid::window::KeyId;
use crate::hex::{from_hex, to_hex};

/// How every key begins.
const KEY_PREFIX: &str = "sk-tg-";
/// This many characters of a key are shown in lists and journals.
pub(crate) const PREFIX_CHARS: usize = KEY_PREFIX.len() + 8;

/// The SHA-256 of an API key. A store gets only this, never the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// Computes the digest of a key as the client sends it.
    #[must_use]
    pub fn of(key: &str) -> KeyHash {
        KeyHash(Sha256::digest(key.as_bytes()).into())
    }

    /// Computes the digest of a key; `None` if the text does not have the form of a key of this
    /// gateway.
    #[must_use]
    pub(crate) fn of_well_formed(key: &str) -> Option<KeyHash> {
        let digits = key.strip_prefix(KEY_PREFIX)?;
        let sound = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        sound.then(|| KeyHash::of(key))
    }

    /// Returns the id that a key with this digest has from its issue on: the first 63 bits.
    #[must_use]
    pub fn key_id(self) -> KeyId {
        let first = self.0[..8].iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        KeyId(first >> 1)
    }

    /// Parses a digest in hexadecimal; `None` if it is none.
    #[must_use]
    pub(crate) fn from_hex(digits: &str) -> Option<KeyHash> {
        from_hex(digits)?.try_into().ok().map(KeyHash)
    }

    /// Returns the digest in hexadecimal.
    #[must_use]
    pub fn hex(self) -> String {
        to_hex(&self.0)
    }
}

/// The stored record of an API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The id, to which budgets and journal lines refer.
    pub id: KeyId,
    /// The account of the key.
    pub account: AccountName,
    /// The beginning of the key, which is shown in lists.
    pub prefix: String,
    /// When the key was created, in unix seconds.
    pub created_at: i64,
    /// When the key was revoked, in unix seconds; `None` if it is valid.
    pub revoked_at: Option<i64>,
    /// What the key is called, and what it may be used for.
    pub scope: KeyScope,
    /// When the key was last used, in unix seconds, as a gateway has told it; `None` if it was not.
    pub last_used_at: Option<i64>,
    /// What an operator has set of the account. Stores fill it in; it is not written with the key.
    pub account_settings: AccountSettings,
}

impl KeyRecord {
    /// Makes the record of a new key. A key that replaces another one has its id.
    #[must_use]
    pub fn new(key: &ApiKey, account: AccountName, created_at: i64, scope: KeyScope) -> KeyRecord {
        KeyRecord {
            id: scope.id.unwrap_or_else(|| key.hash().key_id()),
            account,
            prefix: key.prefix().to_owned(),
            created_at,
            revoked_at: None,
            scope,
            last_used_at: None,
            account_settings: AccountSettings::default(),
        }
    }
}

/// A new API key, which is shown once.
pub struct ApiKey {
    text: String,
}

impl ApiKey {
    /// Makes a key of random bits.
    #[must_use]
    pub fn from_random(bits: [u8; 32]) -> ApiKey {
        ApiKey { text: format!("{KEY_PREFIX}{}", to_hex(&bits)) }
    }

    /// Returns the key itself, which is secret.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// Returns the beginning of the key, under which it is listed.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.text[..PREFIX_CHARS]
    }

    /// Returns the digest that a store keeps.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_mark_and_its_bits_in_hex_and_only_its_digest_is_kept() {
        let mut bits = [0; 32];
        (bits[0], bits[31]) = (0x0a, 0xff);
        let key = ApiKey::from_random(bits);
        assert_eq!(key.reveal(), format!("sk-tg-0a{}ff", "0".repeat(60)));
        assert_eq!(key.prefix(), "sk-tg-0a000000");
        assert_eq!(key.hash(), KeyHash::of(key.reveal()));
        assert_eq!(KeyHash::of_well_formed(key.reveal()), Some(key.hash()));
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyHash::of("abc").hex(), abc);
    }

    #[test]
    fn what_has_not_the_shape_of_a_key_is_none() {
        let digits = "0123456789abcdefABCDEF0123456789".repeat(2);
        assert!(KeyHash::of_well_formed(&format!("sk-tg-{digits}")).is_some());
        let short = &digits[1..];
        let (long, odd, other) =
            (format!("{digits}0"), format!("{short}g"), format!("sk-xx-{digits}"));
        let marked = |digits: &str| format!("sk-tg-{digits}");
        for bad in [other, digits.clone(), marked(short), marked(&long), marked(&odd), marked("")] {
            assert_eq!(KeyHash::of_well_formed(&bad), None, "{bad}");
        }
    }
}
