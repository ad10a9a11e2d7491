//! Endpoints of webhooks: adding, changing and removing them, replacing their secrets, and their
//! messages.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::audit::AuditedChange;
use super::context::ManagementContext;
use super::error::ManagementError;
use super::field_patch::FieldPatch;
use super::living::require_living;
use super::random::random_bits;
use crate::clock::unix_ms;
use crate::ledger::{AccountName, Unavailable};
use crate::money::Money;
use crate::notifier::report_noted;
use crate::store::OpenStore;
use crate::webhooks::account_check::{CheckContext, payment_event};
use crate::webhooks::address::WebhookUrl;
use crate::webhooks::bounds::{
    ENDPOINTS_MAX, ENDPOINTS_OF_ACCOUNT_MAX, ENDPOINTS_OF_OPERATORS_MAX,
};
use crate::webhooks::endpoint::{OldSecret, WebhookEndpoint, owner_text};
use crate::webhooks::erase::erase_endpoint;
use crate::webhooks::event::{EventKind, WebhookEvent};
use crate::webhooks::message::{MessageState, WebhookMessage};
use crate::webhooks::publish::{list_endpoints, note_event};
use crate::webhooks::row::{RowBounds, RowPlace, WebhookRowAdded, WebhookRowKind};
use crate::webhooks::secret::WebhookSecret;

/// How long messages are signed by an old secret too, in seconds, unless the caller says: a day.
pub(crate) const OVERLAP_S: u32 = 86_400;
/// The longest such time, in seconds: 30 days.
pub(crate) const OVERLAP_S_MAX: u32 = 30 * 86_400;
/// How long a payment waits until its message is noted.
const TELL_TIMEOUT: Duration = Duration::from_secs(2);
/// A change is made anew if another one comes in between, at most so often.
const CHANGES_MAX: u32 = 5;

/// An endpoint that is to be added.
#[derive(Debug, Clone)]
pub(crate) struct NewEndpoint {
    /// The account whose it is; `None` if it is the operators'.
    pub(crate) account: Option<AccountName>,
    pub(crate) url: String,
    /// The names of the events that it wants.
    pub(crate) events: Vec<String>,
    /// It is told if less than this is available.
    pub(crate) low_balance: Option<Money>,
}

/// What is changed of an endpoint.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndpointPatch {
    pub(crate) url: Option<String>,
    pub(crate) events: Option<Vec<String>>,
    pub(crate) low_balance: FieldPatch<Money>,
    /// Whether messages are sent.
    pub(crate) enabled: Option<bool>,
}

/// Adds an endpoint, whose secret is shown this once.
pub(crate) async fn add_endpoint(
    context: ManagementContext<'_>,
    new: NewEndpoint,
    allow_private: bool,
) -> Result<WebhookEndpoint, ManagementError> {
    let NewEndpoint { account, url, events, low_balance } = new;
    if let Some(account) = &account {
        require_living(context.ledger(), account).await?;
    }
    let endpoint = WebhookEndpoint {
        id: format!("we_{}", uuid::Uuid::now_v7().simple()),
        account,
        created_at: unix_ms(),
        version: 1,
        url,
        events,
        low_balance,
        secret: WebhookSecret::from_random(random_bits()?),
        old_secrets: Vec::new(),
        disabled: None,
    };
    check_endpoint(&endpoint, allow_private)?;
    let of_owner = match endpoint.account {
        Some(_) => ENDPOINTS_OF_ACCOUNT_MAX,
        None => ENDPOINTS_OF_OPERATORS_MAX,
    };
    // Operators can add theirs, however many the accounts have.
    let reserved = if endpoint.account.is_none() { ENDPOINTS_OF_OPERATORS_MAX } else { 0 };
    let bounds = RowBounds { of_owner, in_all: Some(ENDPOINTS_MAX.saturating_add(reserved)) };
    let row = endpoint.to_row();
    let adding = async || match context.store.webhooks.add_row(&row, bounds, false).await? {
        // A repeat finds what it has added.
        WebhookRowAdded::Added | WebhookRowAdded::InPlaceOf(_) | WebhookRowAdded::Exists => Ok(()),
        WebhookRowAdded::Full => Err(ManagementError::Conflict {
            code: "too_many_webhooks",
            message: format!(
                "there are at most {of_owner} endpoints of one owner, and {ENDPOINTS_MAX} of all \
                 accounts; remove one first"
            ),
        }),
    };
    let settings = EndpointPatch {
        url: Some(endpoint.url.clone()),
        events: Some(endpoint.events.clone()),
        low_balance: FieldPatch::set_if_given(endpoint.low_balance),
        enabled: None,
    };
    context.change(&audited_settings("webhook.add", &endpoint, &settings), adding).await?;
    Ok(endpoint)
}

/// Changes an endpoint.
pub(crate) async fn set_endpoint(
    context: ManagementContext<'_>,
    id: &str,
    patch: EndpointPatch,
    allow_private: bool,
) -> Result<WebhookEndpoint, ManagementError> {
    let apply = |endpoint: &WebhookEndpoint| {
        let mut changed = endpoint.clone();
        if let Some(url) = &patch.url {
            changed.url.clone_from(url);
        }
        if let Some(events) = &patch.events {
            changed.events.clone_from(events);
        }
        patch.low_balance.apply_to(&mut changed.low_balance);
        let is_kept = patch.low_balance == FieldPatch::Keep;
        if is_kept && !changed.events.iter().any(|name| name == EventKind::BalanceLow.name()) {
            changed.low_balance = None;
        }
        match patch.enabled {
            Some(true) => changed.disabled = None,
            Some(false) if changed.disabled.is_none() => {
                changed.disabled = Some("it was switched off".to_owned());
            }
            Some(false) | None => {}
        }
        check_endpoint(&changed, allow_private)?;
        Ok(changed)
    };
    let found = find_endpoint(context.store, id).await?;
    let change = audited_settings("webhook.set", &found, &patch);
    change_endpoint(context, &change, id, apply).await
}

/// Gives an endpoint another secret, which is shown this once. For `overlap_s` seconds messages are
/// signed by the old one too.
pub(crate) async fn rotate_secret(
    context: ManagementContext<'_>,
    id: &str,
    overlap_s: u32,
) -> Result<WebhookEndpoint, ManagementError> {
    let secret = WebhookSecret::from_random(random_bits()?);
    let now = unix_ms();
    let until = now.saturating_add(i64::from(overlap_s).saturating_mul(1_000));
    let apply = |endpoint: &WebhookEndpoint| {
        let mut changed = endpoint.clone();
        if changed.secret != secret {
            let old = std::mem::replace(&mut changed.secret, secret.clone());
            changed.keep_old_secret(OldSecret { secret: old, until }, now);
        }
        Ok(changed)
    };
    let found = find_endpoint(context.store, id).await?;
    change_endpoint(context, &audited("webhook.rotate", &found), id, apply).await
}

/// Removes an endpoint, and its messages.
pub(crate) async fn remove_endpoint(
    context: ManagementContext<'_>,
    id: &str,
) -> Result<(), ManagementError> {
    let endpoint = find_endpoint(context.store, id).await?;
    let removing = async || Ok(erase_endpoint(&*context.store.webhooks, id).await.map(drop)?);
    context.change(&audited("webhook.remove", &endpoint), removing).await
}

/// Notes a message to an endpoint that says nothing, to see whether it arrives.
pub(crate) async fn send_test(
    context: ManagementContext<'_>,
    id: &str,
) -> Result<WebhookMessage, ManagementError> {
    let endpoint = require_enabled(find_endpoint(context.store, id).await?)?;
    let now = unix_ms();
    let event = WebhookEvent {
        kind: EventKind::Test,
        account: endpoint.account.clone(),
        key: uuid::Uuid::now_v7().to_string(),
        at: now,
        data: json!({ "endpoint": endpoint.id }),
    };
    let message = WebhookMessage::new(&event, &endpoint.id, now);
    let only = std::slice::from_ref(&endpoint);
    let noting = async || Ok(note_event(&*context.store.webhooks, only, &event, now).await?);
    report_noted(context.change(&audited("webhook.test", &endpoint), noting).await?);
    Ok(message)
}

/// Lets a message be sent again, as if it were new.
pub(crate) async fn send_again(
    context: ManagementContext<'_>,
    endpoint_id: &str,
    message_id: &str,
) -> Result<WebhookMessage, ManagementError> {
    let endpoint = require_enabled(find_endpoint(context.store, endpoint_id).await?)?;
    let webhooks = &*context.store.webhooks;
    let noting = async || {
        for _ in 0..CHANGES_MAX {
            let row = webhooks.find_row(WebhookRowKind::Message, message_id).await?;
            let row = row.filter(|row| row.owner == endpoint.id);
            let row = row.ok_or_else(|| no_such_message(message_id))?;
            let mut message = WebhookMessage::of_row(&row)?;
            if message.state == MessageState::Pending && message.tries == 0 {
                return Ok(message);
            }
            message.send_again(unix_ms());
            if webhooks.replace_row(&message.to_row()).await? {
                return Ok(message);
            }
        }
        Err(changed_meanwhile())
    };
    context.change(&audited("webhook.resend", &endpoint), noting).await
}

/// Returns the endpoints of an account, or those of the operators (`None`), newest first.
pub(crate) async fn list_of_owner(
    store: &OpenStore,
    account: Option<&AccountName>,
) -> Result<Vec<WebhookEndpoint>, ManagementError> {
    let (kind, owner) = (WebhookRowKind::Endpoint, owner_text(account));
    let rows = store.webhooks.list_rows(kind, Some(&owner), None, ENDPOINTS_MAX).await?;
    Ok(rows.iter().map(WebhookEndpoint::of_row).collect::<Result<_, _>>()?)
}

/// Returns all endpoints, newest first: those before the place `before`, at most `limit`.
pub(crate) async fn list_all(
    store: &OpenStore,
    before: Option<&RowPlace>,
    limit: u32,
) -> Result<Vec<WebhookEndpoint>, ManagementError> {
    let rows = store.webhooks.list_rows(WebhookRowKind::Endpoint, None, before, limit).await?;
    Ok(rows.iter().map(WebhookEndpoint::of_row).collect::<Result<_, _>>()?)
}

/// Returns an endpoint.
pub(crate) async fn find_endpoint(
    store: &OpenStore,
    id: &str,
) -> Result<WebhookEndpoint, ManagementError> {
    let row =
        if is_id(id) { store.webhooks.find_row(WebhookRowKind::Endpoint, id).await? } else { None };
    let row = row.ok_or_else(|| no_such_endpoint(id))?;
    Ok(WebhookEndpoint::of_row(&row)?)
}

/// Returns the messages of an endpoint, newest first: those before the place `before`, at most
/// `limit`.
pub(crate) async fn list_messages(
    store: &OpenStore,
    endpoint: &WebhookEndpoint,
    before: Option<&RowPlace>,
    limit: u32,
) -> Result<Vec<WebhookMessage>, ManagementError> {
    let (kind, owner) = (WebhookRowKind::Message, Some(&*endpoint.id));
    let rows = store.webhooks.list_rows(kind, owner, before, limit).await?;
    Ok(rows.iter().map(WebhookMessage::of_row).collect::<Result<_, _>>()?)
}

/// Notes that a payment came in, and what the balance is now. The payment is made, so a failure is
/// only logged: the gateway looks at all payments of the last hours once an hour.
pub(crate) async fn tell_payment(
    store: &OpenStore,
    account: &AccountName,
    tx: &str,
    amount: Money,
) {
    tell(store, account, Some(payment_event(account, tx, amount, unix_ms()))).await;
}

/// Notes what the balance of an account is now, after it was changed by somebody.
pub(crate) async fn tell_balance(store: &OpenStore, account: &AccountName) {
    tell(store, account, None).await;
}

/// Nobody waits long for this: what it is about has been done.
async fn tell(store: &OpenStore, account: &AccountName, payment: Option<WebhookEvent>) {
    let (webhooks, now) = (&*store.webhooks, unix_ms());
    let telling = async {
        let endpoints = list_endpoints(webhooks, Some(account)).await?;
        if let Some(event) = payment {
            report_noted(note_event(webhooks, &endpoints, &event, now).await?);
        }
        let context = CheckContext { webhooks, ledger: &*store.ledger, now };
        report_noted(context.check_account(&endpoints, account).await?);
        Ok(())
    };
    let told = tokio::time::timeout(TELL_TIMEOUT, telling).await;
    if let Err(why) = told.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned()))) {
        log::warn!(
            event = "webhook_not_noted", account = account.as_str(), error:% = why;
            "webhook message of an account is late"
        );
    }
}

/// Changes an endpoint as `apply` says. If another change comes in between, it is applied to that.
async fn change_endpoint(
    context: ManagementContext<'_>,
    change: &AuditedChange,
    id: &str,
    apply: impl Fn(&WebhookEndpoint) -> Result<WebhookEndpoint, ManagementError>,
) -> Result<WebhookEndpoint, ManagementError> {
    // What is wrong is told before anything is recorded.
    apply(&find_endpoint(context.store, id).await?)?;
    let changing = async || {
        for _ in 0..CHANGES_MAX {
            let found = find_endpoint(context.store, id).await?;
            let changed = apply(&found)?;
            if changed == found || context.store.webhooks.replace_row(&changed.to_row()).await? {
                return Ok(changed);
            }
        }
        Err(changed_meanwhile())
    };
    context.change(change, changing).await
}

/// Checks what an endpoint asks for.
fn check_endpoint(endpoint: &WebhookEndpoint, allow_private: bool) -> Result<(), ManagementError> {
    let invalid = |field, message| Err(ManagementError::Invalid { field, message });
    if let Err(why) = WebhookUrl::parse(&endpoint.url, allow_private) {
        return invalid(
            "url",
            format!("'{:.200}' is no address for webhooks: {why}", endpoint.url),
        );
    }
    let chosen = EventKind::CHOSEN.into_iter();
    let is_allowed = |kind: &EventKind| endpoint.account.is_none() || kind.is_of_account();
    let known: Vec<_> = chosen.filter(is_allowed).map(EventKind::name).collect();
    let unknown = endpoint.events.iter().find(|name| !known.contains(&name.as_str()));
    if let Some(name) = unknown {
        let known = known.join(", ");
        return invalid("events", format!("'{name:.80}' is no event here; the events are {known}"));
    }
    if endpoint.events.is_empty() {
        return invalid("events", format!("choose at least one of {}", known.join(", ")));
    }
    let wants_low = endpoint.events.iter().any(|name| name == EventKind::BalanceLow.name());
    match (wants_low, endpoint.low_balance) {
        (true, None) => invalid(
            "low_balance_usd",
            "balance.low needs an amount below which it is told, such as \"5.00\"".to_owned(),
        ),
        (false, Some(_)) => {
            invalid("low_balance_usd", "the amount is for balance.low alone".to_owned())
        }
        _ => Ok(()),
    }
}

fn require_enabled(endpoint: WebhookEndpoint) -> Result<WebhookEndpoint, ManagementError> {
    match &endpoint.disabled {
        None => Ok(endpoint),
        Some(why) => Err(ManagementError::Conflict {
            code: "webhook_disabled",
            message: format!("nothing is sent to the endpoint: {why}; switch it on first"),
        }),
    }
}

/// Whether a text may be the id of an endpoint.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns the error that no endpoint has an id.
pub(crate) fn no_such_endpoint(id: &str) -> ManagementError {
    let message = format!("there is no webhook endpoint '{id:.64}'");
    ManagementError::NotFound { what: "webhook", message }
}

fn no_such_message(id: &str) -> ManagementError {
    let message = format!("the endpoint has no message '{id:.64}'");
    ManagementError::NotFound { what: "message", message }
}

fn changed_meanwhile() -> ManagementError {
    let message = "it is being changed by somebody else; try again".to_owned();
    ManagementError::Conflict { code: "changed_meanwhile", message }
}

fn audited(action: &'static str, endpoint: &WebhookEndpoint) -> AuditedChange {
    let account = endpoint.account.clone();
    let webhook = Some(json!({ "id": endpoint.id }));
    AuditedChange { action, account, webhook, ..AuditedChange::default() }
}

/// Returns the same with what an endpoint has from now on. Of its address it is the host: the rest
/// may be secret.
fn audited_settings(
    action: &'static str,
    endpoint: &WebhookEndpoint,
    patch: &EndpointPatch,
) -> AuditedChange {
    let host_of = |url: &String| {
        let uri = url.parse::<http::Uri>().ok();
        uri.and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default()
    };
    let mut webhook = Map::from_iter([("id".to_owned(), endpoint.id.clone().into())]);
    if let Some(url) = &patch.url {
        webhook.insert("host".to_owned(), host_of(url).into());
    }
    if let Some(events) = &patch.events {
        webhook.insert("events".to_owned(), json!(events));
    }
    if let FieldPatch::Set(low) = &patch.low_balance {
        webhook.insert("low_balance_nano".to_owned(), json!(low));
    }
    if let Some(enabled) = patch.enabled {
        webhook.insert("enabled".to_owned(), enabled.into());
    }
    AuditedChange { webhook: Some(Value::Object(webhook)), ..audited(action, endpoint) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(account: Option<&str>, events: &[&str], low: Option<i64>) -> WebhookEndpoint {
        WebhookEndpoint {
            id: "we_1".to_owned(),
            account: account.map(|name| AccountName::parse(name).expect("a name")),
            created_at: 0,
            version: 1,
            url: "https://hooks.example.com/".to_owned(),
            events: events.iter().map(|name| (*name).to_owned()).collect(),
            low_balance: low.map(|nano| Money::from_nano(nano).expect("an amount")),
            secret: WebhookSecret::from_random([0; 32]),
            old_secrets: Vec::new(),
            disabled: None,
        }
    }

    #[test]
    fn an_endpoint_asks_for_events_that_its_owner_may_have() {
        let told = |endpoint: &WebhookEndpoint| {
            check_endpoint(endpoint, false).err().map(|why| why.to_string()).unwrap_or_default()
        };
        assert_eq!(told(&endpoint(None, &["route.down"], None)), "");
        assert_eq!(told(&endpoint(Some("acme"), &["balance.low"], Some(0))), "");
        let why = told(&endpoint(Some("acme"), &["route.down"], None));
        assert!(why.starts_with("'route.down' is no event here; the events are balance.low, "));
        assert!(told(&endpoint(None, &["webhook.test"], None)).contains("is no event here"));
        assert!(told(&endpoint(None, &[], None)).starts_with("choose at least one of"));
        assert!(told(&endpoint(None, &["balance.low"], None)).contains("needs an amount"));
        assert!(told(&endpoint(None, &["key.budget"], Some(1))).contains("for balance.low alone"));
        let private =
            WebhookEndpoint { url: "https://10.0.0.1/".to_owned(), ..endpoint(None, &[], None) };
        assert!(told(&private).contains("'10.0.0.1' is not a public address"));
    }
}
