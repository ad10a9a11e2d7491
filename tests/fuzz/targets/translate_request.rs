//! See `bodies/translate_request.rs`.
#![no_main]

#[path = "../../translation/checker.rs"]
mod checker;
#[path = "../bodies/translate_request.rs"]
mod translate_request;

libfuzzer_sys::fuzz_target!(|data: &[u8]| translate_request::run(data));
