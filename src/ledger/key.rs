//! API keys of clients: 256 random bits, of which only a digest is kept.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

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

/// A place in the list of an account's keys, which is that of a key. The order is that of the
/// fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPlace {
    /// When the key was created, in unix seconds.
    pub created_at: i64,
    /// The beginning of the key.
    pub prefix: String,
}

impl KeyPlace {
    /// Parses a place as [`fmt::Display`] writes it; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<KeyPlace> {
        let (prefix, created_at) = text.split_once('@')?;
        let is_prefix = (1..=PLACE_BYTES_MAX).contains(&prefix.len());
        let created_at = created_at.parse().ok().filter(|_| is_prefix)?;
        Some(KeyPlace { created_at, prefix: prefix.to_owned() })
    }
}

/// No beginning of a key is longer.
const PLACE_BYTES_MAX: usize = 64;

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.prefix, self.created_at)
    }
}

/// The order of a list of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// The key that was created first comes first.
    OldestFirst,
    /// The key that was created last comes first.
    NewestFirst,
}

/// A part of the list of an account's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The order.
    pub order: KeyOrder,
    /// The place after which the part begins, in this order; `None` at the beginning.
    pub after: Option<KeyPlace>,
    /// The most keys of the part.
    pub limit: u32,
}

/// A part of the list of an account's keys, as it was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys. One that cannot be read is not among them.
    pub keys: Vec<KeyRecord>,
    /// Where the list goes on; `None` at its end.
    pub next: Option<KeyPlace>,
}

impl KeyPage {
    /// Makes a page of places with their keys, of which one more than the limit was looked for.
    #[must_use]
    pub fn new(mut rows: Vec<(KeyPlace, Option<KeyRecord>)>, limit: u32) -> KeyPage {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(|(place, _)| place.clone());
        KeyPage { keys: rows.into_iter().filter_map(|(_, record)| record).collect(), next }
    }
}

impl KeyRecord {
    /// Returns the place of the key in the list of those of its account.
    #[must_use]
    pub fn place(&self) -> KeyPlace {
        KeyPlace { created_at: self.created_at, prefix: self.prefix.clone() }
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
    fn a_place_in_a_list_of_keys_is_read_as_it_was_written() {
        let place = KeyPlace { created_at: -7, prefix: "sk-tg-0a000000".to_owned() };
        assert_eq!(place.to_string(), "sk-tg-0a000000@-7");
        assert_eq!(KeyPlace::parse(&place.to_string()), Some(place));
        let long = format!("{}@1", "a".repeat(65));
        for bad in ["", "@", "@1", "sk-tg-0a000000", "sk-tg-0a000000@", "a@x", &long] {
            assert_eq!(KeyPlace::parse(bad), None, "{bad}");
        }
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
