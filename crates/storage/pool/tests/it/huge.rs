//! The pool's memory is in huge pages as far as the kernel can be had to.

use std::fs::File;

use farfork_pool::{Pool, maps_huge_pages};
use farfork_types::CHUNK_BYTES;
use memmap2::{Advice, MmapOptions};

use crate::common::{Place, publish};

/// Bytes of a file, from an offset on, that a mapping of them has in huge pages.
fn huge_bytes(file: &File, offset: u64) -> u64 {
    let bytes = (file.metadata().unwrap().len() - offset) as usize;
    let map = MmapOptions::new().offset(offset).len(bytes).map_raw_read_only(file).unwrap();
    map.advise(Advice::PopulateRead).unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let header = format!("{:x}-", map.as_ptr() as usize);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&header));
    let line = lines.find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn images_are_in_huge_pages_but_for_their_small_parts() {
    let place = Place::new();
    if !place.is_mounted {
        return;
    }
    let pool = place.pool();
    assert!(maps_huge_pages(&place.path()));
    let image = pool.find(publish(&pool, 4, 7)).unwrap();
    assert_eq!(huge_bytes(image.file(), 0), 4 * CHUNK_BYTES);
    // A page at the front and the hole behind it cost no other chunk its huge page.
    let mut writer = pool.begin(None).unwrap();
    writer.reserve(4 * CHUNK_BYTES).unwrap();
    writer.keep(&[0..1, 2 * CHUNK_BYTES..4 * CHUNK_BYTES]).unwrap();
    let image = pool.find(writer.publish().unwrap().0).unwrap();
    assert_eq!(
        image.file().metadata().map(|found| blocks(&found)).unwrap(),
        4096 + 2 * CHUNK_BYTES
    );
    assert_eq!(huge_bytes(image.file(), 2 * CHUNK_BYTES), 2 * CHUNK_BYTES);
}

/// Memory that is gathered by the mapping that is then written reads as zeros, and is cleared by the next fault.
#[test]
fn what_is_written_is_there_with_and_without_a_cgroup() {
    let place = Place::new();
    let pool = place.pool();
    written_in_parts(&pool);
    written_in_parts(&pool.charged_to_writers());
}

/// An image as a checkpoint writes it: chunks, then more memory for what describes them, the first page, and holes.
fn written_in_parts(pool: &Pool) {
    let mut writer = pool.begin(None).unwrap();
    writer.reserve(3 * CHUNK_BYTES).unwrap();
    writer.populate();
    writer.bytes_mut(CHUNK_BYTES..3 * CHUNK_BYTES).fill(7);
    writer.reserve(4 * CHUNK_BYTES).unwrap();
    writer.bytes_mut(3 * CHUNK_BYTES..3 * CHUNK_BYTES + 9000).fill(8);
    writer.bytes_mut(0..100).fill(9);
    writer.keep(&[0..4096, CHUNK_BYTES..3 * CHUNK_BYTES + 9000]).unwrap();
    let (cid, _held) = writer.publish().unwrap();
    let image = pool.find(cid).unwrap();
    let all = |from: u64, bytes: u64, is: u8| {
        let read = image.read(from, bytes).unwrap();
        let wrong = read.iter().position(|byte| *byte != is);
        let charged = pool.info().unwrap().charged_to;
        assert_eq!(wrong, None, "{bytes} bytes at {from} should be {is} ({charged})");
    };
    all(0, 100, 9);
    all(100, CHUNK_BYTES - 100, 0);
    all(CHUNK_BYTES, 2 * CHUNK_BYTES, 7);
    all(3 * CHUNK_BYTES, 9000, 8);
}

fn blocks(found: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(found) * 512
}
