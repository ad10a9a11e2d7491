//! The error of a call that is above a rate limit.

use super::description::{ErrorDescription, permanent, retryable};
use crate::gateway::call_rates::RateRefusal;
use crate::gateway::rate_headers::format_duration;
use crate::ledger::{BudgetOwner, RateKind, RateLimit};

const CODE: &str = "rate_limit_exceeded";

impl RateRefusal {
    pub(super) fn describe(&self) -> ErrorDescription<'static> {
        // The type says which kind of limit it is. The messages format has one type for all.
        let (kind, message) = (self.id.kind.name(), self.message());
        let Some(ms) = self.retry_after_ms else { return permanent(429, kind, CODE, message) };
        let ms = u64::try_from(ms).unwrap_or_default();
        let error = retryable(429, kind, CODE, message);
        let error = error.retry_after(ms.div_ceil(1_000).max(1));
        ErrorDescription { retry_after_ms: Some(ms), ..error }
    }

    fn message(&self) -> String {
        let owner = match self.id.owner {
            BudgetOwner::Account => "account",
            BudgetOwner::Key(_) => "key",
        };
        let asked = self.rates.asks.iter().find(|ask| ask.id == self.id);
        let allowed = match (self.id.kind, asked.map(|ask| ask.limit)) {
            (RateKind::Requests, Some(RateLimit { per_minute, .. })) => {
                format!("may make {} a minute", count(per_minute, "request"))
            }
            (RateKind::Tokens, Some(RateLimit { per_minute, .. })) => {
                format!("may use {} a minute", count(per_minute, "token"))
            }
            (RateKind::Calls, Some(RateLimit { burst, .. })) => {
                format!("may have {} at a time", count(burst, "call"))
            }
            (RateKind::Requests | RateKind::Tokens, None) => {
                format!("has used up its limit of {} a minute", self.id.kind.name())
            }
            (RateKind::Calls, None) => "has used up its limit of calls at a time".to_owned(),
        };
        let models = if self.id.row == 0 { "" } else { " of models such as this one" };
        let when = match self.retry_after_ms {
            Some(ms) => format!("try again in {}", format_duration(ms)),
            None => "no call passes this limit".to_owned(),
        };
        format!("the {owner} {allowed}{models}; {when}")
    }
}

/// Writes a number of things.
fn count(number: i64, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::gateway::api_error::{AdmissionError, ApiError, ErrorFormat};
    use crate::gateway::call_rates::CallRates;
    use crate::ledger::{KeyId, RateAsk, RateId};

    /// The refusal of a limit of a size, or of one whose size is not known.
    fn refusal(id: &str, size: Option<i64>, retry_after_ms: Option<i64>) -> ApiError {
        let id: RateId = id.parse().expect("a limit");
        let limit = |size| RateLimit { per_minute: size, burst: size };
        let ask = |size| RateAsk { id, limit: limit(size), amount: 1, is_shadow: false };
        let rates = CallRates { asks: size.map(ask).into_iter().collect(), readings: Vec::new() };
        AdmissionError::RateLimited(Box::new(RateRefusal { id, retry_after_ms, rates })).into()
    }

    #[rstest]
    #[case::requests(
        refusal("account/requests/0", Some(20), Some(2_001)),
        "requests",
        "the account may make 20 requests a minute; try again in 2.001s"
    )]
    #[case::tokens(
        refusal("key:7/tokens/2", Some(40_000), Some(150_000)),
        "tokens",
        "the key may use 40000 tokens a minute of models such as this one; try again in 2m30s"
    )]
    #[case::calls(
        refusal("account/calls/0", Some(1), Some(1_000)),
        "calls",
        "the account may have 1 call at a time; try again in 1s"
    )]
    #[case::nothing(
        refusal("key:7/requests/0", Some(0), None),
        "requests",
        "the key may make 0 requests a minute; no call passes this limit"
    )]
    #[case::of_unknown_size(
        refusal("account/tokens/0", None, Some(12)),
        "tokens",
        "the account has used up its limit of tokens a minute; try again in 12ms"
    )]
    #[case::of_unknown_places(
        refusal("account/calls/0", None, Some(1_000)),
        "calls",
        "the account has used up its limit of calls at a time; try again in 1s"
    )]
    fn a_refusal_names_the_limit_and_its_owner_and_when_to_try_again(
        #[case] error: ApiError,
        #[case] kind: &str,
        #[case] message: &str,
    ) {
        let chat = error.to_response(ErrorFormat::Chat, "r-1");
        let expected = format!(
            r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":"{CODE}"}}}}"#
        );
        assert_eq!((chat.status, &*chat.body), (429, expected.as_bytes()));
        let messages = error.to_response(ErrorFormat::Messages, "r-1");
        let body: serde_json::Value = serde_json::from_slice(&messages.body).expect("JSON");
        assert_eq!((messages.status, messages.code.as_str()), (429, CODE));
        assert_eq!(body["error"]["type"], "rate_limit_error");
        assert_eq!(body["error"]["message"], message);
    }

    #[test]
    fn clients_wait_as_long_as_it_takes_and_never_for_a_limit_of_nothing() {
        let error = |retry| refusal("account/requests/0", Some(20), retry);
        let headers = |retry| error(retry).to_response(ErrorFormat::Chat, "r").headers;
        let waits = |seconds: &str, ms: &str| {
            vec![("retry-after", seconds.to_owned()), ("retry-after-ms", ms.to_owned())]
        };
        assert_eq!(headers(Some(2_001)), waits("3", "2001"));
        assert_eq!(headers(Some(2_000)), waits("2", "2000"));
        assert_eq!(headers(Some(1)), waits("1", "1"));
        assert_eq!(headers(Some(-1)), waits("1", "0"));
        assert_eq!(headers(None), [("x-should-retry", "false".to_owned())]);
        assert!(error(Some(1)).invites_retry() && !error(None).invites_retry());
    }

    #[test]
    fn the_owner_is_told_without_its_id() {
        let error = refusal(&format!("{}/calls/0", BudgetOwner::Key(KeyId(99))), Some(4), None);
        let row = error.describe();
        assert!(row.message.starts_with("the key may have 4 calls"), "{}", row.message);
    }
}
