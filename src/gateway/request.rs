//! From the head of a request to an admitted call: routing, authentication, the body, the hold.

pub mod admission;
pub mod auth;
pub mod body;
pub mod body_reader;
pub mod client_address;
pub mod key_cache;
pub mod models;
pub mod permits;
pub mod reasoning_cache;
pub mod router;
pub mod target;
pub mod uploads;
pub mod vendor_ids;
