//! Webhooks at work: watches accounts and routes for events, and sends the messages of events to
//! their endpoints.

pub(crate) mod changed_accounts;
mod client;
mod endpoint_load;
mod route_watch;
pub(crate) mod sender;
pub(crate) mod watcher;

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::metrics::METRICS;
use crate::webhooks::publish::NotedEvent;

pub(crate) use client::WebhookClient;
pub(crate) use route_watch::RouteState;

/// Whether there are endpoints, as the watcher last read. Without any, the sender has little to do.
#[derive(Debug, Default)]
pub(crate) struct EndpointPresence {
    is_any: AtomicBool,
    appeared: Notify,
}

impl EndpointPresence {
    /// Notes whether there are endpoints.
    fn set(&self, is_any: bool) {
        if !self.is_any.swap(is_any, Ordering::Relaxed) && is_any {
            self.appeared.notify_one();
        }
    }

    /// Whether there are endpoints.
    fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }
}

/// Counts what came of noting events, and logs messages that were lost.
pub(crate) fn report_noted(noted: NotedEvent) {
    if noted.lost > 0 {
        METRICS.webhook_messages_lost.inc_by(u64::from(noted.lost));
        log::error!(
            event = "webhook_messages_lost", messages = noted.lost;
            "no room for webhook messages"
        );
    }
}
