//! Reads the parameters of a question that is asked of an account.

use crate::dialect::CallError;
use crate::gateway::api_error::ApiError;
use crate::gateway::request::target::percent_decode;

/// Returns the decoded value of a parameter; `None` if it is absent.
pub(super) fn single_value(
    query: &str,
    name: &str,
    expected: &str,
) -> Result<Option<String>, ApiError> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut values = pairs.filter(|(found, _)| *found == name).map(|(_, value)| value);
    let (first, second) = (values.next(), values.next());
    let Some(value) = first else { return Ok(None) };
    match (percent_decode(value), second) {
        (Some(value), None) => Ok(Some(value)),
        _ => Err(CallError::invalid(name, expected).into()),
    }
}
