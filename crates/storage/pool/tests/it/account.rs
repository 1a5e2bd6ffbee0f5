//! What the pool's memory is charged to.

use std::fs;
use std::path::Path;

use farfork_types::CHUNK_BYTES;

use crate::child::{Orders, was_killed};
use crate::common::Place;

/// How many chunks the child writes.
const CHUNKS: u64 = 16;

/// The bytes charged to a cgroup of either version.
fn charged(group: &Path) -> u64 {
    let gauge = ["memory.usage_in_bytes", "memory.current"].map(|name| group.join(name));
    let text = gauge.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn the_pool_pays_and_not_the_writer() {
    let place = Place::new();
    let pool = place.pool();
    let pools = pool.info().unwrap().charged_to;
    if pools.starts_with("charged to the writer") {
        println!("skipped: {pools}");
        return;
    }
    let pools = Path::new(&pools);
    let writers = pools.with_file_name(format!("farfork-test-{}", std::process::id()));
    fs::create_dir(&writers).unwrap();
    let before = charged(pools);
    let mut writer = Orders::new("write", pool.path()).start();
    // Before it says go.
    fs::write(writers.join("cgroup.procs"), writer.id().to_string()).unwrap();
    drop(writer.stdin.take());
    assert!(!was_killed(writer.wait().unwrap()));
    let (pool_bytes, writer_bytes) = (charged(pools) - before, charged(&writers));
    println!("charged to the pool {pool_bytes}, to the writer {writer_bytes} bytes");
    fs::remove_dir(&writers).unwrap();
    // The kernel keeps charges in batches per processor, and settles those of the helper late.
    assert!(pool_bytes > (CHUNKS - 1) * CHUNK_BYTES);
    assert!(writer_bytes < 4 * CHUNK_BYTES);
    drop(pool);
    crate::common::destroy(&place.path());
    assert!(!pools.exists());
}

#[test]
fn the_helper_is_no_child_that_its_process_notices() {
    let place = Place::new();
    let pool = place.pool();
    let mut writer = Orders::new("write without children", pool.path()).start();
    assert!(!was_killed(writer.wait().unwrap()));
    assert_eq!(pool.check().unwrap().images, 1);
}
