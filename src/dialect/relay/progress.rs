//! The progress of a reply, the errors that make it incomplete, and the data that the gateway
//! stores of a complete one.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::responses::IssuedIds;
use crate::dialect::translate::thinking::SavedThinking;
use crate::dialect::vendor_error::{VendorError, chat_error_body, messages_error_body};

/// How far a reply has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayProgress {
    /// The reply has not ended.
    Open,
    /// The whole reply has arrived.
    Complete,
    /// The reply failed, and will never be complete.
    Failed(RelayError),
}

/// Why a reply is not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// The reply, or its connection, ended before the reply was complete.
    #[error("the vendor's reply ended before it was complete")]
    Truncated,
    /// The reply does not follow its dialect.
    #[error("the vendor's reply could not be read")]
    Malformed,
    /// The reply exceeds the size limit.
    #[error("the vendor's reply is too large")]
    TooLarge,
    /// No buffer space became free in time: replies that other clients have not read fill it.
    #[error("there is no room for the vendor's reply: too much of others was not read yet")]
    NoBufferSpace,
    /// No buffer space became free in time, because this account's own clients have not read their
    /// other replies.
    #[error("too much of this account's answers was not read; this one is charged all the same")]
    SlowReader,
    /// The vendor sent nothing for too long.
    #[error("the vendor stopped answering")]
    Stalled,
    /// The client had disconnected, and the gateway did not wait for the reply any longer.
    #[error("the vendor's reply was not waited for")]
    Abandoned,
    /// The balance, or what a budget leaves, does not cover more of the reply.
    #[error("the balance, or what a budget leaves, does not cover more of the reply")]
    InsufficientCredits,
    /// The account was suspended while its reply was under way.
    #[error("the account is suspended")]
    AccountSuspended,
    /// The ledger could not be asked whether the balance covers more of the reply.
    #[error("balances cannot be checked at the moment, and what is held covers no more")]
    LedgerUnavailable,
    /// The vendor generated the content, but withholds it.
    #[error("the vendor's safety rules keep back what was made")]
    ContentFiltered,
    /// The reply has the address of the image in the place of its data.
    #[error("the vendor sent the address of the image instead of its data, which was asked for")]
    ImageAddress,
    /// The vendor reported an error itself.
    #[error("the vendor reported an error")]
    Vendor(VendorError),
}

impl RelayError {
    /// Returns the error body for the client in the chat dialect.
    #[must_use]
    pub fn chat_body(&self) -> String {
        let (kind, mut code) = self.type_and_code();
        if let RelayError::Vendor(VendorError { code: Some(own), .. }) = self {
            code = own;
        }
        chat_error_body(kind, code, None, &self.message())
    }

    /// Returns the error body for the client in the messages dialect. The vendor's own error type
    /// is kept.
    #[must_use]
    pub(crate) fn messages_body(&self, request_id: &str) -> String {
        let (kind, details) = match self {
            RelayError::Vendor(VendorError { kind: Some(kind), details, .. }) => (&**kind, details),
            RelayError::InsufficientCredits => ("billing_error", &None),
            RelayError::AccountSuspended => ("permission_error", &None),
            RelayError::ContentFiltered => ("invalid_request_error", &None),
            RelayError::Truncated
            | RelayError::Malformed
            | RelayError::TooLarge
            | RelayError::Stalled
            | RelayError::Abandoned
            | RelayError::NoBufferSpace
            | RelayError::SlowReader
            | RelayError::LedgerUnavailable
            | RelayError::ImageAddress
            | RelayError::Vendor(_) => ("api_error", &None),
        };
        messages_error_body(kind, &self.message(), details.as_deref(), request_id)
    }

    /// Whether the gateway ended the reply for lack of credit, ledger or buffer space, or because
    /// the account is suspended, so that the vendor is not at fault.
    #[must_use]
    pub(crate) fn is_gateway_side(&self) -> bool {
        matches!(
            self,
            RelayError::InsufficientCredits
                | RelayError::AccountSuspended
                | RelayError::LedgerUnavailable
                | RelayError::NoBufferSpace
                | RelayError::SlowReader
        )
    }

    /// Returns the type and the code of the error in the chat dialect.
    pub(super) fn type_and_code(&self) -> (&'static str, &'static str) {
        match self {
            RelayError::InsufficientCredits => ("insufficient_credits", "insufficient_credits"),
            RelayError::AccountSuspended => ("permission_error", "account_suspended"),
            RelayError::LedgerUnavailable => ("server_error", "ledger_unavailable"),
            RelayError::NoBufferSpace => ("server_error", "overloaded"),
            RelayError::SlowReader => ("server_error", "answers_unread"),
            RelayError::ContentFiltered => ("invalid_request_error", "content_policy_violation"),
            RelayError::Truncated
            | RelayError::Malformed
            | RelayError::TooLarge
            | RelayError::Stalled
            | RelayError::Abandoned
            | RelayError::ImageAddress
            | RelayError::Vendor(_) => ("server_error", "upstream_error"),
        }
    }

    pub(super) fn message(&self) -> String {
        match self {
            RelayError::Vendor(VendorError { message: Some(message), .. }) => message.clone(),
            other => other.to_string(),
        }
    }
}

/// Data of a complete reply that the gateway stores for later calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetainedData {
    /// The model's thinking before it called tools.
    Thinking(SavedThinking),
    /// Ids that the client received of objects that the vendor keeps.
    IssuedIds(IssuedIds),
}
