//! Tokens of operators: 256 random bits, of which only a digest is kept.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use sha2::{Digest, Sha256};

use crate::hex::to_hex;

/// How every token begins. No key of a client begins so, since `op` is not hexadecimal.
const TOKEN_PREFIX: &str = "sk-tg-op-";
/// This many characters of a token are shown in lists.
const SHOWN_CHARS: usize = TOKEN_PREFIX.len() + 8;

/// The SHA-256 of a token. A store gets only this, never the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Computes the digest of a token; `None` if the text does not have the form of one.
    #[must_use]
    pub fn of(token: &str) -> Option<TokenHash> {
        let digits = token.strip_prefix(TOKEN_PREFIX)?;
        let sound = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        sound.then(|| TokenHash(Sha256::digest(token.as_bytes()).into()))
    }

    /// Returns the digest in hexadecimal.
    #[must_use]
    pub fn hex(self) -> String {
        to_hex(&self.0)
    }
}

/// A new token, which is shown once.
pub struct OperatorToken(String);

impl OperatorToken {
    /// Makes a token of random bits.
    #[must_use]
    pub fn from_random(bits: [u8; 32]) -> OperatorToken {
        OperatorToken(format!("{TOKEN_PREFIX}{}", to_hex(&bits)))
    }

    /// Returns the token itself, which is secret.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the beginning of the token, which is shown in lists.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0[..SHOWN_CHARS]
    }

    /// Returns the digest that a store keeps.
    #[must_use]
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0.as_bytes()).into())
    }
}
