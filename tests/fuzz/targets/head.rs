//! See `bodies/head.rs`.
#![no_main]

#[path = "../bodies/head.rs"]
mod head;

libfuzzer_sys::fuzz_target!(|data: &[u8]| head::run(data));
