#![doc = include_str!("../ARCHITECTURE.md")]

pub mod catalogue;
pub mod cli;
pub mod clock;
pub mod conf;
pub mod dialect;
pub mod files;
pub mod gateway;
pub mod idempotency;
pub mod jobs;
pub mod kv_cache;
pub mod ledger;
pub mod metrics;
pub mod money;
pub mod permissions;
pub mod store;
pub mod toml_reader;
