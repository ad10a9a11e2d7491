//! `tollgate credit`: take payments.

use anyhow::bail;
use clap::Subcommand;

use super::account_name::{no_such_account, parse_account};
use super::amount::parse_amount;
use super::audit::{self, AuditedChange};
use super::output::OutputFormat;
use crate::conf::AuditSection;
use crate::ledger::{AccountName, Ledger, Operation, Outcome, Unavailable};
use crate::money::Money;
use crate::store::OpenStore;

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
}

pub(super) async fn run(
    store: OpenStore,
    command: &CreditCommand,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ledger = &*store.ledger;
    let CreditCommand::Add { name, usd, id } = command;
    let (name, amount) = (parse_account(name)?, parse_amount(usd)?);
    let tx = id.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let change = AuditedChange {
        action: "credit.add",
        account: Some(name.clone()),
        payment: Some(tx.clone()),
        amount: Some(amount),
        ..AuditedChange::default()
    };
    let adding = async || {
        store.durability.write(async || add_credit(ledger, &name, &tx, amount).await).await
    };
    let taking = audit::run_audited(audit, Some(ledger), &change, adding).await;
    // Only if the store did not answer is it unknown whether it has the payment.
    let explain = |why: anyhow::Error| {
        if !why.is::<Unavailable>() {
            return why;
        }
        why.context(format!(
            "it is not known whether payment '{tx}' was taken; add it again with --id '{tx}': it \
             counts once"
        ))
    };
    taking.map_err(explain)?;
    super::account::show_account(ledger, &name, out).await
}

/// Makes a payment. A payment that was made before, under the same id, is no error.
pub(super) async fn add_credit(
    ledger: &dyn Ledger,
    name: &AccountName,
    tx: &str,
    amount: Money,
) -> anyhow::Result<()> {
    let op = Operation::Credit { tx: tx.to_owned(), amount };
    match ledger.submit(name, op).await? {
        Outcome::Done | Outcome::AlreadyDone => Ok(()),
        Outcome::Conflict => bail!("payment '{tx}' was taken before, with another amount"),
        Outcome::NoAccount => Err(no_such_account(name)),
        Outcome::OutOfRange => bail!("the balance would be too large"),
        other => bail!("unexpected answer: {other:?}"),
    }
}
