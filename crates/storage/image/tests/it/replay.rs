//! The fuzz targets on their seeds, and on seeds with a few bytes changed. Fuzzing itself is
//! `setup/fuzz.sh`, part of `make test-long`.

use proptest::prelude::*;

use crate::common;
use crate::hostile::metadata;

#[path = "../../../../../fuzz/bodies/archive.rs"]
mod archive;
#[path = "../../../../../fuzz/bodies/metadata.rs"]
mod metadata_body;
#[path = "../../../../../fuzz/bodies/pool.rs"]
mod pool;
#[path = "../../../../../fuzz/bodies/protocol.rs"]
mod protocol;
#[path = "../../../../../fuzz/bodies/snapshot.rs"]
mod snapshot;

const CALL: &[u8] = br#"{"restore":{"pool":"/p","cid":"00112233445566778899aabbccddeeff","name":"a/b","detach":false,"same_pid":true,"inherit":[6],"requested_ns":1}}"#;

/// Sound inputs of the targets, by their names.
fn seeds() -> [(&'static str, &'static str, Vec<u8>); 6] {
    [
        ("metadata", "whole", metadata(&common::model())),
        ("archive", "whole", common::archive().clone()),
        ("archive", "small", small_archive()),
        ("pool", "whole", pool_changes()),
        ("protocol", "whole", CALL.to_vec()),
        ("snapshot", "whole", crate::vm::metadata()),
    ]
}

/// The image of the pool whose files the pool's target changes.
fn small_archive() -> Vec<u8> {
    common::archive_of(&common::small_model())
}

/// Every checksum made right, and a change in a place of each file that means little: reserved words,
/// a place among the pages, bits, a limit, and a name that leads elsewhere.
fn pool_changes() -> Vec<u8> {
    const WORDS: [u8; 7] = [6, 60, 31, 10, 10, 2, 0];
    let record = |(file, word): (u8, u8)| [file, word, 0, 2, 0, 0, 0, 1, 0, 0, 0];
    let records = (0..).zip(WORDS).flat_map(record);
    [7].into_iter().chain(records).collect()
}

fn run(target: &str, bytes: &[u8]) {
    match target {
        "metadata" => metadata_body::run(bytes),
        "archive" => archive::run(bytes),
        "pool" => pool::run(bytes, small_archive),
        "snapshot" => snapshot::run(bytes),
        _ => protocol::run(bytes),
    }
}

#[test]
fn seeds_for_the_fuzzer() {
    let Some(corpus) = std::env::var_os("FARFORK_FUZZ_SEEDS").map(std::path::PathBuf::from) else {
        println!("nothing to do: FARFORK_FUZZ_SEEDS names no directory");
        return;
    };
    for (target, name, bytes) in seeds() {
        std::fs::create_dir_all(corpus.join(target)).unwrap();
        std::fs::write(corpus.join(target).join(name), bytes).unwrap();
    }
}

/// One word of one file of a pool after the other, and each file cut there, with right checksums: what
/// stands there is believed.
#[test]
fn a_pool_with_any_word_changed_is_read_or_refused() {
    for file in 0..7u8 {
        for word in 0..16 {
            for (file, value) in [(file, 0), (file, 0xff), (file | 0x80, 0)] {
                pool::run(&[&[3, file, word, 0][..], &[value; 8]].concat(), small_archive);
            }
        }
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
        for (target, _, mut bytes) in seeds() {
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
