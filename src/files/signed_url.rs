//! Tokens that let their bearer download one file for a limited time.
//!
//! A token contains its expiry and the account. The account is encrypted, and authenticated
//! together with the expiry and with the job that the rest of the URL names. So the gateway stores
//! no tokens, every node of a fleet can verify them, and a person who reads a URL in a log or a
//! browser does not learn whose file it is.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, Salt};

/// The longest lifetime of a token, in ms, no matter which node made it: a leaked secret or a wrong
/// clock cannot make a URL that lasts.
pub(crate) const TOKEN_TTL_MAX_MS: i64 = 600_000;

/// The purpose of the keys that are derived from the secret, so that nothing made with the secret
/// for another purpose is a valid token.
const HKDF_SALT: &[u8] = b"tollgate: address of a file, version 3";
const EXPIRY_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
/// The longest name of an account, in bytes. Shorter names are padded, so that a token does not
/// reveal the length.
const ACCOUNT_BYTES: usize = 64;
const TOKEN_BYTES: usize = EXPIRY_BYTES + ACCOUNT_BYTES + TAG_BYTES;
const TOKEN_CHARS: usize = (TOKEN_BYTES * 4).div_ceil(3);

/// Makes and verifies tokens, with the fleet's secret and, while the secret is being changed, the
/// previous one.
#[derive(Clone)]
pub(crate) struct UrlSigner {
    /// Makes and verifies tokens.
    current: SigningSecret,
    /// Only verifies tokens.
    previous: Option<SigningSecret>,
}

#[derive(Clone)]
struct SigningSecret([u8; 32]);

impl UrlSigner {
    /// Makes a signer from the secret for new tokens, and another secret whose tokens are valid as
    /// well.
    #[must_use]
    pub(crate) fn new(current: [u8; 32], previous: Option<[u8; 32]>) -> UrlSigner {
        UrlSigner { current: SigningSecret(current), previous: previous.map(SigningSecret) }
    }

    /// Makes a token for a job of an account, valid until just before `expires_ms` (unix ms).
    ///
    /// # Errors
    /// The job id is longer than the cipher allows.
    pub(crate) fn make_token(
        &self,
        account: &str,
        job: &str,
        expires_ms: i64,
    ) -> Result<String, Unspecified> {
        let end = expires_ms.to_be_bytes();
        let mut name = [0; ACCOUNT_BYTES];
        // No account has a longer name. The token of one that had would name another account, which
        // has no such job.
        name.iter_mut().zip(account.bytes()).for_each(|(to, from)| *to = from);
        let key = self.current.derive_key(job, end)?;
        let tag = key.seal_in_place_separate_tag(fixed_nonce(), Aad::from(end), &mut name)?;
        Ok(URL_SAFE_NO_PAD.encode([&end[..], &name[..], tag.as_ref()].concat()))
    }

    /// Returns the account of a token; `None` unless the token was made for this job, has not
    /// expired, and expires within the longest lifetime.
    #[must_use]
    pub(crate) fn verify(&self, job: &str, token: &str, now_ms: i64) -> Option<String> {
        if token.len() != TOKEN_CHARS {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (end, sealed) = bytes.split_first_chunk::<EXPIRY_BYTES>()?;
        let end_ms = i64::from_be_bytes(*end);
        if end_ms <= now_ms || end_ms > now_ms.saturating_add(TOKEN_TTL_MAX_MS) {
            return None;
        }
        let mut secrets = std::iter::once(&self.current).chain(&self.previous);
        let name = secrets.find_map(|secret| {
            let (key, mut sealed) = (secret.derive_key(job, *end).ok()?, sealed.to_vec());
            let opened = key.open_in_place(fixed_nonce(), Aad::from(end), &mut sealed).ok()?;
            Some(opened.to_vec())
        })?;
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(ACCOUNT_BYTES);
        std::str::from_utf8(name.get(..length)?).ok().map(str::to_owned)
    }
}

impl SigningSecret {
    /// Derives the key for one job and one expiry. As a job has only one account, each key encrypts
    /// only one name.
    fn derive_key(&self, job: &str, end: [u8; EXPIRY_BYTES]) -> Result<LessSafeKey, Unspecified> {
        let secret = Salt::new(HKDF_SHA256, HKDF_SALT).extract(&self.0);
        let info = [&end[..], job.as_bytes()];
        let key = UnboundKey::from(secret.expand(&info, &CHACHA20_POLY1305)?);
        Ok(LessSafeKey::new(key))
    }
}

/// The nonce is constant, which is safe because each key encrypts only one name.
fn fixed_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const JOB: &str = "video_0190b6a0-0000-7000-8000-000000000001";
    const NOW: i64 = 1_700_000_000_000;
    /// A moment before the expiry of the tokens in these tests.
    const BEFORE: i64 = NOW - 1;

    fn signer() -> UrlSigner {
        UrlSigner::new([7; 32], None)
    }

    #[test]
    fn a_token_is_what_the_rfc_would_make_of_it() {
        // The expected value was computed with another implementation.
        let secret = std::array::from_fn(|i| u8::try_from(i).expect("small"));
        let token = UrlSigner::new(secret, None).make_token("acme", JOB, NOW);
        assert_eq!(
            token.expect("a token"),
            "AAABi8_laACVDlGsvoztAciA0ENC2b_vk-Ujr8mPnPugTajhx7ZJz1sGFveSiURa4a\
             zf5FmA3fSrnOG42qB6wIUI3HuQJ1XiR2SS-3TvpwUIJdPetQ4PgA"
        );
    }

    #[rstest]
    #[case(NOW - 1, true)]
    #[case(NOW, false)]
    #[case(NOW + 1, false)]
    #[case(i64::MAX, false)]
    #[case::the_longest_life(NOW - TOKEN_TTL_MAX_MS, true)]
    #[case::longer_than_any(NOW - TOKEN_TTL_MAX_MS - 1, false)]
    #[case::much_longer(0, false)]
    #[case::before_time(i64::MIN, false)]
    fn a_token_is_good_for_ten_minutes_before_its_end(#[case] now_ms: i64, #[case] is_good: bool) {
        let token = signer().make_token("acme", JOB, NOW).expect("a token");
        assert_eq!(signer().verify(JOB, &token, now_ms).is_some(), is_good);
    }

    #[test]
    fn a_token_told_whose_file_it_was() {
        let bytes = |account: &str, job: &str| {
            let token = signer().make_token(account, job, NOW).expect("a token");
            URL_SAFE_NO_PAD.decode(token).expect("sound")
        };
        let (long, short) = (bytes("a-rather-long-name", JOB), bytes("a", JOB));
        assert_eq!(long.len(), short.len(), "not even how long the name is");
        assert!(!long.windows(6).any(|part| part == b"rather"));
        // Nor does it show that two files belong to one account.
        assert_ne!(bytes("acme", JOB)[8..], bytes("acme", "video_2")[8..]);
    }

    #[test]
    fn parts_of_a_token_cannot_change_places() {
        let token = signer().make_token("bc", "a", NOW).expect("a token");
        assert_eq!(signer().verify("a", &token, BEFORE), Some("bc".to_owned()));
        assert_eq!(signer().verify("ab", &token, BEFORE), None);
        let bytes = URL_SAFE_NO_PAD.decode(&token).expect("sound");
        let moved = URL_SAFE_NO_PAD.encode([&bytes[..8], &bytes[9..], &[0]].concat());
        assert_eq!(signer().verify("ab", &moved, BEFORE), None);
    }

    #[test]
    fn while_the_secret_is_changed_the_new_one_makes_tokens_and_both_know_them() {
        let [old, both, new] = [
            UrlSigner::new([1; 32], None),
            UrlSigner::new([2; 32], Some([1; 32])),
            UrlSigner::new([2; 32], None),
        ];
        let [of_old, of_both] =
            [&old, &both].map(|signer| signer.make_token("acme", JOB, NOW).expect("a token"));
        let opens = |signer: &UrlSigner, token: &str| signer.verify(JOB, token, BEFORE).is_some();
        assert_eq!([&old, &both, &new].map(|signer| opens(signer, &of_old)), [true, true, false]);
        assert_eq!([&old, &both, &new].map(|signer| opens(signer, &of_both)), [false, true, true]);
    }

    #[rstest]
    fn what_is_no_token_opens_nothing(
        #[values(
            String::new(),
            "A".to_owned(),
            "AAAA".to_owned(),
            "=".repeat(TOKEN_CHARS),
            "A".repeat(TOKEN_CHARS - 1),
            "A".repeat(TOKEN_CHARS),
            "A".repeat(100_000),
            "ä".repeat(40)
        )]
        token: String,
    ) {
        assert_eq!(signer().verify(JOB, &token, -1), None);
    }

    #[test]
    fn the_longest_name_fits() {
        let longest = "x".repeat(64);
        let token = signer().make_token(&longest, JOB, NOW).expect("a token");
        assert_eq!((token.len(), token.len()), (TOKEN_CHARS, 118));
        assert_eq!(signer().verify(JOB, &token, BEFORE), Some(longest));
    }

    proptest! {
        #[test]
        fn a_token_opens_to_its_account(
            secret: [u8; 32], account in "[A-Za-z0-9._-]{1,64}",
            job in "video_[0-9a-f-]{36}", end: i64
        ) {
            let signer = UrlSigner::new(secret, None);
            let token = signer.make_token(&account, &job, end).expect("a token");
            let is_base64url = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            prop_assert!(token.bytes().all(is_base64url));
            let opened = signer.verify(&job, &token, end.saturating_sub(1));
            prop_assert_eq!(opened, (end > i64::MIN).then_some(account));
            prop_assert_eq!(signer.verify(&job, &token, end), None);
        }

        #[test]
        fn a_token_with_a_bit_flipped_opens_nothing(
            account in "[A-Za-z0-9._-]{1,64}", at: prop::sample::Index, bit in 0..8_u8
        ) {
            let token = signer().make_token(&account, JOB, NOW).expect("a token");
            let mut bytes = URL_SAFE_NO_PAD.decode(&token).expect("sound");
            let at_byte = at.index(bytes.len());
            bytes[at_byte] ^= 1 << bit;
            prop_assert_eq!(signer().verify(JOB, &URL_SAFE_NO_PAD.encode(bytes), BEFORE), None);
        }

        #[test]
        fn a_token_with_a_letter_changed_added_or_lost_opens_nothing(
            account in "[A-Za-z0-9._-]{1,64}", at: prop::sample::Index, letter in "[ -~]"
        ) {
            let token = signer().make_token(&account, JOB, NOW).expect("a token");
            let at = at.index(token.len());
            let changed = format!("{}{letter}{}", &token[..at], &token[at + 1..]);
            if changed != token {
                // The last letter has unused bits, which must be zero.
                prop_assert_eq!(signer().verify(JOB, &changed, BEFORE), None);
            }
            let (added, lost) = (format!("{token}{letter}"), &token[..token.len() - 1]);
            prop_assert_eq!(signer().verify(JOB, &added, BEFORE), None);
            prop_assert_eq!(signer().verify(JOB, lost, BEFORE), None);
        }

        #[test]
        fn a_token_is_for_one_job_and_of_one_secret(
            job in "[ -~]{0,60}", other in "[ -~]{0,60}", secret: [u8; 32], another: [u8; 32]
        ) {
            prop_assume!(job != other && secret != another);
            let token = UrlSigner::new(secret, None).make_token("acme", &job, NOW);
            let token = token.expect("a token");
            prop_assert_eq!(UrlSigner::new(secret, None).verify(&other, &token, BEFORE), None);
            prop_assert_eq!(UrlSigner::new(another, None).verify(&job, &token, BEFORE), None);
        }
    }
}
