//! See `bodies/videos.rs`.
#![no_main]

#[path = "../bodies/videos.rs"]
mod videos;

libfuzzer_sys::fuzz_target!(|data: &[u8]| videos::run(data));
