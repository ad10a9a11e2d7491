//! What commands print.

use std::io::Write;

/// How a command prints.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputFormat {
    pub(super) json: bool,
}

/// Prints a line. It fails when nobody reads any more, which is for [`run`](super::run) to pass
/// over.
pub(super) fn print_line(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")
}
