//! Serves an HTTP/2 connection. pingora handles the frames. This module only enforces that the
//! first request arrives in time, and passes the application's HTTP/2 options to pingora.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::server::ShutdownWatch;
use tokio::time::Instant;

use super::limits::with_deadline;
use crate::gateway::budgets::overload::reject;
use crate::gateway::in_flight::InFlightGuard;

/// One HTTP/2 connection. `A` is the application that serves its requests.
pub(super) struct H2Connection<A> {
    app: Arc<A>,
    has_begun: AtomicBool,
    /// Counts the connection as in flight. The first request takes this guard, and drops it when it
    /// has been served.
    in_flight: Mutex<Option<InFlightGuard>>,
}

impl<A: HttpServerApp + Send + Sync + 'static> H2Connection<A> {
    pub(super) fn new(app: Arc<A>, in_flight: InFlightGuard) -> H2Connection<A> {
        H2Connection {
            app,
            has_begun: AtomicBool::new(false),
            in_flight: Mutex::new(Some(in_flight)),
        }
    }

    /// Serves all requests of a connection. If the first request does not arrive by the deadline,
    /// or shortly after the process begins to stop, the connection is closed.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
        deadline: Instant,
    ) {
        let mut stopping = shutdown.clone();
        let mut serving = std::pin::pin!(self.process_new(stream, shutdown));
        if with_deadline(&mut serving, deadline, &mut stopping).await.is_some() {
            return;
        }
        if self.has_begun.load(Ordering::Relaxed) {
            serving.await;
        } else {
            reject("silence");
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
        self.has_begun.store(true, Ordering::Relaxed);
        let _first = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.app.process_new_http(session, shutdown).await
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.app.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.app.server_options()
    }
}
