//! See `bodies/handover.rs`.
#![no_main]

#[path = "../bodies/handover.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
