//! `tollgate restore`: restores a backup as the store of the configuration, where there is none.

use std::path::{self, Path};

use anyhow::bail;

use super::audit::run_audited;
use super::backup::{print_summary, summary_json};
use super::output::{OutputFormat, print_line};
use super::runtime::build_runtime;
use crate::conf::Config;
use crate::management::audit::AuditedChange;
use crate::store::backup;

pub(super) fn run(conf: &Config, file: &Path, out: OutputFormat) -> anyhow::Result<()> {
    let Some(database) = conf.store.database() else {
        bail!(
            "`tollgate restore` restores a SQLite store, and store.url names a Redis: restore its \
             data as docs/operate/backup.md#restore-redis says"
        );
    };
    let backup = Some(file.display().to_string());
    let change = AuditedChange { action: "store.restore", backup, ..AuditedChange::default() };
    let restoring = async || Ok(backup::restore_backup(file, database)?);
    let recorded = run_audited(&conf.audit, &change, restoring);
    let restored = build_runtime()?.block_on(recorded)?;
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
