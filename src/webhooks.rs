//! Webhooks: what accounts and operators are told of by a POST to an address of theirs, signed by
//! the rules of Standard Webhooks (standardwebhooks.com).
//!
//! An event is noted as one message for each endpoint that wants it. The id of a message is made of
//! the event and the endpoint, so an event that is noted again adds nothing. A message is sent
//! until its endpoint accepts it, for a day at most.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

pub(crate) mod account_check;
pub mod address;
pub mod bounds;
pub(crate) mod crossing;
pub(crate) mod endpoint;
pub(crate) mod erase;
pub(crate) mod event;
pub(crate) mod message;
pub(crate) mod publish;
pub mod row;
pub(crate) mod schedule;
pub(crate) mod secret;

pub use row::{
    DueRow, RowBounds, RowPlace, WebhookRow, WebhookRowAdded, WebhookRowKind, WebhookStore,
};
