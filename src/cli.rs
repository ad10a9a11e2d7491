//! The command line.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{Parser, Subcommand};

use crate::conf::{self, Config};
use crate::gateway::upstream::vendor_key;
use crate::ledger::AccountName;
use crate::store::{self, OpenStore};
use crate::toml_reader::ConfigError;

mod account;
mod audit;
mod charges;
mod check;
mod credit;
mod hardening;
mod init;
mod key;
mod logging;
mod models;
mod rules;
mod serve;

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
    command: CliCommand,
}

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
    Check,
    /// Accounts and their balances.
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Payments.
    #[command(subcommand)]
    Credit(credit::CreditCommand),
    /// Keys of clients.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// List the models and their prices.
    Models,
    /// List the charges of an account, oldest first.
    Charges {
        /// The account.
        name: String,
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
    let conf = load_config(&cli.conf)?;
    let out = OutputFormat { json: cli.json };
    if !matches!(cli.command, CliCommand::Serve { .. }) {
        logging::start_for_commands(conf.log);
    }
    match &cli.command {
        CliCommand::Serve { upgrade } => serve::run(&conf, &cli.conf, *upgrade),
        CliCommand::Check => check::run(&conf, out),
        CliCommand::Init => init::run(&conf, out),
        CliCommand::Account(command) => {
            if command.wants_new_store() {
                init::create_store(&conf)?;
            }
            with_store(&conf, async |s| account::run(s, command, &conf.audit, out).await)
        }
        CliCommand::Credit(command) => {
            with_store(&conf, async |s| credit::run(s, command, &conf.audit, out).await)
        }
        CliCommand::Key(command) => {
            with_store(&conf, async |s| key::run(s, command, &conf.audit, out).await)
        }
        CliCommand::Models => models::run(&conf, out),
        CliCommand::Charges { name } => {
            with_store(&conf, async |s| charges::run(s.ledger, name, out).await)
        }
    }
}

/// How a command prints.
#[derive(Debug, Clone, Copy)]
struct OutputFormat {
    json: bool,
}

/// Prints a line. It fails when nobody reads any more, which is for [`run`] to pass over.
fn print_line(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")
}

/// Whether the reader of our output has gone, as `head` does: no fault of anybody's.
fn is_broken_pipe(why: &anyhow::Error) -> bool {
    let io = why.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

fn load_config(file: &str) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    Config::parse(file, &text, config_variables()?).map_err(|found| config_error(&found))
}

/// The variables of the environment that set something here. The library's own list panics where
/// any value is no text, and shows it.
fn config_variables() -> anyhow::Result<Vec<(String, String)>> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(conf::ENV_PREFIX))?;
        Some((name, value))
    });
    let text = |(name, value): (String, OsString)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => bail!("{name} in the environment is no text in UTF-8"),
    };
    ours.map(text).collect()
}

/// Secrets that the configuration names: those that are there must be usable.
fn load_secrets(conf: &Config) -> anyhow::Result<Vec<Option<[u8; 32]>>> {
    let unusable = vendor_key::find_unusable(&conf.vendors);
    if !unusable.is_empty() {
        bail!("{}", unusable.join("\n"));
    }
    conf.files.read_link_secrets().map_err(anyhow::Error::msg)
}

/// Many faults as one error.
fn config_error(faults: &[ConfigError]) -> anyhow::Error {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    anyhow!("{} fault(s)\n{}", lines.len(), lines.join("\n"))
}

/// Runs something on the store of a configuration.
fn with_store(
    conf: &Config,
    run: impl AsyncFnOnce(OpenStore) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    build_runtime()?.block_on(async {
        let opened = store::open(&conf.store).await?;
        run(opened).await
    })
}

fn build_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn parse_account(text: &str) -> anyhow::Result<AccountName> {
    match AccountName::parse(text) {
        Some(name) => Ok(name),
        None => bail!("'{text}' is no account name: 1 to 64 letters, digits, '-', '_' and '.'"),
    }
}

fn no_such_account(name: &AccountName) -> anyhow::Error {
    anyhow!("there is no account '{name}'")
}
