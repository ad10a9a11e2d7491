//! Webhooks at work: watches accounts and routes for events, and sends the messages of events to
//! their endpoints.

pub(crate) mod changed_accounts;
mod client;
mod endpoint_load;
mod route_watch;
pub(crate) mod sender;
pub(crate) mod watcher;

use crate::metrics::METRICS;
use crate::webhooks::publish::NotedEvent;

pub(crate) use client::WebhookClient;
pub(crate) use route_watch::RouteState;

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
