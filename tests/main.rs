//! Tests of the whole, by capability.

mod audit;
mod billing;
mod chat;
mod cli;
mod docs;
mod edges;
mod endpoints;
mod errors;
mod fallback;
mod features;
mod growth;
mod house;
mod keys;
mod ledger;
mod messages;
mod metrics;
mod models;
mod outage;
mod outbox;
mod parallel;
mod permissions;
mod reload;
mod repeats;
#[path = "sim/sim.rs"]
mod sim;
mod streaming;
mod strict;
mod thinking;
mod translated;
mod translation;
mod uploads;
mod usage;
mod vendor_h2;
mod vendor_tls;
mod videos;
mod world;
