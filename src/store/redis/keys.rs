//! The names of an account's Redis keys, and the entries of its journal.

use crate::kv_cache::Namespace;
use crate::ledger::{
    AccountName, BudgetOwner, EntryKind, JournalEntry, Unavailable, WindowId, WindowKind,
};
use crate::money::Money;
use crate::usage::FOLD_VERSION;

/// The key of the set of all accounts' names.
pub(super) const ACCOUNTS_KEY: &str = "tollgate:accounts";

/// The key of the set of the names of accounts whose journals commands have changed. A gateway that
/// follows the journals takes them out.
pub(super) const DUE_KEY: &str = "tollgate:usage-due";

/// The names of an account's Redis keys. They share one hash tag, so they are in one slot of a
/// cluster.
pub(super) struct AccountKeys {
    tag: String,
}

impl AccountKeys {
    pub(super) fn of(name: &AccountName) -> AccountKeys {
        AccountKeys { tag: ["tollgate:{", name.as_str(), "}:"].concat() }
    }

    /// Returns the prefix of all these key names, which contains the hash tag.
    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    fn key_for(&self, part: &str) -> String {
        [&self.tag, part].concat()
    }

    fn key_with_id(&self, part: &str, id: &str) -> String {
        [&self.tag, part, ":", id].concat()
    }

    /// Returns the key of the hash with the balances.
    pub(super) fn account(&self) -> String {
        self.key_for("account")
    }

    /// Returns the key of the sorted set of open holds, ordered by the end of their leases.
    pub(super) fn open_holds(&self) -> String {
        self.key_for("open")
    }

    /// Returns the key of the journal, a list of the account's charges. The first lines may have
    /// left it: the account has the number of the last one of these in `journal_base`.
    pub(super) fn journal(&self) -> String {
        self.key_for("journal")
    }

    /// Returns the key of the sorted set of the hours in which lines of the journal were posted, by
    /// the indexes that their first lines had when no line had left the journal.
    pub(super) fn journal_hours(&self) -> String {
        self.key_for("journal-hours")
    }

    /// Returns the key of the sorted set of the days that are in the archive, by the numbers of
    /// their last lines: `DAY LAST_SEQ DIGEST`.
    pub(super) fn archived_days(&self) -> String {
        self.key_for("archived-days")
    }

    /// Returns the key of the hash that tells how far the journal is folded into the sums of usage.
    /// Each version of the fold has sums of its own.
    pub(super) fn usage(&self) -> String {
        self.key_with_id("usage", &FOLD_VERSION.to_string())
    }

    /// Returns the key of the sorted set of the periods of which there are rows of a kind.
    pub(super) fn usage_index(&self, kind: &str) -> String {
        [&self.usage(), ":", kind].concat()
    }

    /// Returns the key of the hash of the rows of a kind in a period that began at `start` (unix
    /// ms).
    pub(super) fn usage_rows(&self, kind: &str, start: i64) -> String {
        format!("{}:{start}", self.usage_index(kind))
    }

    /// Returns the key of the hash of the sealed statements, by month.
    pub(super) fn statements(&self) -> String {
        self.key_for("statements")
    }

    /// Returns the key of the hash with the amount of each payment, by its transaction id.
    pub(super) fn payments(&self) -> String {
        self.key_for("payments")
    }

    /// Returns the key of the hash with the records of payments, grants, refunds and corrections,
    /// by their ids.
    pub(super) fn transfers(&self) -> String {
        self.key_for("transfers")
    }

    /// Returns the key of the sorted set of the ids of that hash, by their times in unix ms.
    pub(super) fn transfer_times(&self) -> String {
        self.key_for("transfer-times")
    }

    /// Returns the key of the hash with what was given back of charges, by their requests:
    /// `AMOUNT WRITTEN_OFF`, and after a space the amounts of lots if there were some.
    pub(super) fn corrected(&self) -> String {
        self.key_for("corrected")
    }

    pub(super) fn hold(&self, id: &str) -> String {
        self.key_with_id("hold", id)
    }

    /// Returns the key of the hash with the limits of budgets, by [`budget_field`].
    pub(super) fn budgets(&self) -> String {
        self.key_for("budgets")
    }

    /// Returns the key of the hash with what is used of a window.
    pub(super) fn window(&self, window: WindowId) -> String {
        self.key_with_id("window", &window.to_string())
    }

    /// Returns the key of the hash of an allotment's slices, by the texts of their windows.
    pub(super) fn slices(&self, id: &str) -> String {
        self.key_with_id("slices", id)
    }

    /// Returns the key of the set of the ids of allotments that hold something, or may.
    pub(super) fn allotments(&self) -> String {
        self.key_for("allotments")
    }

    /// Returns the key of the hash of an allotment's calls that have checkpoints.
    pub(super) fn allotment_calls(&self, id: &str) -> String {
        self.key_with_id("calls", id)
    }

    /// Returns the key of a video job's record.
    pub(super) fn video(&self, id: &str) -> String {
        self.key_with_id("video", id)
    }

    /// Returns the key of the request body that a video job's vendor is to be sent.
    pub(super) fn video_body(&self, id: &str) -> String {
        self.key_with_id("video-body", id)
    }

    /// Returns the key of the hash that maps idempotency keys to the ids of their video jobs.
    pub(super) fn video_keys(&self) -> String {
        self.key_for("video-keys")
    }

    /// Returns the key of the list of video jobs, without those that their client deleted.
    pub(super) fn videos(&self) -> String {
        self.key_for("videos")
    }

    /// Returns the key of the set of open video jobs: those queued or in progress.
    pub(super) fn videos_open(&self) -> String {
        self.key_for("videos-open")
    }

    /// Returns the key of the record of the idempotency key `name`.
    pub(super) fn idempotency_claim(&self, name: &str) -> String {
        self.key_with_id("repeat", name)
    }

    /// Returns the key of the body of the reply to the call `owner`.
    pub(super) fn reply_body(&self, owner: &str) -> String {
        self.key_with_id("reply", owner)
    }

    /// Returns the keys of the list of stored reply bodies, ordered by expiry, and of the sum of
    /// their bytes.
    pub(super) fn replies(&self) -> [String; 2] {
        ["replies", "replies-bytes"].map(|part| self.key_for(part))
    }

    /// Returns the keys of the list of a namespace's cache entries, ordered by expiry, and of the
    /// sum of their bytes.
    pub(super) fn cache_entries(&self, on: Namespace) -> [String; 2] {
        match on {
            Namespace::Ids => ["ids", "ids-bytes"],
            Namespace::Other => ["notes", "notes-bytes"],
        }
        .map(|part| self.key_for(part))
    }

    /// Whether a key of the account is erased when the account is deleted.
    pub(super) fn is_erasable(&self, key: &str) -> bool {
        let Some(part) = key.strip_prefix(&self.tag) else { return false };
        let is_named = |erasable: &str| {
            part == erasable || erasable.ends_with(':') && part.starts_with(erasable)
        };
        ERASABLE.iter().any(|erasable| is_named(erasable))
    }

    /// Returns the key of a cache entry. The name may contain anything, even braces: the hash tag
    /// comes before it, and only the first braces of a key count.
    pub(super) fn cache_entry(&self, name: &str) -> String {
        self.key_with_id("note", name)
    }
}

/// The last parts of the names of an account's keys that are not its books: what is erased when the
/// account is deleted. A part that ends with a colon is the beginning of several.
const ERASABLE: [&str; 20] = [
    "keys",
    "keys-by-time",
    "budgets",
    "window:",
    "rate:",
    "repeat:",
    "reply:",
    "replies",
    "replies-bytes",
    "ids",
    "ids-bytes",
    "notes",
    "notes-bytes",
    "note:",
    "video:",
    "video-body:",
    "video-keys",
    "videos",
    "videos-open",
    "bodies-bytes",
];

/// Parses a journal entry: `AMOUNT WRITTEN_OFF LINE`, with the amounts in nano-USD. Before the
/// amounts of a correction is a minus, and before the amount of an expiry an x.
pub(super) fn parse_journal_entry(seq: u64, text: &str) -> Result<JournalEntry, Unavailable> {
    let kind = match text.as_bytes().first() {
        Some(b'-') => EntryKind::Correction,
        Some(b'x') => EntryKind::Expiry,
        _ => EntryKind::Charge,
    };
    let mut parts = text.splitn(3, ' ');
    let mut money = || {
        let digits = parts.next()?;
        let digits = match kind {
            EntryKind::Charge => digits,
            EntryKind::Correction => digits.strip_prefix('-')?,
            EntryKind::Expiry => digits.strip_prefix('x').unwrap_or(digits),
        };
        digits.parse().ok().and_then(|nano| Money::from_nano(nano).ok())
    };
    let amounts = (money(), money());
    let line = parts.next();
    match (amounts, line) {
        ((Some(amount), Some(written_off)), Some(line)) => {
            Ok(JournalEntry { seq, kind, amount, written_off, line: line.to_owned() })
        }
        _ => Err(Unavailable(format!("journal entry {seq} cannot be read"))),
    }
}

/// Returns the name of a budget in the hash of an account's limits, such as `account/day` or
/// `key:7/month`.
pub(super) fn budget_field(owner: BudgetOwner, kind: WindowKind) -> String {
    format!("{owner}/{}", kind.name())
}
