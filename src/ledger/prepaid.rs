//! The ledger of an account, as one pure machine: lots of credit, budgets, rate limits, direct
//! holds, allotments, refunds and corrections.
//!
//! Each operation is a function of the records that it names and the store's time. It returns an
//! answer and all changes that the store must write, in one transaction. `C + W = A + H + P` holds
//! after each of them. The stores lend by it. docs/develop/allotments.md explains it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

pub mod allotment;
pub mod answer;
mod charge;
pub mod correct;
pub mod direct;
mod draft;
mod lend;
pub mod lending_rule;
pub mod local;
pub mod lot;
mod lot_text;
pub mod operations;
pub mod posted_line;
pub mod rate;
pub(crate) mod rate_slices;
pub mod records;
pub mod refusal;
pub mod settings;
pub mod transfer;
pub mod update;
pub mod window;
