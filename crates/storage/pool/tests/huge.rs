//! The pool's memory is in huge pages as far as the kernel can be had to.

use std::fs::{File, OpenOptions};
use std::path::Path;

use farfork_pool::{Pool, mount_tmpfs, unmount_tmpfs};
use farfork_types::CHUNK_BYTES;
use memmap2::{Advice, MmapOptions};

/// Writes a zero to each page of a file through a mapping that takes small pages only.
fn fill_with_small_pages(path: &Path, offset: u64, bytes: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let map = MmapOptions::new().offset(offset).len(bytes as usize).map_raw(&file).unwrap();
    map.advise(Advice::NoHugePage).unwrap();
    map.advise(Advice::PopulateWrite).unwrap();
}

/// Bytes of a range of the file that a mapping of it has in huge pages.
fn huge_bytes(path: &Path, offset: u64, bytes: u64) -> u64 {
    let file = File::open(path).unwrap();
    let mut options = MmapOptions::new();
    let map = options.offset(0).len((offset + bytes) as usize).map_raw_read_only(&file).unwrap();
    let range = (offset as usize, bytes as usize);
    map.advise_range(Advice::PopulateRead, range.0, range.1).unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let header = format!("{:x}-", map.as_ptr() as usize);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&header));
    let line = lines.find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn chunks_that_the_kernel_gave_in_small_pages_are_gathered() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root mounts a tmpfs with huge pages");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("huge");
    std::fs::create_dir(&dir).unwrap();
    mount_tmpfs(&dir, 64 << 20).unwrap();
    let path = dir.join("pool");
    let pool = Pool::create(&path, 16 * CHUNK_BYTES).unwrap();
    let free = pool.begin().unwrap().allocate(4).unwrap()[0];
    fill_with_small_pages(&path, free.offset, free.bytes());
    assert_eq!(huge_bytes(&path, free.offset, free.bytes()), 0);
    let mut writer = pool.begin().unwrap();
    let runs = writer.allocate(4).unwrap();
    assert_eq!(runs[0].offset, free.offset, "the same chunks again");
    let huge = huge_bytes(&path, free.offset, free.bytes());
    drop(writer);
    drop(pool);
    Pool::destroy(&path).unwrap();
    unmount_tmpfs(&dir).unwrap();
    assert_eq!(huge, free.bytes());
}
