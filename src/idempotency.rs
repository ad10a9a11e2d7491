//! Idempotency: the store of keys and replies. A call that is repeated, under its idempotency key
//! or as a client's own retry, gets the first reply again and is charged once.
//!
//! A key stands for one call of an account. The call claims it before money is held, and stores its
//! reply under it when it ends; the process renews the claim meanwhile. If a claim has expired, the
//! ledger knows how the call ended: the owner of the claim is the id of the call's hold.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

mod attempt_id;
mod attempt_record;
mod first_attempts;
mod fleet;
mod promotion;
mod reply_store;

pub use attempt_id::AttemptId;
pub(crate) use attempt_id::{
    ATTEMPT_TTL_MS, RACE_PREFIX, RaceSide, attempt_of_line, encode_digest,
};
pub(crate) use attempt_record::AttemptLookup;
pub(crate) use first_attempts::FirstAttempt;
pub use first_attempts::FirstAttempts;
pub use fleet::{Fleet, FleetAnswer};
pub(crate) use promotion::{AttemptStore, store_all_attempts, store_attempt};
pub use reply_store::{
    ClaimMode, ClaimResult, ExternalBody, IdempotencyKey, PIECE_BYTES, REPLIES_BYTES_MAX,
    ReplyHead, ReplyParts, ReplyStore, StoredReply,
};
pub(crate) use reply_store::{INLINE_BYTES_MAX, RUNNING_TTL_LEASES};
