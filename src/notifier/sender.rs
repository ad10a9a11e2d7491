//! Sends messages to their endpoints. Of several processes, the one that notes a try in the store
//! makes it. A message may arrive twice if a process ends before it has noted what came of its try;
//! it has the same id then.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use tokio::sync::Notify;

use super::EndpointPresence;
use super::client::{OutgoingMessage, WebhookClient};
use super::endpoint_load::EndpointLoad;
use crate::clock::unix_ms;
use crate::ledger::Unavailable;
use crate::metrics::METRICS;
use crate::webhooks::endpoint::WebhookEndpoint;
use crate::webhooks::message::{MessageState, WebhookMessage};
use crate::webhooks::row::{DueRow, WebhookRow, WebhookRowKind, WebhookStore};

/// How often it is asked what is due, and how soon again after an endpoint has done with a message.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const NEXT_INTERVAL: Duration = Duration::from_millis(50);
/// How often without endpoints: what is left of them is removed then.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// The wait after a failure of the store.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// At most this many messages are looked at at a time: there are fewer endpoints.
const DUE_MAX: u32 = 2_048;
/// At most this many levels whose windows are over are removed at a time.
const LEVELS_MAX: u32 = 20;

/// Sends the messages of a store.
pub(crate) struct WebhookSender {
    store: Arc<dyn WebhookStore>,
    client: WebhookClient,
    presence: Arc<EndpointPresence>,
    load: Arc<Mutex<EndpointLoad>>,
    /// Notified when an endpoint has done with a message, so that its next one follows soon.
    done: Arc<Notify>,
}

impl WebhookSender {
    /// Makes a sender of the messages of a store.
    pub(crate) fn new(
        store: Arc<dyn WebhookStore>,
        client: WebhookClient,
        presence: Arc<EndpointPresence>,
    ) -> WebhookSender {
        WebhookSender { store, client, presence, load: Arc::default(), done: Arc::default() }
    }

    /// Sends messages as they come due. It never returns.
    pub(crate) async fn run(&self) {
        loop {
            let wait = match self.begin_due().await {
                Ok(()) if self.presence.is_any() => POLL_INTERVAL,
                Ok(()) => IDLE_INTERVAL,
                Err(why) => {
                    log::warn!(
                        event = "webhooks_unavailable", error:% = why;
                        "webhook messages not read"
                    );
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(NEXT_INTERVAL).await;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.done.notified() => {}
                () = self.presence.appeared.notified() => {}
            }
        }
    }

    /// Begins what is due, as far as there are places.
    async fn begin_due(&self) -> Result<(), Unavailable> {
        let now = unix_ms();
        for due in self.store.list_due_rows(WebhookRowKind::Message, now, DUE_MAX).await? {
            let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
            if load.is_full() {
                break;
            }
            if load.begin(&due.owner, now) {
                drop(load);
                let (store, client) = (self.store.clone(), self.client.clone());
                let (load, done, tried) = (self.load.clone(), self.done.clone(), Tried::default());
                tokio::spawn(Attempt { store, client, load, done, due, tried }.run());
            }
        }
        let kind = WebhookRowKind::Crossing;
        for due in self.store.list_due_rows(kind, now, LEVELS_MAX).await? {
            self.store.remove_row(kind, &due.id).await?;
        }
        Ok(())
    }
}

/// What is done with one message that is due. Its endpoint is free again when this is dropped.
struct Attempt {
    store: Arc<dyn WebhookStore>,
    client: WebhookClient,
    load: Arc<Mutex<EndpointLoad>>,
    done: Arc<Notify>,
    due: DueRow,
    tried: Tried,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        load.end(&self.due.owner, self.tried.took, self.tried.is_accepted, unix_ms());
        if self.tried.is_done {
            self.done.notify_one();
        }
    }
}

/// What came of a try.
#[derive(Default)]
struct Tried {
    /// How long the endpoint has taken; `None` if nothing was sent.
    took: Option<Duration>,
    is_accepted: bool,
    /// Whether the message is no longer due, so that the next one of its endpoint is.
    is_done: bool,
}

impl Attempt {
    async fn run(mut self) {
        self.tried = self.try_once().await.unwrap_or_else(|why| {
            log::warn!(
                event = "webhooks_unavailable", message = self.due.id, error:% = why;
                "webhook message not sent, or what came of it not noted"
            );
            // The store has trouble, not the endpoint; but another try at once would help nobody.
            Tried { took: Some(Duration::ZERO), ..Tried::default() }
        });
    }

    async fn try_once(&self) -> Result<Tried, Unavailable> {
        let now = unix_ms();
        let Some(row) = self.store.find_row(WebhookRowKind::Message, &self.due.id).await? else {
            return Ok(Tried::default());
        };
        let mut message = match WebhookMessage::of_row(&row) {
            Ok(message) => message,
            Err(why) => {
                // It must not stand before the others for ever.
                log::error!(
                    event = "webhook_message_broken", message = row.id, error:% = why;
                    "webhook message cannot be read; removed"
                );
                return self.remove(&row).await;
            }
        };
        if message.is_expired(now) {
            return self.remove(&row).await;
        }
        // Another process may have begun it since it was listed.
        if message.next_try_at().is_none_or(|due| due > now) {
            return Ok(Tried::default());
        }
        let endpoint = self.store.find_row(WebhookRowKind::Endpoint, message.endpoint()).await?;
        let Some(endpoint) = endpoint else {
            // The endpoint was removed meanwhile.
            return self.remove(&row).await;
        };
        let endpoint = WebhookEndpoint::of_row(&endpoint)?;
        if let Some(why) = &endpoint.disabled {
            return self.give_up(message, &format!("the endpoint is disabled: {why}"), now).await;
        }
        if message.is_too_old(now) {
            return self.give_up(message, "it could not be sent for a day", now).await;
        }
        message.claim(now);
        if !self.store.replace_row(&message.to_row()).await? {
            // Another process has it.
            return Ok(Tried::default());
        }
        message.note_stored();
        self.send(message, endpoint).await
    }

    /// Sends a message that this process has claimed, and notes what came of it.
    async fn send(
        &self,
        mut message: WebhookMessage,
        endpoint: WebhookEndpoint,
    ) -> Result<Tried, Unavailable> {
        let (now, begun) = (unix_ms(), Instant::now());
        let signatures = endpoint.signatures(message.id(), now, &message.body);
        let sent = self.client.send(OutgoingMessage {
            url: &endpoint.url,
            id: message.id(),
            timestamp: now.div_euclid(1_000),
            signatures: &signatures,
            body: message.body.clone(),
        });
        let (sent, ended) = (sent.await, unix_ms());
        let took = Some(begun.elapsed());
        let status = sent.as_ref().ok().copied();
        let is_accepted = status.is_some_and(|status| status.is_success());
        let spread = getrandom::u32().unwrap_or_default();
        match &sent {
            Ok(status) if status.is_success() => message.mark_delivered(status.as_u16(), ended),
            Ok(status) => {
                let why = format!("the endpoint answered with status {}", status.as_u16());
                message.mark_failed(Some(status.as_u16()), &why, ended, spread);
            }
            Err(why) => message.mark_failed(None, &why.to_string(), ended, spread),
        }
        METRICS.webhook_tries.with_label_values(&[outcome_name(status)]).inc();
        // Somebody may have asked for it to be sent again meanwhile: then it is.
        self.store.replace_row(&message.to_row()).await?;
        if message.state == MessageState::GivenUp {
            log_given_up(&message);
        }
        if status == Some(StatusCode::GONE) {
            let disabled = Some("it has answered with status 410 (gone)".to_owned());
            let gone = WebhookEndpoint { disabled, ..endpoint };
            self.store.replace_row(&gone.to_row()).await?;
        }
        Ok(Tried { took, is_accepted, is_done: is_accepted })
    }

    async fn give_up(
        &self,
        mut message: WebhookMessage,
        why: &str,
        now: i64,
    ) -> Result<Tried, Unavailable> {
        message.give_up(why, now);
        let is_done = self.store.replace_row(&message.to_row()).await?;
        if is_done {
            log_given_up(&message);
        }
        Ok(Tried { is_done, ..Tried::default() })
    }

    async fn remove(&self, row: &WebhookRow) -> Result<Tried, Unavailable> {
        let is_done = self.store.remove_row(row.kind, &row.id).await?;
        Ok(Tried { is_done, ..Tried::default() })
    }
}

/// Returns the name of what came of a try, as metrics tell it.
fn outcome_name(status: Option<StatusCode>) -> &'static str {
    match status {
        Some(status) if status.is_success() => "delivered",
        Some(_) => "refused",
        None => "unreachable",
    }
}

fn log_given_up(message: &WebhookMessage) {
    let last = message.last.as_ref().and_then(|last| last.error.as_deref());
    log::info!(
        event = "webhook_given_up",
        message = message.id(),
        endpoint = message.endpoint(),
        tries = message.tries,
        error = last.unwrap_or_default();
        "webhook message given up"
    );
}
