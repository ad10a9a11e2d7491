//! The secrets of links and sessions: 256 random bits, of which only a digest is kept.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use sha2::{Digest, Sha256};

use super::bounds::{LINKS_MAX, SESSIONS_MAX};
use crate::hex::to_hex;

/// A secret has this many hexadecimal digits.
const SECRET_DIGITS: usize = 64;

/// The SHA-256 of the secret of a link or a session. A store gets only this, never the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(pub [u8; 32]);

impl SecretHash {
    /// Returns the digest in hexadecimal.
    #[must_use]
    pub(crate) fn hex(self) -> String {
        to_hex(&self.0)
    }
}

/// The secret of a new link or session, as its holder gets it: 64 hexadecimal digits.
pub struct SessionSecret(String);

impl SessionSecret {
    /// Makes a secret of random bits.
    #[must_use]
    pub fn from_random(bits: [u8; 32]) -> SessionSecret {
        SessionSecret(to_hex(&bits))
    }

    /// Parses the text of a secret that was presented, and returns the digest by which a store
    /// knows it; `None` if the text does not have the form of one.
    #[must_use]
    pub fn parse(text: &str) -> Option<SecretHash> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_secret = text.len() == SECRET_DIGITS && text.bytes().all(is_digit);
        is_secret.then(|| SecretHash(Sha256::digest(text.as_bytes()).into()))
    }

    /// Returns the secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the digest that a store keeps.
    #[must_use]
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.0.as_bytes()).into())
    }
}

/// What a secret is for. The secrets of links and those of sessions are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretKind {
    /// A link, by which its holder can sign in once.
    Link,
    /// A session.
    Session,
}

impl SecretKind {
    /// Returns the name by which a store tells the kinds apart.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SecretKind::Link => "link",
            SecretKind::Session => "session",
        }
    }

    /// Returns how many of a principal are kept at most.
    pub(crate) fn kept_max(self) -> u32 {
        match self {
            SecretKind::Link => LINKS_MAX,
            SecretKind::Session => SESSIONS_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_is_presented_has_the_digest_of_the_one_that_was_made() {
        let secret = SessionSecret::from_random([0xa7; 32]);
        assert_eq!(secret.reveal(), "a7".repeat(32));
        assert_eq!(SessionSecret::parse(secret.reveal()), Some(secret.hash()));
        let expected = "9921d3e0b65c801d2273fb20cc7bcc57e7782c46692479f6f1502cdf65ba098f";
        assert_eq!(secret.hash().hex(), expected);
        assert_ne!(SessionSecret::from_random([0xa8; 32]).hash(), secret.hash());
    }

    #[test]
    fn what_has_another_form_is_no_secret() {
        let digits = "a7".repeat(32);
        let (short, long) = (&digits[1..], format!("{digits}0"));
        let (upper, other) = (digits.to_uppercase(), digits.replacen('a', "g", 1));
        for text in ["", short, &long, &upper, &other, &format!(" {short}"), &"é".repeat(32)] {
            assert_eq!(SessionSecret::parse(text), None, "{text}");
        }
    }
}
