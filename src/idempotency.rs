//! Idempotency: the store of keys and replies. A call that is repeated, under its idempotency key
//! or as a client's own retry, gets the first reply again and is charged once.
//!
//! A key stands for one call of an account. The call claims it before money is held, and stores its
//! reply under it when it ends; the process renews the claim meanwhile. If a claim has expired, the
//! ledger tells what became of the call: its owner is the id of the call's hold.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ledger::lease::{self, LeaseEntry};
use crate::ledger::{AccountName, Unavailable};

/// The most bytes of replies kept for an account; after that a name is remembered without
/// its reply.
pub const REPLIES_BYTES_MAX: u64 = 256 << 20;
/// Longer bodies do not go into the store, whose memory or file all accounts share, but apart from
/// their heads.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;
/// The bytes of the pieces in which bodies are written and read; only the last one is shorter:
/// nothing waits long behind one, and nobody needs all of a body at a time.
pub const PIECE_BYTES: usize = 256 << 10;
/// The name of a call that runs is remembered for so many leases, at least, from when it was last
/// kept alive: long enough to be asked about after its lease ran out.
pub(crate) const RUNNING_TTL_LEASES: u64 = 10;

/// A call, and the name that it is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The name, at most 512 bytes.
    pub name: String,
    /// The digest of the call's content.
    pub content: [u8; 32],
    /// The id of the call, and of its hold. No two calls of an account have the same.
    pub owner: String,
    /// How long the name is remembered, in ms: from when it is taken, and from the call's end.
    pub life_ms: u64,
}

impl IdempotencyKey {
    /// What keeps the name alive while the call runs.
    #[must_use]
    pub(crate) fn lease_entry(&self, account: &AccountName) -> LeaseEntry {
        let IdempotencyKey { name, content, owner, life_ms } = self.clone();
        let item = lease::LeasedItem::Name { owner, content, life_ms };
        LeaseEntry { account: account.clone(), id: name, item }
    }

    /// The name that is kept alive so; `None` if that is something else. Who takes it again for
    /// the same call has it, even where a store has lost it.
    #[must_use]
    pub(crate) fn from_lease(entry: &LeaseEntry) -> Option<IdempotencyKey> {
        let lease::LeasedItem::Name { owner, content, life_ms } = entry.item.clone() else {
            return None;
        };
        Some(IdempotencyKey { name: entry.id.clone(), content, owner, life_ms })
    }
}

/// Whether a key that another call holds may be taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimMode {
    /// Nothing.
    IfFree,
    /// It is taken over from this owner, of whom the caller knows that nothing will come.
    TakeOver(String),
    /// It is taken whoever has it: the call is a new one, which a repeat may be of.
    Replace,
}

/// What came of taking a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimResult {
    /// It is the caller's.
    Claimed,
    /// A call runs under it.
    Running,
    /// A call had it whose lease ran out, or that is not the one to take it over from.
    Expired {
        /// The id of that call.
        owner: String,
    },
    /// The call has ended, and this is kept of it.
    Replied(StoredReply),
    /// The call has ended and was paid for, but its reply is not kept.
    ReplyNotStored,
    /// It stands for a call of other content.
    ContentMismatch,
}

/// A reply that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReply {
    /// The id of the call that it was given to; its body is found by it.
    pub owner: String,
    /// Its head.
    pub head: ReplyHead,
    /// How many bytes of its body are in the store.
    pub bytes: u64,
}

/// A reply as the client got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyParts {
    /// Its head.
    pub head: ReplyHead,
    /// Its body: of a stream all that was streamed.
    pub body: Bytes,
}

/// The head of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyHead {
    /// The status; of a body apart 0, which no version takes for an answer that knows nothing of
    /// such bodies: see [`ReplyHead::status`].
    status: u16,
    /// The headers that belong to the reply, with their names in small letters.
    pub headers: Vec<(String, String)>,
    /// Where the body is, if it is not in the store. An older version's heads say nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart: Option<ExternalBody>,
}

impl ReplyHead {
    /// The head of a reply whose body goes with it.
    #[must_use]
    pub fn new(status: u16, headers: Vec<(String, String)>) -> ReplyHead {
        ReplyHead { status, headers, apart: None }
    }

    /// The same, of a body that is elsewhere.
    #[must_use]
    pub(crate) fn with_external_body(self, bytes: u64, expires_s: u64) -> ReplyHead {
        let apart = ExternalBody { status: self.status(), bytes, expires_s };
        ReplyHead { status: 0, apart: Some(apart), ..self }
    }

    /// The status of the reply.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.apart.map_or(self.status, |apart| apart.status)
    }
}

/// A body that is kept apart from its head, as an object under its account and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalBody {
    /// The status of the reply.
    pub status: u16,
    /// How many bytes it has.
    pub bytes: u64,
    /// When it is over, in unix seconds.
    pub expires_s: u64,
}

/// Where names and replies are kept. What one account has no other finds. A name or a reply whose
/// life has ended is not there. Operations of one caller are done in the order in which their
/// futures were first polled.
#[async_trait]
pub trait ReplyStore: Send + Sync {
    /// Whether a write is on disk when it is acknowledged. Where it is not, the last second of
    /// acknowledged writes may be lost with the store's machine.
    fn is_durable_at_once(&self) -> bool;
    /// Takes a name for so long (ms), if it may be taken.
    async fn claim_key(
        &self,
        account: &AccountName,
        naming: &IdempotencyKey,
        taking: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable>;
    /// Keeps a name alive for so long (ms) from now; `false` if it is not this owner's any more, or
    /// its call has ended.
    async fn renew_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        lease_ms: u64,
    ) -> Result<bool, Unavailable>;
    /// Ends a call, with its reply if that is to be kept and there is room for it. A name that a
    /// store has lost is there again afterwards. `false` if it is another owner's by now. The same
    /// again changes nothing.
    async fn complete(
        &self,
        account: &AccountName,
        naming: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable>;
    /// Gives a name free, if it is this owner's and its call has not ended.
    async fn release_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
    ) -> Result<(), Unavailable>;
    /// A piece of the body of an owner's reply, counted from 0; `None` if it is not there.
    async fn read_piece(
        &self,
        account: &AccountName,
        owner: &str,
        piece: u32,
    ) -> Result<Option<Bytes>, Unavailable>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_name_alive_says_all_of_it() {
        let account = AccountName::parse("a").expect("a name");
        let (name, owner) = ("n".to_owned(), "o".to_owned());
        let naming = IdempotencyKey { name, content: [7; 32], owner, life_ms: 5 };
        let entry = naming.lease_entry(&account);
        assert_eq!((&entry.account, IdempotencyKey::from_lease(&entry)), (&account, Some(naming)));
        assert!(entry.restore_operations(9).is_empty(), "it is no hold");
    }

    #[test]
    fn a_head_that_an_older_version_wrote_is_read_and_written_as_it_was() {
        let older = r#"{"status":200,"headers":[["content-type","text/event-stream"]]}"#;
        let head: ReplyHead = serde_json::from_str(older).expect("a head");
        assert_eq!(head.apart, None);
        assert_eq!(serde_json::to_string(&head).expect("a text"), older);
    }

    /// Older versions read no more of a head than its status and its headers, and took a body that
    /// is not in the store for an empty one.
    #[test]
    fn a_long_reply_was_sent_again_without_its_body_by_an_older_version() {
        let head = ReplyHead::new(200, Vec::new()).with_external_body(9, 1);
        let text = serde_json::to_string(&head).expect("a text");
        let older: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(older["status"], 0, "it builds no answer of that");
        let read: ReplyHead = serde_json::from_str(&text).expect("a head");
        assert_eq!((read.status(), &read), (200, &head));
    }
}
