//! See `bodies/translate_reply.rs`.
#![no_main]

#[path = "../bodies/translate_reply.rs"]
mod translate_reply;

libfuzzer_sys::fuzz_target!(|data: &[u8]| translate_reply::run(data));
