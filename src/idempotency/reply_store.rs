//! The store of idempotency keys and replies: what it is told, and what it answers.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ledger::lease::{self, LeaseEntry};
use crate::ledger::{AccountName, Unavailable};

/// The most bytes of replies that are kept for an account. Beyond that a key is remembered without
/// its reply.
pub const REPLIES_BYTES_MAX: u64 = 256 << 20;
/// Larger bodies, in bytes, are kept as files, apart from their heads, and not in the store, whose
/// memory or file all accounts share.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;
/// The size in bytes of the pieces in which bodies are written and read; only the last piece is
/// shorter. With small pieces no other request waits long, and no body must be in memory as a
/// whole.
pub const PIECE_BYTES: usize = 256 << 10;
/// The key of a running call is remembered for at least this many leases from its last renewal:
/// long enough to be looked up after the lease has expired.
pub(crate) const RUNNING_TTL_LEASES: u64 = 10;

/// A call and its idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key, at most 512 bytes long.
    pub name: String,
    /// The digest of the call's content.
    pub content: [u8; 32],
    /// The id of the call, and of its hold. No two calls of an account have the same.
    pub owner: String,
    /// How long the key is remembered, in ms: from the claim, and again from the end of the call.
    pub life_ms: u64,
}

impl IdempotencyKey {
    /// Returns the lease entry that renews the key while the call runs.
    #[must_use]
    pub(crate) fn lease_entry(&self, account: &AccountName) -> LeaseEntry {
        let IdempotencyKey { name, content, owner, life_ms } = self.clone();
        let item = lease::LeasedItem::Name { owner, content, life_ms };
        LeaseEntry { account: account.clone(), id: name, item }
    }

    /// Returns the key of a lease entry; `None` for the lease of a hold. Claiming the key again for
    /// the same call succeeds, even after the store has lost the key.
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
    /// The key is claimed only if no other call has it, not even one whose lease has expired. This
    /// waits while the store may lack keys, as [`ClaimMode::TakeOver`] does: a repeat would find
    /// nothing of a call that was charged.
    IfFree,
    /// The key is also taken over from this owner, of which the caller has found out that it has
    /// ended.
    TakeOver(String),
    /// The key is claimed no matter which call has it: this is a new call, which may itself be
    /// repeated.
    Replace,
    /// The same as `IfFree`, for whoever brings back what a store may have lost: it is also allowed
    /// while the store may lack keys and charges.
    Restore,
}

/// The result of claiming a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimResult {
    /// The caller has the key.
    Claimed,
    /// Another call runs under the key.
    Running,
    /// Another call has the key. Its lease has expired, or it is not the owner from which the key
    /// may be taken over.
    Expired {
        /// The id of that call.
        owner: String,
    },
    /// The call has ended, and this reply is stored.
    Replied(StoredReply),
    /// The call has ended and was paid for, but its reply is not kept.
    ReplyNotStored {
        /// The id of that call.
        owner: String,
    },
    /// The key stands for a call with other content.
    ContentMismatch,
}

/// A stored reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReply {
    /// The id of the call that got the reply; the body is found by it.
    pub owner: String,
    /// The status and the headers.
    pub head: ReplyHead,
    /// The number of bytes of the body.
    pub bytes: u64,
    /// The body, if it is in the memory of this process and not in the store.
    pub body: Option<Bytes>,
}

/// A reply as the client got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyParts {
    /// The status and the headers.
    pub head: ReplyHead,
    /// The body; for a stream, everything that was streamed.
    pub body: Bytes,
}

/// The head of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyHead {
    /// The status, or 0 if the body is kept as a file. Older versions do not know of such bodies,
    /// and with the real status they would send the reply with an empty body; from 0 they build no
    /// response. See [`ReplyHead::status`].
    status: u16,
    /// The headers that belong to the reply, with lower-case names.
    pub headers: Vec<(String, String)>,
    /// Where the body is, if it is kept as a file. Heads of older versions do not have this member.
    #[serde(default, rename = "apart", skip_serializing_if = "Option::is_none")]
    pub external_body: Option<ExternalBody>,
}

impl ReplyHead {
    /// Makes the head of a reply whose body is stored with it.
    #[must_use]
    pub fn new(status: u16, headers: Vec<(String, String)>) -> ReplyHead {
        ReplyHead { status, headers, external_body: None }
    }

    /// Turns this into the head of a reply whose body is kept as a file of `bytes` bytes until
    /// `expires_s` (unix seconds).
    #[must_use]
    pub(crate) fn with_external_body(self, bytes: u64, expires_s: u64) -> ReplyHead {
        let external_body = ExternalBody { status: self.status(), bytes, expires_s };
        ReplyHead { status: 0, external_body: Some(external_body), ..self }
    }

    /// Returns the status of the reply.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.external_body.map_or(self.status, |body| body.status)
    }
}

/// A body that is kept apart from its head, as a file under its account and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalBody {
    /// The status of the reply.
    pub status: u16,
    /// The length of the body in bytes.
    pub bytes: u64,
    /// When the file expires, in unix seconds.
    pub expires_s: u64,
}

/// The store of keys and replies. Keys and replies are found only under the account that stored
/// them. A key or a reply that has expired is not found. The operations of one caller are done in
/// the order in which their futures were first polled.
#[async_trait]
pub trait ReplyStore: Send + Sync {
    /// Whether a write is on disk when it is acknowledged. If not, the last second of acknowledged
    /// writes may be lost with the store's machine.
    fn is_durable_at_once(&self) -> bool;
    /// Claims a key for `lease_ms`, if `mode` allows it.
    async fn claim_key(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        mode: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable>;
    /// Extends a claim to `lease_ms` from now; `false` if the key belongs to another owner by now,
    /// or its call has ended.
    async fn renew_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        lease_ms: u64,
    ) -> Result<bool, Unavailable>;
    /// Ends a call, and stores its reply if there is one and there is room for it. A key that the
    /// store has lost is restored by this. `false` if the key belongs to another owner by now. A
    /// repeat changes nothing.
    async fn complete(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable>;
    /// Releases a key, if it belongs to this owner and its call has not ended.
    async fn release_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
    ) -> Result<(), Unavailable>;
    /// Returns a piece of the body of an owner's reply, counted from 0; `None` if it does not
    /// exist.
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
        let key = IdempotencyKey { name, content: [7; 32], owner, life_ms: 5 };
        let entry = key.lease_entry(&account);
        assert_eq!((&entry.account, IdempotencyKey::from_lease(&entry)), (&account, Some(key)));
        assert!(entry.restore_operations(9).is_empty(), "it is no hold");
    }

    #[test]
    fn a_head_that_an_older_version_wrote_is_read_and_written_as_it_was() {
        let older = r#"{"status":200,"headers":[["content-type","text/event-stream"]]}"#;
        let head: ReplyHead = serde_json::from_str(older).expect("a head");
        assert_eq!(head.external_body, None);
        assert_eq!(serde_json::to_string(&head).expect("a text"), older);
    }

    /// Older versions read only the status and the headers of a head, and took a body that is not
    /// in the store for an empty one.
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
