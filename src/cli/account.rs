//! `tollgate account`: open accounts, list them, show one, change one.

use std::cell::Cell;

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::account_name::{no_such_account, parse_account};
use super::account_settings::{SettingChanges, setting_lines};
use super::amount::parse_amount;
use super::audit::{self, AuditedBudgets, AuditedChange};
use super::budgets::{self, BudgetArgs, LimitChanges, ShownBudgets};
use super::output::{OutputFormat, print_line};
use crate::conf::AuditSection;
use crate::ledger::account::Balances;
use crate::ledger::{AccountName, AccountSettings, BudgetOwner, Ledger};
use crate::store::OpenStore;

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Open an account.
    Create {
        /// Its name.
        name: String,
        /// A first payment, in USD.
        #[arg(long, value_name = "USD")]
        credit: Option<String>,
        /// Make the store first, unless there is one.
        #[arg(long)]
        new_store: bool,
    },
    /// List all accounts.
    List,
    /// Show an account's balances, settings and budgets.
    Show {
        /// Its name.
        name: String,
    },
    /// Change the budgets and the plan of an account, suspend it or resume it.
    Set {
        /// Its name.
        name: String,
        #[command(flatten)]
        budgets: BudgetArgs,
        #[command(flatten)]
        settings: SettingChanges,
    },
}

impl AccountCommand {
    /// Whether the command may create the store.
    pub(super) fn wants_new_store(&self) -> bool {
        matches!(self, AccountCommand::Create { new_store: true, .. })
    }

    /// The name of the plan that is given.
    pub(super) fn plan(&self) -> Option<&str> {
        match self {
            AccountCommand::Set { settings, .. } => settings.plan(),
            AccountCommand::Create { .. } | AccountCommand::List | AccountCommand::Show { .. } => {
                None
            }
        }
    }
}

pub(super) async fn run(
    store: OpenStore,
    command: &AccountCommand,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ledger = &*store.ledger;
    match command {
        AccountCommand::Create { name, credit, .. } => {
            let name = parse_account(name)?;
            let amount = credit.as_deref().map(parse_amount).transpose()?;
            // It may run again: an account that the first run opened is still new.
            let is_new = Cell::new(false);
            let opening = async || {
                is_new.set(ledger.open_account(&name).await? || is_new.get());
                if !is_new.get() {
                    bail!("account '{name}' is there already");
                }
                let Some(amount) = amount else { return Ok(()) };
                super::credit::add_credit(ledger, &name, &opening_payment_id(&name), amount).await
            };
            let change = AuditedChange {
                action: "account.create",
                account: Some(name.clone()),
                payment: amount.map(|_| opening_payment_id(&name)),
                amount,
                ..AuditedChange::default()
            };
            let making = async || store.durability.write(opening).await;
            audit::run_audited(audit, Some(ledger), &change, making).await?;
            show_account(ledger, &name, out).await
        }
        AccountCommand::List => {
            for name in ledger.list_accounts().await? {
                show_account(ledger, &name, out).await?;
            }
            Ok(())
        }
        AccountCommand::Show { name } => show_account(ledger, &parse_account(name)?, out).await,
        AccountCommand::Set { name, budgets, settings } => {
            let (name, limits) = (parse_account(name)?, budgets.parse()?);
            set_account(&store, &name, &limits, settings, audit, out).await
        }
    }
}

async fn set_account(
    store: &OpenStore,
    name: &AccountName,
    limits: &LimitChanges,
    changes: &SettingChanges,
    audit: &AuditSection,
    out: OutputFormat,
) -> anyhow::Result<()> {
    if limits.is_empty() && changes.is_empty() {
        bail!("there is nothing to set: `tollgate account set --help` lists what can be set");
    }
    let (ledger, owner) = (&*store.ledger, BudgetOwner::Account);
    let settings = if changes.is_empty() {
        None
    } else {
        Some(changes.apply(&read_settings(ledger, name).await?)?)
    };
    let change = AuditedChange {
        action: "account.set",
        account: Some(name.clone()),
        budgets: AuditedBudgets::new(owner, limits),
        settings,
        ..AuditedChange::default()
    };
    let (new, removed) = budgets::split_limits(limits);
    let setting = async || {
        let set = async || {
            // As with keys: a command that ends halfway leaves no account that may do more than
            // before and after it.
            budgets::set_limits(ledger, name, owner, &new).await?;
            change_settings(ledger, name, changes).await?;
            budgets::set_limits(ledger, name, owner, &removed).await
        };
        store.durability.write(set).await
    };
    audit::run_audited(audit, Some(ledger), &change, setting).await?;
    show_account(ledger, name, out).await
}

async fn read_settings(ledger: &dyn Ledger, name: &AccountName) -> anyhow::Result<AccountSettings> {
    let found = ledger.account_settings(name).await?;
    found.ok_or_else(|| no_such_account(name))
}

/// Changes the settings that an account has at this moment. Another command may have changed them
/// since this one began, or since this write was made first, and may have suspended the account.
async fn change_settings(
    ledger: &dyn Ledger,
    name: &AccountName,
    changes: &SettingChanges,
) -> anyhow::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let settings = changes.apply(&read_settings(ledger, name).await?)?;
    if !ledger.set_account_settings(name, settings).await? {
        return Err(no_such_account(name));
    }
    Ok(())
}

/// Returns the id of an account's first payment.
fn opening_payment_id(name: &AccountName) -> String {
    format!("opening-{name}")
}

pub(super) async fn show_account(
    ledger: &dyn Ledger,
    name: &AccountName,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let Some(balances) = ledger.balances(name).await? else { return Err(no_such_account(name)) };
    let Balances { credit, available, held, posted, written_off } = balances;
    let settings = read_settings(ledger, name).await?;
    let budgets = ShownBudgets::read(ledger, name).await?;
    if out.json {
        let shown = json!({
            "name": name.as_str(),
            "credited_nano": credit,
            "available_nano": available,
            "held_nano": held,
            "posted_nano": posted,
            "written_off_nano": written_off,
            "plan": settings.plan,
            "suspended": settings.suspended,
            "budgets": budgets.to_json(),
        });
        print_line(format_args!("{shown}"))?;
    } else {
        print_line(format_args!("account      {name}"))?;
        print_line(format_args!("credited     {credit} USD"))?;
        print_line(format_args!("available    {available} USD"))?;
        print_line(format_args!("held         {held} USD"))?;
        print_line(format_args!("posted       {posted} USD"))?;
        print_line(format_args!("written off  {written_off} USD"))?;
        for (what, text) in setting_lines(&settings) {
            print_line(format_args!("{what:<13}{text}"))?;
        }
        budgets.print()?;
    }
    Ok(())
}
