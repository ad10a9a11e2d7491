//! Deleted accounts in Redis, and the erasure of what they had beside their books.
//!
//! The mark is in the hash of the account, where the scripts on money see it. A set in another slot
//! of a cluster has the names of all deleted accounts. A name is there before its account is
//! marked, so the account is asked.

use std::time::Duration;

use async_trait::async_trait;

use super::super::data_version::DELETION_VERSION;
use super::account_settings::NO_CHANGE;
use super::key_records;
use super::keys::AccountKeys;
use super::reply_parts::{parse_money, parse_part, unexpected};
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::{
    AccountEraser, AccountName, AccountRemains, BudgetOwner, DeletionMark, Unavailable,
};
use crate::sessions::{Principal, SessionStore};
use crate::webhooks;

/// The key of the set of the names of deleted accounts.
const DELETED_KEY: &str = "tollgate:deleted";
/// About so many keys are looked at by one script.
const KEYS_PER_SCAN: u32 = 1_000;
/// The pause after each of these scripts.
const SCAN_PAUSE: Duration = Duration::from_millis(2);
/// The field of the time of the deletion in the hash of an account.
const DELETED_FIELD: &str = "deleted_at";
/// The field of the number of the last change of the settings.
const CHANGE_FIELD: &str = "settings_change";

/// What the mark of an account is, with the number of the change that has set it.
struct SetMark {
    mark: DeletionMark,
    change: String,
    /// Whether the account could be marked, and was not asked to be.
    may_be_set: bool,
}

#[async_trait]
impl AccountEraser for RedisStore {
    /// Before the account is marked, the version of the data is raised and its keys are moved, so
    /// that no version that knows no deletion finds them.
    async fn mark_deleted(&self, account: &AccountName) -> Result<DeletionMark, Unavailable> {
        let known = self.run_mark(account, false).await?;
        if !known.may_be_set {
            if known.mark == DeletionMark::NoAccount {
                self.confirm_absence(&AccountKeys::of(account).account()).await?;
            }
            return Ok(known.mark);
        }
        let connection = self.connection().await?;
        self.raise_version(DELETION_VERSION).await?;
        let add = redis::cmd("SADD").arg(DELETED_KEY).arg(account.as_str()).to_owned();
        let _: i64 = connection.query(&add).await?;
        self.index_suspended(account, NO_CHANGE, true).await?;
        key_records::restrict_keys(connection, account, BudgetOwner::Account).await?;
        let set = self.run_mark(account, true).await?;
        if let DeletionMark::Deleted(_) = set.mark {
            self.index_suspended(account, &set.change, true).await?;
            key_records::raise_revision(connection).await?;
        }
        Ok(set.mark)
    }

    async fn list_deleted(&self) -> Result<Vec<AccountName>, Unavailable> {
        let connection = self.connection().await?;
        let members = redis::cmd("SMEMBERS").arg(DELETED_KEY).to_owned();
        let names: Vec<String> = connection.query(&members).await?;
        let mut names: Vec<_> = names.iter().filter_map(|name| AccountName::parse(name)).collect();
        names.sort();
        let marks: Vec<Option<String>> =
            connection.query_each(names.iter().map(read_mark).collect()).await?;
        let of_all = names.into_iter().zip(marks);
        Ok(of_all.filter_map(|(name, mark)| mark.map(|_| name)).collect())
    }

    async fn erase_account(&self, account: &AccountName) -> Result<(), Unavailable> {
        if self.read_deletion(account).await?.is_none() {
            return Ok(());
        }
        let connection = self.connection().await?;
        key_records::erase(connection, account).await?;
        self.end_sessions_of(&Principal::Account(account.clone())).await?;
        webhooks::erase::erase_account(self, account).await?;
        let mut jobs = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let (next, found) = self.find_keys(account, &cursor).await?;
            jobs.extend(found.iter().filter_map(|key| job_of(account, key)));
            self.erase_found(account, &found).await?;
            cursor = next;
            if cursor == "0" {
                break;
            }
            // The server has other accounts to serve.
            tokio::time::sleep(SCAN_PAUSE).await;
        }
        self.forget_jobs(account, &jobs).await;
        self.report_kept(account, 0).await?;
        let account_key = AccountKeys::of(account).account();
        let mut unset = redis::cmd("HDEL");
        unset.arg(&account_key).arg("has_budgets");
        let _: i64 = connection.query(&unset).await?;
        key_records::raise_revision(connection).await?;
        // The account need not be listed any more: it has no keys, and nothing of it runs.
        let read = redis::cmd("HGET").arg(&account_key).arg(CHANGE_FIELD).to_owned();
        let change: Option<String> = connection.query(&read).await?;
        self.index_suspended(account, change.as_deref().unwrap_or(NO_CHANGE), false).await
    }
}

impl RedisStore {
    /// Returns when an account was deleted, in unix seconds.
    pub(super) async fn read_deletion(
        &self,
        account: &AccountName,
    ) -> Result<Option<i64>, Unavailable> {
        let at: Option<String> = self.connection().await?.query(&read_mark(account)).await?;
        at.map(|digits| parse_part(&digits)).transpose()
    }

    /// Marks an account as deleted, or only tells what would come of it.
    async fn run_mark(&self, account: &AccountName, set: bool) -> Result<SetMark, Unavailable> {
        let keys = AccountKeys::of(account);
        let mut call = ScriptCall::default();
        call.key(keys.account()).key(keys.open_holds()).key(keys.allotments());
        call.key(keys.videos_open()).arg(u8::from(set));
        let reply = self.run_script(&call, |s| &s.deletion.mark).await?;
        // Credit may have expired.
        self.usage_marks.add(account);
        let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
        let (mark, change) = match reply[..] {
            ["no_account"] => (DeletionMark::NoAccount, NO_CHANGE),
            ["empty"] => (DeletionMark::NotEmpty(AccountRemains::default()), NO_CHANGE),
            ["deleted", at, change] => (DeletionMark::Deleted(parse_part(at)?), change),
            ["exists", at, change] => (DeletionMark::AlreadyDeleted(parse_part(at)?), change),
            ["left", available, held, open_holds, open_jobs] => {
                let remains = AccountRemains {
                    available: parse_money(available)?,
                    held: parse_money(held)?,
                    open_holds: parse_part(open_holds)?,
                    open_jobs: parse_part(open_jobs)?,
                };
                (DeletionMark::NotEmpty(remains), NO_CHANGE)
            }
            _ => return Err(unexpected(reply)),
        };
        let may_be_set = matches!(mark, DeletionMark::NotEmpty(remains) if remains.is_empty());
        Ok(SetMark { mark, change: change.to_owned(), may_be_set })
    }

    /// Returns the next cursor and some keys of an account.
    async fn find_keys(
        &self,
        account: &AccountName,
        cursor: &str,
    ) -> Result<(String, Vec<String>), Unavailable> {
        let mut call = ScriptCall::default();
        call.key(AccountKeys::of(account).account()).arg(cursor).arg(KEYS_PER_SCAN);
        let mut reply = self.run_script(&call, |s| &s.deletion.find_keys).await?.into_iter();
        let next = reply.next().ok_or_else(|| unexpected("no cursor"))?;
        Ok((next, reply.collect()))
    }

    /// Deletes those of some keys of an account that are not its books.
    async fn erase_found(
        &self,
        account: &AccountName,
        found: &[String],
    ) -> Result<(), Unavailable> {
        let keys = AccountKeys::of(account);
        let mut unlink = redis::cmd("UNLINK");
        let mut count = 0_usize;
        for key in found.iter().filter(|key| keys.is_erasable(key)) {
            unlink.arg(key);
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        let _: i64 = self.connection().await?.query(&unlink).await?;
        Ok(())
    }
}

fn read_mark(account: &AccountName) -> redis::Cmd {
    redis::cmd("HGET").arg(AccountKeys::of(account).account()).arg(DELETED_FIELD).to_owned()
}

/// Returns the id of the video job whose record a key is.
fn job_of(account: &AccountName, key: &str) -> Option<String> {
    let record = AccountKeys::of(account).video("");
    key.strip_prefix(&record).map(str::to_owned)
}
