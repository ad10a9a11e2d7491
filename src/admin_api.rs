//! The API of operators: `/admin/v1/*` on an address of its own. It makes the same changes as the
//! command line, by the same functions, and describes itself in an `OpenAPI` document.

mod access;
mod accounts;
pub(crate) mod admit;
pub(crate) mod amounts;
mod audit;
pub(crate) mod budgets;
mod catalogue;
mod charges;
pub(crate) mod client_address;
mod document;
pub(crate) mod error;
mod extract;
mod holds;
mod idempotency;
mod jobs;
mod keys;
mod operators;
mod page;
mod payments;
pub(crate) mod router;
pub(crate) mod server;
pub(crate) mod state;
mod statements;
mod usage;
mod webhooks;
