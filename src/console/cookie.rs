//! The cookie of a session, and the token that its forms carry.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use sha2::{Digest, Sha256};

use super::address::ConsoleAddress;
use crate::hex::to_hex;

/// A session lasts this long, in seconds: 12 hours.
pub(super) const SESSION_S: u32 = 12 * 3_600;

/// Makes random bits those of a session that only reads, or of one that may change things. Nobody
/// can make one of the other: a store knows the digest of all of a secret.
pub(super) fn marked(mut bits: [u8; 32], is_reader: bool) -> [u8; 32] {
    if let Some(last) = bits.last_mut() {
        *last = (*last & !1) | u8::from(is_reader);
    }
    bits
}

/// Whether a session only reads, as its secret in hexadecimal tells.
pub(super) fn is_reader(secret: &str) -> bool {
    let last = secret.bytes().last().map(char::from).and_then(|digit| digit.to_digit(16));
    last.is_none_or(|digit| digit & 1 == 1)
}

/// Returns the cookie that begins a session.
pub(super) fn session_cookie(address: &ConsoleAddress, secret: &str) -> String {
    written(address, secret, SESSION_S)
}

/// Returns the cookie that ends the session of a browser.
pub(super) fn ended_cookie(address: &ConsoleAddress) -> String {
    written(address, "", 0)
}

fn written(address: &ConsoleAddress, value: &str, age_s: u32) -> String {
    let secure = if address.is_secure() { "; Secure" } else { "" };
    let name = address.cookie_name();
    format!("{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Lax{secure}")
}

/// Returns the secret of a session out of a `Cookie` header.
pub(super) fn find_secret<'a>(address: &ConsoleAddress, cookies: &'a str) -> Option<&'a str> {
    let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == address.cookie_name()).map(|(_, value)| value)
}

/// Returns the token that the forms of a session carry. Pages of other origins do not know it, and
/// it does not tell the secret.
pub(super) fn form_token(secret: &str) -> String {
    let digest = Sha256::new().chain_update("form token ").chain_update(secret).finalize();
    to_hex(&digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_tells_whether_its_session_only_reads() {
        for (last, flag) in [(0, true), (0, false), (255, true), (255, false)] {
            let secret = to_hex(&marked([last; 32], flag));
            assert_eq!(is_reader(&secret), flag, "{secret}");
        }
        assert!(is_reader(""));
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let secure = ConsoleAddress::new(Some("https://a.example"), "127.0.0.1:1", false);
        let cookie = session_cookie(&secure, "5e");
        assert_eq!(
            cookie,
            "__Host-tollgate=5e; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"
        );
        assert!(ended_cookie(&secure).contains("Max-Age=0"));
        assert_eq!(find_secret(&secure, "a=1; __Host-tollgate=5e; b"), Some("5e"));
        // A page without TLS could have set the other one.
        assert_eq!(find_secret(&secure, "tollgate=5e; x__Host-tollgate=1"), None);
        let plain = ConsoleAddress::new(None, "127.0.0.1:1", false);
        assert!(!session_cookie(&plain, "5e").contains("Secure"));
        assert_ne!(form_token("a"), form_token("b"));
    }
}
