//! `tollgate archive`: writes the archive of journals without a gateway.

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;

use super::output::{OutputFormat, print_line};
use crate::archive::{ArchiveReport, JournalArchive};
use crate::conf::Config;
use crate::management::archiving::archiver_of;
use crate::store::OpenStore;

#[derive(Debug, Subcommand)]
pub(super) enum ArchiveCommand {
    /// Archive all days that are over, and take lines out of the store that are old enough. A
    /// running gateway does so by itself.
    Run,
}

pub(super) async fn run(
    store: &OpenStore,
    conf: &Config,
    command: &ArchiveCommand,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let ArchiveCommand::Run = command;
    let url = conf.journal.archive.as_deref();
    let url = url.context("journal.archive does not say where the archive is")?;
    let archive = JournalArchive::open(url)?;
    let holder = format!("command {}", uuid::Uuid::now_v7());
    let report = archiver_of(store, &archive, &conf.journal, &holder).run().await?;
    let ArchiveReport { days, archived, trimmed, is_interrupted } = report;
    if out.json {
        let shown = json!({
            "days": days,
            "lines_archived": archived,
            "lines_trimmed": trimmed,
            "finished": !is_interrupted,
        });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    print_line(format_args!("archived  {archived} lines, {days} files of days and buckets"))?;
    print_line(format_args!("trimmed   {trimmed} lines have left the store"))?;
    if is_interrupted {
        print_line(format_args!("not yet   another process is at work on the archive"))?;
    }
    Ok(())
}
