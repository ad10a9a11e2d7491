//! From the head of a request to an admitted call: routing, authentication, the body, the hold.

pub(crate) mod admission;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod body_reader;
pub(crate) mod books;
pub(crate) mod client_address;
pub(crate) mod cors;
pub(crate) mod free_rates;
pub(crate) mod key_cache;
pub(crate) mod models;
pub(crate) mod permits;
pub(crate) mod rates;
pub(crate) mod reasoning_cache;
pub(crate) mod router;
pub(crate) mod scope_check;
pub(crate) mod target;
pub(crate) mod uploads;
pub(crate) mod vendor_ids;
