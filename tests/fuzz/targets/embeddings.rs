//! See `bodies/embeddings.rs`.
#![no_main]

#[path = "../bodies/embeddings.rs"]
mod embeddings;

libfuzzer_sys::fuzz_target!(|data: &[u8]| embeddings::run(data));
