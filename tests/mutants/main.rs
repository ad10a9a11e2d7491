//! The ledger's tests that need no store.

mod ledger {
    mod holds;
    mod laws;
    mod loss;
    mod memory;
    mod script;
    mod tables;
}
