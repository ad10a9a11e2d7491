#![doc = include_str!("../ARCHITECTURE.md")]

pub(crate) mod admin_api;
pub mod archive;
pub(crate) mod backoff;
pub mod catalogue;
pub mod cli;
pub(crate) mod clock;
pub mod conf;
pub mod dialect;
mod failpoints;
pub(crate) mod fast_map;
pub(crate) mod files;
pub mod gateway;
pub(crate) mod hex;
pub mod idempotency;
pub mod jobs;
pub mod kv_cache;
pub mod ledger;
pub(crate) mod management;
pub mod metrics;
pub mod money;
pub mod operators;
pub(crate) mod permissions;
mod settlement;
pub mod statement;
pub mod store;
pub(crate) mod toml_reader;
pub mod usage;
