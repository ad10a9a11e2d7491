//! Archives the journals while the gateway serves: on a thread of its own, since reading files back
//! keeps a processor busy.

use std::time::Duration;

use crate::archive::{ArchiveFault, ArchiveReport, Archiver, JournalArchive, JournalSection};
use crate::cli::runtime::build_runtime;
use crate::conf::Config;
use crate::management::archiving::archiver_of;
use crate::metrics::METRICS;
use crate::store::{self, OpenStore};

/// How often it is asked whether a day is over, or lines are old enough to leave the store.
const INTERVAL: Duration = Duration::from_secs(600);
/// The wait after a failure, and after a run that another process has interrupted.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// The wait before the first run: a process that has just started has more urgent work.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// Starts the thread, if the configuration has an archive. An embedded store is shared with the
/// rest of the process, which is `store`; to a server the thread has connections of its own.
pub(super) fn spawn(conf: &Config, store: &OpenStore) -> anyhow::Result<()> {
    let Some(url) = conf.journal.archive.clone() else { return Ok(()) };
    let store =
        if conf.store.is_embedded() { store.clone() } else { store::open_lazily(&conf.store)? };
    let section = conf.journal.clone();
    let archive = JournalArchive::open(&url)?;
    let runtime = build_runtime()?;
    let run = move || runtime.block_on(archive_journals(&store, &archive, &section));
    std::thread::Builder::new().name("archiver".to_owned()).spawn(run)?;
    Ok(())
}

/// Archives journals as days end. It never returns.
async fn archive_journals(store: &OpenStore, archive: &JournalArchive, section: &JournalSection) {
    let holder = uuid::Uuid::now_v7().to_string();
    let archiver = archiver_of(store, archive, section, &holder);
    let mut done_day = None;
    tokio::time::sleep(FIRST_WAIT).await;
    loop {
        let wait = match run_on_new_day(&archiver, &mut done_day).await {
            Ok(is_finished) => {
                if is_finished {
                    INTERVAL
                } else {
                    RETRY_INTERVAL
                }
            }
            Err(why) => {
                METRICS.journal_archive_failures.inc();
                log::warn!(
                    event = "journal_archive_failed", error:% = why;
                    "journal not archived"
                );
                RETRY_INTERVAL
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Archives what there is, unless that was done for the same day. Returns whether it is done.
async fn run_on_new_day(
    archiver: &Archiver<'_>,
    done_day: &mut Option<i64>,
) -> Result<bool, ArchiveFault> {
    let day = archiver.settled_day().await?;
    if *done_day == Some(day) {
        return Ok(true);
    }
    let report = archiver.run().await?;
    report_run(&report);
    if !report.is_interrupted {
        *done_day = Some(day);
    }
    Ok(!report.is_interrupted)
}

fn report_run(report: &ArchiveReport) {
    METRICS.journal_lines_archived.inc_by(report.archived);
    METRICS.journal_lines_trimmed.inc_by(report.trimmed);
    if report.archived > 0 || report.trimmed > 0 {
        log::info!(
            event = "journal_archived", lines = report.archived, trimmed = report.trimmed;
            "journal archived"
        );
    }
}
