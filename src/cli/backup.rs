//! `tollgate backup`: copies the store with its logs into one file, whether a gateway runs or not.

use std::path::Path;

use anyhow::bail;
use serde_json::{Value, json};

use super::output::{OutputFormat, print_line};
use crate::conf::Config;
use crate::store::backup::{self, BackupSummary};

pub(super) fn run(conf: &Config, file: &Path, out: OutputFormat) -> anyhow::Result<()> {
    let Some(database) = conf.store.database() else {
        bail!(
            "`tollgate backup` copies a SQLite store, and store.url names a Redis: back up its \
             data as docs/operate/backup.md#redis says"
        );
    };
    let made = backup::create_backup(database, file)?;
    if out.json {
        let mut shown = summary_json(&made);
        shown["file"] = file.display().to_string().into();
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    print_line(format_args!("backup    {}", file.display()))?;
    print_summary(&made)?;
    Ok(())
}

/// Returns what a backup has, as JSON.
pub(super) fn summary_json(backup: &BackupSummary) -> Value {
    json!({
        "backup": backup.id,
        "made_at": backup.made_at,
        "store": backup.store_id,
        "data_version": backup.data_version,
        "database_bytes": backup.database_bytes,
        "log_files": backup.log_files,
        "log_bytes": backup.log_bytes,
        "accounts": backup.accounts,
    })
}

/// Prints what a backup has.
pub(super) fn print_summary(backup: &BackupSummary) -> std::io::Result<()> {
    let BackupSummary { id, made_at, store_id, data_version, .. } = backup;
    print_line(format_args!("id        {id}, made at {made_at}"))?;
    print_line(format_args!("store     {store_id}, data version {data_version}"))?;
    print_line(format_args!("database  {} bytes", backup.database_bytes))?;
    print_line(format_args!("logs      {} files, {} bytes", backup.log_files, backup.log_bytes))?;
    print_line(format_args!("books     {} accounts, all add up", backup.accounts))
}
