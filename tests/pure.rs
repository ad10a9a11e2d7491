//! Tests that start nothing: the house, the documents, the ledger as a pure machine, translation
//! by golden files, and the fuzz targets with them.

mod docs;
mod fuzz;
mod house;
mod prepaid;
mod translation;
