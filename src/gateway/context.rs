//! The context of one request, which pingora hands to every phase: its stage, its permits, and what
//! is logged of it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::api_error::{AttemptFailure, ErrorFormat};
use super::idempotency::call::IdempotentCall;
use crate::catalogue::Model;
use crate::clock::unix_ms;
use crate::dialect::Endpoint;
use crate::dialect::call::{ModelCall, RequestKind};
use crate::dialect::payload::RequestPayload;
use crate::dialect::relay::Relay;
use crate::dialect::translate::request::TranslatedCall;
use crate::gateway::budgets::answers::AnswerPermit;
use crate::gateway::budgets::tenants::{BudgetPermit, Tenant};
use crate::gateway::budgets::uploads::UploadPermit;
use crate::gateway::settlement::funding::Funding;
use crate::gateway::settlement::stream_budget::StreamBudget;
use crate::gateway::upstream::routes::{RouteSlot, VendorRoute};
use crate::ledger::{AccountName, KeyRecord};
use crate::money::{Money, Usage};

/// The state of one request, which pingora passes to every phase.
pub(crate) struct RequestContext {
    /// Its id, and that of its hold. It begins with its time, so ids sort by age.
    pub id: String,
    /// When its head was read.
    pub arrived: Instant,
    /// The same, in unix ms.
    pub arrived_ms: i64,
    /// The address of the client, as far as it is known.
    pub client_address: Option<IpAddr>,
    /// The API format in which errors are written to this client.
    pub error_format: ErrorFormat,
    /// Time spent waiting for vendors.
    pub vendor_time: Duration,
    /// Time spent waiting for the client: for its body, and for it to take its answer.
    pub client_time: Duration,
    /// Its place among the requests under way.
    pub request_permit: Option<BudgetPermit>,
    /// The account of its key, once that is known, and what it uses of this gateway.
    pub tenant: Option<Arc<Tenant>>,
    /// What is told about it when it is over.
    pub access_log: AccessLogRecord,
    /// The stage that it has reached.
    pub stage: RequestStage,
    /// Its idempotency key, claimed, if it has one.
    pub idempotent_call: Option<Box<IdempotentCall>>,
    /// Whether its answer was cut off.
    pub is_aborted: bool,
}

/// The stages of a request, in order.
pub(crate) enum RequestStage {
    /// Its head is there.
    Arrived,
    /// Money is held for it; routes are being tried.
    Admitted(Box<AdmittedCall>),
    /// A vendor answers.
    Relaying(Box<RelayedCall>),
    /// Its money is settled, or it never had any.
    Closed,
}

impl RequestStage {
    /// Whether money is still held.
    #[must_use]
    pub(crate) fn has_open_hold(&self) -> bool {
        matches!(self, RequestStage::Admitted(_) | RequestStage::Relaying(_))
    }
}

/// A call that has a hold, while routes are being tried.
pub(crate) struct AdmittedCall {
    /// The call and what pays for it.
    pub priced: PricedCall,
    /// The memory that the call takes up.
    pub permits: CallPermits,
    /// The routes that are left.
    pub routes: RouteQueue,
    /// The route being tried.
    pub attempt: Option<RouteAttempt>,
}

/// A call and what pays for it, whatever route serves it.
pub(crate) struct PricedCall {
    /// The call.
    pub call: ModelCall,
    /// How its body becomes the vendor's.
    pub body_transform: BodyTransform,
    /// The hold that pays for the call.
    pub funding: Funding,
    /// What the call is priced by.
    pub pricing: PricedModel,
}

/// The memory that a call takes up.
pub(crate) struct CallPermits {
    /// The memory of a large body.
    pub upload: Option<UploadPermit>,
    /// The memory of any other body.
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    pub body: Option<BudgetPermit>,
    /// The memory of its answer.
    pub answer: AnswerPermit,
}

/// The routes of a call, and what became of those that were tried.
pub(crate) struct RouteQueue {
    /// The routes still to be tried, next one first.
    pub untried: VecDeque<Arc<VendorRoute>>,
    /// Whether only one route may serve the call.
    pub is_pinned: bool,
    /// Whether a route was skipped because it had no room.
    pub skipped_full_route: bool,
    /// The ranks of routes that failed.
    pub failed: Vec<usize>,
    /// Why the last route failed.
    pub last_failure: Option<AttemptFailure>,
}

/// A route being tried.
pub(crate) struct RouteAttempt {
    pub route: Arc<VendorRoute>,
    /// The call's place on it.
    pub slot: RouteSlot,
    /// The body for it.
    pub body: RequestPayload,
}

impl AdmittedCall {
    /// Drops a large body, which the vendor has by now: no other route can be tried any more.
    pub(crate) fn drop_body(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.body = RequestPayload::default();
        }
        if let RequestKind::Image { file } = &mut self.priced.call.kind {
            *file = None;
        }
        self.routes.untried.clear();
        self.permits.upload = None;
    }
}

impl RouteQueue {
    /// The routes of a call in the order in which they are tried.
    #[must_use]
    pub(crate) fn new(untried: Vec<Arc<VendorRoute>>, is_pinned: bool) -> RouteQueue {
        RouteQueue {
            untried: untried.into(),
            is_pinned,
            skipped_full_route: false,
            failed: Vec::new(),
            last_failure: None,
        }
    }

    /// How many routes failed before this one: those tried in this call, and those that the
    /// client's preference would have come to first but that are blocked for a while.
    #[must_use]
    pub(crate) fn fallback_depth(&self, serving: &VendorRoute) -> u32 {
        let failed = &self.failed;
        // Where only one could be taken, none was passed over.
        let preferred = if self.is_pinned { 0 } else { serving.preference };
        let passed_over = (0..preferred).filter(|rank| !failed.contains(rank)).count();
        u32::try_from(failed.len() + passed_over).unwrap_or(u32::MAX)
    }
}

/// How the body of a call becomes the body for a route.
pub(crate) enum BodyTransform {
    /// The rules' changes are spliced in.
    Patch,
    /// It goes as it came, but for the model's name.
    PassThrough,
    /// It is written anew in the vendor's format.
    Translate {
        /// The new body.
        body: TranslatedCall,
        /// What became of the model's thinking, if any belongs to the call.
        reasoning: Option<ReasoningState>,
    },
}

/// What a call is priced by. It does not change any more, whatever the rules do.
#[derive(Clone)]
pub(crate) struct PricedModel {
    pub model: Arc<Model>,
    /// The price list.
    pub price_version: Arc<str>,
    /// The moment whose prices count, in unix seconds.
    pub priced_at: i64,
    /// The endpoint that was called.
    pub endpoint: Endpoint,
    /// Its input in tokens, as counted where the vendor reports nothing.
    pub input_tokens: u64,
    /// What covers it to the full.
    pub full_hold: Money,
}

/// An answer on its way.
pub(crate) struct RelayedCall {
    /// The hold that pays for the call.
    pub funding: Funding,
    /// What the call is priced by.
    pub pricing: PricedModel,
    /// The route that serves.
    pub route: Arc<VendorRoute>,
    /// The call's place on it.
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    pub slot: RouteSlot,
    /// How many routes failed before it.
    pub fallback_depth: u32,
    /// The room of a large body, which the answer takes over.
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    pub upload_permit: Option<UploadPermit>,
    /// What the answer takes up in memory; it goes to its client's side.
    pub answer_permit: AnswerPermit,
    /// The vendor's id of the request.
    pub vendor_request_id: Option<String>,
    /// Turns the vendor's response into ours, piece by piece.
    pub relay: Relay,
    /// How far it may grow.
    pub stream_budget: StreamBudget,
}

/// What the log and the metrics tell of a request. What never came about is empty.
#[derive(Default)]
pub(crate) struct AccessLogRecord {
    /// The endpoint's short name.
    pub endpoint: &'static str,
    /// Whose key it was.
    pub account: Option<AccountName>,
    /// The key, of which the beginning may be shown.
    pub key: Option<Arc<KeyRecord>>,
    pub model: Option<Arc<Model>>,
    /// The route that served, or was tried last.
    pub route: Option<Arc<VendorRoute>>,
    /// How many routes failed first.
    pub fallback_depth: u32,
    /// The status sent.
    pub status: u16,
    /// The code of a refusal, or why a stream broke.
    pub error_code: Option<String>,
    /// What was used.
    pub usage: Option<Usage>,
    /// What was charged.
    pub charge: Option<Money>,
    /// Whether the client left before the end.
    pub client_disconnected: bool,
    /// What came of it as a repeat.
    pub repeat_outcome: &'static str,
    /// To the first byte of the answer.
    pub time_to_first_byte: Option<Duration>,
}

impl RequestContext {
    /// A request that has just arrived.
    #[must_use]
    pub(crate) fn begin() -> RequestContext {
        let id = uuid::Uuid::now_v7().to_string();
        RequestContext { id, arrived_ms: unix_ms(), ..RequestContext::idle() }
    }

    /// A connection that waits for a request: it has no id yet.
    #[must_use]
    pub(crate) fn idle() -> RequestContext {
        RequestContext {
            id: String::new(),
            arrived: Instant::now(),
            arrived_ms: 0,
            error_format: ErrorFormat::Chat,
            vendor_time: Duration::ZERO,
            client_address: None,
            client_time: Duration::ZERO,
            request_permit: None,
            tenant: None,
            access_log: AccessLogRecord { endpoint: "other", ..AccessLogRecord::default() },
            stage: RequestStage::Arrived,
            idempotent_call: None,
            is_aborted: false,
        }
    }

    /// Makes room for another request: what is left is to write an answer of our own. Until that
    /// is written the request counts for its account or address all the same.
    pub(crate) fn leave_pool(&mut self) {
        if let Some(permit) = &mut self.request_permit {
            permit.leave_pool();
        }
    }

    /// Takes the admitted call out, with the route that answered; the request is closed then.
    /// `None` if no route is being tried.
    pub(crate) fn take_attempt(&mut self) -> Option<(AdmittedCall, RouteAttempt)> {
        let attempt = self.admitted()?.attempt.take()?;
        match std::mem::replace(&mut self.stage, RequestStage::Closed) {
            RequestStage::Admitted(admitted) => Some((*admitted, attempt)),
            _ => None,
        }
    }

    /// The answer on its way, if there is one.
    pub(crate) fn relaying(&mut self) -> Option<&mut RelayedCall> {
        match &mut self.stage {
            RequestStage::Relaying(relaying) => Some(relaying),
            _ => None,
        }
    }

    /// The admitted call, while routes are being tried.
    pub(crate) fn admitted(&mut self) -> Option<&mut AdmittedCall> {
        match &mut self.stage {
            RequestStage::Admitted(admitted) => Some(admitted),
            _ => None,
        }
    }
}

/// What became of the thinking that belongs to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReasoningState {
    /// All of it was put back.
    Restored,
    /// Some was not to be had, or the client changed what it belongs to; none was put back.
    Dropped,
}

impl ReasoningState {
    /// The value of the header that tells.
    #[must_use]
    pub(crate) fn header_value(self) -> &'static str {
        match self {
            ReasoningState::Restored => "restored",
            ReasoningState::Dropped => "dropped",
        }
    }
}
