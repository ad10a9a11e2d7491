//! Repeats: a call that comes again, under its idempotency key or as a client's own retry, gets the
//! first reply again and is not paid for twice.
//!
//! A name stands for one call of an account's. It is taken before money is held for the call, is
//! kept alive while the call runs, and then keeps its reply. Whoever finds a name whose lease ran
//! out asks the ledger what became of the call: its owner is the id of its hold.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ledger::{AccountName, Unavailable};

/// Of an account's replies so many bytes are kept, at most; after that a name is remembered without
/// its reply.
pub const REPLIES_BYTES_MAX: u64 = 256 << 20;

/// A name for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// The name: what the call is known by, at most 512 bytes.
    pub name: String,
    /// The digest of the call's content.
    pub content: [u8; 32],
    /// The id of the call, and of its hold.
    pub owner: String,
    /// How long the name is the call's unless it is kept alive, in ms.
    pub lease_ms: u64,
    /// How long it is remembered from now on, in ms.
    pub life_ms: u64,
    /// What may be done with a name that is taken.
    pub taking: Taking,
}

/// What may be done with a name that is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taking {
    /// Nothing.
    Free,
    /// It is taken over from this owner, of whom the caller knows that nothing will come.
    From(String),
    /// It is taken whoever has it: the call is a new one, which a repeat may be of.
    Anew,
}

/// What came of taking a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// It is the caller's.
    Mine,
    /// A call runs under it.
    Running,
    /// A call had it whose lease ran out, or that is not the one to take it over from.
    Lapsed {
        /// The id of that call.
        owner: String,
    },
    /// The call has ended, with this reply.
    Replied(Reply),
    /// The call has ended and was paid for, but its reply is not kept.
    NotKept,
    /// It stands for a call of other content.
    OtherContent,
}

/// A reply as the client got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Its head.
    pub head: Head,
    /// Its body: of a stream all that was streamed.
    pub body: Bytes,
}

/// The head of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// The headers that belong to the reply, with their names in small letters.
    pub headers: Vec<(String, String)>,
}

/// Where names and replies are kept. What one account has no other finds.
#[async_trait]
pub trait Repeats: Send + Sync {
    /// Takes a name, if it may be taken. A reply or a name whose life has ended is not there.
    async fn take(&self, account: &AccountName, naming: &Naming) -> Result<Taken, Unavailable>;
    /// Keeps a name alive for so long from now (ms); `false` if it is not this owner's any more.
    async fn renew(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        lease_ms: u64,
    ) -> Result<bool, Unavailable>;
    /// Ends a call with its reply, which is kept for so long from now (ms), or with none where it
    /// is too large; `false` if the name is not this owner's any more. The same again changes
    /// nothing.
    async fn end(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        ending: (Option<Reply>, u64),
    ) -> Result<bool, Unavailable>;
    /// Gives a name free, if it is this owner's and its call has not ended.
    async fn free(&self, account: &AccountName, name: &str, owner: &str)
    -> Result<(), Unavailable>;
}
