//! Tokens that let whoever has one fetch one file for a while.
//!
//! A token names the account and its end, and is authenticated with them and with the job that the
//! rest of the address names. So nothing is kept of it, and every node of a fleet knows it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What the secret is used for here, so that no code made with it for something else is a token.
const PURPOSE: &[u8] = b"tollgate: address of a file, version 1";
const END_BYTES: usize = 8;
const CODE_BYTES: usize = 32;
/// The longest name an account has.
const ACCOUNT_BYTES_MAX: usize = 64;
const TOKEN_BYTES_MAX: usize = END_BYTES + CODE_BYTES + ACCOUNT_BYTES_MAX;
const TOKEN_CHARS_MAX: usize = (TOKEN_BYTES_MAX * 4).div_ceil(3);

/// The fleet's secret, with which tokens are made and known.
#[derive(Clone)]
pub struct Seal([u8; 32]);

impl Seal {
    /// Of a secret.
    #[must_use]
    pub fn new(secret: [u8; 32]) -> Seal {
        Seal(secret)
    }

    /// Makes a token for a job of an account, good until before a time, in unix ms.
    #[must_use]
    pub fn token(&self, account: &str, job: &str, expires_ms: i64) -> String {
        let end = expires_ms.to_be_bytes();
        let code = self.code(job, end, account.as_bytes()).finalize().into_bytes();
        URL_SAFE_NO_PAD.encode([&end[..], &code[..], account.as_bytes()].concat())
    }

    /// The account of a token, if it is one that was made for this job and is still good.
    #[must_use]
    pub fn open(&self, job: &str, token: &str, now_ms: i64) -> Option<String> {
        if token.len() > TOKEN_CHARS_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (end, rest) = bytes.split_first_chunk::<END_BYTES>()?;
        let (code, account) = rest.split_first_chunk::<CODE_BYTES>()?;
        self.code(job, *end, account).verify_slice(code).ok()?;
        let account = std::str::from_utf8(account).ok()?;
        (now_ms < i64::from_be_bytes(*end)).then(|| account.to_owned())
    }

    fn code(&self, job: &str, end: [u8; END_BYTES], account: &[u8]) -> Hmac<Sha256> {
        // Shorter keys are filled up with zeros; done here, no length can be wrong.
        let mut key = [0; 64];
        key[..self.0.len()].copy_from_slice(&self.0);
        let mut code = Hmac::<Sha256>::new(&key.into());
        for part in [PURPOSE, job.as_bytes(), &end, account] {
            // With their lengths, no two lists of parts are one text.
            code.update(&(part.len() as u64).to_be_bytes());
            code.update(part);
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const JOB: &str = "video_0190b6a0-0000-7000-8000-000000000001";
    const NOW: i64 = 1_700_000_000_000;

    fn seal() -> Seal {
        Seal::new([7; 32])
    }

    #[test]
    fn a_token_is_what_the_rfc_would_make_of_it() {
        // Worked out with another implementation.
        let token = Seal::new(std::array::from_fn(|i| u8::try_from(i).expect("small")))
            .token("acme", JOB, NOW);
        assert_eq!(token, "AAABi8_laAA-duQfaUZ5qeqTw7lj1Lx4w5hRPdY4MMBrKUxhs1awRWFjbWU");
    }

    #[rstest]
    #[case(NOW - 1, true)]
    #[case(NOW, false)]
    #[case(NOW + 1, false)]
    #[case(i64::MAX, false)]
    fn a_token_ends(#[case] now_ms: i64, #[case] is_good: bool) {
        let token = seal().token("acme", JOB, NOW);
        assert_eq!(seal().open(JOB, &token, now_ms).is_some(), is_good);
    }

    #[test]
    fn parts_of_a_token_cannot_change_places() {
        let token = seal().token("bc", "a", NOW + 1);
        assert_eq!(seal().open("a", &token, NOW), Some("bc".to_owned()));
        assert_eq!(seal().open("ab", &token, NOW), None);
        // The same code with the account's first letter in the job's name.
        let bytes = URL_SAFE_NO_PAD.decode(&token).expect("sound");
        let moved = URL_SAFE_NO_PAD.encode([&bytes[..40], &bytes[41..]].concat());
        assert_eq!(seal().open("ab", &moved, NOW), None);
    }

    #[rstest]
    fn what_is_no_token_opens_nothing(
        #[values(
            String::new(),
            "A".to_owned(),
            "AAAA".to_owned(),
            "=".repeat(64),
            "A".repeat(53),
            "A".repeat(54),
            "A".repeat(TOKEN_CHARS_MAX),
            "A".repeat(100_000),
            "ä".repeat(40)
        )]
        token: String,
    ) {
        assert_eq!(seal().open(JOB, &token, i64::MIN), None);
    }

    #[test]
    fn the_longest_name_fits_and_a_longer_one_opens_nothing() {
        let token = seal().token(&"x".repeat(64), JOB, NOW);
        assert_eq!((token.len(), token.len()), (TOKEN_CHARS_MAX, 139));
        assert!(seal().open(JOB, &token, 0).is_some());
        let longer = seal().token(&"x".repeat(65), JOB, NOW);
        assert_eq!(seal().open(JOB, &longer, 0), None);
    }

    proptest! {
        #[test]
        fn a_token_opens_to_its_account(
            secret: [u8; 32], account in "[A-Za-z0-9._-]{1,64}",
            job in "video_[0-9a-f-]{36}", end: i64
        ) {
            let seal = Seal::new(secret);
            let token = seal.token(&account, &job, end);
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            prop_assert!(token.bytes().all(is_plain));
            let opened = seal.open(&job, &token, end.saturating_sub(1));
            prop_assert_eq!(opened, (end > i64::MIN).then_some(account));
            prop_assert_eq!(seal.open(&job, &token, end), None);
        }

        #[test]
        fn a_token_with_a_bit_flipped_opens_nothing(
            account in "[A-Za-z0-9._-]{1,64}", at: prop::sample::Index, bit in 0..8_u8
        ) {
            let token = seal().token(&account, JOB, NOW);
            let mut bytes = URL_SAFE_NO_PAD.decode(&token).expect("sound");
            let at_byte = at.index(bytes.len());
            bytes[at_byte] ^= 1 << bit;
            prop_assert_eq!(seal().open(JOB, &URL_SAFE_NO_PAD.encode(bytes), 0), None);
        }

        #[test]
        fn a_token_with_a_letter_changed_added_or_lost_opens_nothing(
            account in "[A-Za-z0-9._-]{1,64}", at: prop::sample::Index, letter in "[ -~]"
        ) {
            let token = seal().token(&account, JOB, NOW);
            let at = at.index(token.len());
            let changed = format!("{}{letter}{}", &token[..at], &token[at + 1..]);
            if changed != token {
                // The last letter has bits that no byte has: they must be zero.
                prop_assert_eq!(seal().open(JOB, &changed, 0), None);
            }
            let (added, lost) = (format!("{token}{letter}"), &token[..token.len() - 1]);
            prop_assert_eq!(seal().open(JOB, &added, 0), None);
            prop_assert_eq!(seal().open(JOB, lost, 0), None);
        }

        #[test]
        fn a_token_is_for_one_job_and_of_one_secret(
            job in "[ -~]{0,60}", other in "[ -~]{0,60}", secret: [u8; 32], another: [u8; 32]
        ) {
            prop_assume!(job != other && secret != another);
            let token = Seal::new(secret).token("acme", &job, NOW);
            prop_assert_eq!(Seal::new(secret).open(&other, &token, 0), None);
            prop_assert_eq!(Seal::new(another).open(&job, &token, 0), None);
        }
    }
}
