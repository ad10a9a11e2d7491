//! The ledger's tests that need no store.

mod ledger {
    mod holds;
    mod laws;
    mod loss;
    mod memory;
    mod script;
    mod tables;
}

mod prepaid {
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
}
