//! The bounds of what a store keeps of operators, and the checks of what it is given to keep.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::OperatorRecord;
use crate::ledger::{AccountName, Unavailable};

/// At most this many operators are kept.
pub const OPERATORS_MAX: u32 = 1_000;
/// A line of the record of changes has at most this many bytes.
pub const AUDIT_LINE_BYTES_MAX: usize = 64 << 10;
/// At most this many lines of the record of changes are kept.
pub const AUDIT_LINES_MAX: u32 = 100_000;
/// With a new line, at most this many of the oldest ones leave the store.
pub const AUDIT_TRIM_MAX: u32 = 16;
/// A line that is the same as one of this many before it is not appended again.
pub const AUDIT_RECENT_LINES: u32 = 8;
/// At most this many lines of the record of changes are returned at a time.
pub const AUDIT_PAGE_MAX: u32 = 2_000;
/// The name of a request has at most this many bytes.
pub const REQUEST_NAME_BYTES_MAX: usize = 255;
/// At most this many named requests of an operator are kept. The oldest make room for a new one.
pub const OPERATOR_REQUESTS_MAX: u32 = 10_000;
/// The reply to a named request has at most this many bytes.
pub const REQUEST_REPLY_BYTES_MAX: usize = 64 << 10;
/// The name of a request is known for this long, in ms (one day).
pub const REQUEST_TTL_MS: u32 = 24 * 60 * 60 * 1_000;

/// The beginning of a token that is shown in lists has at most this many bytes.
const PREFIX_BYTES_MAX: usize = 64;

/// Checks the name of an operator, for which the rules of account names hold.
///
/// # Errors
/// [`Unavailable`] if it is none.
pub fn check_operator_name(name: &str) -> Result<(), Unavailable> {
    match AccountName::parse(name) {
        Some(_) => Ok(()),
        None => Err(Unavailable(format!("'{name:.64}' is no name of an operator"))),
    }
}

/// Checks the beginning of a token that is shown in lists.
///
/// # Errors
/// [`Unavailable`] if it is none.
pub fn check_token_prefix(prefix: &str) -> Result<(), Unavailable> {
    let is_sound = (1..=PREFIX_BYTES_MAX).contains(&prefix.len())
        && prefix.bytes().all(|byte| byte.is_ascii_graphic());
    let fault = || Unavailable("that is no beginning of a token".to_owned());
    is_sound.then_some(()).ok_or_else(fault)
}

/// Checks the record of an operator.
///
/// # Errors
/// [`Unavailable`] if it cannot be kept.
pub fn check_operator(record: &OperatorRecord) -> Result<(), Unavailable> {
    check_operator_name(&record.name)?;
    check_token_prefix(&record.prefix)
}

/// Checks a line of the record of changes.
///
/// # Errors
/// [`Unavailable`] if it is too long.
pub fn check_audit_line(line: &str) -> Result<(), Unavailable> {
    check_length("a line of the record of changes", line, AUDIT_LINE_BYTES_MAX)
}

/// Checks the names of an operator and of its request.
///
/// # Errors
/// [`Unavailable`] if one of them is none.
pub fn check_request(owner: &str, name: &str) -> Result<(), Unavailable> {
    check_operator_name(owner)?;
    check_length("the name of a request", name, REQUEST_NAME_BYTES_MAX)
}

/// Checks the reply to a named request.
///
/// # Errors
/// [`Unavailable`] if it is too long.
pub fn check_request_reply(reply: &str) -> Result<(), Unavailable> {
    check_length("the reply to a request", reply, REQUEST_REPLY_BYTES_MAX)
}

fn check_length(what: &str, text: &str, bytes_max: usize) -> Result<(), Unavailable> {
    let bytes = text.len();
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Unavailable(format!("{what} has {bytes} bytes; at most {bytes_max}")))
}

/// Returns the error that there is no room for another operator.
pub(crate) fn too_many_operators() -> Unavailable {
    Unavailable(format!("there are {OPERATORS_MAX} operators, and no more are kept"))
}

/// Returns the error that another operator has the token.
pub(crate) fn token_taken() -> Unavailable {
    Unavailable("another operator has this token".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    #[test]
    fn what_is_too_long_or_has_a_space_is_not_kept() {
        let record = |name: &str, prefix: &str| OperatorRecord {
            name: name.to_owned(),
            role: Role::Owner,
            prefix: prefix.to_owned(),
            created_at: 1,
            expires_at: None,
        };
        assert_eq!(check_operator(&record("ada-1_b.c", "sk-tg-op-01234567")), Ok(()));
        for (name, prefix) in [("", "p"), ("a b", "p"), ("a:b", "p"), ("ada", ""), ("ada", "p q")] {
            assert!(check_operator(&record(name, prefix)).is_err(), "{name} {prefix}");
        }
        let long = |bytes: usize| "x".repeat(bytes);
        assert_eq!(check_request("ada", &long(REQUEST_NAME_BYTES_MAX)), Ok(()));
        assert!(check_request("ada", &long(REQUEST_NAME_BYTES_MAX + 1)).is_err());
        assert!(check_request(&long(65), "name").is_err());
        assert_eq!(check_audit_line(&long(AUDIT_LINE_BYTES_MAX)), Ok(()));
        assert!(check_audit_line(&long(AUDIT_LINE_BYTES_MAX + 1)).is_err());
        assert_eq!(check_request_reply(&long(REQUEST_REPLY_BYTES_MAX)), Ok(()));
        assert!(check_request_reply(&long(REQUEST_REPLY_BYTES_MAX + 1)).is_err());
    }
}
