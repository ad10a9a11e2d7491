//! Commands that tell about the commands: completions for shells, and pages for `man`.

use std::io::Write;

use anyhow::Context;
use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use super::Cli;

/// Commands that read no configuration.
#[derive(Debug, Subcommand)]
pub(super) enum ReferenceCommand {
    /// Print what a shell needs to complete these commands.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the pages for `man` into a folder. The packages have them.
    #[command(hide = true)]
    Man {
        /// The folder, which must exist.
        folder: String,
    },
}

pub(super) fn run(command: &ReferenceCommand) -> anyhow::Result<()> {
    match command {
        ReferenceCommand::Completions { shell } => print_completions(*shell),
        ReferenceCommand::Man { folder } => clap_mangen::generate_to(Cli::command(), folder)
            .with_context(|| format!("cannot write the pages into {folder}")),
    }
}

fn print_completions(shell: Shell) -> anyhow::Result<()> {
    // The generator panics if it cannot write, as into a pipe that `head` has closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}
