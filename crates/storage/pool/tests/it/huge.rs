//! The pool's memory is in huge pages as far as the kernel can be had to.

use std::fs::File;

use farfork_pool::maps_huge_pages;
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

fn blocks(found: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(found) * 512
}
