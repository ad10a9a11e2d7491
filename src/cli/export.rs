//! `tollgate export`: what was charged, for other programs.

use std::io::{BufWriter, Write as _};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use super::account_name::parse_account;
use super::output::OutputFormat;
use crate::management::focus::read_focus;
use crate::management::statements::check_begun;
use crate::statement::{FocusRecord, StatementMonth};
use crate::store::OpenStore;

#[derive(Debug, Subcommand)]
pub(super) enum ExportCommand {
    /// Print what accounts were charged in a month as CSV of FOCUS 1.2. The statement of a month
    /// that is over is sealed then.
    Focus(FocusArgs),
}

#[derive(Debug, Args)]
pub(super) struct FocusArgs {
    /// The month (UTC), such as 2026-11.
    month: String,
    /// Only this account; without it, all accounts.
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// The name of who sells, as the rows shall tell it.
    #[arg(long, value_name = "TEXT", default_value = "tollgate")]
    issuer: String,
}

pub(super) async fn run(
    store: &OpenStore,
    command: &ExportCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ExportCommand::Focus(args) = command;
    if out.json {
        bail!("FOCUS is told as CSV: leave out --json");
    }
    let month = StatementMonth::parse(&args.month)?;
    check_begun(month, store.statements.statement_clock().await?)?;
    let accounts = match &args.account {
        Some(name) => vec![parse_account(name)?],
        None => store.ledger.list_accounts().await?,
    };
    // What cannot be told is found before anything is printed.
    for account in &accounts {
        read_focus(store, account, month).await.with_context(|| format!("account '{account}'"))?;
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    out.write_all(FocusRecord::header().as_bytes())?;
    for account in &accounts {
        let read = read_focus(store, account, month).await;
        if let Some(rows) = read.with_context(|| format!("account '{account}'"))? {
            rows.write(&args.issuer, |record| out.write_all(record.to_csv().as_bytes()))?;
        }
    }
    out.flush()?;
    Ok(())
}
