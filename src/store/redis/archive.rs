//! Journals of which the first lines are in the archive, and no longer on the server. The journal
//! is a list, so the account has the number of the last line that is gone. All numbers of lines are
//! counted from it, in the scripts and here.

use async_trait::async_trait;
use futures_util::future::join_all;

use super::super::data_version::ARCHIVE_VERSION;
use super::config_check::DATA_VERSION_KEY;
use super::keys::AccountKeys;
use super::operations::reply_strings;
use super::reply_parts::{parse_part, unexpected};
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::archive::{ArchiveNote, ArchiveState, ArchiveStore, ArchivedDay};
use crate::ledger::{AccountName, Unavailable};

/// The key of who writes to the archive. Its hash tag is no name of an account.
const TURN_KEY: &str = "tollgate:{:archive}:turn";

/// The field of an account with the number of the last line that is no longer on the server.
pub(super) const JOURNAL_BASE_FIELD: &str = "journal_base";

/// The number of notes that are written at the same time.
const NOTES_AT_A_TIME: usize = 32;

/// No turn is longer than this, in ms: the server adds it to its clock.
const TURN_MAX_MS: u64 = 1 << 53;

/// Lines of a journal that were read at one moment.
pub(super) struct JournalPage {
    /// The number of the line before the first one.
    pub(super) after: u64,
    pub(super) lines: Vec<String>,
    /// The marks of the hours of the lines, `INDEX HOUR`, if they were asked for.
    pub(super) marks: Vec<String>,
}

impl RedisStore {
    /// Reads lines of a journal after `seq`, at most `limit`: the first ones that are still there.
    pub(super) async fn read_lines(
        &self,
        keys: &AccountKeys,
        seq: u64,
        limit: u32,
        with_hours: bool,
    ) -> Result<JournalPage, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(keys.account()).key(keys.journal()).arg(seq).arg(limit);
        if with_hours {
            call.key(keys.journal_hours());
        }
        let call = call.invocation(&self.scripts.archive.read);
        let reply = self.connection().await?.invoke_script(&call).await?;
        let reply = redis::from_redis_value::<(String, Vec<String>, Vec<String>)>(reply);
        let (after, lines, marks) = reply.map_err(unexpected)?;
        Ok(JournalPage { after: parse_part(&after)?, lines, marks })
    }

    /// Writes a note. Returns whether it is noted.
    async fn write_note(&self, note: &ArchiveNote) -> Result<bool, Unavailable> {
        let ArchiveNote { account, after, day } = note;
        let keys = AccountKeys::of(account);
        let mut mark = ScriptCall::default();
        mark.key(keys.account()).key(keys.journal()).key(keys.archived_days());
        mark.arg(after).arg(day.day).arg(day.last_seq).arg(&day.digest);
        let reply = self.run_script(&mark, |scripts| &scripts.archive.mark).await?;
        match reply.first().map(String::as_str) {
            Some("done") => Ok(true),
            Some("refused" | "no_account") => Ok(false),
            _ => Err(unexpected(reply)),
        }
    }

    /// Returns how far a journal is archived and has left the server; `None` if there is no such
    /// account.
    pub(super) async fn find_archive_state(
        &self,
        keys: &AccountKeys,
    ) -> Result<Option<ArchiveState>, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(keys.account()).key(keys.journal()).key(keys.archived_days()).key(keys.usage());
        let call = call.invocation(&self.scripts.archive.state);
        let reply = reply_strings(&self.connection().await?.invoke_script(&call).await?)?;
        let [lines, folded, trimmed, days @ ..] = &reply[..] else { return Ok(None) };
        Ok(Some(ArchiveState {
            lines: parse_part(lines)?,
            folded: parse_part(folded)?,
            archived: days.first().map(|text| parse_day(text)).transpose()?,
            trimmed: parse_part(trimmed)?,
        }))
    }
}

/// Parses `DAY LAST_SEQ DIGEST`.
fn parse_day(text: &str) -> Result<ArchivedDay, Unavailable> {
    let mut parts = text.splitn(3, ' ');
    let (Some(day), Some(last_seq), Some(digest)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(unexpected(text));
    };
    let digest = digest.to_owned();
    Ok(ArchivedDay { day: parse_part(day)?, last_seq: parse_part(last_seq)?, digest })
}

#[async_trait]
impl ArchiveStore for RedisStore {
    async fn archive_clock(&self) -> Result<i64, Unavailable> {
        self.server_time().await
    }

    async fn read_archive_state(
        &self,
        account: &AccountName,
    ) -> Result<Option<ArchiveState>, Unavailable> {
        let keys = AccountKeys::of(account);
        let found = self.find_archive_state(&keys).await?;
        if found.is_none() {
            self.confirm_absence(&keys.account()).await?;
        }
        Ok(found)
    }

    async fn mark_archived(&self, notes: &[ArchiveNote]) -> Result<bool, Unavailable> {
        let mut all = true;
        for notes in notes.chunks(NOTES_AT_A_TIME) {
            let written = join_all(notes.iter().map(|note| self.write_note(note))).await;
            for is_noted in written {
                all &= is_noted?;
            }
        }
        Ok(all)
    }

    async fn list_archived_days(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<ArchivedDay>, Unavailable> {
        let mut list = redis::cmd("ZRANGEBYSCORE");
        list.arg(AccountKeys::of(account).archived_days()).arg(format!("({seq}")).arg("+inf");
        list.arg("LIMIT").arg(0).arg(limit);
        let days: Vec<String> = self.connection().await?.query(&list).await?;
        days.iter().map(|text| parse_day(text)).collect()
    }

    async fn trim_journal(
        &self,
        account: &AccountName,
        to: u64,
        limit: u32,
    ) -> Result<u64, Unavailable> {
        let Some(state) = self.read_archive_state(account).await? else { return Ok(0) };
        let last = state.archived_seq().min(to).min(state.folded);
        if limit == 0 || last.min(state.lines.saturating_sub(1)) <= state.trimmed {
            return Ok(state.trimmed);
        }
        // Before the first line goes, so that no version opens the store that counts from the first
        // line that it finds.
        let mut raise = ScriptCall::default();
        raise.key(DATA_VERSION_KEY).arg(ARCHIVE_VERSION);
        self.run_script(&raise, |scripts| &scripts.archive.raise_version).await?;
        let keys = AccountKeys::of(account);
        let mut trim = ScriptCall::default();
        trim.key(keys.account()).key(keys.journal()).key(keys.journal_hours());
        trim.key(keys.archived_days()).key(keys.usage()).arg(to).arg(limit);
        let reply = self.run_script(&trim, |scripts| &scripts.archive.trim).await?;
        match &reply[..] {
            [word, last] if word == "done" => parse_part(last),
            _ => Err(unexpected(reply)),
        }
    }

    async fn take_archive_turn(&self, holder: &str, turn_ms: u64) -> Result<bool, Unavailable> {
        let mut take = ScriptCall::default();
        take.key(TURN_KEY).arg(holder).arg(turn_ms.clamp(1, TURN_MAX_MS));
        let reply = self.run_script(&take, |scripts| &scripts.archive.take_turn).await?;
        match reply.first().map(String::as_str) {
            Some("done") => Ok(true),
            Some("taken") => Ok(false),
            _ => Err(unexpected(reply)),
        }
    }
}
