//! Archives the journals while the gateway serves: on a thread of its own, since reading files back
//! keeps a processor busy.

use std::time::Duration;

use crate::archive::{ArchiveReport, JournalArchive, JournalSection};
use crate::cli::runtime::{attach_archive, build_runtime};
use crate::conf::Config;
use crate::management::archiving::run_archiver;
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
    let store = if conf.store.is_embedded() {
        store.clone()
    } else {
        attach_archive(conf, store::open_lazily(&conf.store)?)
    };
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
    tokio::time::sleep(FIRST_WAIT).await;
    loop {
        let wait = match run_archiver(store, archive, section, &holder).await {
            Ok(report) => {
                report_run(&report);
                if report.is_interrupted { RETRY_INTERVAL } else { INTERVAL }
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
