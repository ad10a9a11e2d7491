//! The steps of a request: it is routed, authenticated, counted and read, claims its idempotency
//! key, is admitted, and goes to the vendor; or the gateway answers it itself.

use std::time::Instant;

use http::header::TRANSFER_ENCODING;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use super::api_error::{ApiError, RequestError};
use super::context::RequestContext;
use super::idempotency::ClaimOutcome;
use super::idempotency::source::IdempotencySource;
use super::local_response::LocalResponse;
use super::rate_notes;
use super::request::{admission, auth, body_reader, client_address, models, router, scope_check};
use super::state::Gateway;
use super::traffic::ended_calls::note_ended_call;
use super::upstream::attempts;
use super::{account_api, call_trace, idempotency, settlement, videos};
use crate::catalogue::Catalogue;
use crate::dialect::Endpoint;
use crate::gateway::request::body::RequestBody;
use crate::gateway::request::books::find_book;
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::request::models::ModelFilter;
use crate::gateway::request::rates::{CallerPlans, ModelAccess};
use crate::gateway::request::router::{ApiOperation, RoutedRequest};
use crate::gateway::response::writer::{abort_response, drain_request, send_response};

/// Serves a request from its head to the end of its response.
///
/// # Errors
/// The response was cut off. Pingora then drops the connection, or the HTTP/2 stream, as it is.
pub(super) async fn handle_request(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> pingora::Result<()> {
    let _busy = gateway.in_flight.begin();
    let is_running = !session.is_process_shutting_down();
    // If pingora has decided to close the connection (bad head, HTTP/1.0), it is closed. A
    // connection is also closed after a chunked request body: no bytes behind such a body are ever
    // read as a request, so request smuggling by a body whose end another parser sees elsewhere
    // gains nothing. SDKs send a content length and keep their connections.
    let reusable = session.downstream_session.get_keepalive().is_some()
        && is_running
        && !session.req_header().headers.contains_key(TRANSFER_ENCODING);
    session.set_keepalive(reusable.then_some(gateway.timeouts.keepalive.as_secs()));
    session.set_write_timeout(Some(gateway.timeouts.client_write));
    if let Err(refusal) = gateway.serve(session, ctx).await {
        ctx.leave_pool();
        rate_notes::note_refusal(gateway, ctx, &refusal);
        idempotency::record_refusal(gateway, ctx, &refusal);
        idempotency::finish_claim(gateway, ctx, false).await;
        let written = session.response_written();
        if written.is_some_and(|head| !head.status.is_informational()) {
            // The response head is already sent, so no error response can follow.
            abort_response(session, ctx).await;
        } else {
            let reply = refusal.to_response(ctx.error_format, &ctx.id);
            send_response(session, ctx, reply).await;
            if !ctx.is_aborted {
                drain_request(session, &refusal).await;
            }
        }
    }
    ctx.request_permit = None;
    if ctx.is_aborted {
        return Err(Error::new(ErrorType::WriteError));
    }
    Ok(())
}

impl Gateway {
    async fn serve(&self, session: &mut Session, ctx: &mut RequestContext) -> Result<(), ApiError> {
        ctx.error_format = router::error_format(session.req_header().uri.path());
        ctx.cors = self.cors_origins.grant(&session.req_header().headers);
        ctx.client_address =
            client_address::resolve_address(session, self.trusted_proxies.as_deref())?;
        self.overload.check_lag(ctx.arrived)?;
        ctx.request_permit = Some(self.acquire_request_permit(ctx.client_address).await?);
        let matched = router::match_request(session.req_header());
        if let Err(ApiError::Request(RequestError::MethodNotAllowed(methods))) = &matched
            && let Some(reply) = ctx.cors.preflight_response(session.req_header(), methods)
        {
            Box::pin(send_response(session, ctx, reply)).await;
            return Ok(());
        }
        let routed = matched?;
        ctx.access_log.endpoint = routed.name();
        let target = match routed {
            RoutedRequest::Operation(target) => target,
            RoutedRequest::Download(link) => {
                return Box::pin(videos::send_file(self, session, ctx, &link)).await;
            }
        };
        let (format, is_free, now) = (ctx.error_format, target.is_free(), ctx.arrived_ms / 1_000);
        ctx.suspensions_seen = self.suspended.changes();
        let caller = auth::authenticate(self, session, format, is_free, now).await?;
        ctx.access_log.account = Some(caller.key.account.clone());
        ctx.access_log.key = Some(caller.key.clone());
        call_trace::begin(self, session, ctx, &target);
        scope_check::check_request(&caller, target.scope_names(), ctx.client_address, now)?;
        self.count_for_account(ctx, &caller.tenant)?;
        self.count_listing(ctx, &caller, &target)?;
        let reply = match target {
            ApiOperation::Endpoint(endpoint) => {
                let mut body = self.read_body(session, ctx, &caller, endpoint).await?;
                if self.claim_or_replay(session, ctx, &caller, endpoint, &mut body).await? {
                    return Ok(());
                }
                // Boxed: otherwise the future of a relayed response would reserve space for this
                // step until its end.
                let admitted =
                    Box::pin(admission::admit_call(self, ctx, caller, body, endpoint)).await?;
                rate_notes::note_rates(self, ctx);
                idempotency::await_claim(self, ctx).await;
                return attempts::try_routes(self, session, ctx, admitted).await;
            }
            ApiOperation::CreateVideo => {
                // Boxed: few requests are for videos, and the future of every request would grow by
                // this one.
                let answer = Box::pin(self.create_video(session, ctx, caller)).await?;
                // `None` means that the call was a repeat and has been answered already.
                let Some(reply) = answer else { return Ok(()) };
                reply
            }
            ApiOperation::Videos(wanted) => {
                // Boxed, as above.
                Box::pin(videos::handle_request(self, &caller.key.account, wanted)).await?
            }
            ApiOperation::Account(query) => {
                // Boxed, as above.
                Box::pin(account_api::answer_query(self, &caller, query)).await?
            }
            ApiOperation::Models(wanted) => self.list_models(&caller, &wanted, now)?,
            ApiOperation::Model(id) => self.show_model(&caller, &id, now)?,
        };
        send_response(session, ctx, reply).await;
        Ok(())
    }

    /// Answers with the listing of one model.
    fn show_model(
        &self,
        caller: &AuthenticatedCaller,
        id: &str,
        now: i64,
    ) -> Result<LocalResponse, ApiError> {
        let catalogue = self.catalogue.load();
        check_name(caller, &catalogue, id)?;
        let book = find_book(&catalogue.books, &caller.key)?;
        Ok(LocalResponse::ok(models::model_json(&catalogue, id, book.as_deref(), now)?))
    }

    /// Answers with the models that the filter selects and the caller may use.
    fn list_models(
        &self,
        caller: &AuthenticatedCaller,
        wanted: &ModelFilter,
        now: i64,
    ) -> Result<LocalResponse, ApiError> {
        let catalogue = self.catalogue.load_full();
        let plans = CallerPlans::find(&catalogue.plans, &caller.key)?;
        let book = find_book(&catalogue.books, &caller.key)?;
        let (scope, book) = (caller.restrictions(), book.as_deref());
        let access = ModelAccess { scope, plans: &plans, book };
        let body = self.model_listing.response_body(&catalogue, wanted, &access, now)?;
        Ok(LocalResponse::ok(body))
    }

    /// Creates a video job. `None` if the call was a repeat and has been answered.
    async fn create_video(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        caller: AuthenticatedCaller,
    ) -> Result<Option<LocalResponse>, ApiError> {
        let mut body = self.read_body(session, ctx, &caller, Endpoint::Videos).await?;
        if self.claim_or_replay(session, ctx, &caller, Endpoint::Videos, &mut body).await? {
            return Ok(None);
        }
        idempotency::await_claim(self, ctx).await;
        let reply = videos::create::create_job(self, session, ctx, caller, body).await?;
        rate_notes::note_rates(self, ctx);
        idempotency::store_local_reply(self, ctx, &reply).await;
        Ok(Some(reply))
    }

    /// Claims the idempotency key of a call. `true` if the call was a repeat and has been answered.
    async fn claim_or_replay(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        caller: &AuthenticatedCaller,
        endpoint: Endpoint,
        body: &mut RequestBody,
    ) -> Result<bool, ApiError> {
        let Some(source) = IdempotencySource::from_headers(session, endpoint)? else {
            return Ok(false);
        };
        let account = &caller.key.account;
        // Boxed: few calls have an idempotency key, and the future of every request would grow by
        // this one.
        let claiming =
            idempotency::claim_or_replay(self, session, ctx, account, source, endpoint, body);
        Ok(Box::pin(claiming).await? == ClaimOutcome::Answered)
    }

    /// Reads the body of a call, whose model the key and its plans must be for.
    async fn read_body(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        caller: &AuthenticatedCaller,
        endpoint: Endpoint,
    ) -> Result<RequestBody, ApiError> {
        let began = Instant::now();
        let body = body_reader::read_body(self, session, caller, endpoint).await;
        ctx.client_time += began.elapsed();
        let body = body?;
        scope_check::check_suspension(&self.suspended, &caller.key.account, ctx.suspensions_seen)?;
        // Before an earlier reply is sent again, which may be one to another key.
        check_name(caller, &self.catalogue.load(), &body.parsed.model)?;
        if endpoint.is_free() {
            let model = Some(body.parsed.model.as_str());
            rate_notes::count_free_request(self, ctx, &caller.key, model)?;
        }
        Ok(body)
    }

    /// Counts a request for the listing of models or for what the account has used. It costs
    /// nothing, and is for no model.
    fn count_listing(
        &self,
        ctx: &mut RequestContext,
        caller: &AuthenticatedCaller,
        target: &ApiOperation,
    ) -> Result<(), ApiError> {
        match target {
            ApiOperation::Models(_) | ApiOperation::Model(_) | ApiOperation::Account(_) => {
                rate_notes::count_free_request(self, ctx, &caller.key, None)
            }
            ApiOperation::Endpoint(_) | ApiOperation::CreateVideo | ApiOperation::Videos(_) => {
                Ok(())
            }
        }
    }
}

/// Checks that a key and its plans are for a model. `name` is its id or an alias.
///
/// # Errors
/// One of them is not, or a plan is not set up here.
fn check_name(
    caller: &AuthenticatedCaller,
    catalogue: &Catalogue,
    name: &str,
) -> Result<(), ApiError> {
    // What is no model is refused for that later on.
    let Some(model) = catalogue.find(name) else { return Ok(()) };
    scope_check::check_model(caller, model)?;
    CallerPlans::find(&catalogue.plans, &caller.key)?.check_model(model)
}

/// Ends an idempotency claim that the request left open, logs the request, and tells those who
/// watch.
pub(super) async fn finish_request(gateway: &Gateway, ctx: &mut RequestContext) {
    idempotency::finish_claim(gateway, ctx, true).await;
    settlement::log_request(ctx);
    if let Some(tracer) = &gateway.tracer {
        call_trace::finish(tracer, ctx);
    }
    if gateway.live.is_watched() {
        note_ended_call(&gateway.live, ctx);
    }
}
