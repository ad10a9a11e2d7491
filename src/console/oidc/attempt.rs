//! A sign-in that has begun: what the provider has to send back, kept in a cookie of the browser.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::console::address::ConsoleAddress;

/// A sign-in must end within this time, in seconds: ten minutes.
const ATTEMPT_S: u32 = 600;
/// 32 random bytes have this many characters.
const PART_CHARS: usize = 43;
/// The name of the cookie over TLS, and without.
const COOKIES: [&str; 2] = ["__Host-tollgate-oidc", "tollgate-oidc"];

/// What was made up for one sign-in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SignInAttempt {
    /// What the provider sends back with the browser.
    pub(super) state: String,
    /// What the provider signs.
    pub(super) nonce: String,
    /// What proves that the code is for us (PKCE).
    pub(super) verifier: String,
}

impl SignInAttempt {
    /// Makes an attempt of random bits.
    pub(super) fn from_random(state: [u8; 32], nonce: [u8; 32], verifier: [u8; 32]) -> Self {
        let [state, nonce, verifier] =
            [state, nonce, verifier].map(|bits| URL_SAFE_NO_PAD.encode(bits));
        SignInAttempt { state, nonce, verifier }
    }

    /// Returns the cookie that keeps the attempt.
    pub(super) fn cookie(&self, address: &ConsoleAddress) -> String {
        let value = [&*self.state, &*self.nonce, &*self.verifier].join(".");
        written(address, &value, ATTEMPT_S)
    }

    /// Finds the attempt in a `Cookie` header; `None` if there is none, or it is no attempt.
    pub(super) fn find(address: &ConsoleAddress, cookies: &str) -> Option<SignInAttempt> {
        let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == cookie_name(address))?;
        let mut parts = value.split('.').filter(|part| is_part(part)).map(str::to_owned);
        let (state, nonce, verifier) = (parts.next()?, parts.next()?, parts.next()?);
        let is_whole = value.len() == PART_CHARS * 3 + 2;
        is_whole.then_some(SignInAttempt { state, nonce, verifier })
    }

    /// Whether this is the state of the attempt. How long the answer takes tells nothing of it:
    /// digests are compared.
    pub(super) fn has_state(&self, state: &str) -> bool {
        Sha256::digest(&self.state) == Sha256::digest(state)
    }
}

/// Returns the cookie that forgets the attempt of a browser.
pub(super) fn forgotten_cookie(address: &ConsoleAddress) -> String {
    written(address, "", 0)
}

fn cookie_name(address: &ConsoleAddress) -> &'static str {
    COOKIES[usize::from(!address.is_secure())]
}

fn written(address: &ConsoleAddress, value: &str, age_s: u32) -> String {
    let secure = if address.is_secure() { "; Secure" } else { "" };
    let name = cookie_name(address);
    format!("{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Lax{secure}")
}

fn is_part(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.len() == PART_CHARS && text.bytes().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> SignInAttempt {
        SignInAttempt::from_random([0xff; 32], [7; 32], [9; 32])
    }

    fn addresses() -> [ConsoleAddress; 2] {
        let secure = ConsoleAddress::new(Some("https://a.example"), "127.0.0.1:1", false);
        [secure, ConsoleAddress::new(None, "127.0.0.1:1", false)]
    }

    #[test]
    fn an_attempt_is_found_in_the_cookie_that_was_set() {
        for (address, name) in addresses().iter().zip(COOKIES) {
            let cookie = attempt().cookie(address);
            assert!(cookie.starts_with(&format!("{name}=")), "{cookie}");
            assert!(cookie.contains("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax"), "{cookie}");
            assert_eq!(cookie.ends_with("; Secure"), address.is_secure(), "{cookie}");
            let pair = cookie.split(';').next().expect("a pair");
            let sent = format!("a=1; tollgate=5e; {pair}; b");
            assert!(SignInAttempt::find(address, &sent) == Some(attempt()));
            assert!(forgotten_cookie(address).starts_with(&format!("{name}=; Path=/; Max-Age=0;")));
        }
        let [secure, plain] = addresses();
        // A page without TLS could have set the other one.
        let cookie = attempt().cookie(&plain);
        assert!(SignInAttempt::find(&secure, cookie.split(';').next().expect("a pair")).is_none());
    }

    #[test]
    fn what_has_another_form_is_no_attempt() {
        let [_, plain] = addresses();
        let cookie = attempt().cookie(&plain);
        let value = cookie.split(['=', ';']).nth(1).expect("a value");
        let other = value.replacen('_', "/", 1);
        let short = value.split_once('.').expect("parts").1;
        let long = format!("{value}.{}", &value[..PART_CHARS]);
        for wrong in ["", "..", short, &other, &long, &value[1..], &"a".repeat(131)] {
            let cookies = format!("tollgate-oidc={wrong}");
            assert!(SignInAttempt::find(&plain, &cookies).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_state_is_that_of_one_attempt() {
        let attempt = attempt();
        assert!(attempt.has_state(&attempt.state.clone()));
        assert!(!attempt.has_state(&attempt.nonce) && !attempt.has_state(""));
    }
}
