//! See `bodies/form.rs`.
#![no_main]

#[path = "../bodies/form.rs"]
mod form;

libfuzzer_sys::fuzz_target!(|data: &[u8]| form::run(data));
