//! What a request asks of its own account: the paths and their parameters.

use http::Method;
use pingora::http::RequestHeader;

use super::organization::{ReportKind, ReportQuery};
use super::parameters::single_value;
use super::usage::AccountUsageQuery;
use crate::dialect::CallError;
use crate::dialect::relay::is_reply_id;
use crate::gateway::api_error::ApiError;
use crate::gateway::request::target::require_method;

pub(crate) const CREDITS_PATH: &str = "/v1/credits";
pub(crate) const KEY_PATH: &str = "/v1/key";
pub(crate) const GENERATION_PATH: &str = "/v1/generation";
pub(crate) const CHARGES_PATH: &str = "/v1/charges";
pub(crate) const USAGE_PATH: &str = "/v1/usage";
pub(crate) const COSTS_PATH: &str = "/v1/organization/costs";
pub(crate) const COMPLETIONS_PATH: &str = "/v1/organization/usage/completions";
/// Clients of other gateways ask for the balance, the key and a generation below this path.
const OTHER_BASE: &str = "/api";
const OTHER_PATHS: [&str; 3] = [CREDITS_PATH, KEY_PATH, GENERATION_PATH];

/// A page of the charges has this many lines if the client names no number.
const PAGE_LINES_DEFAULT: usize = 100;
const PAGE_LINES_MAX: usize = 1_000;
/// The largest whole number that all readers of JSON know exactly.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// What a request asks of its own account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AccountQuery {
    /// The balance.
    Credits,
    /// The key with which it is asked.
    Key,
    /// The charge of the call with this id, or with this id of its reply.
    Generation(String),
    /// A page of the charges.
    Charges(ChargesPage),
    /// A page of what was used.
    Usage(AccountUsageQuery),
    /// A page of what was used, in the shape of a report on an organization.
    Report(ReportQuery),
}

/// A page of the charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChargesPage {
    /// The page begins after the line with this number.
    pub(super) after: u64,
    /// It has at most this many lines.
    pub(super) limit: usize,
}

impl AccountQuery {
    /// Parses a request; `None` if its path is not one of these.
    ///
    /// # Errors
    /// The path does not allow the method, or a parameter is missing, repeated or wrong.
    pub(crate) fn from_request(head: &RequestHeader) -> Result<Option<AccountQuery>, ApiError> {
        let path = head.uri.path();
        let of_other = path.strip_prefix(OTHER_BASE);
        let of_other = of_other.filter(|path| OTHER_PATHS.contains(path));
        let path = of_other.unwrap_or(path);
        let query = head.uri.query().unwrap_or_default();
        let parse: fn(&str) -> Result<AccountQuery, ApiError> = match path {
            CREDITS_PATH => |_| Ok(AccountQuery::Credits),
            KEY_PATH => |_| Ok(AccountQuery::Key),
            GENERATION_PATH => parse_generation,
            CHARGES_PATH => parse_charges,
            USAGE_PATH => |query| AccountUsageQuery::parse(query).map(AccountQuery::Usage),
            COSTS_PATH => |query| parse_report(ReportKind::Costs, query),
            COMPLETIONS_PATH => |query| parse_report(ReportKind::Completions, query),
            _ => return Ok(None),
        };
        require_method(head, &Method::GET, "GET")?;
        parse(query).map(Some)
    }
}

fn parse_generation(query: &str) -> Result<AccountQuery, ApiError> {
    let expected = "the id of a request or of a reply, once";
    let Some(id) = single_value(query, "id", expected)? else {
        return Err(CallError::missing("id", expected).into());
    };
    if !is_reply_id(&id) {
        return Err(CallError::invalid("id", expected).into());
    }
    Ok(AccountQuery::Generation(id))
}

fn parse_report(kind: ReportKind, query: &str) -> Result<AccountQuery, ApiError> {
    ReportQuery::parse(kind, query).map(AccountQuery::Report)
}

fn parse_charges(query: &str) -> Result<AccountQuery, ApiError> {
    let page_lines = "a whole number from 1 to 1000, once";
    let after = parse_number(query, "after", NUMBER_MAX, "the number of a line, once")?;
    let limit = parse_number(query, "limit", PAGE_LINES_MAX as u64, page_lines)?;
    let limit = match limit.map(usize::try_from) {
        None => PAGE_LINES_DEFAULT,
        Some(Ok(limit)) if limit > 0 => limit,
        Some(_) => return Err(CallError::invalid("limit", page_lines).into()),
    };
    Ok(AccountQuery::Charges(ChargesPage { after: after.unwrap_or_default(), limit }))
}

fn parse_number(
    query: &str,
    name: &str,
    most: u64,
    expected: &str,
) -> Result<Option<u64>, ApiError> {
    let Some(text) = single_value(query, name, expected)? else { return Ok(None) };
    let number = Some(text)
        .filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .filter(|number| *number <= most);
    number.map(Some).ok_or_else(|| CallError::invalid(name, expected).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::api_error::{AdmissionError, RequestError};

    fn parse(method: &str, target: &str) -> Result<Option<AccountQuery>, ApiError> {
        let head = RequestHeader::build(method, target.as_bytes(), None).expect("a head");
        AccountQuery::from_request(&head)
    }

    #[test]
    fn the_paths_are_known_with_and_without_their_other_base() {
        let charges = |after, limit| AccountQuery::Charges(ChargesPage { after, limit });
        for (target, expected) in [
            ("/v1/credits", Some(AccountQuery::Credits)),
            ("/api/v1/credits", Some(AccountQuery::Credits)),
            ("/v1/key?x=1", Some(AccountQuery::Key)),
            ("/api/v1/key", Some(AccountQuery::Key)),
            ("/v1/generation?id=a%2Db", Some(AccountQuery::Generation("a-b".to_owned()))),
            ("/api/v1/generation?id=a", Some(AccountQuery::Generation("a".to_owned()))),
            ("/v1/charges", Some(charges(0, 100))),
            ("/v1/charges?after=7&limit=1000", Some(charges(7, 1_000))),
            ("/v1/usage", Some(AccountQuery::Usage(AccountUsageQuery::default()))),
            ("/api/v1/charges", None),
            ("/api/v1/usage", None),
            ("/v1/organization", None),
            ("/v1/organization/usage", None),
            ("/api/v1/models", None),
            ("/v1/keys", None),
            ("/v1/key/", None),
            ("/api/api/v1/key", None),
        ] {
            assert_eq!(parse("GET", target).expect("a sound request"), expected, "{target}");
        }
    }

    #[test]
    fn other_methods_are_refused() {
        for path in [
            CREDITS_PATH,
            KEY_PATH,
            GENERATION_PATH,
            CHARGES_PATH,
            USAGE_PATH,
            COSTS_PATH,
            COMPLETIONS_PATH,
        ] {
            for method in ["POST", "HEAD", "DELETE"] {
                let refused = parse(method, path);
                let is_refused = matches!(
                    refused,
                    Err(ApiError::Request(RequestError::MethodNotAllowed("GET")))
                );
                assert!(is_refused, "{method} {path}");
            }
        }
    }

    #[test]
    fn a_parameter_that_is_missing_repeated_or_wrong_is_named() {
        let long = format!("/v1/generation?id={}", "x".repeat(129));
        for (target, param) in [
            ("/v1/generation", "id"),
            ("/v1/generation?id", "id"),
            ("/v1/generation?id=", "id"),
            ("/v1/generation?id=a&id=a", "id"),
            ("/v1/generation?id=%zz", "id"),
            ("/v1/generation?id=a%20b", "id"),
            (long.as_str(), "id"),
            ("/v1/charges?limit=0", "limit"),
            ("/v1/charges?limit=1001", "limit"),
            ("/v1/charges?limit=-1", "limit"),
            ("/v1/charges?limit=ten", "limit"),
            ("/v1/charges?limit=", "limit"),
            ("/v1/charges?limit=1&limit=1", "limit"),
            ("/v1/charges?after=-1", "after"),
            ("/v1/charges?after=9007199254740992", "after"),
            ("/v1/charges?after=99999999999999999999", "after"),
            ("/v1/charges?after=1&after=2", "after"),
            ("/v1/usage?from=a&from=b", "from"),
            ("/v1/usage?group_by=%zz", "group_by"),
            ("/v1/organization/costs", "start_time"),
            ("/v1/organization/usage/completions?start_time=x", "start_time"),
        ] {
            let Err(ApiError::Admission(AdmissionError::InvalidCall(why))) = parse("GET", target)
            else {
                panic!("{target} is not refused");
            };
            assert_eq!(why.param.as_deref(), Some(param), "{target}");
        }
    }
}
