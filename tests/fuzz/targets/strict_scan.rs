//! See `bodies/strict_scan.rs`.
#![no_main]

#[path = "../bodies/strict_scan.rs"]
mod strict_scan;

libfuzzer_sys::fuzz_target!(|data: &[u8]| strict_scan::run(data));
