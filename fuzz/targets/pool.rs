//! See `bodies/pool.rs`.
#![no_main]

#[path = "../bodies/pool.rs"]
mod body;

fn seed() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/archive/small");
    std::fs::read(path).expect("cannot read the archive; are the seeds there?")
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes, seed));
