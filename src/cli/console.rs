//! `tollgate console`: links by which people sign in to the console, and the end of their sessions.

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;

use super::output::{OutputFormat, print_line};
use crate::conf::Config;
use crate::console::address::ConsoleAddress;
use crate::management::console_links::{end_sessions, make_link, parse_identity};
use crate::management::context::ManagementContext;
use crate::management::error::parse_account;
use crate::management::operators::parse_operator_name;
use crate::sessions::Principal;

#[derive(Debug, Subcommand)]
pub(super) enum ConsoleCommand {
    /// Make a link that signs in once, within ten minutes.
    Link {
        /// The operator who signs in.
        #[arg(long, value_name = "NAME", conflicts_with = "account")]
        operator: Option<String>,
        /// The account whose customer signs in.
        #[arg(long, value_name = "NAME", required_unless_present = "operator")]
        account: Option<String>,
    },
    /// End all sessions of somebody, in all browsers, and remove the unused links.
    EndSessions(SessionOwner),
}

/// Whose sessions end.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct SessionOwner {
    /// The operator.
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// The account whose customer has signed in.
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// The name that the identity provider tells, such as an e-mail address.
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
}

impl SessionOwner {
    fn principal(&self) -> anyhow::Result<Principal> {
        match (&self.operator, &self.account, &self.identity) {
            (Some(name), ..) => Ok(Principal::Operator(parse_operator_name(name)?)),
            (None, Some(name), _) => Ok(Principal::Account(parse_account(name)?)),
            (None, None, Some(name)) => Ok(parse_identity(name)?),
            (None, None, None) => bail!("give --operator, --account or --identity"),
        }
    }
}

pub(super) async fn run(
    context: ManagementContext<'_>,
    conf: &Config,
    command: &ConsoleCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let (operator, account) = match command {
        ConsoleCommand::Link { operator, account } => (operator, account),
        ConsoleCommand::EndSessions(owner) => {
            let ended = end_sessions(context, &owner.principal()?).await?;
            if out.json {
                return Ok(print_line(format_args!("{}", json!({ "sessions_ended": ended })))?);
            }
            return Ok(print_line(format_args!("{ended} session(s) ended"))?);
        }
    };
    let principal = match (operator, account) {
        (Some(name), _) => Principal::Operator(parse_operator_name(name)?),
        (None, Some(name)) => Principal::Account(parse_account(name)?),
        (None, None) => bail!("give --operator or --account"),
    };
    let address = ConsoleAddress::of_links(conf, matches!(principal, Principal::Account(_)));
    let Some(address) = address else {
        bail!("listen.console is not set, so there is no console");
    };
    let secret = make_link(context, &principal).await?;
    let link = address.link(&format!("/link/{}", secret.reveal()));
    if out.json {
        return Ok(print_line(format_args!("{}", json!({ "url": link })))?);
    }
    Ok(print_line(format_args!("{link}"))?)
}
