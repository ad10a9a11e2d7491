//! The gateway: the phases that pingora calls, each of which is one call to a module below.
//!
//! A request takes one path: `serve` routes it, `request` reads and admits it, `settlement` places
//! its hold, `upstream` tries the vendor's routes, `response` relays the answer, and `settlement`
//! turns the hold into a charge.

use async_trait::async_trait;
use pingora::proxy::{FailToProxy, ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

pub(crate) mod account_api;
pub(crate) mod api_error;
pub(crate) mod budgets;
mod call_metrics;
pub(crate) mod call_rates;
mod call_trace;
pub(crate) mod context;
mod deadline;
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
pub(crate) mod response_head;
mod serve;
pub(crate) mod settlement;
mod spawn;
pub(crate) mod state;
pub(crate) mod suspended_accounts;
pub(crate) mod traffic;
pub(crate) mod upstream;
pub(crate) mod videos;

pub(crate) use state::Gateway;

use context::RequestContext;

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        // The head of the request has been read: pingora makes a context for each.
        RequestContext::begin()
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
        _ctx: &mut RequestContext,
    ) -> FailToProxy {
        FailToProxy { error_code: 0, can_reuse_downstream: false }
    }

    fn suppress_error_log(&self, _: &Session, _: &RequestContext, _: &Error) -> bool {
        true
    }

    /// pingora never asks for a peer: `request_filter` answers every request.
    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _ctx: &mut RequestContext,
    ) -> Result<Box<HttpPeer>> {
        Err(Error::new(ErrorType::Custom("no route")))
    }

    async fn logging(&self, _session: &mut Session, _: Option<&Error>, ctx: &mut RequestContext) {
        serve::finish_request(self, ctx).await;
    }
}
