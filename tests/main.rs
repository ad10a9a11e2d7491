//! Tests of the whole, by capability.

mod house;
mod ledger;
