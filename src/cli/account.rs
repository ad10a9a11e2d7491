//! `tollgate account`: open accounts, list them, show one, change one, delete one.

use anyhow::{Context as _, bail};
use clap::Subcommand;
use serde_json::{Value, json};

use super::account_name::parse_account;
use super::account_settings::{SettingChanges, setting_lines};
use super::amount::parse_amount;
use super::budgets::{BudgetArgs, ShownBudgets};
use super::output::{OutputFormat, print_line};
use crate::files::{FilesSection, VideoFiles};
use crate::ledger::account::Balances;
use crate::ledger::{AccountName, CreditLot, Ledger, OpenLot};
use crate::management::accounts::{self, AccountView, NewAccount};
use crate::management::context::ManagementContext;
use crate::management::deletion::{self, DeletedAccount};
use crate::management::error::{parse_book_name, parse_plan_name};
use crate::management::expiry::time_text;
use crate::management::grants::{describe_lot, expiry_text};

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Open an account.
    Create {
        /// Its name.
        name: String,
        /// A first payment, in USD.
        #[arg(long, value_name = "USD")]
        credit: Option<String>,
        /// Limit the account by this plan of the rules.
        #[arg(long)]
        plan: Option<String>,
        /// Charge the account by this price book of the rules.
        #[arg(long)]
        book: Option<String>,
        /// Make the store first, unless there is one.
        #[arg(long)]
        new_store: bool,
    },
    /// List all accounts.
    List {
        /// List those that are deleted as well.
        #[arg(long)]
        deleted: bool,
    },
    /// Show an account's balances, lots of granted credit, settings and budgets.
    Show {
        /// Its name.
        name: String,
    },
    /// Change the budgets, the plan and the price book of an account, suspend it or resume it.
    Set {
        /// Its name.
        name: String,
        #[command(flatten)]
        budgets: BudgetArgs,
        #[command(flatten)]
        settings: SettingChanges,
    },
    /// Delete an account that has nothing left, and erase what it has beside its books: keys,
    /// settings, budgets, stored replies, video jobs and files.
    Delete {
        /// Its name.
        name: String,
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
            AccountCommand::Create { plan, .. } => plan.as_deref(),
            AccountCommand::Set { settings, .. } => settings.plan(),
            _ => None,
        }
    }

    /// The name of the price book that is given.
    pub(super) fn book(&self) -> Option<&str> {
        match self {
            AccountCommand::Create { book, .. } => book.as_deref(),
            AccountCommand::Set { settings, .. } => settings.book(),
            _ => None,
        }
    }
}

pub(super) async fn run(
    context: ManagementContext<'_>,
    files: &FilesSection,
    command: &AccountCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ledger = context.ledger();
    match command {
        AccountCommand::Create { name, credit, plan, book, .. } => {
            let name = parse_account(name)?;
            let credit = credit.as_deref().map(parse_amount).transpose()?;
            let plan = plan.as_deref().map(parse_plan_name).transpose()?;
            let book = book.as_deref().map(parse_book_name).transpose()?;
            let new = NewAccount { name, plan, book, credit };
            accounts::open_account(context, &new).await?;
            show_account(ledger, &new.name, out).await
        }
        AccountCommand::List { deleted } => {
            for name in accounts::list_accounts(context.store, *deleted).await? {
                show_account(ledger, &name, out).await?;
            }
            Ok(())
        }
        AccountCommand::Show { name } => show_account(ledger, &parse_account(name)?, out).await,
        AccountCommand::Set { name, budgets, settings } => {
            let (name, limits) = (parse_account(name)?, budgets.parse()?);
            if limits.is_empty() && settings.is_empty() {
                bail!(
                    "there is nothing to set: `tollgate account set --help` lists what can be set"
                );
            }
            accounts::set_account(context, &name, &limits, &settings.parse()?).await?;
            show_account(ledger, &name, out).await
        }
        AccountCommand::Delete { name } => {
            delete_account(context, files, &parse_account(name)?, out).await
        }
    }
}

async fn delete_account(
    context: ManagementContext<'_>,
    files: &FilesSection,
    name: &AccountName,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let opened = VideoFiles::open_existing(files).context("cannot open files.url")?;
    let Some(files) = opened else {
        bail!(
            "the folder of files.url is not here, so nothing is deleted: run the command where it \
             is, or make the folder if there are no files"
        );
    };
    let DeletedAccount { at, was_deleted } =
        deletion::delete_account(context, &files, name).await?;
    if out.json {
        let (name, deleted) = (name.as_str(), true);
        let shown = json!({
            "name": name, "deleted": deleted, "deleted_at": at, "was_deleted": was_deleted,
        });
        print_line(format_args!("{shown}"))?;
    } else if was_deleted {
        let at = time_text(at);
        print_line(format_args!("account {name} was deleted at {at}; what was left is erased"))?;
    } else {
        print_line(format_args!("account {name} is deleted, and erased but for its books"))?;
    }
    Ok(())
}

pub(super) async fn show_account(
    ledger: &dyn Ledger,
    name: &AccountName,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let view = accounts::read_account(ledger, name).await?;
    let AccountView { balances, lots, settings, deleted_at, budgets, keys, .. } = view;
    let Balances { credit, available, held, posted, written_off } = balances;
    let budgets = ShownBudgets::new(budgets, &keys);
    if out.json {
        let shown = json!({
            "name": name.as_str(),
            "credited_nano": credit,
            "available_nano": available,
            "held_nano": held,
            "posted_nano": posted,
            "written_off_nano": written_off,
            "lots": lots.iter().map(lot_json).collect::<Vec<_>>(),
            "plan": settings.plan,
            "book": settings.book,
            "suspended": settings.suspended,
            "deleted_at": deleted_at,
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
        for OpenLot { id, lot: CreditLot { available, held } } in &lots {
            let lot = describe_lot(*id);
            print_line(format_args!("lot          {lot}: available {available}, held {held} USD"))?;
        }
        match deleted_at {
            Some(at) => print_line(format_args!("deleted      {}", time_text(at)))?,
            None => {
                for (what, text) in setting_lines(&settings) {
                    print_line(format_args!("{what:<13}{text}"))?;
                }
            }
        }
        budgets.print()?;
    }
    Ok(())
}

fn lot_json(open: &OpenLot) -> Value {
    let OpenLot { id, lot: CreditLot { available, held } } = open;
    json!({
        "source": id.source.as_str(),
        "expires_at": expiry_text(*id),
        "available_nano": available,
        "held_nano": held,
    })
}
