//! Why something is not changed or found. The text of each error is for people, and says what would
//! be right.

use crate::ledger::{AccountName, BookName, PlanName, ScopeFault, Unavailable};

/// The line before a change cannot be written. Nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no line can be written to the audit trail, so nothing was changed: {0}")]
pub(crate) struct AuditTrailError(pub(super) String);

/// Why something is not changed or found.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ManagementError {
    /// What was named does not exist.
    #[error("{message}")]
    NotFound {
        /// What was looked for, such as `account`.
        what: &'static str,
        message: String,
    },
    /// What was to be made exists already.
    #[error("{message}")]
    AlreadyExists {
        /// What it is, such as `account`.
        what: &'static str,
        message: String,
    },
    /// A value is wrong.
    #[error("{message}")]
    Invalid {
        /// The name of the field in the API.
        field: &'static str,
        message: String,
    },
    /// The change contradicts what was changed before.
    #[error("{message}")]
    Conflict {
        /// The code of the error in the API.
        code: &'static str,
        message: String,
    },
    /// A key was made, and the keys that it replaces were not ended.
    #[error("{message}: {cause}")]
    Unfinished { message: String, cause: Box<ManagementError> },
    /// The system has no random bits for a secret.
    #[error("no random bits: {0}")]
    NoRandomBits(String),
    /// The store has given an answer that does not belong to the operation.
    #[error("unexpected answer: {0}")]
    UnexpectedAnswer(String),
    /// What is asked for cannot be told yet. It can be in a moment.
    #[error("{message}")]
    NotReady {
        /// The code of the error in the API.
        code: &'static str,
        message: String,
    },
    /// The books of an account do not agree, so nothing is told of them.
    #[error("there is no statement, since the books do not add up: {0}")]
    BooksDiffer(String),
    /// The change could not be recorded, and so was not made.
    #[error(transparent)]
    Audit(#[from] AuditTrailError),
    /// The store cannot be reached. It is not known whether the change was made.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Returns the error that no account has this name.
pub(crate) fn no_such_account(name: &AccountName) -> ManagementError {
    let message = format!("there is no account '{name}'");
    ManagementError::NotFound { what: "account", message }
}

/// Returns the error that no key is listed under a beginning, or has an id.
pub(crate) fn no_such_key(prefix: &str) -> ManagementError {
    let message = format!("there is no key listed as '{prefix}'");
    ManagementError::NotFound { what: "key", message }
}

/// Returns the error that no operator has this name.
pub(crate) fn no_such_operator(name: &str) -> ManagementError {
    let message = format!("there is no operator '{name}'");
    ManagementError::NotFound { what: "operator", message }
}

/// Returns the error of a scope that cannot be stored.
pub(crate) fn scope_fault(fault: &ScopeFault) -> ManagementError {
    ManagementError::Invalid { field: "scope", message: fault.to_string() }
}

/// Parses the name of an account.
pub(crate) fn parse_account(text: &str) -> Result<AccountName, ManagementError> {
    AccountName::parse(text).ok_or_else(|| ManagementError::Invalid {
        field: "account",
        message: format!("'{text}' is no account name: 1 to 64 letters, digits, '-', '_' and '.'"),
    })
}

/// Parses the name of a price book.
pub(crate) fn parse_book_name(text: &str) -> Result<BookName, ManagementError> {
    BookName::parse(text).ok_or_else(|| ManagementError::Invalid {
        field: "book",
        message: format!(
            "'{text}' is no name of a price book: 1 to 64 letters, digits, '-' and '_'"
        ),
    })
}

/// Parses the name of a plan.
pub(crate) fn parse_plan_name(text: &str) -> Result<PlanName, ManagementError> {
    PlanName::parse(text).ok_or_else(|| ManagementError::Invalid {
        field: "plan",
        message: format!("'{text}' is no name of a plan: 1 to 64 letters, digits, '-' and '_'"),
    })
}
