//! The context of one request, which pingora passes to every phase: its permits, and the values for
//! its access log line. And the states of a call, each of which owns the hold: an admitted call
//! becomes a relayed one.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderName;
use pingora::upstreams::peer::HttpPeer;

use super::api_error::{AttemptFailure, ErrorFormat};
use super::idempotency::call::IdempotentCall;
use crate::catalogue::fee::CallFees;
use crate::catalogue::{AccountPrice, Model, PriceBook};
use crate::clock::unix_ms;
use crate::dialect::Endpoint;
use crate::dialect::call::{ModelCall, RequestKind};
use crate::dialect::meter::UsageMeter;
use crate::dialect::meter::tool_uses::ToolUses;
use crate::dialect::payload::RequestPayload;
use crate::dialect::relay::Relay;
use crate::dialect::tokens::InputCount;
use crate::dialect::translate::request::TranslatedCall;
use crate::gateway::budgets::answers::AnswerPermit;
use crate::gateway::budgets::tenants::{BudgetPermit, Tenant};
use crate::gateway::budgets::uploads::UploadPermit;
use crate::gateway::call_rates::CallRates;
use crate::gateway::rate_headers::RateHeaders;
use crate::gateway::request::cors::CorsGrant;
use crate::gateway::settlement::funding::Funding;
use crate::gateway::settlement::output_estimates::OutputEstimate;
use crate::gateway::settlement::stream_budget::StreamBudget;
use crate::gateway::upstream::route_calls::RouteSlot;
use crate::gateway::upstream::routes::VendorRoute;
use crate::ledger::{AccountName, KeyRecord};
use crate::money::fee::ChargedFee;
use crate::money::{BilledUnits, Money, Usage};
use crate::traces::call::CallTrace;

/// The state of one request, which pingora passes to every phase.
pub(crate) struct RequestContext {
    /// The request's id, which is also the id of its hold. It begins with the time, so ids sort by
    /// age.
    pub id: String,
    /// When the request head was read.
    pub arrived: Instant,
    /// The same time, in unix ms.
    pub arrived_ms: i64,
    /// The address of the client; `None` if it is not known.
    pub client_address: Option<IpAddr>,
    /// The API format in which errors are written to this client.
    pub error_format: ErrorFormat,
    /// What the answer tells a browser about the page that called.
    pub cors: CorsGrant,
    /// Time spent waiting for vendors.
    pub vendor_time: Duration,
    /// Time spent waiting for the client: to send its body, and to read the response.
    pub client_time: Duration,
    /// The request's permit in the limits of concurrent requests.
    pub request_permit: Option<BudgetPermit>,
    /// The account of the API key, and what that account uses of this gateway. `None` until the key
    /// is known.
    pub tenant: Option<Arc<Tenant>>,
    /// The values that are logged and counted at the end of the request.
    pub access_log: AccessLogRecord,
    /// The claimed idempotency key; `None` if the request has none.
    pub idempotent_call: Option<Box<IdempotentCall>>,
    /// How often the set of suspended accounts had changed when the key was looked up.
    pub suspensions_seen: u64,
    /// The rate limits of the call, of which every answer tells.
    pub rates: CallRates,
    /// The headers that tell of them.
    pub rate_headers: RateHeaders,
    /// Whether the response was cut off before its end.
    pub is_aborted: bool,
    /// The trace of the call; `None` if it is not traced.
    pub trace: Option<Box<CallTrace>>,
}

/// A call that has a hold and for which routes are being tried.
pub(crate) struct AdmittedCall {
    /// The call and what pays for it.
    pub priced: PricedCall,
    /// The memory permits of the call.
    pub permits: CallPermits,
    /// The routes that were not tried yet, and the result of those that were.
    pub routes: RouteQueue,
}

/// A call and what pays for it. It is the same for every route.
pub(crate) struct PricedCall {
    /// The call as the client made it.
    pub call: ModelCall,
    /// How the client's body becomes the body for the vendor.
    pub body_transform: BodyTransform,
    /// The hold that pays for the call.
    pub funding: Funding,
    /// The model and the prices by which the call is charged.
    pub pricing: PricedModel,
    /// The limit of output tokens that the vendor is sent, because the balance covers no more;
    /// `None` if the client's own limit stands.
    pub output_limit: Option<u64>,
}

/// The memory permits of a call.
pub(crate) struct CallPermits {
    /// Permit for the memory of a large request body (an upload).
    pub upload: Option<UploadPermit>,
    /// Permit for the memory of any other request body.
    pub body: Option<BudgetPermit>,
    /// Permit for the memory of the response.
    pub answer: AnswerPermit,
}

/// The untried routes of a call, and the result of the tried ones.
pub(crate) struct RouteQueue {
    /// The routes that were not tried yet, in the order in which they are tried.
    pub untried: VecDeque<Arc<VendorRoute>>,
    /// Whether only one route may serve the call.
    pub is_pinned: bool,
    /// Whether a route was skipped because it already had its maximum of concurrent calls.
    pub skipped_full_route: bool,
    /// The preference ranks of the routes that failed or were skipped.
    pub failed: Vec<usize>,
    /// Why the last route failed.
    pub last_failure: Option<AttemptFailure>,
}

/// An attempt: one try of the call on one route.
pub(crate) struct RouteAttempt {
    pub route: Arc<VendorRoute>,
    /// The call's slot in the concurrency limit of the route.
    pub slot: RouteSlot,
    /// The address of the route, with the time limits and the TLS of its connections.
    pub peer: Box<HttpPeer>,
    /// The request body for this route.
    pub body: RequestPayload,
}

impl AdmittedCall {
    /// Drops a large request body once the vendor has received it, and gives back its memory
    /// permit. No other route can be tried afterwards.
    pub(crate) fn drop_body(&mut self, attempt: &mut RouteAttempt) {
        attempt.body = RequestPayload::default();
        if let RequestKind::Image { file } = &mut self.priced.call.kind {
            *file = None;
        }
        self.routes.untried.clear();
        self.permits.upload = None;
    }
}

impl RouteQueue {
    /// Makes the queue from routes in the order in which they are tried.
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

    /// Returns how many routes failed before the serving one: those that were tried in this call,
    /// and those with a better preference that were not tried because they are blocked for a while.
    #[must_use]
    pub(crate) fn fallback_depth(&self, serving: &VendorRoute) -> u32 {
        let failed = &self.failed;
        // A pinned call may use only one route, so no other route was passed over.
        let preferred = if self.is_pinned { 0 } else { serving.preference };
        let passed_over = (0..preferred).filter(|rank| !failed.contains(rank)).count();
        u32::try_from(failed.len() + passed_over).unwrap_or(u32::MAX)
    }
}

/// How the body of a call becomes the body for a route.
pub(crate) enum BodyTransform {
    /// The original body is kept, with the changes of the rules spliced in.
    Patch,
    /// The body is sent as the client sent it, except for the name of the model.
    PassThrough,
    /// The body is written anew in the vendor's format.
    Translate {
        /// The translated body.
        body: TranslatedCall,
        /// Whether the model's saved thinking was put back; `None` if no thinking belongs to the
        /// call.
        reasoning: Option<ReasoningState>,
    },
}

/// The prices and the model of a call, fixed at admission: a reload of the rules does not change
/// them.
#[derive(Clone)]
pub(crate) struct PricedModel {
    pub model: Arc<Model>,
    /// The price book of the account; `None` if it pays the list price.
    pub book: Option<Arc<PriceBook>>,
    /// The name by which the client asked for the model, if that is not the model's id.
    pub requested_model: Option<Arc<str>>,
    /// The version of the price list.
    pub price_version: Arc<str>,
    /// The time whose prices apply, in unix seconds.
    pub priced_at: i64,
    /// The endpoint that was called.
    pub endpoint: Endpoint,
    /// The input in tokens as estimated from its bytes.
    pub input_tokens: u64,
    /// The hold that covers the call at its largest.
    pub full_hold: Money,
    /// The fees for tools that the vendor runs.
    pub fees: CallFees,
    /// What such calls of the account took lately; the output of this one is added at its end.
    pub output_estimate: Arc<OutputEstimate>,
}

impl PricedModel {
    /// Returns what the account pays for the model.
    pub(crate) fn account_price(&self) -> AccountPrice<'_> {
        AccountPrice::new(&self.model, self.book.as_deref())
    }

    /// Returns what the vendor charges for units and for the uses of its tools in `charged`; `None`
    /// if the cost of any of them is not known.
    pub(crate) fn cost(&self, units: BilledUnits, charged: &[ChargedFee]) -> Option<Money> {
        let cost = self.model.cost.as_ref()?.cost(units, self.priced_at).ok()?;
        cost.checked_add(self.fees.cost(charged)?).ok()
    }

    /// Returns a function that counts the input tokens of a call, for the case that the vendor
    /// reports none. It adds what the estimate has beside the body, for responses that the vendor
    /// stores.
    pub(crate) fn input_counter(&self, call: &ModelCall) -> impl FnOnce() -> u64 + Send + use<> {
        let stored = self.input_tokens.saturating_sub(call.estimated_input_tokens());
        let (count, context_length) =
            (call.input_counter(self.model.tokenizer), self.model.context_length);
        move || {
            let counted = count().saturating_add(stored);
            context_length.map_or(counted, |most| counted.min(most))
        }
    }
}

/// A call whose response is being relayed to the client.
pub(crate) struct RelayedCall {
    /// The hold that pays for the call.
    pub funding: Funding,
    /// The model and the prices by which the call is charged.
    pub pricing: PricedModel,
    /// The route that serves the call.
    pub route: Arc<VendorRoute>,
    /// The call's slot in the concurrency limit of the route.
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    pub slot: RouteSlot,
    /// How many routes failed before the serving one.
    pub fallback_depth: u32,
    /// The permit of a large request body, which the response keeps.
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    pub upload_permit: Option<UploadPermit>,
    /// Permit for the memory of the response; it is handed over to the part that writes to the
    /// client.
    pub answer_permit: AnswerPermit,
    /// The vendor's id of the request; `None` if the vendor sent none.
    pub vendor_request_id: Option<String>,
    /// Whether the response is a stream.
    pub is_stream: bool,
    /// Turns the vendor's response into the client's, piece by piece.
    pub relay: Relay,
    /// The input in tokens, to be counted if the vendor reports none.
    pub input_count: InputCount,
    /// How far the response may grow before its hold must grow.
    pub stream_budget: StreamBudget,
}

impl RelayedCall {
    /// Returns the usage to charge for so far, or `None` if nothing is charged.
    #[must_use]
    pub(crate) fn billable_usage(&self) -> Option<Usage> {
        let is_reported = self.relay.has_input_report();
        self.relay.billable_usage(if is_reported { 0 } else { self.input_count.tokens() })
    }

    /// Returns the fees to charge for so far; `None` if they fit into no amount. Of uses that
    /// nobody can know, as many are charged as the call allows.
    #[must_use]
    pub(crate) fn charged_fees(&self) -> Option<Vec<ChargedFee>> {
        let fees = &self.pricing.fees;
        if fees.is_empty() {
            return Some(Vec::new());
        }
        let uses = self.relay.meter().and_then(UsageMeter::tool_uses);
        let counts = uses.into_iter().flat_map(ToolUses::counts).chain(std::iter::repeat(None));
        fees.charge(counts).ok()
    }
}

/// The values of a request's access log line and metrics. A value that never came about is empty.
#[derive(Default)]
pub(crate) struct AccessLogRecord {
    /// The endpoint's short name.
    pub endpoint: &'static str,
    /// The account of the API key.
    pub account: Option<AccountName>,
    /// The API key, of which only the beginning may be logged.
    pub key: Option<Arc<KeyRecord>>,
    pub model: Option<Arc<Model>>,
    /// The name by which the client asked for the model, if that is not the model's id.
    pub requested_model: Option<Arc<str>>,
    /// The route that served the call, or that was tried last.
    pub route: Option<Arc<VendorRoute>>,
    /// How many routes failed before the last one.
    pub fallback_depth: u32,
    /// The status that was sent to the client.
    pub status: u16,
    /// The error code of a refusal, or the reason why a stream broke.
    pub error_code: Option<String>,
    /// The usage that was charged.
    pub usage: Option<Usage>,
    /// The charge.
    pub charge: Option<Money>,
    /// Whether the client disconnected before the end.
    pub client_disconnected: bool,
    /// The result of an idempotent repeat, such as `replayed`; empty for other calls.
    pub repeat_outcome: &'static str,
    /// The time from the arrival to the first byte of the response.
    pub time_to_first_byte: Option<Duration>,
    /// Whether the response is a vendor's stream.
    pub is_stream: bool,
}

/// The response header with the id of a model for which the client asked by another name.
pub(crate) const MODEL_HEADER: HeaderName = HeaderName::from_static("x-gateway-model");

impl AccessLogRecord {
    /// Returns the id of the model if the client asked for it by another name; else `None`.
    #[must_use]
    pub(crate) fn aliased_model_id(&self) -> Option<&str> {
        let model = self.model.as_ref().filter(|_| self.requested_model.is_some());
        model.map(|model| model.id.as_str())
    }
}

impl RequestContext {
    /// Makes the context of a request that has just arrived.
    #[must_use]
    pub(crate) fn begin() -> RequestContext {
        RequestContext {
            id: uuid::Uuid::now_v7().to_string(),
            arrived: Instant::now(),
            arrived_ms: unix_ms(),
            error_format: ErrorFormat::Chat,
            cors: CorsGrant::Off,
            vendor_time: Duration::ZERO,
            client_address: None,
            client_time: Duration::ZERO,
            request_permit: None,
            tenant: None,
            access_log: AccessLogRecord { endpoint: "other", ..AccessLogRecord::default() },
            idempotent_call: None,
            suspensions_seen: 0,
            rates: CallRates::default(),
            rate_headers: RateHeaders::default(),
            is_aborted: false,
            trace: None,
        }
    }

    /// Makes room for another request, since all that is left is to write a response of the
    /// gateway's own. Until that is written, the request still counts for its account or address.
    pub(crate) fn leave_pool(&mut self) {
        if let Some(permit) = &mut self.request_permit {
            permit.leave_pool();
        }
    }

    /// Records for the access log that an answer with this status has begun.
    pub(crate) fn record_status(&mut self, status: u16) {
        self.access_log.status = status;
        self.access_log.time_to_first_byte = Some(self.arrived.elapsed());
    }
}

/// Whether the saved thinking that belongs to a call was put back into its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReasoningState {
    /// All thinking was put back.
    Restored,
    /// Some thinking was not available, or the client changed the messages that it belongs to. None
    /// was put back.
    Dropped,
}

impl ReasoningState {
    /// Returns the value of the response header that reports the state.
    #[must_use]
    pub(crate) fn header_value(self) -> &'static str {
        match self {
            ReasoningState::Restored => "restored",
            ReasoningState::Dropped => "dropped",
        }
    }
}
