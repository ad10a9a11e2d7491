//! The gateway: pingora's phases, each of which calls one file below.
//!
//! A request takes one path: `request_body` reads it, `admit` places a hold for it, `upstream`
//! prepares each attempt, `response` relays the answer, `settlement` settles the hold.
//! `proxy_loop` calls the phases.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};

use crate::dialect::Endpoint;
use crate::dialect::relay::Relay;
use crate::gateway::request::body::RequestBody;
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::request::router::ApiOperation;
use crate::gateway::response::writer::{abort_response, drain_request, send_response};
use crate::gateway::settlement::stream_budget::StreamBudget;

pub mod api_error;
pub mod budgets;
pub mod context;
pub mod edge;
pub mod idempotency;
pub mod in_flight;
pub mod limits;
pub mod local_response;
pub mod request;
pub mod response;
pub mod settlement;
mod spawn;
pub mod state;
pub mod upstream;
pub mod videos;

pub use state::{Gateway, GatewayConfig};

use api_error::ApiError;
use context::{RelayedCall, RequestContext, RequestStage};
use idempotency::Admission;
use idempotency::source::IdempotencySource;
use local_response::LocalResponse;
use request::{admission, auth, body_reader, client_address, models, router};
use response::head;
use settlement::usage_bounds;
use upstream::attempts;
use videos::action::VideoAction;

impl Gateway {
    async fn serve(&self, session: &mut Session, exchange: &mut RequestContext) -> ServeResult {
        exchange.error_format = router::error_format(session.req_header().uri.path());
        exchange.client_address =
            client_address::resolve_address(session, self.trusted_proxies.as_deref())?;
        self.overload.check_lag()?;
        exchange.request_permit = Some(self.acquire_request_permit(exchange.client_address).await?);
        let target = router::match_operation(session.req_header())?;
        exchange.access_log.endpoint = target.name();
        if let ApiOperation::Video(VideoAction::File { id, token }) = &target {
            return Box::pin(videos::send_file(self, session, exchange, (id, token))).await;
        }
        let caller =
            auth::authenticate(self, session, exchange.error_format, target.is_free()).await?;
        exchange.access_log.account = Some(caller.key.account.clone());
        exchange.access_log.key = Some(caller.key.clone());
        self.count_for_account(exchange, &caller.tenant)?;
        match target {
            ApiOperation::Endpoint(endpoint) => {
                let mut body = self.read_body(session, exchange, &caller, endpoint).await?;
                if self.claim_or_replay(session, exchange, (&caller, endpoint), &mut body).await? {
                    return Ok(());
                }
                // Boxed: an answer on its way would carry the room for it all the time.
                Box::pin(admission::admit_call(self, exchange, caller, body, endpoint)).await?;
                idempotency::await_claim(self, exchange).await;
                attempts::try_routes(self, session, exchange).await
            }
            ApiOperation::Video(wanted) => {
                // Boxed: few requests are for videos, and all would grow by it.
                let answer = Box::pin(self.serve_video(session, exchange, caller, wanted)).await?;
                // Else it was a repeat, and is answered.
                if let Some(reply) = answer {
                    send_response(session, exchange, reply).await;
                }
                Ok(())
            }
            ApiOperation::Models(wanted) => {
                let at = exchange.arrived_ms / 1_000;
                let body =
                    self.model_listing.response_body(&self.catalogue.load_full(), &wanted, at)?;
                send_response(session, exchange, LocalResponse::ok(body)).await;
                Ok(())
            }
            ApiOperation::Model(id) => {
                let body =
                    models::model_json(&self.catalogue.load(), &id, exchange.arrived_ms / 1_000)?;
                send_response(session, exchange, LocalResponse::ok(body)).await;
                Ok(())
            }
        }
    }

    async fn serve_video(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
        caller: AuthenticatedCaller,
        wanted: VideoAction,
    ) -> std::result::Result<Option<LocalResponse>, ApiError> {
        if wanted != VideoAction::Create {
            return videos::handle_request(self, &caller.key.account, wanted).await.map(Some);
        }
        let mut body = self.read_body(session, exchange, &caller, Endpoint::Videos).await?;
        let at = (&caller, Endpoint::Videos);
        if self.claim_or_replay(session, exchange, at, &mut body).await? {
            return Ok(None);
        }
        idempotency::await_claim(self, exchange).await;
        let reply = videos::create::create_job(self, session, exchange, caller, body).await?;
        idempotency::store_local_reply(self, exchange, &reply).await;
        Ok(Some(reply))
    }

    /// Claims the idempotency key of a call. `true` if the call was a repeat and has been answered.
    async fn claim_or_replay(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
        (caller, endpoint): (&AuthenticatedCaller, Endpoint),
        body: &mut RequestBody,
    ) -> std::result::Result<bool, ApiError> {
        let Some(way) = IdempotencySource::from_headers(session, endpoint)? else {
            return Ok(false);
        };
        let (account, what) = (&caller.key.account, (way, endpoint));
        // Boxed: few calls say so, and all would grow by it.
        let entering = idempotency::claim_or_replay(self, session, exchange, account, what, body);
        Ok(Box::pin(entering).await? == Admission::Answered)
    }

    async fn read_body(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
        caller: &AuthenticatedCaller,
        endpoint: Endpoint,
    ) -> std::result::Result<RequestBody, ApiError> {
        let began = Instant::now();
        let body = body_reader::read_body(self, session, caller, endpoint).await;
        exchange.client_time += began.elapsed();
        body
    }
}

type ServeResult = std::result::Result<(), ApiError>;

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext::idle()
    }

    async fn request_filter(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
    ) -> Result<bool> {
        *exchange = RequestContext::begin();
        let _busy = self.in_flight.begin();
        let staying = !session.is_process_shutting_down();
        // Where pingora has decided to close the connection (bad head, HTTP/1.0), it stays so.
        let reusable = session.downstream_session.get_keepalive().is_some() && staying;
        session.set_keepalive(reusable.then_some(self.timeouts.keepalive.as_secs()));
        session.set_write_timeout(Some(self.timeouts.client_write));
        if let Err(refusal) = self.serve(session, exchange).await {
            exchange.leave_pool();
            settlement::void_open_hold(self, exchange).await;
            idempotency::finish_claim(self, exchange, false).await;
            let written = session.response_written();
            if written.is_some_and(|head| !head.status.is_informational()) {
                // The response head is already sent, so no error response can follow.
                abort_response(session, exchange).await;
            } else {
                let reply = refusal.to_response(exchange.error_format, &exchange.id);
                send_response(session, exchange, reply).await;
                if !exchange.is_aborted {
                    drain_request(session, &refusal).await;
                }
            }
        }
        exchange.request_permit = None;
        if exchange.is_aborted {
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
        let RequestContext { id, stage, access_log, .. } = exchange;
        let RequestStage::Admitted(admitted) = stage else { return Err(none()) };
        let (peer, route) = loop {
            let route = admitted.untried_routes.pop_front().ok_or_else(none)?;
            admitted.route_slot = route.acquire_slot();
            if admitted.route_slot.is_none() {
                upstream::record_route_full(admitted, &route);
                continue;
            }
            match upstream::build_peer(&self.timeouts, &route) {
                Some(peer) => break (peer, route),
                None => upstream::record_unresolved(admitted, &route),
            }
        };
        admitted.vendor_body = upstream::build_body(admitted, &route, id).ok_or_else(none)?;
        let depth = upstream::fallback_depth(admitted, &route);
        admitted.route = Some(route.clone());
        access_log.route = Some(route);
        access_log.fallback_depth = depth;
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
        upstream::fill_request_head(self, session, head, (admitted, &exchange.id), &route)
    }

    /// Turns the vendor's head into ours: nothing of the vendor's goes on but the content type.
    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        exchange: &mut RequestContext,
    ) -> Result<()> {
        let none = || Error::new(ErrorType::InternalError);
        let vendor_request_id = head::vendor_request_id(head);
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
        upstream::record_success(exchange, false);
        exchange.access_log.status = 200;
        exchange.access_log.time_to_first_byte = Some(exchange.arrived.elapsed());
        let ours = head::build_head(session, exchange, &admitted, head);
        let bounds = usage_bounds::bounds_for_call(&admitted.call, &admitted.pricing);
        let relay = Relay::new(head::relay_mode(exchange, &admitted), admitted.call.stream);
        let relay = relay.with_bounds(bounds);
        let stream_budget =
            StreamBudget::for_call(&admitted.call, &admitted.funding, admitted.pricing.full_hold);
        exchange.stage = RequestStage::Relaying(Box::new(RelayedCall {
            funding: admitted.funding,
            pricing: admitted.pricing,
            route,
            route_slot: admitted.route_slot,
            fallback_depth: exchange.access_log.fallback_depth,
            upload_permit: admitted.upload_permit,
            answer_permit: admitted.answer_permit,
            vendor_request_id,
            relay,
            stream_budget,
        }));
        *head = ours?;
        idempotency::record_head(exchange, head);
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
        if exchange.stage.has_open_hold() {
            log::error!(
                event = "hold_not_released", request_id = exchange.id, why:?;
                "request ended with an open hold"
            );
            settlement::void_open_hold(self, exchange).await;
        }
        idempotency::finish_claim(self, exchange, true).await;
        settlement::log_request(exchange);
    }
}
