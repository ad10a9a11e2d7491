//! All API errors of the gateway. `description` has the status, code and message of each error, and
//! `response` builds the response from them.

use std::net::IpAddr;
use std::time::Duration;

use super::edge::head::HeadError;
use crate::catalogue::Model;
use crate::catalogue::field_policy::RefusedField;
use crate::dialect::relay::RelayError;
use crate::dialect::vendor_error::VendorError;
use crate::dialect::{CallError, Endpoint};
use crate::gateway::call_rates::{CallRates, RateRefusal};
use crate::ledger::{BookName, HoldRefused, PlanName, WindowId};
use crate::money::Money;

mod account;
mod budgets;
mod description;
mod rate_refusal;
mod response;
mod scope;
mod upstream;

/// The API format in which a client gets its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    /// The chat format, which other endpoints use for their errors as well.
    Chat,
    /// The messages format.
    Messages,
}

/// Why a request is not served.
#[derive(Debug, Clone)]
pub(crate) enum ApiError {
    /// The caller is not authenticated.
    Auth(ApiKeyError),
    /// The key is not for what the caller asks.
    Scope(ScopeError),
    /// The request cannot be read or routed.
    Request(RequestError),
    /// The call is not admitted.
    Admission(AdmissionError),
    /// The video job cannot be created, or its video cannot be returned.
    Video(VideoError),
    /// What the account has used cannot be told.
    Account(AccountError),
    /// The call repeats an earlier one, and there is no reply to send for it.
    Idempotency(IdempotencyError),
    /// There is no capacity for the call.
    Capacity(CapacityError),
    /// The vendor did not serve the call.
    Upstream(Box<UpstreamError>),
    /// The gateway itself failed.
    Server(ServerError),
}

/// Why a caller is not authenticated.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ApiKeyError {
    /// The request has no API key.
    Missing,
    /// No account has this key.
    Unknown,
    /// The key was revoked.
    Revoked,
}

/// Why a key is not for what its caller asks.
#[derive(Debug, Clone)]
pub(crate) enum ScopeError {
    /// The key has expired, at this time in unix seconds.
    Expired(i64),
    /// The key is disabled.
    Disabled,
    /// The account is suspended.
    Suspended,
    /// The account or the key has a plan that is not set up here.
    UnknownPlan(PlanName),
    /// The account has a price book that is not set up here.
    UnknownBook(BookName),
    /// The key is not for this endpoint.
    EndpointNotAllowed {
        /// The name of the endpoint.
        endpoint: &'static str,
        /// The names of those that the key is for.
        allowed: Vec<String>,
    },
    /// The key is not for use from this address; `None` if it is not known.
    AddressNotAllowed(Option<IpAddr>),
    /// The key is not for this model.
    ModelNotAllowed {
        /// The id of the model.
        model: String,
        /// The patterns of those that the key is for.
        allowed: Vec<String>,
    },
}

/// Why a request cannot be read or routed.
#[derive(Debug, Clone)]
pub(crate) enum RequestError {
    /// There is no such path.
    UnknownPath(String),
    /// There would be such a path with '/v1' before it.
    MissingVersion(String),
    /// The path exists, but not with this method; the `allow` header names the right ones.
    MethodNotAllowed(&'static str),
    /// The body is compressed.
    UnsupportedEncoding,
    /// The body is larger than this many bytes.
    BodyTooLarge(usize),
    /// The file of this field is larger than this many bytes.
    FileTooLarge(&'static str, usize),
    /// The body ended early.
    BodyIncomplete,
    /// The body came too slowly.
    BodyTimeout,
    /// The head is malformed.
    InvalidHead(HeadError),
    /// The head is larger than this many bytes.
    HeadTooLarge(usize),
    /// The head came too slowly.
    HeadTimeout,
}

/// Why a call is not admitted.
#[derive(Debug, Clone)]
pub(crate) enum AdmissionError {
    /// A field of the call is wrong.
    InvalidCall(CallError),
    /// There is no such model.
    ModelNotFound {
        /// The model that the caller asked for.
        asked: String,
        /// The most similar model id.
        closest: Option<String>,
    },
    /// The model is sold on another endpoint.
    WrongEndpoint {
        model: String,
        /// The endpoint on which the model is sold.
        expected: Endpoint,
    },
    /// The value of this field is an id that the account was never given, or not recently.
    IdNotOwned(String),
    /// The call uses a field that has no price.
    UnpricedField(Box<RefusedField>),
    /// A rate limit does not allow the call now.
    RateLimited(Box<RateRefusal>),
    /// The available balance does not cover the call, but together with the money that is held for
    /// calls under way it does.
    CreditInUse {
        /// The call needs at least this much.
        least: Money,
        /// The account has this much available.
        available: Money,
        /// This much is held for other calls.
        held: Money,
    },
    /// The balance does not cover the call.
    InsufficientBalance {
        /// The call needs at least this much.
        least: Money,
        /// The account has this much.
        available: Money,
    },
    /// A budget does not allow the call until its window ends.
    BudgetExceeded {
        /// The window of the budget.
        window: WindowId,
        /// The call needs at least this much.
        least: Money,
        /// The limit leaves this much once nothing is held.
        left: Money,
    },
    /// A budget does not allow the call now, but once calls under way have ended it does.
    BudgetInUse {
        /// The call needs at least this much.
        least: Money,
        /// This much can be held now.
        left: Money,
    },
}

/// Why a video job cannot be created, or its video not returned.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VideoError {
    /// This many videos of the account are under way, which is the maximum.
    TooManyOpen(u32),
    /// The account has no such video, or no longer. (The video may exist for another account.)
    NotFound,
    /// The video is not finished.
    NotReady,
    /// The video of this idempotency key was deleted.
    Deleted,
}

/// Why it cannot be told what an account has used.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AccountError {
    /// The key has no charge of this id. (Another key or account may have one.)
    GenerationNotFound,
    /// The account has a search already, or too many have one.
    SearchRunning,
}

/// Why a call that repeats another one gets no reply.
#[derive(Debug, Clone, Copy)]
pub(crate) enum IdempotencyError {
    /// The idempotency key was used for a call with other content.
    KeyReused,
    /// The first call of the idempotency key still runs.
    KeyInUse,
    /// The call was made and paid for, but its reply is not kept.
    ReplyNotKept,
    /// The call was made and paid for, but its reply was lost.
    ReplyLost,
}

/// Why there is no capacity for a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CapacityError {
    /// The gateway is overloaded.
    Overloaded,
    /// Too many large bodies are being sent.
    TooManyUploads,
    /// The account or the address has too many requests under way; the message for the client names
    /// the kind of limit.
    TooManyRequests(&'static str),
    /// The account's responses that are under way or unread use all the memory that it may have.
    AnswersUnread,
}

/// Why the vendor did not serve a call.
#[derive(Debug, Clone)]
pub(crate) enum UpstreamError {
    /// No route to the vendor can be used; the message says why.
    NoRoute(String),
    /// The vendor refused the call because of the client's request.
    Refused {
        /// The vendor's status: 400, 404, 413, 422 and the like.
        status: u16,
        /// The vendor's error.
        error: VendorError,
    },
    /// Every route failed; this is the failure of the last one.
    AllRoutesFailed(AttemptFailure),
    /// The vendor received the call and did not answer in time.
    Timeout,
    /// The vendor's response broke before any part of it was passed on.
    RelayFailed(RelayError),
}

/// How the gateway itself failed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ServerError {
    /// The ledger cannot be reached.
    LedgerUnavailable,
    /// The store of videos cannot be reached, or does not accept the gateway.
    FilesUnavailable,
    /// The ledger has another state of the call's hold than the gateway.
    HoldConflict,
    /// No request can be made to a route, because of what the operator has set for it.
    RouteMisconfigured,
    /// The gateway has a defect: something is so that its own checks rule out.
    Internal,
}

/// Why a route did not serve the call.
#[derive(Debug, Clone)]
pub(crate) struct AttemptFailure {
    /// The vendor's status; `None` if the vendor sent no response.
    pub status: Option<u16>,
    /// The time after which the vendor allows a retry (its `retry-after`); `None` if it named none.
    pub retry_after: Option<Duration>,
    /// Whether the vendor may bill this attempt or an earlier one of the same call.
    pub may_be_billed: bool,
}

impl AdmissionError {
    /// Refuses a call of a model on an endpoint on which it is not sold.
    pub(crate) fn wrong_endpoint(model: &Model) -> AdmissionError {
        let expected = model.endpoints().first().copied().unwrap_or(Endpoint::Chat);
        AdmissionError::WrongEndpoint { model: model.id.clone(), expected }
    }
}

impl AttemptFailure {
    fn is_overloaded(&self) -> bool {
        matches!(self.status, Some(429 | 503 | 529))
    }

    /// Whether the vendor refused the gateway's key or the gateway's vendor account has no credit.
    fn is_vendor_account_error(&self) -> bool {
        matches!(self.status, Some(401..=403))
    }
}

/// Implements `From` for each group's error type, so that `?` and `into()` make an [`ApiError`].
macro_rules! into_api_error {
    ($($group:ident($error:ty),)*) => {$(
        impl From<$error> for ApiError {
            fn from(error: $error) -> ApiError {
                ApiError::$group(error)
            }
        }
    )*};
}

into_api_error! {
    Auth(ApiKeyError),
    Scope(ScopeError),
    Request(RequestError),
    Admission(AdmissionError),
    Video(VideoError),
    Account(AccountError),
    Idempotency(IdempotencyError),
    Capacity(CapacityError),
    Server(ServerError),
}

impl From<UpstreamError> for ApiError {
    fn from(error: UpstreamError) -> ApiError {
        ApiError::Upstream(Box::new(error))
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> ApiError {
        AdmissionError::InvalidCall(error).into()
    }
}

impl From<HeadError> for ApiError {
    fn from(error: HeadError) -> ApiError {
        RequestError::InvalidHead(error).into()
    }
}

impl From<HoldRefused> for ApiError {
    fn from(why: HoldRefused) -> ApiError {
        match why {
            HoldRefused::Insufficient { least, available } => {
                AdmissionError::InsufficientBalance { least, available }.into()
            }
            HoldRefused::BudgetExceeded { window, least, left } => {
                AdmissionError::BudgetExceeded { window, least, left }.into()
            }
            HoldRefused::BudgetInUse { least, left } => {
                AdmissionError::BudgetInUse { least, left }.into()
            }
            HoldRefused::RateLimited { id, retry_after_ms, rates: readings } => {
                let rates = CallRates { asks: Vec::new(), readings };
                let refusal = RateRefusal { id, retry_after_ms, rates };
                AdmissionError::RateLimited(Box::new(refusal)).into()
            }
            HoldRefused::NoAccount => ApiKeyError::Unknown.into(),
            HoldRefused::Lent | HoldRefused::Unavailable(_) => {
                ServerError::LedgerUnavailable.into()
            }
            HoldRefused::Conflict => ServerError::HoldConflict.into(),
        }
    }
}
