//! The errors of requests for what the own account has used.

use super::AccountError;
use super::description::{ErrorDescription, RATE_LIMIT, RETRY_AFTER_S, invalid, retryable};

impl AccountError {
    pub(super) fn describe(self) -> ErrorDescription<'static> {
        match self {
            AccountError::GenerationNotFound => {
                let message = "this key has no charge of such an id";
                let error = invalid(404, "generation_not_found", message);
                ErrorDescription { param: Some("id"), ..error }
            }
            AccountError::SearchRunning => {
                let message =
                    "another question about charges or usage is being answered; ask again";
                let error = retryable(429, RATE_LIMIT, "search_running", message);
                error.retry_after(RETRY_AFTER_S)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::api_error::{ApiError, ErrorFormat};

    #[test]
    fn an_unknown_id_stays_unknown_and_a_search_may_be_repeated() {
        let missing: ApiError = AccountError::GenerationNotFound.into();
        let missing = missing.to_response(ErrorFormat::Chat, "r");
        let body = r#"{"error":{"message":"this key has no charge of such an id","type":"invalid_request_error","param":"id","code":"generation_not_found"}}"#;
        assert_eq!((missing.status, &*missing.body), (404, body.as_bytes()));
        assert_eq!(missing.headers, [("x-should-retry", "false".to_owned())]);
        let busy: ApiError = AccountError::SearchRunning.into();
        let busy = busy.to_response(ErrorFormat::Chat, "r");
        assert_eq!((busy.status, busy.code.as_str()), (429, "search_running"));
        assert_eq!(busy.headers, [("retry-after", "1".to_owned())]);
    }
}
