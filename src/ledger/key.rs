//! Keys of clients: 256 random bits, of which only a digest is kept.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::AccountName;

/// How every key begins.
const MARK: &str = "sk-tg-";
/// So much of a key is shown in lists and journals.
const PREFIX_CHARS: usize = MARK.len() + 8;

/// The SHA-256 of a key: all that a store ever sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// Of the key as a client sends it.
    #[must_use]
    pub fn of(key: &str) -> KeyHash {
        KeyHash(Sha256::digest(key.as_bytes()).into())
    }

    /// Of a key, if it has the shape of ours.
    #[must_use]
    pub fn of_shaped(key: &str) -> Option<KeyHash> {
        let digits = key.strip_prefix(MARK)?;
        let sound = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        sound.then(|| KeyHash::of(key))
    }

    /// As hex.
    #[must_use]
    pub fn hex(self) -> String {
        hex(&self.0)
    }
}

/// What is kept of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Whose it is.
    pub account: AccountName,
    /// Its beginning.
    pub prefix: String,
    /// Since when, in unix seconds.
    pub created_at: i64,
    /// Until when, in unix seconds.
    pub revoked_at: Option<i64>,
}

/// A key as it is shown, once.
pub struct Key {
    text: String,
}

impl Key {
    /// Makes a key of random bits.
    #[must_use]
    pub fn from_random(bits: [u8; 32]) -> Key {
        Key { text: format!("{MARK}{}", hex(&bits)) }
    }

    /// The key itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// The beginning under which it is listed.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.text[..PREFIX_CHARS]
    }

    /// What a store keeps.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.text)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
