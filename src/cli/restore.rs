//! `tollgate restore`: puts a backup where the configuration has its store, and where none is.

use std::path::{self, Path};

use anyhow::bail;

use super::backup::{print_summary, summary_json};
use super::output::{OutputFormat, print_line};
use crate::conf::Config;
use crate::store::backup;

pub(super) fn run(conf: &Config, file: &Path, out: OutputFormat) -> anyhow::Result<()> {
    let Some(database) = conf.store.database() else {
        bail!(
            "`tollgate restore` restores a SQLite store, and store.url names a Redis: restore its \
             data as docs/operate/backup.md#restore-redis says"
        );
    };
    let restored = backup::restore_backup(file, database)?;
    if out.json {
        let mut shown = summary_json(&restored.backup);
        shown["restored"] = path::absolute(database)?.display().to_string().into();
        shown["log_folders_kept"] = restored.folders_kept.into();
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    print_line(format_args!("restored  {}", path::absolute(database)?.display()))?;
    print_summary(&restored.backup)?;
    print_line(format_args!("kept      {} log folders that were there", restored.folders_kept))?;
    print_line(format_args!(
        "next      enter the payments since the backup, then start the gateway"
    ))?;
    Ok(())
}
