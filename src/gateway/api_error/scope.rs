//! The errors of requests that the scope of their key does not allow.

use super::ScopeError;
use super::description::{ErrorDescription, PERMISSION, SERVER_ERROR, invalid, permanent};

/// At most this many of the models or endpoints that a key may use are named.
const NAMED_MAX: usize = 16;

impl ScopeError {
    pub(super) fn describe(&self) -> ErrorDescription<'_> {
        match self {
            ScopeError::Expired(at) => {
                let message = match jiff::Timestamp::from_second(*at) {
                    Ok(at) => format!("the key expired at {at}"),
                    Err(_) => "the key has expired".to_owned(),
                };
                invalid(401, "key_expired", message)
            }
            ScopeError::Disabled => {
                invalid(401, "key_disabled", "the key is disabled; its owner can enable it")
            }
            ScopeError::Suspended => {
                let message = "the account is suspended; whoever runs this gateway can resume it";
                permanent(403, PERMISSION, "account_suspended", message)
            }
            ScopeError::UnknownPlan(name) => {
                let message = format!(
                    "the plan '{name}' of the account or the key is not set up here; whoever runs \
                     this gateway has to set it up"
                );
                permanent(503, SERVER_ERROR, "plan_not_found", message)
            }
            ScopeError::UnknownBook(name) => {
                let message = format!(
                    "the price book '{name}' of the account is not set up here; whoever runs this \
                     gateway has to set it up"
                );
                permanent(503, SERVER_ERROR, "book_not_found", message)
            }
            ScopeError::ModelNotAllowed { model, allowed } => {
                let allowed = name_allowed(allowed);
                let message = format!("the key may not use model '{model}'; it may use {allowed}");
                let error = permanent(403, PERMISSION, "model_not_allowed", message);
                ErrorDescription { param: Some("model"), ..error }
            }
            ScopeError::EndpointNotAllowed { endpoint, allowed } => {
                let allowed = name_allowed(allowed);
                let message = format!("the key may not use '{endpoint}'; it may use {allowed}");
                permanent(403, PERMISSION, "endpoint_not_allowed", message)
            }
            ScopeError::AddressNotAllowed(address) => {
                let message = match address {
                    Some(address) => format!("the key may not be used from {address}"),
                    None => "the key may not be used from an unknown address".to_owned(),
                };
                permanent(403, PERMISSION, "address_not_allowed", message)
            }
        }
    }
}

fn name_allowed(names: &[String]) -> String {
    let first: Vec<&str> = names.iter().take(NAMED_MAX).map(String::as_str).collect();
    let listed = first.join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::ledger::{BookName, PlanName};

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("m{number}")).collect()
    }

    #[rstest]
    #[case::expired(ScopeError::Expired(1_800_000_000), 401, "key_expired", "2027-01-15T08:00:00Z")]
    #[case::far(ScopeError::Expired(i64::MAX), 401, "key_expired", "has expired")]
    #[case::disabled(ScopeError::Disabled, 401, "key_disabled", "is disabled")]
    #[case::suspended(ScopeError::Suspended, 403, "account_suspended", "is suspended")]
    #[case::unknown_plan(
        ScopeError::UnknownPlan(PlanName::parse("gold").expect("a name")),
        503,
        "plan_not_found",
        "the plan 'gold' of the account or the key is not set up here; whoever runs this gateway"
    )]
    #[case::unknown_book(
        ScopeError::UnknownBook(BookName::parse("gold").expect("a name")),
        503,
        "book_not_found",
        "the price book 'gold' of the account is not set up here; whoever runs this gateway"
    )]
    #[case::address(
        ScopeError::AddressNotAllowed("192.0.2.7".parse().ok()),
        403,
        "address_not_allowed",
        "192.0.2.7"
    )]
    #[case::no_address(ScopeError::AddressNotAllowed(None), 403, "address_not_allowed", "unknown")]
    #[case::endpoint(
        ScopeError::EndpointNotAllowed { endpoint: "chat", allowed: names(2) },
        403,
        "endpoint_not_allowed",
        "may not use 'chat'; it may use m0, m1"
    )]
    #[case::model(
        ScopeError::ModelNotAllowed { model: "x".to_owned(), allowed: names(18) },
        403,
        "model_not_allowed",
        "m15 and 2 more"
    )]
    fn a_refusal_says_what_is_allowed_and_forbids_a_retry(
        #[case] error: ScopeError,
        #[case] status: u16,
        #[case] code: &str,
        #[case] told: &str,
    ) {
        let row = error.describe();
        assert_eq!((row.status, row.code, row.forbids_retry), (status, code, true));
        assert!(row.message.contains(told), "{}", row.message);
    }
}
