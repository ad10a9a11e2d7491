//! The ledger: one expected output for the pure machine, SQLite and Redis.

mod account_settings;
mod allotments;
mod archive;
mod budget_faults;
mod budgets_in_file;
mod canaries;
mod conformance;
mod deletion;
mod durability;
mod forgotten;
mod holds;
mod journal_archive;
mod kept;
mod key_lists;
mod laws;
mod loss;
mod lots_in_file;
mod memory;
mod notes;
mod older;
mod operators;
mod outage;
mod over_budget;
mod parallel;
mod properties;
mod queue;
mod rates_in_file;
mod redis_budgets;
#[allow(dead_code, reason = "the tests of the gateway use the rest of it")]
pub(crate) mod redis_cluster;
mod redis_lots;
mod redis_rates;
#[allow(dead_code, reason = "the tests of the gateway use the rest of it")]
pub(crate) mod redis_server;
mod repeats;
pub(crate) mod script;
mod sessions;
mod silent;
mod statements;
pub(crate) mod subject;
mod sweeps;
mod tables;
mod tls;
mod transfers;
mod usage;
mod users;
mod webhooks;
