//! `tollgate credit`: take payments, grant credit, and pay credit back.

use clap::Subcommand;
use serde_json::json;

use super::account_name::parse_account;
use super::amount::parse_amount;
use super::key_scope::{parse_duration, parse_time};
use super::output::{OutputFormat, print_line};
use crate::ledger::LotId;
use crate::management::context::ManagementContext;
use crate::management::error::ManagementError;
use crate::management::grants::{
    check_lot, expiry_text, find_granted_lot, grant_credit, parse_source,
};
use crate::management::key_search::now_s;
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
    /// Grant credit, which may expire: a promotion, a voucher, or a payment with an end.
    Grant {
        /// The account.
        name: String,
        /// How much, in USD.
        usd: String,
        /// The id of the grant: the same again adds nothing.
        #[arg(long, value_name = "TX")]
        id: String,
        /// How long the credit can be used, as in 90d, or when it expires, as in 2027-01-31
        /// (midnight UTC), or `never`.
        #[arg(long, value_name = "TIME")]
        expires: String,
        /// Where the credit comes from: `promotion`, `voucher` or `paid`. Only paid credit is ever
        /// paid back.
        #[arg(long, value_name = "SOURCE", default_value = "promotion")]
        source: String,
    },
    /// Pay credit back: at most what the account has of paid credit, without what running calls
    /// hold.
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
        CreditCommand::Grant { name, usd, id, expires, source } => {
            let (account, amount) = (parse_account(name)?, parse_amount(usd)?);
            let (tx, reason) = (parse_transfer_id(id)?, String::new());
            let grant = Transfer { account, tx, amount, reason };
            let lot = choose_lot(context, &grant, expires, source).await?;
            grant_credit(context, &grant, lot)
                .await
                .map_err(|why| explain(why, "grant", &grant.tx, "was made; ask for it"))?;
            print_grant(&grant, lot, out)
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

/// Returns the lot of a grant. A time from now is that of the first try of the grant.
async fn choose_lot(
    context: ManagementContext<'_>,
    grant: &Transfer,
    expires: &str,
    source: &str,
) -> anyhow::Result<LotId> {
    let (source, now) = (parse_source(source)?, now_s());
    if expires == "never" {
        return Ok(check_lot(source, None, now)?);
    }
    let lot = check_lot(source, Some(parse_time(expires, now)?), now)?;
    if parse_duration(expires).is_none() {
        return Ok(lot);
    }
    Ok(find_granted_lot(context, grant, source).await?.unwrap_or(lot))
}

fn print_grant(grant: &Transfer, lot: LotId, out: OutputFormat) -> anyhow::Result<()> {
    let Transfer { account, tx, amount, .. } = grant;
    let (source, expires) = (lot.source.as_str(), expiry_text(lot));
    if out.json {
        let shown = json!({
            "account": account.as_str(),
            "id": tx,
            "amount_nano": amount,
            "source": source,
            "expires_at": expires,
        });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    let expires = expires.as_deref().unwrap_or("never");
    print_line(format_args!("account      {account}"))?;
    print_line(format_args!("granted      {amount} USD"))?;
    print_line(format_args!("source       {source}"))?;
    print_line(format_args!("expires      {expires}"))?;
    Ok(())
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
