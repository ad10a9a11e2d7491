//! Management: what the command line and the API of operators change and read of accounts, keys,
//! payments, charges and operators. Both call the same functions, and every change is audited.

pub(crate) mod accounts;
pub(crate) mod actor;
pub(crate) mod archiving;
pub(crate) mod audit;
pub(crate) mod books;
pub(crate) mod books_proof;
pub(crate) mod budgets;
pub(crate) mod charges;
pub(crate) mod console_links;
pub(crate) mod context;
pub(crate) mod corrections;
pub(crate) mod deletion;
pub(crate) mod error;
pub(crate) mod expiry;
pub(crate) mod field_patch;
pub(crate) mod focus;
pub(crate) mod grants;
pub(crate) mod holds;
pub(crate) mod jobs;
pub(crate) mod key_rotation;
pub(crate) mod key_scope;
pub(crate) mod key_search;
pub(crate) mod keys;
mod living;
pub(crate) mod operators;
pub(crate) mod payments;
pub(crate) mod plans;
pub(crate) mod random;
pub(crate) mod statements;
pub(crate) mod usage;
pub(crate) mod webhooks;
