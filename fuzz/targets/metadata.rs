//! See `bodies/metadata.rs`.
#![no_main]

#[path = "../bodies/metadata.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
