//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod account;
mod account_name;
mod account_settings;
mod amount;
mod archive;
mod audit;
mod backup;
mod book;
mod budgets;
mod charge;
mod charges;
mod check;
mod check_books;
mod console;
mod credit;
mod export;
mod hardening;
mod holds;
mod init;
mod jobs;
mod key;
mod key_issue;
mod key_rotation;
mod key_scope;
mod key_shown;
mod logging;
mod models;
mod operator;
mod output;
mod payments;
mod plan;
mod reference;
mod restore;
mod rules;
mod runtime;
mod serve;
mod settings;
mod statement;
mod usage;
mod webhook;

use output::OutputFormat;
use runtime::{context, with_store, with_store_alone};

/// A gateway in front of several model vendors: one key, one prepaid balance.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version)]
pub struct Cli {
    /// The configuration file.
    #[arg(long, default_value = "conf/tollgate.toml", global = true)]
    conf: String,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: TopCommand,
}

#[derive(Debug, Subcommand)]
enum TopCommand {
    #[command(flatten)]
    Configured(Box<CliCommand>),
    #[command(flatten)]
    Reference(reference::ReferenceCommand),
}

/// Commands that read the configuration.
#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Make a new store, unless there is one.
    Init,
    /// Run the gateway.
    Serve {
        /// Take over from the gateway that runs with the same configuration, which then ends with
        /// its last answer.
        #[arg(long)]
        upgrade: bool,
    },
    /// Read the configuration and the rules, run the rules' examples, and tell what is wrong.
    Check {
        /// Prove instead that the books add up: the sums of usage are those of the journal, and the
        /// journal has what the balances say. Reads all journals, also while a gateway runs.
        #[arg(long)]
        books: bool,
    },
    /// Accounts and their balances.
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Payments, grants and refunds.
    #[command(subcommand)]
    Credit(credit::CreditCommand),
    /// List the payments, grants, refunds and corrections of an account, oldest first.
    Payments {
        /// The account.
        name: String,
    },
    /// Keys of clients.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Operators, who manage the gateway through its API.
    #[command(subcommand)]
    Operator(operator::OperatorCommand),
    /// The plans of the rules: rate limits of accounts and keys.
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// The price books of the rules: what accounts pay instead of the list prices.
    #[command(subcommand)]
    Book(book::BookCommand),
    /// List the models and their prices.
    Models,
    /// List the charges of an account, oldest first.
    Charges {
        /// The account.
        name: String,
    },
    /// List what is held of an account, or of all accounts, at the moment.
    Holds {
        /// The account; without it, all accounts.
        name: Option<String>,
    },
    /// List video jobs, oldest first.
    Jobs {
        /// The account; without it, all accounts.
        name: Option<String>,
        /// Only jobs in this state: queued, `in_progress`, completed or failed.
        #[arg(long)]
        state: Option<String>,
    },
    /// Tell what an account used, from sums that a gateway makes of its charges.
    Usage(usage::UsageArgs),
    /// Print the statement of an account for a month. A month that is over is sealed then: it gets
    /// a number, and never changes.
    Statement(statement::StatementArgs),
    /// Print what was charged, for other programs.
    #[command(subcommand)]
    Export(export::ExportCommand),
    /// The archive of the journals of all accounts.
    #[command(subcommand)]
    Archive(archive::ArchiveCommand),
    /// The endpoints that are told of events, such as a low balance.
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// The console: pages for operators and customers.
    #[command(subcommand)]
    Console(console::ConsoleCommand),
    /// Corrections of charges.
    #[command(subcommand)]
    Charge(charge::ChargeCommand),
    /// Copy the SQLite store with its logs into one file, also while a gateway runs.
    Backup {
        /// The file, which must not exist.
        file: String,
    },
    /// Restore a backup as the SQLite store of the configuration, where there is none.
    Restore {
        /// The file that `tollgate backup` has made.
        file: String,
    },
}

/// Runs a command.
#[must_use]
pub fn run(cli: &Cli) -> ExitCode {
    hardening::harden();
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) if is_broken_pipe(&why) => ExitCode::SUCCESS,
        Err(why) => {
            if cli.json {
                eprintln!("{}", serde_json::json!({ "error": format!("{why:#}") }));
            } else {
                eprintln!("tollgate: {why:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        TopCommand::Configured(command) => run_configured(cli, command),
        TopCommand::Reference(command) => reference::run(command),
    }
}

fn run_configured(cli: &Cli, command: &CliCommand) -> anyhow::Result<()> {
    let conf = settings::load_config(&cli.conf)?;
    let out = OutputFormat { json: cli.json };
    if !matches!(command, CliCommand::Serve { .. }) {
        logging::start_for_commands(conf.log);
    }
    match command {
        CliCommand::Serve { upgrade } => serve::run(&conf, &cli.conf, *upgrade),
        CliCommand::Check { books: false } => check::run(&conf, out),
        CliCommand::Check { books: true } => {
            with_store(&conf, async |s| check_books::run(&s, out).await)
        }
        CliCommand::Init => init::run(&conf, out),
        CliCommand::Account(command) => {
            plan::check_plan(&conf, command.plan())?;
            book::check_book(&conf, command.book())?;
            if command.wants_new_store() {
                init::create_store(&conf)?;
            }
            with_store(&conf, async |s| {
                account::run(context(&s, &conf), &conf.files, command, out).await
            })
        }
        CliCommand::Credit(command) => {
            with_store(&conf, async |s| credit::run(context(&s, &conf), command, out).await)
        }
        CliCommand::Key(command) => {
            plan::check_plan(&conf, command.plan())?;
            with_store(&conf, async |s| key::run(context(&s, &conf), command, out).await)
        }
        CliCommand::Operator(command) => {
            with_store(&conf, async |s| operator::run(context(&s, &conf), command, out).await)
        }
        CliCommand::Plan(command) => plan::run(&conf, command, out),
        CliCommand::Book(command) => book::run(&conf, command, out),
        CliCommand::Models => models::run(&conf, out),
        CliCommand::Webhook(command) => webhook::run(&conf, command, out),
        CliCommand::Charges { name } => {
            with_store(&conf, async |s| charges::run(&s, name, out).await)
        }
        CliCommand::Holds { name } => {
            with_store(&conf, async |s| holds::run(&*s.ledger, name.as_deref(), out).await)
        }
        CliCommand::Jobs { name, state } => {
            let (name, state) = (name.as_deref(), state.as_deref());
            with_store(&conf, async |s| jobs::run(&s, name, state, out).await)
        }
        CliCommand::Payments { name } => {
            with_store(&conf, async |s| payments::run(&*s.ledger, name, out).await)
        }
        CliCommand::Usage(args) => with_store(&conf, async |s| usage::run(&s, args, out).await),
        CliCommand::Statement(args) => {
            with_store(&conf, async |s| statement::run(&s, args, out).await)
        }
        CliCommand::Export(command) => {
            with_store(&conf, async |s| export::run(&s, command, out).await)
        }
        CliCommand::Archive(command) => {
            with_store_alone(&conf, async |s| archive::run(&s, &conf, command, out).await)
        }
        CliCommand::Console(command) => {
            with_store(&conf, async |s| console::run(context(&s, &conf), &conf, command, out).await)
        }
        CliCommand::Charge(command) => {
            with_store(&conf, async |s| charge::run(context(&s, &conf), command, out).await)
        }
        CliCommand::Backup { file } => backup::run(&conf, file.as_ref(), out),
        CliCommand::Restore { file } => restore::run(&conf, file.as_ref(), out),
    }
}

/// Whether the error only means that the reader of the output has closed the pipe, as `head` does.
/// That is no failure of the command.
fn is_broken_pipe(why: &anyhow::Error) -> bool {
    let io = why.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
