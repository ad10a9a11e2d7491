//! Writes lines of days that are over to the archive, and takes them out of the store.
//!
//! A day of a bucket is written in steps, each of which can be repeated after a crash:
//!
//! 1. The lines are written to files that are named by their content.
//! 2. The manifest is written, once: from here on it says what the day has.
//! 3. All files are read back, and each line is compared with that of the store.
//! 4. The store notes for each account how far the archive has it.
//! 5. After some days the lines that are noted are deleted from the store.

use std::collections::BTreeMap;

use super::archived_lines::{Comparison, day_of_line};
use super::day_writer::{DayWriter, FinishedPart};
use super::fault::ArchiveFault;
use super::journal_archive::{JournalArchive, folder_of};
use super::line::LineDigest;
use super::manifest::{Manifest, PreviousManifest};
use super::places::{DAY_MS, DayFolder, bucket_of};
use super::{ArchiveState, ArchiveStore, ArchivedDay};
use crate::failpoints::failpoint;
use crate::ledger::{AccountName, Ledger};
use crate::usage::UsageStore;

/// A day is archived this long after its end, in ms: what a server lost in a failover may return
/// until then, in another order.
pub const SETTLED_AFTER_MS: i64 = DAY_MS;
/// The number of lines that are read from the store at a time.
const LINES_AT_A_TIME: u32 = 1_000;
/// The number of lines that leave the store at a time, so that calls do not wait for long.
const TRIMMED_AT_A_TIME: u32 = 10_000;
/// How many archived days of an account are read at a time.
const DAYS_AT_A_TIME: u32 = 100;
/// The turn of a process lasts this long, in ms, after it has last been at work.
const TURN_MS: u64 = 120_000;

/// What a run has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArchiveReport {
    /// The number of days of buckets that were archived.
    pub days: u64,
    /// The number of lines that were archived.
    pub archived: u64,
    /// The number of lines that have left the store.
    pub trimmed: u64,
    /// Whether another process was at work, so that this run has not ended.
    pub is_interrupted: bool,
}

/// Writes the archive of a store.
pub struct Archiver<'a> {
    /// The archive.
    pub archive: &'a JournalArchive,
    /// What the store knows of the archive.
    pub noted: &'a dyn ArchiveStore,
    /// The journals.
    pub usage: &'a dyn UsageStore,
    /// The accounts.
    pub ledger: &'a dyn Ledger,
    /// Lines stay in the store for this long after the end of their day, in ms.
    pub keep_ms: i64,
    /// A name that no other process has.
    pub holder: &'a str,
}

/// The accounts of a bucket, and how far they are.
type Bucket = Vec<(AccountName, ArchiveState)>;

/// What has to be done in a bucket.
enum NextStep {
    /// Nothing until another day is over.
    Wait,
    /// The accounts of a manifest are to be noted in the store.
    Note(DayFolder, Manifest, i64),
    /// A day is to be written.
    Write(DayFolder, i64, Option<PreviousManifest>),
}

impl Archiver<'_> {
    /// Archives all days that are over, and takes lines out of the store that are old enough.
    ///
    /// # Errors
    /// [`ArchiveFault`]: nothing was deleted that the archive does not have.
    pub async fn run(&self) -> Result<ArchiveReport, ArchiveFault> {
        let report = self.run_in_turn().await;
        // The next one need not wait for the end of the turn.
        self.noted.take_archive_turn(self.holder, 1).await?;
        report
    }

    async fn run_in_turn(&self) -> Result<ArchiveReport, ArchiveFault> {
        let mut report = ArchiveReport::default();
        let mut names: BTreeMap<u8, Vec<AccountName>> = BTreeMap::new();
        for account in self.ledger.list_accounts().await? {
            names.entry(bucket_of(&account)).or_default().push(account);
        }
        for (number, names) in &mut names {
            names.sort_unstable();
            loop {
                if !self.noted.take_archive_turn(self.holder, TURN_MS).await? {
                    report.is_interrupted = true;
                    return Ok(report);
                }
                let bucket = self.read_states(names).await?;
                match self.find_next(*number, &bucket).await? {
                    NextStep::Wait => break,
                    NextStep::Write(folder, day, previous) => {
                        self.write_day(&folder, day, &bucket, previous).await?;
                    }
                    NextStep::Note(folder, manifest, day) => {
                        let lines = self.note_day(&folder, &manifest, day).await?;
                        report.days = report.days.saturating_add(1);
                        report.archived = report.archived.saturating_add(lines);
                    }
                }
            }
        }
        for account in names.values().flatten() {
            report.trimmed = report.trimmed.saturating_add(self.trim(account).await?);
        }
        Ok(report)
    }

    async fn read_states(&self, names: &[AccountName]) -> Result<Bucket, ArchiveFault> {
        let mut bucket = Vec::with_capacity(names.len());
        for name in names {
            if let Some(state) = self.noted.read_archive_state(name).await? {
                bucket.push((name.clone(), state));
            }
        }
        Ok(bucket)
    }

    /// Finds what has to be done next in a bucket. The last day that any account has in the archive
    /// is finished first.
    async fn find_next(&self, number: u8, bucket: &Bucket) -> Result<NextStep, ArchiveFault> {
        let noted =
            bucket.iter().filter_map(|(name, state)| Some((name, state.archived.as_ref()?)));
        let latest = noted.max_by_key(|(_, day)| day.day);
        let mut previous = None;
        if let Some((name, day)) = latest {
            let folder = folder_of(name, day)?;
            let read = self.archive.read_manifest(&folder).await?;
            let missing = || ArchiveFault::Differs(format!("{} is missing", folder.manifest()));
            let read = read.ok_or_else(missing)?;
            if has_unnoted(&read.manifest, bucket) {
                return Ok(NextStep::Note(folder, read.manifest, day.day));
            }
            previous = Some(PreviousManifest { day: folder.day, sha256: read.sha256 });
        }
        let after = latest.map(|(_, day)| day.day);
        let Some(day) = self.find_day(bucket, after).await? else { return Ok(NextStep::Wait) };
        let settled = self.noted.archive_clock().await?.saturating_sub(SETTLED_AFTER_MS);
        if day.saturating_add(DAY_MS) > settled {
            return Ok(NextStep::Wait);
        }
        let out_of_range = || ArchiveFault::Differs(format!("{day} is no day"));
        let folder = DayFolder::new(day, number).ok_or_else(out_of_range)?;
        Ok(match self.archive.read_manifest(&folder).await? {
            Some(read) if has_unnoted(&read.manifest, bucket) => {
                NextStep::Note(folder, read.manifest, day)
            }
            Some(_) => {
                let what = format!("{} has other lines than the store", folder.manifest());
                return Err(ArchiveFault::Differs(what));
            }
            None => NextStep::Write(folder, day, previous),
        })
    }

    /// Returns the first day of lines that are not archived, which is after the day `after`; `None`
    /// if all lines are. A line that says to be of an archived day comes to the next one.
    async fn find_day(
        &self,
        bucket: &Bucket,
        after: Option<i64>,
    ) -> Result<Option<i64>, ArchiveFault> {
        let least = after.map_or(i64::MIN, |day| day.saturating_add(DAY_MS));
        let mut first = None;
        for (name, state) in bucket.iter().filter(|(_, state)| state.lines > state.archived_seq()) {
            let next = self.usage.read_posted(name, state.archived_seq(), 1).await?;
            let day = next.first().map(|line| day_of_line(line).max(least));
            first = match (first, day) {
                (Some(first), Some(day)) => Some(day.min(first)),
                (first, day) => first.or(day),
            };
        }
        Ok(first)
    }

    /// Writes the files and the manifest of a day and a bucket.
    async fn write_day(
        &self,
        folder: &DayFolder,
        day: i64,
        bucket: &Bucket,
        previous: Option<PreviousManifest>,
    ) -> Result<(), ArchiveFault> {
        // What a process wrote that did not come to its manifest is no part of the archive.
        for name in self.archive.files.list(&folder.to_string()).await? {
            self.archive.files.delete(&name).await?;
        }
        let mut writer = DayWriter::new();
        for (name, state) in bucket.iter().filter(|(_, state)| state.lines > state.archived_seq()) {
            let digest = state.archived.as_ref().map_or("", |archived| &archived.digest);
            writer.begin_account(name, state.archived_seq(), LineDigest::of_text(digest));
            self.write_lines(folder, day, name, state.archived_seq(), &mut writer).await?;
        }
        if let Some(part) = writer.finish()? {
            self.put_part(folder, part).await?;
        }
        if !self.noted.take_archive_turn(self.holder, TURN_MS).await? {
            // Whoever has the turn may have deleted these files.
            let what = "another process is at work on the archive".to_owned();
            return Err(ArchiveFault::Unavailable(what));
        }
        let json = writer.into_manifest(folder, previous).to_json()?;
        failpoint!("archive_parts_written");
        // If another process was first, its manifest counts.
        self.archive.files.create(&folder.manifest(), json.into()).await?;
        failpoint!("archive_manifest_written");
        Ok(())
    }

    /// Writes the lines of an account up to the end of a day.
    async fn write_lines(
        &self,
        folder: &DayFolder,
        day: i64,
        account: &AccountName,
        after: u64,
        writer: &mut DayWriter,
    ) -> Result<(), ArchiveFault> {
        let mut after = after;
        loop {
            let page = self.usage.read_posted(account, after, LINES_AT_A_TIME).await?;
            let is_last = page.len() < LINES_AT_A_TIME as usize;
            for line in page {
                if day_of_line(&line) > day {
                    return Ok(());
                }
                after = line.entry.seq;
                if let Some(part) = writer.push(line)? {
                    self.put_part(folder, part).await?;
                    self.noted.take_archive_turn(self.holder, TURN_MS).await?;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    async fn put_part(&self, folder: &DayFolder, part: FinishedPart) -> Result<(), ArchiveFault> {
        // One of that name has the same bytes.
        self.archive.files.create(&folder.file(&part.name), part.bytes.into()).await?;
        failpoint!("archive_part_written");
        Ok(())
    }

    /// Reads back a day, compares it with the store, and notes what the archive has. Returns the
    /// number of lines that were noted.
    async fn note_day(
        &self,
        folder: &DayFolder,
        manifest: &Manifest,
        day: i64,
    ) -> Result<u64, ArchiveFault> {
        let (mut comparison, mut noted) = (Comparison::new(self.archive, folder, manifest), 0_u64);
        for found in &manifest.accounts {
            let unknown = || ArchiveFault::Differs(format!("'{}' is no account", found.account));
            let name = AccountName::parse(&found.account).ok_or_else(unknown)?;
            let state = self.noted.read_archive_state(&name).await?.ok_or_else(unknown)?;
            if state.archived_seq() >= found.last_seq {
                continue;
            }
            let digest = state.archived.as_ref().map_or("", |archived| &archived.digest);
            let follows = state.archived_seq().saturating_add(1) == found.first_seq;
            if !follows || digest != found.previous_digest {
                return Err(ArchiveFault::Differs(format!(
                    "account '{name}': the lines from {} on do not follow the archived ones",
                    found.first_seq
                )));
            }
            comparison.compare(self.usage, &name, found).await?;
            let (last_seq, digest) = (found.last_seq, found.digest.clone());
            let archived = ArchivedDay { day, last_seq, digest };
            if !self.noted.mark_archived(&name, state.archived_seq(), &archived).await? {
                return Err(ArchiveFault::Unavailable(format!(
                    "account '{name}': another process has noted other lines"
                )));
            }
            failpoint!("archive_account_noted");
            let lines = last_seq.saturating_sub(state.archived_seq());
            noted = noted.saturating_add(lines);
            self.noted.take_archive_turn(self.holder, TURN_MS).await?;
        }
        Ok(noted)
    }

    /// Deletes lines of an account that the store has kept for long enough. Returns their number.
    async fn trim(&self, account: &AccountName) -> Result<u64, ArchiveFault> {
        let Some(state) = self.noted.read_archive_state(account).await? else { return Ok(0) };
        if state.archived_seq() <= state.trimmed {
            return Ok(0);
        }
        let now = self.noted.archive_clock().await?;
        let (mut after, mut to) = (state.trimmed, state.trimmed);
        loop {
            let days = self.noted.list_archived_days(account, after, DAYS_AT_A_TIME).await?;
            let is_old = |day: &&ArchivedDay| {
                day.day.saturating_add(DAY_MS).saturating_add(self.keep_ms) <= now
            };
            let old = days.iter().take_while(is_old).count();
            let Some(last) = old.checked_sub(1).and_then(|last| days.get(last)) else { break };
            to = last.last_seq;
            after = to;
            if old < DAYS_AT_A_TIME as usize {
                break;
            }
        }
        let mut trimmed = state.trimmed;
        while trimmed < to {
            let now = self.noted.trim_journal(account, to, TRIMMED_AT_A_TIME).await?;
            failpoint!("archive_lines_trimmed", if now > trimmed);
            if now <= trimmed {
                // The others are not in the sums of usage yet, or are the last of the journal.
                break;
            }
            trimmed = now;
        }
        Ok(trimmed.saturating_sub(state.trimmed))
    }
}

/// Whether the store has not noted all that a manifest has.
fn has_unnoted(manifest: &Manifest, bucket: &Bucket) -> bool {
    let is_unnoted = |(name, state): &(AccountName, ArchiveState)| {
        let found = manifest.account(name);
        found.is_some_and(|found| state.archived_seq() < found.last_seq)
    };
    bucket.iter().any(is_unnoted)
}
