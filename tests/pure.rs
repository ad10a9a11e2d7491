//! Tests that start nothing: the house, the documents, the ledger as a pure machine, and
//! translation by golden files.

mod docs;
mod house;
mod prepaid;
mod translation;
