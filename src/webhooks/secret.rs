//! The secrets of endpoints, and the signatures of messages: HMAC-SHA256 over
//! `ID.TIMESTAMP.BODY`, as Standard Webhooks says.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use serde::{Deserialize, Serialize};

/// The beginning of the text of a secret.
const PREFIX: &str = "whsec_";
/// The version of the signatures.
const SIGNATURE_VERSION: &str = "v1";

/// The secret by which the messages to an endpoint are signed: `whsec_` and 32 bytes in base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct WebhookSecret(String);

impl WebhookSecret {
    /// Makes a secret of random bits.
    pub(crate) fn from_random(bits: [u8; 32]) -> WebhookSecret {
        WebhookSecret(format!("{PREFIX}{}", BASE64_STANDARD.encode(bits)))
    }

    /// Returns the secret itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the signature of a message, as in `v1,BASE64`. `timestamp` is in unix seconds. A
    /// secret that is broken in the store signs with what is left of it, which no receiver accepts.
    pub(crate) fn sign(&self, message_id: &str, timestamp: i64, body: &str) -> String {
        let text = self.0.strip_prefix(PREFIX).unwrap_or_default();
        let key =
            hmac::Key::new(hmac::HMAC_SHA256, &BASE64_STANDARD.decode(text).unwrap_or_default());
        let signed = hmac::sign(&key, format!("{message_id}.{timestamp}.{body}").as_bytes());
        format!("{SIGNATURE_VERSION},{}", BASE64_STANDARD.encode(signed))
    }
}

impl std::fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn a_message_is_signed_as_the_standard_says() {
        let secret = WebhookSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned());
        let body = "{\"test\": 2432232314}";
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_not_shown_by_accident() {
        let secret = WebhookSecret::from_random([7; 32]);
        assert_eq!(format!("{secret:?}"), "WebhookSecret(..)");
        assert!(secret.reveal().starts_with("whsec_BwcHBwcH"));
        assert_eq!(secret.reveal().len(), PREFIX.len() + 44);
    }
}
