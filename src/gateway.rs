//! The gateway: the phases of pingora, each of which is one call to a module below.
//!
//! A request takes one path: `serve` routes it, `request` reads and admits it, `settlement` places
//! its hold, `upstream` tries the vendor's routes, `response` relays the answer, and `settlement`
//! turns the hold into a charge. `upstream::attempts` calls the phases in pingora's order.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::proxy::{FailToProxy, ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

pub(crate) mod api_error;
pub(crate) mod budgets;
pub(crate) mod call_rates;
pub(crate) mod context;
pub mod edge;
pub(crate) mod idempotency;
pub(crate) mod in_flight;
pub(crate) mod key_uses;
pub(crate) mod limits;
pub(crate) mod local_response;
pub(crate) mod rate_headers;
pub(crate) mod rate_notes;
pub(crate) mod request;
pub(crate) mod response;
mod serve;
pub(crate) mod settlement;
mod spawn;
pub(crate) mod state;
pub(crate) mod suspended_accounts;
pub(crate) mod upstream;
pub(crate) mod videos;

pub(crate) use state::Gateway;

use context::RequestContext;

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext::idle()
    }

    async fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<bool> {
        serve::handle_request(self, session, ctx).await.map(|()| true)
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
        ctx: &mut RequestContext,
    ) -> Result<Box<HttpPeer>> {
        let peer = upstream::select_route(&self.timeouts, ctx);
        peer.map(Box::new).ok_or_else(|| Error::new(ErrorType::Custom("no route")))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        head: &mut RequestHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        upstream::fill_request_head(self, session, head, ctx)
    }

    /// Turns the vendor's response head into the client's. Of the vendor's headers only the content
    /// type is passed on.
    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        response::begin::begin_relay(session, ctx, head)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        ctx: &mut RequestContext,
    ) -> Result<Option<Duration>> {
        response::push_body(ctx, body, end)?;
        Ok(None)
    }

    async fn logging(&self, _session: &mut Session, why: Option<&Error>, ctx: &mut RequestContext) {
        serve::finish_request(self, why, ctx).await;
    }
}
