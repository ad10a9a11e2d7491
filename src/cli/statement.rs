//! `tollgate statement`: the statement of an account for a month.

use std::io::Write as _;

use anyhow::bail;
use clap::Args;

use super::account_name::parse_account;
use super::output::OutputFormat;
use crate::management::statements::read_statement;
use crate::statement::{StatementMonth, write_csv, write_html, write_text, write_view};
use crate::store::OpenStore;

#[derive(Debug, Args)]
pub(super) struct StatementArgs {
    /// The account.
    name: String,
    /// The month (UTC), such as 2026-11.
    month: String,
    /// Print CSV, with a row for each item.
    #[arg(long, conflicts_with = "html")]
    csv: bool,
    /// Print a page in HTML.
    #[arg(long)]
    html: bool,
}

pub(super) async fn run(
    store: &OpenStore,
    args: &StatementArgs,
    out: OutputFormat,
) -> anyhow::Result<()> {
    if out.json && (args.csv || args.html) {
        bail!("give one of --json, --csv and --html");
    }
    let account = parse_account(&args.name)?;
    let month = StatementMonth::parse(&args.month)?;
    let view = read_statement(store, &account, month).await?;
    let text = match (out.json, args.csv, args.html) {
        (true, ..) => write_view(&view) + "\n",
        (_, true, _) => write_csv(&view),
        (.., true) => write_html(&view),
        _ => write_text(&view),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
