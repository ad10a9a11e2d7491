//! `tollgate console`: links by which people sign in to the console.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::output::{OutputFormat, print_line};
use crate::conf::Config;
use crate::console::address::ConsoleAddress;
use crate::management::console_links::make_link;
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
}

pub(super) async fn run(
    context: ManagementContext<'_>,
    conf: &Config,
    command: &ConsoleCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ConsoleCommand::Link { operator, account } = command;
    let Some(listen) = &conf.listen.console else {
        bail!("listen.console is not set, so there is no console");
    };
    let principal = match (operator, account) {
        (Some(name), _) => Principal::Operator(parse_operator_name(name)?),
        (None, Some(name)) => Principal::Account(parse_account(name)?),
        (None, None) => bail!("give --operator or --account"),
    };
    let address = ConsoleAddress::new(conf.console.url.as_deref(), listen);
    let secret = make_link(context, &principal).await?;
    let link = address.link(&format!("/link/{}", secret.reveal()));
    if out.json {
        return Ok(print_line(format_args!("{}", json!({ "url": link })))?);
    }
    Ok(print_line(format_args!("{link}"))?)
}
