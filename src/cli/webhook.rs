//! `tollgate webhook`: the endpoints that are told of events, and their messages.

use clap::{Args, Subcommand};
use serde_json::json;

use super::account_name::parse_account;
use super::amount::parse_amount;
use super::output::{OutputFormat, print_line};
use super::runtime::{context, with_store};
use crate::conf::Config;
use crate::management::context::ManagementContext;
use crate::management::field_patch::FieldPatch;
use crate::management::webhooks::{
    self, EndpointPatch, NewEndpoint, OVERLAP_S, OVERLAP_S_MAX, find_endpoint,
};
use crate::webhooks::endpoint::WebhookEndpoint;
use crate::webhooks::event::moment_text;
use crate::webhooks::message::WebhookMessage;

/// The number of messages that are read at a time.
const PAGE_SIZE: u32 = 500;

#[derive(Debug, Subcommand)]
pub(super) enum WebhookCommand {
    /// Add an endpoint, and show its secret this once.
    Add {
        /// Its address, such as <https://hooks.example.com/tollgate>.
        url: String,
        /// The account whose events it is told; without it, those of all accounts and of routes.
        #[arg(long)]
        account: Option<String>,
        #[command(flatten)]
        wanted: WantedEvents,
    },
    /// List the endpoints of an account, or all, newest first.
    List {
        /// The account.
        account: Option<String>,
    },
    /// Change what an endpoint is told, where it is, or whether anything is sent.
    Set {
        /// The id of the endpoint.
        id: String,
        /// Its new address.
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        wanted: WantedEvents,
        /// Send messages again after it was switched off.
        #[arg(long, conflicts_with = "off")]
        on: bool,
        /// Send no messages.
        #[arg(long)]
        off: bool,
    },
    /// Give an endpoint another secret, and show it this once.
    Rotate {
        /// The id of the endpoint.
        id: String,
        /// For so many seconds messages are signed by the old secret too; a day by default.
        #[arg(long, value_name = "SECONDS", default_value_t = OVERLAP_S)]
        #[arg(value_parser = clap::value_parser!(u32).range(..=i64::from(OVERLAP_S_MAX)))]
        overlap: u32,
    },
    /// Remove an endpoint, and its messages.
    Remove {
        /// The id of the endpoint.
        id: String,
    },
    /// Send a message that says nothing, to see whether it arrives.
    Test {
        /// The id of the endpoint.
        id: String,
    },
    /// List the messages of an endpoint, newest first.
    Messages {
        /// The id of the endpoint.
        id: String,
    },
    /// Send a message again.
    Resend {
        /// The id of the endpoint.
        id: String,
        /// The id of the message.
        message: String,
    },
}

/// What an endpoint is told.
#[derive(Debug, Args)]
pub(super) struct WantedEvents {
    /// The events that it is told, with commas between them: balance.low, key.budget,
    /// payment.received, video.completed, video.failed, route.down.
    #[arg(long, value_delimiter = ',')]
    events: Vec<String>,
    /// Tell balance.low if less than this is available, in USD.
    #[arg(long, value_name = "USD")]
    low_balance: Option<String>,
}

/// Runs a command on the store of the configuration.
pub(super) fn run(
    conf: &Config,
    command: &WebhookCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let allow_private = conf.webhooks.allow_private;
    with_store(conf, async |store| run_in(context(&store, conf), command, allow_private, out).await)
}

async fn run_in(
    context: ManagementContext<'_>,
    command: &WebhookCommand,
    allow_private: bool,
    out: OutputFormat,
) -> anyhow::Result<()> {
    match command {
        WebhookCommand::Add { url, account, wanted } => {
            let low_balance = wanted.low_balance.as_deref().map(parse_amount).transpose()?;
            let account = account.as_deref().map(parse_account).transpose()?;
            let (url, events) = (url.clone(), wanted.events.clone());
            let new = NewEndpoint { account, url, events, low_balance };
            Ok(print_secret(&webhooks::add_endpoint(context, new, allow_private).await?, out)?)
        }
        WebhookCommand::List { account } => {
            let account = account.as_deref().map(parse_account).transpose()?;
            let found = match &account {
                Some(account) => webhooks::list_of_owner(context.store, Some(account)).await?,
                None => webhooks::list_all(context.store, None, u32::MAX).await?,
            };
            Ok(found.iter().try_for_each(|endpoint| print_endpoint(endpoint, out))?)
        }
        WebhookCommand::Set { id, url, wanted, on, off } => {
            let low = wanted.low_balance.as_deref().map(parse_amount).transpose()?;
            let events = (!wanted.events.is_empty()).then(|| wanted.events.clone());
            let low_balance = FieldPatch::set_if_given(low);
            let enabled = (*on || *off).then_some(*on);
            let patch = EndpointPatch { url: url.clone(), events, low_balance, enabled };
            let changed = webhooks::set_endpoint(context, id, patch, allow_private).await?;
            Ok(print_endpoint(&changed, out)?)
        }
        WebhookCommand::Rotate { id, overlap } => {
            Ok(print_secret(&webhooks::rotate_secret(context, id, *overlap).await?, out)?)
        }
        WebhookCommand::Remove { id } => {
            webhooks::remove_endpoint(context, id).await?;
            if out.json {
                print_line(format_args!("{}", json!({ "id": id, "removed": true })))?;
            }
            Ok(())
        }
        WebhookCommand::Test { id } => {
            Ok(print_message(&webhooks::send_test(context, id).await?, out)?)
        }
        WebhookCommand::Messages { id } => {
            let endpoint = find_endpoint(context.store, id).await?;
            let found = webhooks::list_messages(context.store, &endpoint, None, PAGE_SIZE).await?;
            Ok(found.iter().try_for_each(|message| print_message(message, out))?)
        }
        WebhookCommand::Resend { id, message } => {
            Ok(print_message(&webhooks::send_again(context, id, message).await?, out)?)
        }
    }
}

/// Prints a new secret, which is shown this once.
fn print_secret(endpoint: &WebhookEndpoint, out: OutputFormat) -> std::io::Result<()> {
    let secret = endpoint.secret.reveal();
    if out.json {
        let shown = json!({ "secret": secret, "id": endpoint.id });
        print_line(format_args!("{shown}"))
    } else {
        print_line(format_args!("{}  {secret}", endpoint.id))
    }
}

fn print_endpoint(endpoint: &WebhookEndpoint, out: OutputFormat) -> std::io::Result<()> {
    let WebhookEndpoint { id, account, url, events, low_balance, disabled, .. } = endpoint;
    let account = account.as_ref().map(ToString::to_string);
    if out.json {
        let shown = json!({
            "id": id,
            "account": account,
            "url": url,
            "events": events,
            "low_balance_nano": low_balance,
            "enabled": disabled.is_none(),
            "disabled_reason": disabled,
            "created_at": endpoint.created_at,
        });
        return print_line(format_args!("{shown}"));
    }
    let low = low_balance.map(|low| format!("  below {low} USD")).unwrap_or_default();
    let state = disabled.as_ref().map(|why| format!("  off: {why}")).unwrap_or_default();
    let (account, events) = (account.unwrap_or_else(|| "-".to_owned()), events.join(","));
    print_line(format_args!("{id}  {account}  {url}  {events}{low}{state}"))
}

fn print_message(message: &WebhookMessage, out: OutputFormat) -> std::io::Result<()> {
    let (id, state, last) = (message.id(), message.state.name(), message.last.as_ref());
    if out.json {
        let shown = json!({
            "id": id,
            "event": message.event,
            "account": message.account,
            "state": state,
            "tries": message.tries,
            "next_try_at": message.next_try_at(),
            "last_try_at": last.map(|last| last.at),
            "last_status": last.and_then(|last| last.status),
            "last_error": last.and_then(|last| last.error.as_deref()),
            "created_at": message.created_at(),
            "body": message.body,
        });
        return print_line(format_args!("{shown}"));
    }
    let (at, event, tries) = (moment_text(message.created_at()), &message.event, message.tries);
    let error = last.and_then(|last| last.error.as_deref()).unwrap_or_default();
    let line = format!("{at}  {id}  {event}  {state}  {tries} tries  {error}");
    print_line(format_args!("{}", line.trim_end()))
}
