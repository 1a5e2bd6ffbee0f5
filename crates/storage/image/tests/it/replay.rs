//! The fuzz targets on their seeds, and on seeds with a few bytes changed. Fuzzing itself is
//! `setup/fuzz.sh`, part of `make test-long`.

use proptest::prelude::*;

use crate::common;
use crate::hostile::metadata;

#[path = "../../../../../fuzz/bodies/archive.rs"]
mod archive;
#[path = "../../../../../fuzz/bodies/metadata.rs"]
mod metadata_body;
#[path = "../../../../../fuzz/bodies/protocol.rs"]
mod protocol;

const CALL: &[u8] = br#"{"restore":{"pool":"/p","cid":"00112233445566778899aabbccddeeff","name":"a/b","detach":false,"same_pid":true,"inherit":[6],"requested_ns":1}}"#;

/// A sound input of each target.
fn seeds() -> [(&'static str, Vec<u8>); 4] {
    // Every checksum of the pool made right, and a change in each area.
    let changes: Vec<u8> = (0..7u8).flat_map(|area| [area, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0]).collect();
    [
        ("metadata", metadata(&common::model())),
        ("archive", common::archive().clone()),
        ("pool", [&[31][..], &changes].concat()),
        ("protocol", CALL.to_vec()),
    ]
}

fn run(target: &str, bytes: &[u8]) {
    match target {
        "metadata" => metadata_body::run(bytes),
        "archive" => archive::run(bytes),
        "protocol" => protocol::run(bytes),
        _ => {} // the pool's target has a pool of its own, beside its corpus
    }
}

#[test]
fn seeds_for_the_fuzzer() {
    let Some(corpus) = std::env::var_os("FARFORK_FUZZ_SEEDS").map(std::path::PathBuf::from) else {
        println!("nothing to do: FARFORK_FUZZ_SEEDS names no directory");
        return;
    };
    for (target, bytes) in seeds() {
        std::fs::create_dir_all(corpus.join(target)).unwrap();
        std::fs::write(corpus.join(target).join("whole"), bytes).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn targets_take_changed_seeds(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        length in any::<prop::sample::Index>(),
        is_cut: bool,
    ) {
        for (target, mut bytes) in seeds() {
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if is_cut {
                bytes.truncate(length.index(bytes.len()));
            }
            run(target, &bytes);
        }
    }
}
