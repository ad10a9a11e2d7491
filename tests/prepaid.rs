//! The ledger of an account: tables, laws and canaries of the pure machine.

mod canaries;
mod exactly;
mod gateway;
mod invariants;
mod machine;
mod script;
mod sums;
mod tables;
mod voids;
mod without_lots;
mod world;
