//! Writes lines of days that are over to the archive, and takes them out of the store.
//!
//! A day of a bucket is written in steps, each of which can be repeated after a crash:
//!
//! 1. The lines are written to files that are named by their content.
//! 2. All files are read back, and each line is compared with that of the store.
//! 3. The manifest is written, once: from here on it says what the day has.
//! 4. The store notes for each account how far the archive has it.
//! 5. After some days the lines that are noted are deleted from the store.
//!
//! One process has the turn. One that was away for so long that it has lost its turn does no harm:
//! it deletes no file, and neither writes a manifest that is there nor notes what others have.

use std::collections::{BTreeMap, BTreeSet};

use super::archive_store::{ArchiveNote, ArchiveState, ArchiveStore, ArchivedDay};
use super::comparison::{Comparison, day_of_line};
use super::day_writer::{DayWriter, FinishedPart};
use super::fault::ArchiveFault;
use super::journal_archive::{JournalArchive, folder_of};
use super::line::LineDigest;
use super::manifest::{Manifest, ManifestAccount, PreviousManifest};
use super::places::{DAY_MS, DayFolder, bucket_of};
use super::turn::ArchiveTurn;
use crate::failpoints::failpoint;
use crate::ledger::{AccountName, Ledger};
use crate::usage::{PeriodKind, UsageStore};

/// A day is archived this long after its end, in ms: what a server lost in a failover may return
/// until then, in another order.
const SETTLED_AFTER_MS: i64 = DAY_MS;
/// The number of lines that are read from the store at a time.
const LINES_AT_A_TIME: u32 = 1_000;
/// The number of lines that leave the store at a time, so that calls do not wait for long.
const TRIMMED_AT_A_TIME: u32 = 10_000;
/// How many archived days of an account are read at a time.
const DAYS_AT_A_TIME: u32 = 100;
/// The number of accounts that are noted at a time: one transaction, where the store has them.
const NOTES_AT_A_TIME: usize = 256;

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
    /// The journals, as the store itself has them.
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

/// The folders that have a manifest.
type ManifestFolders = BTreeSet<DayFolder>;

/// Which lines of an account come to a day: those after number `after`, up to the end of the day.
struct DayLines<'a> {
    folder: &'a DayFolder,
    day: i64,
    account: &'a AccountName,
    after: u64,
}

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
    /// Returns the last day that is to be archived by now, by its beginning in unix ms. A run has
    /// nothing to do that a run on the same day has done.
    ///
    /// # Errors
    /// [`ArchiveFault::Unavailable`] if the store does not answer.
    pub async fn settled_day(&self) -> Result<i64, ArchiveFault> {
        let settled = self.noted.archive_clock().await?.saturating_sub(SETTLED_AFTER_MS);
        Ok(PeriodKind::Day.start_of(settled).saturating_sub(DAY_MS))
    }

    /// Archives all days that are over, and takes lines out of the store that are old enough. A
    /// bucket that fails does not keep the others from their work.
    ///
    /// # Errors
    /// The first [`ArchiveFault`]: nothing was deleted that the archive does not have.
    pub async fn run(&self) -> Result<ArchiveReport, ArchiveFault> {
        let mut report = ArchiveReport::default();
        let turn = ArchiveTurn::new(self.noted, self.holder);
        let ran = self.run_in_turn(&turn, &mut report).await;
        turn.end().await?;
        ran.map(|()| report)
    }

    async fn run_in_turn(
        &self,
        turn: &ArchiveTurn<'_>,
        report: &mut ArchiveReport,
    ) -> Result<(), ArchiveFault> {
        let mut names: BTreeMap<u8, Vec<AccountName>> = BTreeMap::new();
        for account in self.ledger.list_accounts().await? {
            names.entry(bucket_of(&account)).or_default().push(account);
        }
        let mut folders = self.archive.list_manifests().await?;
        let mut fault = None;
        for (number, names) in &mut names {
            names.sort_unstable();
            match self.archive_bucket(turn, *number, names, &mut folders, report).await {
                Ok(()) if report.is_interrupted => return Ok(()),
                Ok(()) => {}
                Err(why) => fault = fault.or(Some(why)),
            }
        }
        for account in names.values().flatten() {
            match self.trim(account).await {
                Ok(trimmed) => report.trimmed = report.trimmed.saturating_add(trimmed),
                Err(why) => fault = fault.or(Some(why)),
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// Archives all days of a bucket that are over.
    async fn archive_bucket(
        &self,
        turn: &ArchiveTurn<'_>,
        number: u8,
        names: &[AccountName],
        folders: &mut ManifestFolders,
        report: &mut ArchiveReport,
    ) -> Result<(), ArchiveFault> {
        loop {
            if !turn.is_kept().await? {
                report.is_interrupted = true;
                return Ok(());
            }
            let bucket = self.read_states(names).await?;
            let lines = match self.find_next(number, &bucket, folders).await? {
                NextStep::Wait => return Ok(()),
                NextStep::Write(folder, day, previous) => {
                    let manifest = self.write_day(turn, &folder, day, &bucket, previous).await?;
                    folders.insert(folder.clone());
                    // Another process was first. What it has written is compared at the next step.
                    let Some(manifest) = manifest else { continue };
                    self.note_day(&manifest, day).await?
                }
                NextStep::Note(folder, manifest, day) => {
                    self.compare_day(turn, &folder, &manifest).await?;
                    self.note_day(&manifest, day).await?
                }
            };
            report.days = report.days.saturating_add(1);
            report.archived = report.archived.saturating_add(lines);
        }
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
    async fn find_next(
        &self,
        number: u8,
        bucket: &Bucket,
        folders: &ManifestFolders,
    ) -> Result<NextStep, ArchiveFault> {
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
        if day > self.settled_day().await? {
            return Ok(NextStep::Wait);
        }
        let out_of_range = || ArchiveFault::Differs(format!("{day} is no day"));
        let folder = DayFolder::new(day, number).ok_or_else(out_of_range)?;
        let is_later = |known: &&DayFolder| {
            let after = previous.as_ref().map_or("", |previous| &previous.day);
            known.bucket == number && known.day.as_str() > after
        };
        match folders.iter().find(is_later) {
            None => Ok(NextStep::Write(folder, day, previous)),
            Some(known) if *known == folder => self.take_up(folder, day, bucket, previous).await,
            // A restored backup lacks what the archive has.
            Some(known) => Err(ArchiveFault::Differs(format!(
                "{} is there, and the next lines of the store are of {}",
                known.manifest(),
                folder.day
            ))),
        }
    }

    /// Takes up a day whose manifest is there although nothing of it is noted.
    async fn take_up(
        &self,
        folder: DayFolder,
        day: i64,
        bucket: &Bucket,
        previous: Option<PreviousManifest>,
    ) -> Result<NextStep, ArchiveFault> {
        let name = folder.manifest();
        let fault = |what: &str| ArchiveFault::Differs(format!("{name} {what}"));
        let read = self.archive.read_manifest(&folder).await?;
        let manifest = read.ok_or_else(|| fault("is missing"))?.manifest;
        if manifest.previous != previous {
            return Err(fault("follows another manifest than the one that is noted"));
        }
        if !has_unnoted(&manifest, bucket) {
            return Err(fault("has other lines than the store"));
        }
        Ok(NextStep::Note(folder, manifest, day))
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

    /// Writes the files of a day and a bucket, compares them with the store, and writes the
    /// manifest. Returns it; `None` if another process has written it meanwhile.
    async fn write_day(
        &self,
        turn: &ArchiveTurn<'_>,
        folder: &DayFolder,
        day: i64,
        bucket: &Bucket,
        previous: Option<PreviousManifest>,
    ) -> Result<Option<Manifest>, ArchiveFault> {
        let mut writer = DayWriter::new();
        for (name, state) in bucket.iter().filter(|(_, state)| state.lines > state.archived_seq()) {
            let digest = state.archived.as_ref().map_or("", |archived| &archived.digest);
            writer.begin_account(name, state.archived_seq(), LineDigest::of_text(digest));
            let lines = DayLines { folder, day, account: name, after: state.archived_seq() };
            self.write_lines(turn, lines, &mut writer).await?;
        }
        if let Some(part) = writer.finish()? {
            self.put_part(folder, part).await?;
        }
        let manifest = writer.into_manifest(folder, previous);
        failpoint!("archive_parts_written");
        self.compare_day(turn, folder, &manifest).await?;
        turn.keep().await?;
        let json = manifest.to_json()?;
        let is_created = self.archive.files.create(&folder.manifest(), json.into()).await?;
        failpoint!("archive_manifest_written", if is_created);
        Ok(is_created.then_some(manifest))
    }

    /// Writes the lines of an account up to the end of a day.
    async fn write_lines(
        &self,
        turn: &ArchiveTurn<'_>,
        lines: DayLines<'_>,
        writer: &mut DayWriter,
    ) -> Result<(), ArchiveFault> {
        let DayLines { folder, day, account, mut after } = lines;
        loop {
            let page = self.usage.read_posted(account, after, LINES_AT_A_TIME).await?;
            if page.is_empty() {
                return Ok(());
            }
            for line in page {
                if day_of_line(&line) > day {
                    return Ok(());
                }
                after = line.entry.seq;
                if let Some(part) = writer.push(line)? {
                    self.put_part(folder, part).await?;
                    turn.keep().await?;
                }
            }
        }
    }

    async fn put_part(&self, folder: &DayFolder, part: FinishedPart) -> Result<(), ArchiveFault> {
        // One of that name has the same bytes, which is checked before the manifest is written.
        let name = folder.file(&part.name);
        if self.archive.files.create(&name, part.bytes.into()).await? {
            failpoint!("archive_part_written");
        }
        Ok(())
    }

    /// Reads back the lines of a day that are not noted, and compares them with the store.
    async fn compare_day(
        &self,
        turn: &ArchiveTurn<'_>,
        folder: &DayFolder,
        manifest: &Manifest,
    ) -> Result<(), ArchiveFault> {
        let mut comparison = Comparison::new(self.archive, folder, manifest);
        for found in &manifest.accounts {
            let (name, state) = self.state_of(found).await?;
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
            turn.keep().await?;
        }
        Ok(())
    }

    async fn state_of(
        &self,
        found: &ManifestAccount,
    ) -> Result<(AccountName, ArchiveState), ArchiveFault> {
        let unknown = || ArchiveFault::Differs(format!("'{}' is no account", found.account));
        let name = AccountName::parse(&found.account).ok_or_else(unknown)?;
        let state = self.noted.read_archive_state(&name).await?.ok_or_else(unknown)?;
        Ok((name, state))
    }

    /// Notes what the archive has of a day, all of which was compared. Returns the number of lines
    /// that were noted.
    async fn note_day(&self, manifest: &Manifest, day: i64) -> Result<u64, ArchiveFault> {
        let mut notes = Vec::new();
        for found in &manifest.accounts {
            let (account, state) = self.state_of(found).await?;
            if state.archived_seq() < found.last_seq {
                let day =
                    ArchivedDay { day, last_seq: found.last_seq, digest: found.digest.clone() };
                notes.push(ArchiveNote { account, after: found.first_seq.saturating_sub(1), day });
            }
        }
        for notes in notes.chunks(NOTES_AT_A_TIME) {
            if !self.noted.mark_archived(notes).await? {
                return Err(ArchiveFault::Unavailable(
                    "another process has noted other lines of an account".to_owned(),
                ));
            }
            failpoint!("archive_notes_written");
        }
        let lines = |note: &ArchiveNote| note.day.last_seq.saturating_sub(note.after);
        Ok(notes.iter().map(lines).fold(0, u64::saturating_add))
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
