//! The pages of webhooks: the list, one endpoint with its messages and forms, and a new secret.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::form::FilledForm;
use super::frame::token_field;
use super::parts::{Column, encoded, facts, next_page, state, table, time};
use crate::console::form_table::{
    ADD_WEBHOOK, FormRule, OWN_ADD_WEBHOOK, OWN_WEBHOOK_CHANGE, OWN_WEBHOOK_REMOVAL,
    OWN_WEBHOOK_ROTATION, OWN_WEBHOOK_TEST, WEBHOOK_CHANGE, WEBHOOK_REMOVAL, WEBHOOK_ROTATION,
    WEBHOOK_TEST,
};
use crate::console::forms::SentFields;
use crate::console::state::{SignedIn, Viewer};
use crate::console::webhook_forms::EVENT_FIELDS;
use crate::webhooks::RowPlace;
use crate::webhooks::endpoint::WebhookEndpoint;
use crate::webhooks::message::{MessageState, WebhookMessage};

/// The forms of an endpoint.
struct EndpointForms {
    add: &'static FormRule,
    change: &'static FormRule,
    rotation: &'static FormRule,
    test: &'static FormRule,
    removal: &'static FormRule,
}

/// The forms of operators.
static OPERATOR_FORMS: EndpointForms = EndpointForms {
    add: &ADD_WEBHOOK,
    change: &WEBHOOK_CHANGE,
    rotation: &WEBHOOK_ROTATION,
    test: &WEBHOOK_TEST,
    removal: &WEBHOOK_REMOVAL,
};
/// The forms of customers.
static CUSTOMER_FORMS: EndpointForms = EndpointForms {
    add: &OWN_ADD_WEBHOOK,
    change: &OWN_WEBHOOK_CHANGE,
    rotation: &OWN_WEBHOOK_ROTATION,
    test: &OWN_WEBHOOK_TEST,
    removal: &OWN_WEBHOOK_REMOVAL,
};

fn forms_of(viewer: &Viewer) -> &'static EndpointForms {
    match viewer {
        Viewer::Operator { .. } => &OPERATOR_FORMS,
        Viewer::Customer(_) => &CUSTOMER_FORMS,
    }
}

/// A page of the list of endpoints.
pub(in crate::console) struct EndpointList {
    pub(in crate::console) endpoints: Vec<WebhookEndpoint>,
    pub(in crate::console) next: Option<RowPlace>,
}

/// What the page of an endpoint shows.
pub(in crate::console) struct EndpointDetail {
    pub(in crate::console) endpoint: WebhookEndpoint,
    /// A page of its messages, newest first.
    pub(in crate::console) messages: Vec<WebhookMessage>,
    pub(in crate::console) next: Option<RowPlace>,
}

/// Draws the list of endpoints.
pub(in crate::console) fn draw_list(page: &EndpointList, signed_in: &SignedIn) -> Markup {
    let path = signed_in.viewer.webhooks_path();
    let columns = ["Address", "Account", "Events", "State", "Added"].map(Column::Text);
    let row = |endpoint: &WebhookEndpoint| {
        vec![
            html! { a href={ (path) "/" (endpoint.id) } { (endpoint.url) } },
            account_of(endpoint),
            html! { (endpoint.events.join(", ")) },
            state_of(endpoint),
            time(endpoint.created_at),
        ]
    };
    let rows: Vec<_> = page.endpoints.iter().map(row).collect();
    let rule = forms_of(&signed_in.viewer).add;
    let (form_token, fields) = (&*signed_in.form_token, &SentFields::default());
    html! {
        p {
            "An endpoint is an address that is told by a signed POST when something happens."
        }
        (table("Endpoints, newest first", &columns, &rows, "There is no endpoint yet."))
        (next_page(page.next.as_ref().map(|place| address(path, place))))
        @if signed_in.may_change() {
            (FilledForm { rule, action: path, form_token, fields }.draw())
        }
    }
}

fn address(path: &str, place: &RowPlace) -> String {
    format!("{path}?before={}", encoded(&place.to_string()))
}

/// Draws an endpoint with its messages.
pub(in crate::console) fn draw(page: &EndpointDetail, signed_in: &SignedIn) -> Markup {
    let endpoint = &page.endpoint;
    let all = signed_in.viewer.webhooks_path();
    let path = format!("{all}/{}", endpoint.id);
    let low = endpoint.low_balance.map(|low| low.to_string());
    html! {
        p { a href=(all) { "All webhooks" } }
        (facts(&[
            ("Address", html! { code { (endpoint.url) } }),
            ("Id", html! { code { (endpoint.id) } }),
            ("Account", account_of(endpoint)),
            ("Events", html! { (endpoint.events.join(", ")) }),
            ("Low balance, USD", html! { (low.as_deref().unwrap_or("–")) }),
            ("State", state_of(endpoint)),
            ("Added", time(endpoint.created_at)),
        ]))
        section aria-labelledby="messages" {
            h2 #messages { "Messages" }
            (message_table(page, &path, signed_in))
            (next_page(page.next.as_ref().map(|place| address(&path, place))))
        }
        @if signed_in.may_change() { (change_forms(endpoint, &path, signed_in)) }
    }
}

fn message_table(page: &EndpointDetail, path: &str, signed_in: &SignedIn) -> Markup {
    let columns = [
        Column::Text("Message"),
        Column::Text("Event"),
        Column::Text("Account"),
        Column::Text("State"),
        Column::Number("Tries"),
        Column::Text("Last answer"),
        Column::Text("Noted"),
        Column::Text("Again"),
    ];
    let row = |message: &WebhookMessage| {
        let last = message.last.as_ref();
        let said = last.and_then(|last| last.error.clone());
        let said =
            said.or_else(|| last.and_then(|last| last.status).map(|s| format!("status {s}")));
        let word = message.state.name().replace('_', " ");
        let is_new = message.state == MessageState::Pending && message.tries == 0;
        let may_resend = signed_in.may_change() && page.endpoint.disabled.is_none() && !is_new;
        vec![
            html! { code { (message.id()) } },
            html! { (message.event) },
            html! { (message.account.as_deref().unwrap_or("–")) },
            state(message.state != MessageState::GivenUp, &word),
            html! { (message.tries) },
            html! { (said.as_deref().unwrap_or("–")) },
            time(message.created_at()),
            html! {
                @if may_resend {
                    form method="post" action={ (path) "/resend" } {
                        (token_field(&signed_in.form_token))
                        input type="hidden" name="message" value=(message.id());
                        button.plain type="submit" aria-label={ "Send again: " (message.id()) } {
                            "Send again"
                        }
                    }
                } @else { "–" }
            },
        ]
    };
    let rows: Vec<_> = page.messages.iter().map(row).collect();
    table("Messages, newest first", &columns, &rows, "Nothing was told yet.")
}

fn change_forms(endpoint: &WebhookEndpoint, path: &str, signed_in: &SignedIn) -> Markup {
    let forms = forms_of(&signed_in.viewer);
    let ticked = |is_ticked| if is_ticked { "yes".to_owned() } else { String::new() };
    let [balance, budget, payment, completed, failed, route] = EVENT_FIELDS
        .map(|(name, event)| (name, ticked(endpoint.events.iter().any(|e| e == event))));
    let settings = SentFields::of([
        ("url", endpoint.url.clone()),
        balance,
        ("low_balance_usd", endpoint.low_balance.map(|low| low.to_string()).unwrap_or_default()),
        budget,
        payment,
        completed,
        failed,
        route,
        ("enabled", ticked(endpoint.disabled.is_none())),
    ]);
    let none = SentFields::default();
    let drawn = |rule: &FormRule, last: &str, fields: &SentFields| {
        let (action, form_token) = (format!("{path}{last}"), &*signed_in.form_token);
        FilledForm { rule, action: &action, form_token, fields }.draw()
    };
    html! {
        section aria-labelledby="change" {
            h2 #change { "Change" }
            (drawn(forms.change, "", &settings))
            (drawn(forms.rotation, "/rotation", &none))
            (drawn(forms.test, "/test", &none))
            (drawn(forms.removal, "/removal", &none))
        }
    }
}

/// Draws a secret, which is shown this once.
pub(in crate::console) fn draw_secret(endpoint: &WebhookEndpoint, signed_in: &SignedIn) -> Markup {
    let path = format!("{}/{}", signed_in.viewer.webhooks_path(), endpoint.id);
    html! {
        div.notice {
            p { "Copy the secret now: no page shows it again. The receiver checks with it that a "
                "message is from here." }
            code.secret #new-secret tabindex="-1" autofocus { (endpoint.secret.reveal()) }
            @if let Some(until) = endpoint.old_secrets.iter().map(|old| old.until).max() {
                p { "Messages are signed by the old one too until " (time(until)) " UTC." }
            }
        }
        p { a href=(path) { "To the endpoint " (endpoint.url) } }
    }
}

fn account_of(endpoint: &WebhookEndpoint) -> Markup {
    html! { @match &endpoint.account { Some(name) => (name), None => "all" } }
}

fn state_of(endpoint: &WebhookEndpoint) -> Markup {
    match &endpoint.disabled {
        None => state(true, &"on"),
        Some(why) => state(false, &format!("off: {why}")),
    }
}
