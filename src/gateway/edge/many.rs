//! A connection of many streams. Its frames are pingora's; only that it begins in time, and with
//! how much, is seen to here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::H2Options;
use pingora_core::server::ShutdownWatch;
use tokio::time::Instant;

use super::in_time;
use crate::gateway::busy::InFlightGuard;
use crate::gateway::load::shed;

/// See the module. `A` is what serves the requests.
pub(super) struct H2Connection<A> {
    app: Arc<A>,
    begun: AtomicBool,
    /// Until the first request has been served.
    busy: Mutex<Option<InFlightGuard>>,
}

impl<A: HttpServerApp + Send + Sync + 'static> H2Connection<A> {
    pub(super) fn new(app: Arc<A>, busy: InFlightGuard) -> H2Connection<A> {
        H2Connection { app, begun: AtomicBool::new(false), busy: Mutex::new(Some(busy)) }
    }

    /// Serves all requests of a connection, if a first one comes until the deadline.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
        deadline: Instant,
    ) {
        let mut stopping = shutdown.clone();
        let mut serving = std::pin::pin!(self.process_new(stream, shutdown));
        if in_time(&mut serving, deadline, &mut stopping).await.is_some() {
            return;
        }
        if self.begun.load(Ordering::Relaxed) {
            serving.await;
        } else {
            shed("silence");
        }
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> HttpServerApp for H2Connection<A> {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        self.begun.store(true, Ordering::Relaxed);
        let _first = self.busy.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.app.process_new_http(session, shutdown).await
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.app.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.app.server_options()
    }
}
