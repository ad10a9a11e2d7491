//! The `tollgate` command.

use std::process::ExitCode;

use clap::Parser;
use tollgate::cli::Cli;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tollgate::cli::run(&Cli::parse())
}
