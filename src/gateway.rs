//! The gateway: pingora's phases, each of which calls one file below.
//!
//! A request goes one way: `intake` reads it, `admit` holds money for it, `upstream` prepares each
//! attempt, the relay passes the answer on, `close` settles. `drive` calls the phases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};

use crate::catalogue::Catalogue;
use crate::dialect::Endpoint;
use crate::dialect::relay::Relay;
use crate::files::bodies::BodyFiles;
use crate::idempotency::ReplyStore;
use crate::kv_cache::AccountCache;
use crate::ledger::{Leases, Ledger};

pub mod admit;
pub mod answer;
pub mod answer_budget;
pub mod bodies;
pub mod busy;
pub mod client_address;
pub mod close;
pub mod concurrency;
pub mod dial;
pub mod download;
pub mod drive;
pub mod edge;
pub mod exchange;
pub mod failure;
pub mod funds;
pub mod given;
pub mod growth;
pub mod health;
pub mod intake;
pub mod known_keys;
pub mod limits;
pub mod load;
pub mod local;
pub mod passage;
pub mod probe;
pub mod refusal;
pub mod repeat;
pub mod reply;
pub mod route_tls;
pub mod routes;
pub mod slow_bodies;
pub mod tenant_budget;
pub mod thinking;
pub mod uploads;
pub mod upstream;
mod usage_bounds;
pub mod vendor_key;
pub mod videos;
mod wire;

use answer_budget::AnswerBudget;
use busy::InFlight;
use client_address::TrustedProxies;
use concurrency::ConcurrencyLimits;
use dial::PlainPool;
use exchange::{RelayedCall, RequestContext, RequestStage};
use growth::StreamBudget;
use intake::RequestBody;
use known_keys::{KnownCaller, KnownKeys};
use limits::{Limits, Timeouts};
use load::OverloadMonitor;
use local::{ModelListing, RequestTarget};
use refusal::ApiError;
use repeat::{Admission, IdempotencySource};
use reply::{LocalResponse, cut, linger, send};
use routes::RouteTable;
use slow_bodies::SlowBodies;
use tenant_budget::{TenantBudget, TenantTable};
use uploads::UploadBudget;
use videos::{VideoAction, VideoService};

/// Everything a request needs.
pub struct Gateway {
    /// What is for sale; replaced as a whole when the rules change.
    pub catalogue: Arc<ArcSwap<Catalogue>>,
    /// The ways to the vendors.
    pub routes: Arc<RouteTable>,
    /// The money.
    pub ledger: Arc<dyn Ledger>,
    /// What is kept for a while.
    pub notes: Arc<dyn AccountCache>,
    /// The store's name in metrics.
    pub store_name: &'static str,
    /// Bounds of what is taken in.
    pub limits: Limits,
    /// Bounds of what is waited for.
    pub timeouts: Timeouts,
    /// What is under way.
    pub busy: InFlight,
    /// How much there is to do.
    pub load: OverloadMonitor,
    /// How many requests may be under way.
    pub concurrency: ConcurrencyLimits,
    /// Calls that are over and whose holds are being ended.
    pub settling: InFlight,
    /// The room for uploads.
    pub uploads: UploadBudget,
    /// The room for all other bodies.
    pub bodies: TenantBudget,
    /// The room for answers.
    pub answers: AnswerBudget,
    /// Bodies that have to go when room runs short.
    pub slow_bodies: Arc<SlowBodies>,
    /// The listing of all models.
    pub listing: ModelListing,
    /// Video jobs.
    pub videos: VideoService,
    /// Where calls are known by their names.
    pub repeats: Arc<dyn ReplyStore>,
    /// What this process keeps alive.
    pub leases: Leases,
    /// The room for replies that may be asked for again.
    pub replies: TenantBudget,
    /// Bodies that are too large for the ledger's store.
    pub bodies_apart: Arc<BodyFiles>,
    /// Connections to vendors.
    pub dial: Arc<PlainPool>,
    /// Who may speak for clients.
    pub proxies: Option<Arc<TrustedProxies>>,
    /// Keys that were looked up.
    pub keys: KnownKeys,
    /// Everybody who uses anything of the gateway.
    pub tenants: Arc<TenantTable>,
}

/// What a gateway is made of.
pub struct GatewayConfig {
    /// See [`Gateway::catalogue`].
    pub catalogue: Arc<ArcSwap<Catalogue>>,
    /// See [`Gateway::routes`].
    pub routes: Arc<RouteTable>,
    /// See [`Gateway::ledger`].
    pub ledger: Arc<dyn Ledger>,
    /// See [`Gateway::notes`].
    pub notes: Arc<dyn AccountCache>,
    /// See [`Gateway::store_name`].
    pub store_name: &'static str,
    /// See [`Gateway::videos`].
    pub videos: VideoService,
    /// Where calls are known by their names.
    pub repeats: Arc<dyn ReplyStore>,
    /// See [`Gateway::leases`].
    pub leases: Leases,
    /// See [`Gateway::bodies_apart`].
    pub bodies_apart: Arc<BodyFiles>,
    /// See [`Gateway::limits`].
    pub limits: Limits,
    /// See [`Gateway::timeouts`].
    pub timeouts: Timeouts,
    /// See [`Gateway::dial`].
    pub dial: PlainPool,
    /// See [`Gateway::proxies`].
    pub proxies: Option<Arc<TrustedProxies>>,
}

impl Gateway {
    /// Puts a gateway together.
    #[must_use]
    pub fn new(parts: GatewayConfig) -> Gateway {
        let tenants = Arc::default();
        Gateway {
            catalogue: parts.catalogue,
            routes: parts.routes,
            ledger: parts.ledger,
            notes: parts.notes,
            store_name: parts.store_name,
            load: OverloadMonitor::new(parts.timeouts.shed_lag),
            concurrency: ConcurrencyLimits::new(&parts.limits),
            uploads: uploads::room(&parts.limits),
            bodies: bodies::budget(&parts.limits),
            slow_bodies: Arc::default(),
            listing: ModelListing::default(),
            answers: AnswerBudget::new(&parts.limits, parts.timeouts.stall),
            videos: parts.videos,
            repeats: parts.repeats,
            leases: parts.leases,
            replies: repeat::budget(),
            bodies_apart: parts.bodies_apart,
            limits: parts.limits,
            timeouts: parts.timeouts,
            busy: InFlight::default(),
            settling: InFlight::default(),
            dial: Arc::new(parts.dial),
            proxies: parts.proxies,
            keys: KnownKeys::new(&tenants),
            tenants,
        }
    }

    async fn serve(&self, session: &mut Session, exchange: &mut RequestContext) -> ServedRequest {
        exchange.tongue = local::tongue(session.req_header().uri.path());
        exchange.client = client_address::of(session, self.proxies.as_deref())?;
        self.load.check_lag()?;
        exchange.place = Some(self.take_place(exchange.client).await?);
        let target = local::target(session.req_header())?;
        exchange.record.endpoint = target.name();
        if let RequestTarget::Video(VideoAction::File { id, token }) = &target {
            return Box::pin(videos::file(self, session, exchange, (id, token))).await;
        }
        let caller = intake::caller(self, session, exchange.tongue, target.is_free()).await?;
        exchange.record.account = Some(caller.key.account.clone());
        exchange.record.key = Some(caller.key.clone());
        self.count_for_account(exchange, &caller.tenant)?;
        match target {
            RequestTarget::Endpoint(endpoint) => {
                let mut taken = self.take(session, exchange, &caller, endpoint).await?;
                if self.repeats(session, exchange, (&caller, endpoint), &mut taken).await? {
                    return Ok(());
                }
                // Boxed: an answer on its way would carry the room for it all the time.
                Box::pin(admit::admit(self, exchange, caller, taken, endpoint)).await?;
                repeat::named(self, exchange).await;
                drive::run(self, session, exchange).await
            }
            RequestTarget::Video(wanted) => {
                // Boxed: few requests are for videos, and all would grow by it.
                let answer = Box::pin(self.video(session, exchange, caller, wanted)).await?;
                // Else it was a repeat, and is answered.
                if let Some(reply) = answer {
                    send(session, exchange, reply).await;
                }
                Ok(())
            }
            RequestTarget::Models(wanted) => {
                let at = exchange.arrived_ms / 1_000;
                let body = self.listing.body(&self.catalogue.load_full(), &wanted, at)?;
                send(session, exchange, LocalResponse::ok(body)).await;
                Ok(())
            }
            RequestTarget::Model(id) => {
                let body = local::model(&self.catalogue.load(), &id, exchange.arrived_ms / 1_000)?;
                send(session, exchange, LocalResponse::ok(body)).await;
                Ok(())
            }
        }
    }

    async fn video(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
        caller: KnownCaller,
        wanted: VideoAction,
    ) -> std::result::Result<Option<LocalResponse>, ApiError> {
        if wanted != VideoAction::Create {
            return videos::answer(self, &caller.key.account, wanted).await.map(Some);
        }
        let mut taken = self.take(session, exchange, &caller, Endpoint::Videos).await?;
        let at = (&caller, Endpoint::Videos);
        if self.repeats(session, exchange, at, &mut taken).await? {
            return Ok(None);
        }
        repeat::named(self, exchange).await;
        let reply = videos::create(self, session, exchange, caller, taken).await?;
        repeat::answered(self, exchange, &reply).await;
        Ok(Some(reply))
    }

    /// Answers a call that repeats another one; `false` if it does not.
    async fn repeats(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
        (caller, endpoint): (&KnownCaller, Endpoint),
        taken: &mut RequestBody,
    ) -> std::result::Result<bool, ApiError> {
        let Some(way) = IdempotencySource::read(session, endpoint)? else { return Ok(false) };
        let (account, what) = (&caller.key.account, (way, endpoint));
        // Boxed: few calls say so, and all would grow by it.
        let entering = repeat::enter(self, session, exchange, account, what, taken);
        Ok(Box::pin(entering).await? == Admission::Answered)
    }

    async fn take(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
        caller: &KnownCaller,
        endpoint: Endpoint,
    ) -> std::result::Result<RequestBody, ApiError> {
        let began = Instant::now();
        let taken = intake::take(self, session, caller, endpoint).await;
        exchange.client_time += began.elapsed();
        taken
    }
}

type ServedRequest = std::result::Result<(), ApiError>;

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext::awaited()
    }

    async fn request_filter(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
    ) -> Result<bool> {
        *exchange = RequestContext::begin();
        let _busy = self.busy.enter();
        let staying = !session.is_process_shutting_down();
        // Where pingora has decided to close (a doubtful head, an old client), it stays decided.
        let reusable = session.downstream_session.get_keepalive().is_some() && staying;
        session.set_keepalive(reusable.then_some(self.timeouts.keepalive.as_secs()));
        session.set_write_timeout(Some(self.timeouts.client_write));
        if let Err(refusal) = self.serve(session, exchange).await {
            exchange.leave_pool();
            close::abandon(self, exchange).await;
            repeat::close(self, exchange, false).await;
            let written = session.response_written();
            if written.is_some_and(|head| !head.status.is_informational()) {
                // Too late to say so.
                cut(session, exchange).await;
            } else {
                let reply = refusal.reply(exchange.tongue, &exchange.id);
                send(session, exchange, reply).await;
                if !exchange.is_cut {
                    linger(session, &refusal).await;
                }
            }
        }
        exchange.place = None;
        if exchange.is_cut {
            // pingora then drops the connection, or the stream, as it is.
            return Err(Error::new(ErrorType::WriteError));
        }
        Ok(true)
    }

    async fn fail_to_proxy(
        &self,
        _session: &mut Session,
        _why: &Error,
        _exchange: &mut RequestContext,
    ) -> FailToProxy {
        FailToProxy { error_code: 0, can_reuse_downstream: false }
    }

    fn suppress_error_log(&self, _: &Session, _: &RequestContext, _: &Error) -> bool {
        true
    }

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        exchange: &mut RequestContext,
    ) -> Result<Box<HttpPeer>> {
        let none = || Error::new(ErrorType::Custom("no route"));
        let RequestContext { id, stage, record, .. } = exchange;
        let RequestStage::Admitted(admitted) = stage else { return Err(none()) };
        let (peer, route) = loop {
            let route = admitted.untried.pop_front().ok_or_else(none)?;
            admitted.lane = route.enter();
            if admitted.lane.is_none() {
                upstream::note_crowd(admitted, &route);
                continue;
            }
            match upstream::peer(&self.timeouts, &route) {
                Some(peer) => break (peer, route),
                None => upstream::note_unresolved(admitted, &route),
            }
        };
        admitted.body = upstream::body(admitted, &route, id).ok_or_else(none)?;
        let depth = upstream::depth(admitted, &route);
        admitted.route = Some(route.clone());
        record.route = Some(route);
        record.depth = depth;
        Ok(Box::new(peer))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        head: &mut RequestHeader,
        exchange: &mut RequestContext,
    ) -> Result<()> {
        let none = || Error::new(ErrorType::InternalError);
        let RequestStage::Admitted(admitted) = &exchange.stage else { return Err(none()) };
        let route = admitted.route.clone().ok_or_else(none)?;
        upstream::head(self, session, head, (admitted, &exchange.id), &route)
    }

    /// Turns the vendor's head into ours: nothing of the vendor's goes on but the content type.
    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        exchange: &mut RequestContext,
    ) -> Result<()> {
        let none = || Error::new(ErrorType::InternalError);
        let vendor_request_id = passage::vendor_request_id(head);
        let admitted = match std::mem::replace(&mut exchange.stage, RequestStage::Closed) {
            RequestStage::Admitted(admitted) => *admitted,
            other => {
                exchange.stage = other;
                return Err(none());
            }
        };
        let Some(route) = admitted.route.clone() else {
            exchange.stage = RequestStage::Admitted(Box::new(admitted));
            return Err(none());
        };
        upstream::note_success(exchange, false);
        exchange.record.status = 200;
        exchange.record.first_byte = Some(exchange.arrived.elapsed());
        let ours = passage::head(session, exchange, &admitted, head);
        let bounds = usage_bounds::of(&admitted.call, &admitted.terms);
        let relay = Relay::new(passage::of(exchange, &admitted), admitted.call.stream);
        let relay = relay.with_bounds(bounds);
        let growth = StreamBudget::of(&admitted);
        exchange.stage = RequestStage::Relaying(Box::new(RelayedCall {
            funds: admitted.funds,
            terms: admitted.terms,
            route,
            lane: admitted.lane,
            depth: exchange.record.depth,
            room: admitted.room,
            answer_permit: admitted.answer_permit,
            vendor_request_id,
            relay,
            growth,
        }));
        *head = ours?;
        repeat::begin(exchange, head);
        Ok(())
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        exchange: &mut RequestContext,
    ) -> Result<Option<Duration>> {
        let Some(relaying) = exchange.relaying() else {
            return Err(Error::new(ErrorType::InternalError));
        };
        *body = body.take().and_then(|bytes| relaying.relay.push(bytes));
        if end {
            let rest = relaying.relay.finish();
            *body = body.take().or(rest);
        }
        Ok(None)
    }

    async fn logging(
        &self,
        _session: &mut Session,
        why: Option<&Error>,
        exchange: &mut RequestContext,
    ) {
        if exchange.stage.holds_money() {
            log::error!(
                event = "hold_not_released", request_id = exchange.id, why:?;
                "a call ended with its money held"
            );
            close::abandon(self, exchange).await;
        }
        repeat::close(self, exchange, true).await;
        close::tell(exchange);
    }
}
