//! The gateway: pingora's phases, each of which calls one file below.
//!
//! A request takes one path: `request` reads it and places a hold for it, `upstream`
//! prepares each attempt, `response` relays the answer, `settlement` settles the hold.
//! `upstream::attempts` calls the phases, as pingora would.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};

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
mod serve;
pub mod settlement;
mod spawn;
pub mod state;
pub mod upstream;
pub mod videos;

pub use state::{Gateway, GatewayConfig};

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
        exchange: &mut RequestContext,
    ) -> Result<bool> {
        serve::handle_request(self, session, exchange).await.map(|()| true)
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
        let peer = upstream::select_route(&self.timeouts, exchange);
        peer.map(Box::new).ok_or_else(|| Error::new(ErrorType::Custom("no route")))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        head: &mut RequestHeader,
        exchange: &mut RequestContext,
    ) -> Result<()> {
        upstream::fill_request_head(self, session, head, exchange)
    }

    /// Turns the vendor's head into ours: nothing of the vendor's goes on but the content type.
    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        exchange: &mut RequestContext,
    ) -> Result<()> {
        response::begin::begin_relay(session, exchange, head)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        exchange: &mut RequestContext,
    ) -> Result<Option<Duration>> {
        response::push_body(exchange, body, end)?;
        Ok(None)
    }

    async fn logging(
        &self,
        _session: &mut Session,
        why: Option<&Error>,
        exchange: &mut RequestContext,
    ) {
        serve::finish_request(self, why, exchange).await;
    }
}
