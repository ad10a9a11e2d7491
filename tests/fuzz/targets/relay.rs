//! See `bodies/relay.rs`.
#![no_main]

#[path = "../bodies/relay.rs"]
mod relay;

libfuzzer_sys::fuzz_target!(|data: &[u8]| relay::run(data));
