//! Tests of the whole, by capability: the gateway, its vendors and its stores run as processes.

mod admin_api;
mod aliases;
mod allotments;
mod audit;
mod backup;
mod billing;
mod books;
mod budgets;
mod chat;
mod cli;
mod console;
#[cfg(debug_assertions)]
mod crash_points;
mod customer_api;
mod customer_usage;
mod edges;
mod endpoints;
mod errors;
mod fallback;
mod features;
mod fees;
mod growth;
mod hold_sizing;
mod keys;
#[allow(dead_code, unused_imports, reason = "the tests of the ledger use the rest of it")]
mod ledger {
    //! What these tests share with those of the ledger.

    pub(crate) mod memory;
    pub(crate) mod redis_cluster;
    pub(crate) mod redis_server;
    pub(crate) mod script;
    pub(crate) mod subject;
}
mod messages;
mod metrics;
mod models;
mod outage;
mod outbox;
mod parallel;
mod permissions;
mod rates;
mod reload;
mod repeats;
mod scopes;
#[path = "sim/sim.rs"]
mod sim;
mod streaming;
mod strict;
mod suspension;
mod thinking;
mod traces;
mod translated;
mod uploads;
mod usage;
mod vendor_h2;
mod vendor_protocols;
mod vendor_tls;
mod videos;
mod world;
