//! The request line: the method, the path and the query.

use http::Method;
use pingora::http::RequestHeader;

use crate::gateway::api_error::{ApiError, RequestError};

pub(crate) fn require_method(
    head: &RequestHeader,
    method: &Method,
    name: &'static str,
) -> Result<(), ApiError> {
    if head.method == *method { Ok(()) } else { Err(RequestError::MethodNotAllowed(name).into()) }
}

/// Decodes the percent escapes of an id in a path; clients escape the slash in it. `None` if an
/// escape is malformed, or if the id is empty or not UTF-8.
pub(crate) fn percent_decode(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok().filter(|id| !id.is_empty())
}

/// Returns the decoded value of a query parameter. `None` if the parameter is absent; the value is
/// empty if it cannot be decoded.
pub(crate) fn query_value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    Some(percent_decode(value).unwrap_or_default())
}
