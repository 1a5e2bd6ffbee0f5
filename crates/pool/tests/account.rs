//! Who pays for the pool.

mod common;

use std::fs;
use std::path::Path;

use common::{Place, orders, publish, was_killed};
use farfork_pool::Pool;
use farfork_types::CHUNK_BYTES;

const CHUNKS: u32 = 16;

#[test]
#[ignore = "run by the other test in a process of its own"]
fn child() {
    let Some((_, pool, _)) = orders() else { return };
    // The parent moves us to a cgroup of its own before it says go.
    std::io::stdin().read_line(&mut String::new()).unwrap();
    publish(&pool, CHUNKS, 7);
}

/// The bytes charged to a cgroup of either version.
fn charged(group: &Path) -> u64 {
    let gauge = ["memory.usage_in_bytes", "memory.current"].map(|name| group.join(name));
    let text = gauge.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn the_pool_pays_and_not_the_writer() {
    let place = Place::new();
    let pool = place.pool(u64::from(CHUNKS) + 4);
    let pools = pool.info().unwrap().charged_to;
    if pools.starts_with("charged to the writer") {
        println!("skipped: {pools}");
        return;
    }
    let pools = Path::new(&pools);
    let writers = pools.with_file_name(format!("farfork-test-{}", std::process::id()));
    fs::create_dir(&writers).unwrap();
    let before = charged(pools);
    let mut writer = common::child("write", pool.path(), farfork_types::Cid::NIL, None);
    fs::write(writers.join("cgroup.procs"), writer.id().to_string()).unwrap();
    drop(writer.stdin.take());
    assert!(!was_killed(writer.wait().unwrap()));
    let (pool_bytes, writer_bytes) = (charged(pools) - before, charged(&writers));
    println!("charged to the pool {pool_bytes}, to the writer {writer_bytes} bytes");
    fs::remove_dir(&writers).unwrap();
    assert!(pool_bytes >= u64::from(CHUNKS) * CHUNK_BYTES);
    assert!(writer_bytes < 4 * CHUNK_BYTES);
    drop(pool);
    Pool::destroy(&place.path()).unwrap();
    assert!(!pools.exists());
}

#[test]
fn an_allocation_does_not_disturb_the_children_of_its_process() {
    let place = Place::new();
    let pool = place.pool(8);
    let mut other = std::process::Command::new("true").spawn().unwrap();
    publish(&pool, 2, 1);
    assert!(other.wait().unwrap().success());
}
