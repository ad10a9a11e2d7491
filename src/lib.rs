//! tollgate
pub mod catalogue;
pub mod dialect;
pub mod ledger;
pub mod money;
pub mod sheet;
pub mod store;
