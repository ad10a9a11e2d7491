//! The sums and the journals of a store whose older lines are in the archive.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::archive_store::ArchiveStore;
use super::fault::ArchiveFault;
use super::journal_archive::JournalArchive;
use crate::ledger::{AccountName, Unavailable};
use crate::usage::{
    FoldReport, PostedEntry, RollupKey, RollupSums, UsageBooks, UsageQuery, UsageStore,
};

/// A store of usage that reads lines that have left the store from the archive. A page of lines
/// ends where a file of the archive ends.
pub struct ArchivedUsage {
    usage: Arc<dyn UsageStore>,
    noted: Arc<dyn ArchiveStore>,
    /// Where the archive is; `None` if there is none.
    url: Option<String>,
    /// The archive, from the first read on.
    opened: Mutex<Option<JournalArchive>>,
}

impl ArchivedUsage {
    /// Makes one of a store's own. `url` is where the archive is, as `[journal] archive` says: it
    /// is opened when it is first read. Without it, a read of lines that have left the store fails.
    #[must_use]
    pub fn new(
        usage: Arc<dyn UsageStore>,
        noted: Arc<dyn ArchiveStore>,
        url: Option<String>,
    ) -> ArchivedUsage {
        ArchivedUsage { usage, noted, url, opened: Mutex::default() }
    }

    fn archive(&self) -> Result<Option<JournalArchive>, ArchiveFault> {
        let Some(url) = &self.url else { return Ok(None) };
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.is_none() {
            *opened = Some(JournalArchive::open(url)?);
        }
        Ok(opened.clone())
    }

    /// Reads lines after number `seq` that have left the store; `last` is the last one that has.
    async fn read_archived(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
        last: u64,
    ) -> Result<Vec<PostedEntry>, ArchiveFault> {
        let next = seq.saturating_add(1);
        let Some(archive) = self.archive()? else {
            return Err(ArchiveFault::Unavailable(format!(
                "lines {next} to {last} of account '{account}' are in an archive, and \
                 journal.archive does not say where it is"
            )));
        };
        let (noted, name) = (self.noted.clone(), account.clone());
        // Whoever gives up waiting leaves a read that ends, and the next one finds what it has
        // read. So nobody can begin more reads than may run at a time.
        let reading =
            tokio::spawn(async move { archive.read_lines(&*noted, &name, seq, limit).await });
        let read = reading.await.map_err(|why| ArchiveFault::Unavailable(why.to_string()))?;
        let lines = read?;
        if lines.first().is_none_or(|first| first.entry.seq != next) {
            return Err(ArchiveFault::Differs(format!(
                "lines {next} to {last} of account '{account}' are neither in the store nor in \
                 the archive"
            )));
        }
        Ok(lines)
    }
}

#[async_trait]
impl UsageStore for ArchivedUsage {
    async fn fold_next(&self, lines_max: u32) -> Result<FoldReport, Unavailable> {
        self.usage.fold_next(lines_max).await
    }

    async fn list_usage(
        &self,
        query: UsageQuery,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
        self.usage.list_usage(query).await
    }

    async fn read_usage_books(
        &self,
        account: &AccountName,
    ) -> Result<Option<UsageBooks>, Unavailable> {
        self.usage.read_usage_books(account).await
    }

    async fn read_account_books(
        &self,
        account: &AccountName,
    ) -> Result<Option<UsageBooks>, Unavailable> {
        self.usage.read_account_books(account).await
    }

    async fn read_posted(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<PostedEntry>, Unavailable> {
        let page = self.usage.read_posted(account, seq, limit).await?;
        // The store has the last line of each journal, so its page shows that lines have left it.
        let Some(first) = page.first().filter(|first| first.entry.seq > seq.saturating_add(1))
        else {
            return Ok(page);
        };
        let last = first.entry.seq.saturating_sub(1);
        self.read_archived(account, seq, limit, last).await.map_err(|why| {
            log::warn!(
                event = "journal_archive_not_read", account = account.as_str(), error:% = why;
                "archived lines not read"
            );
            why.into()
        })
    }
}
