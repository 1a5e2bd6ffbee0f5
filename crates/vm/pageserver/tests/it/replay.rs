//! The fuzz target of the hand-over on its seeds, and on seeds with bytes changed. Fuzzing itself is `setup/fuzz.sh`.

#[path = "../../../../../fuzz/bodies/handover.rs"]
mod handover;

const WHOLE: &[u8] = br#"A[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size":4096,"page_size_kib":4096},{"base_host_virt_addr":1073741824,"size":4194304,"offset":2097152,"page_size_kib":2097152,"new":[{"a":null}]}]"#;

#[test]
fn seeds_for_the_fuzzer() {
    let Some(corpus) = std::env::var_os("FARFORK_FUZZ_SEEDS").map(std::path::PathBuf::from) else {
        println!("nothing to do: FARFORK_FUZZ_SEEDS names no directory");
        return;
    };
    std::fs::create_dir_all(corpus.join("handover")).unwrap();
    std::fs::write(corpus.join("handover/whole"), WHOLE).unwrap();
}

#[test]
fn a_changed_hand_over_is_read_or_refused() {
    handover::run(WHOLE);
    for at in 0..WHOLE.len() {
        for byte in [0, b'0', b'9', b']', b'"', 0xff] {
            let mut changed = WHOLE.to_vec();
            changed[at] = byte;
            handover::run(&changed);
            handover::run(&changed[..at]);
        }
    }
}
