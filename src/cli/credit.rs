//! `tollgate credit`: take payments, and pay credit back.

use clap::Subcommand;
use serde_json::json;

use super::account_name::parse_account;
use super::amount::parse_amount;
use super::output::{OutputFormat, print_line};
use crate::management::context::ManagementContext;
use crate::management::error::ManagementError;
use crate::management::payments::{self, Refund, Transfer, parse_reason, parse_transfer_id};

#[derive(Debug, Subcommand)]
pub(super) enum CreditCommand {
    /// Add credit to an account.
    Add {
        /// The account.
        name: String,
        /// How much, in USD.
        usd: String,
        /// The id of the payment: the same again adds nothing.
        #[arg(long, value_name = "TX")]
        id: Option<String>,
    },
    /// Pay credit back: at most what the account has, without what running calls hold.
    Take {
        /// The account.
        name: String,
        /// How much, in USD.
        usd: String,
        /// The id of the refund: the same again takes nothing.
        #[arg(long, value_name = "TX")]
        id: String,
        /// Why, for the people who read the list of payments.
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
}

pub(super) async fn run(
    context: ManagementContext<'_>,
    command: &CreditCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    match command {
        CreditCommand::Add { name, usd, id } => {
            let (account, amount) = (parse_account(name)?, parse_amount(usd)?);
            let tx = id.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
            let payment = Transfer { account, tx, amount, reason: String::new() };
            payments::add_payment(context, &payment)
                .await
                .map_err(|why| explain(why, "payment", &payment.tx, "was taken; add it"))?;
            super::account::show_account(context.ledger(), &payment.account, out).await
        }
        CreditCommand::Take { name, usd, id, reason } => {
            let (account, amount) = (parse_account(name)?, parse_amount(usd)?);
            let (tx, reason) = (parse_transfer_id(id)?, parse_reason(reason)?);
            let refund = Transfer { account, tx, amount, reason };
            let taken = payments::refund(context, &refund)
                .await
                .map_err(|why| explain(why, "refund", &refund.tx, "was made; ask for it"))?;
            print_refund(&refund, taken, out)
        }
    }
}

fn print_refund(refund: &Transfer, done: Refund, out: OutputFormat) -> anyhow::Result<()> {
    let Refund { taken, uncovered } = done;
    let (account, tx) = (&refund.account, &refund.tx);
    if out.json {
        let shown = json!({
            "account": account.as_str(),
            "id": tx,
            "amount_nano": refund.amount,
            "taken_nano": taken,
            "uncovered_nano": uncovered,
        });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    print_line(format_args!("account      {account}"))?;
    print_line(format_args!("paid back    {taken} USD"))?;
    print_line(format_args!("not covered  {uncovered} USD"))?;
    Ok(())
}

/// Says what to do if the store did not answer: only then is it unknown what came of a transfer.
pub(super) fn explain(why: ManagementError, what: &str, tx: &str, words: &str) -> anyhow::Error {
    if !matches!(why, ManagementError::Unavailable(_)) {
        return why.into();
    }
    anyhow::Error::from(why).context(format!(
        "it is not known whether {what} '{tx}' {words} again with --id '{tx}': it counts once"
    ))
}
