//! Tests of the ledger: the pure machine, SQLite and Redis.

mod ledger;
