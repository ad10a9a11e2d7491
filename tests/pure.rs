//! Tests that start nothing: the house, the documents, and translation by golden files.

mod docs;
mod house;
mod translation;
