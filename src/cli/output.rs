//! The output of commands.

use std::io::Write;

/// The format in which a command prints.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputFormat {
    pub(super) json: bool,
}

/// Prints a line. Fails if the reader of the output has closed the pipe; [`run`](super::run)
/// ignores that error.
pub(super) fn print_line(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")
}
