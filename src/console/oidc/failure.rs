//! Why a sign-in by the identity provider failed: what the person is told, and what the log.

use axum::http::StatusCode;

use super::claims::ClaimFault;
use crate::console::error::PageError;

/// The most characters of a text of the provider in the log.
const SHOWN_CHARS_MAX: usize = 300;

/// Why a sign-in failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SignInFailure {
    /// The browser has no cookie of a sign-in that has begun, or the provider sent back another
    /// state.
    #[error("not begun in this browser")]
    NotBegun,
    /// The provider sent the browser back with an error instead of a code.
    #[error("the provider sent back the error '{0}'")]
    SentBack(String),
    /// The provider takes no such code: it was used before, or is too old, or was made up.
    #[error("the provider does not take the code")]
    CodeRefused,
    /// As many sign-ins as may wait for the provider do so.
    #[error("too many sign-ins wait for the provider")]
    Busy,
    /// The provider did not answer in time.
    #[error("the provider is too slow: {0}")]
    Slow(String),
    /// The provider cannot be reached, or its answers are of no use.
    #[error("the provider's answer is of no use: {0}")]
    Unusable(String),
    /// The provider has signed something that is not for this sign-in.
    #[error("the identity token is not to be trusted: {0}")]
    Untrusted(String),
    /// The claims let nobody in.
    #[error(transparent)]
    Claims(#[from] ClaimFault),
}

impl SignInFailure {
    /// Whether somebody has to do something about it who runs this gateway.
    pub(super) fn is_for_operators(&self) -> bool {
        match self {
            SignInFailure::NotBegun | SignInFailure::CodeRefused | SignInFailure::Busy => false,
            SignInFailure::SentBack(error) => !is_of_the_person(error),
            SignInFailure::Slow(_)
            | SignInFailure::Unusable(_)
            | SignInFailure::Untrusted(_)
            | SignInFailure::Claims(_) => true,
        }
    }

    /// Returns the page that says it. Why the provider is of no use is for the log: it names
    /// machines.
    pub(super) fn page(&self) -> PageError {
        let (status, message) = match self {
            SignInFailure::NotBegun => (
                StatusCode::FORBIDDEN,
                "This sign-in was not begun in this browser, has ended already, or is older than \
                 ten minutes. Begin it again."
                    .to_owned(),
            ),
            SignInFailure::SentBack(error) => (
                StatusCode::FORBIDDEN,
                format!("The identity provider has not signed you in: {error}."),
            ),
            SignInFailure::CodeRefused => (
                StatusCode::FORBIDDEN,
                "The identity provider says that this sign-in was used before, or is too old. \
                 Begin it again."
                    .to_owned(),
            ),
            SignInFailure::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many people sign in at this moment: try again.".to_owned(),
            ),
            SignInFailure::Slow(_) => (
                StatusCode::GATEWAY_TIMEOUT,
                "The identity provider does not answer in time. Try again soon.".to_owned(),
            ),
            SignInFailure::Unusable(_) => (
                StatusCode::BAD_GATEWAY,
                "The identity provider cannot be used at the moment. The log of the gateway says \
                 why."
                    .to_owned(),
            ),
            SignInFailure::Untrusted(_) => (
                StatusCode::BAD_GATEWAY,
                "What the identity provider has answered cannot be trusted. You are not signed \
                 in. The log of the gateway says why."
                    .to_owned(),
            ),
            SignInFailure::Claims(fault) => (StatusCode::FORBIDDEN, claims_message(fault)),
        };
        PageError::new(status, message)
    }
}

fn claims_message(fault: &ClaimFault) -> String {
    match fault {
        ClaimFault::NoName(claim) => {
            format!("The identity provider does not tell who you are: it has sent no '{claim}'.")
        }
        ClaimFault::UnusableName(claim) => format!(
            "Your '{claim}' cannot be a name here: a name has printable ASCII characters without \
             spaces, at most 255."
        ),
        ClaimFault::UnverifiedEmail(name) => format!(
            "The identity provider has not verified your e-mail address {name}. Verify it there, \
             and sign in again."
        ),
        ClaimFault::NoRole { name, .. } => format!(
            "You are {name}, and have no role here. Ask somebody who runs this gateway for one."
        ),
    }
}

/// Whether an error that the provider sends back is the person's matter, such as a sign-in that
/// was cancelled.
fn is_of_the_person(error: &str) -> bool {
    matches!(
        error,
        "access_denied" | "login_required" | "interaction_required" | "consent_required"
    )
}

/// Returns the error code of the provider if it looks like one; else that it does not.
pub(super) fn error_code(text: &str) -> String {
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_code = (1..=64).contains(&text.len()) && text.bytes().all(is_known);
    if is_code { text.to_owned() } else { "an unknown error".to_owned() }
}

/// Returns a text of the provider for the log: without what is not printable, without our secret,
/// and not too long of it.
pub(super) fn loggable(text: &str, secret: Option<&str>) -> String {
    let text = match secret {
        Some(secret) if !secret.is_empty() => text.replace(secret, "…"),
        _ => text.to_owned(),
    };
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_provider_is_shown_if_it_looks_like_one() {
        assert_eq!(error_code("access_denied"), "access_denied");
        for text in ["", "Call 555-0100", "<b>", &"a".repeat(65), "ACCESS"] {
            assert_eq!(error_code(text), "an unknown error");
        }
    }

    #[test]
    fn the_log_has_no_secret_no_line_breaks_and_not_too_much() {
        assert_eq!(loggable("a\nb canary", Some("canary")), "a b …");
        assert_eq!(loggable("a", Some("")), "a");
        assert_eq!(loggable(&"x".repeat(1_000), None).len(), SHOWN_CHARS_MAX);
    }

    #[test]
    fn what_a_visitor_can_do_alone_is_not_logged() {
        let of = |error: &str| SignInFailure::SentBack(error_code(error));
        for quiet in [
            SignInFailure::NotBegun,
            SignInFailure::CodeRefused,
            SignInFailure::Busy,
            of("access_denied"),
        ] {
            assert!(!quiet.is_for_operators(), "{quiet}");
        }
        let unusable = SignInFailure::Unusable("10.0.0.1 refuses".to_owned());
        assert!(unusable.is_for_operators() && of("invalid_scope").is_for_operators());
        assert!(!unusable.page().message.contains("10.0.0.1"));
    }
}
