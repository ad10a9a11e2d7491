#![doc = include_str!("../ARCHITECTURE.md")]

pub mod catalogue;
pub mod cli;
pub mod conf;
pub mod dialect;
pub mod files;
pub mod gateway;
pub mod jobs;
pub mod ledger;
pub mod metrics;
pub mod money;
pub mod notes;
pub mod permissions;
pub mod repeats;
pub mod sheet;
pub mod store;
