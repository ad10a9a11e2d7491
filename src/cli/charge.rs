//! `tollgate charge`: correct a charge.

use clap::Subcommand;
use serde_json::json;

use super::account_name::parse_account;
use super::amount::parse_amount;
use super::credit::explain;
use super::output::{OutputFormat, print_line};
use crate::management::context::ManagementContext;
use crate::management::corrections::{correct_charge, find_charged_account};
use crate::management::payments::{Transfer, parse_reason, parse_transfer_id};

#[derive(Debug, Subcommand)]
pub(super) enum ChargeCommand {
    /// Give back a part of a charge, by a line of its own in the journal.
    Correct {
        /// The id of the charged request.
        request_id: String,
        /// How much, in USD: at most what is left of the charge is given back.
        usd: String,
        /// The id of the correction: the same again gives nothing back.
        #[arg(long, value_name = "TX")]
        id: String,
        /// Why, for the people who read the journal.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// The account that was charged. Without it, all accounts are searched.
        #[arg(long, value_name = "NAME")]
        account: Option<String>,
    },
}

pub(super) async fn run(
    context: ManagementContext<'_>,
    command: &ChargeCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ChargeCommand::Correct { request_id, usd, id, reason, account } = command;
    let (amount, tx) = (parse_amount(usd)?, parse_transfer_id(id)?);
    let reason = parse_reason(reason)?;
    let account = match account {
        Some(name) => parse_account(name)?,
        None => find_charged_account(context.store, request_id).await?,
    };
    let correction = Transfer { account, tx, amount, reason };
    let given = correct_charge(context, request_id, &correction)
        .await
        .map_err(|why| explain(why, "correction", &correction.tx, "was made; ask for it"))?;
    let (account, tx) = (&correction.account, &correction.tx);
    if out.json {
        let shown = json!({
            "account": account.as_str(),
            "id": tx,
            "request_id": request_id,
            "amount_nano": amount,
            "corrected_nano": given,
        });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    print_line(format_args!("account      {account}"))?;
    print_line(format_args!("given back   {given} USD"))?;
    Ok(())
}
