//! The console: pages for operators and for customers. They are drawn on the server out of what the
//! functions of the API answer, and work without scripts.

mod access;
mod accounts;
pub(crate) mod address;
mod admit;
mod arithmetic;
mod assets;
mod audit;
mod charges;
mod cookie;
mod customer;
pub(crate) mod customer_limits;
mod customer_permits;
mod error;
mod form_table;
mod forms;
pub(crate) mod guide;
mod jobs;
mod key_forms;
mod key_list;
mod keys;
mod live;
pub(crate) mod live_streams;
mod models;
pub(crate) mod oidc;
pub(crate) mod overview;
mod page;
mod price_changes;
pub(crate) mod router;
mod routes;
mod sign_in;
pub(crate) mod state;
mod statements;
mod today;
pub(crate) mod upkeep;
mod usage;
mod views;
