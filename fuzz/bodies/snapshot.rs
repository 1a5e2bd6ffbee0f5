//! The metadata of a virtual machine's snapshot, also where its checksum is right. What is read is whole: it
//! means the same when it is written again, and every offset leads to a place that has a checksum.

use farfork_image::vm::{self, Extent, Metadata};
use farfork_types::{Cid, PAGE_BYTES};

const CID: Cid = Cid::from_bytes([7; 16]);

/// One run.
pub fn run(bytes: &[u8]) {
    let _ = Metadata::parse(bytes, CID);
    let mut sealed = bytes.to_vec();
    vm::reseal(&mut sealed);
    let Ok(read) = Metadata::parse(&sealed, CID) else { return };
    assert_eq!(Metadata::parse(&vm::encode(&read, CID), CID).ok().as_ref(), Some(&read));
    let mut at = 0;
    for _ in 0..1000 {
        if at >= read.map.memory_bytes() {
            break;
        }
        let extent = read.map.at(at);
        assert!(extent.bytes() >= PAGE_BYTES);
        if let Extent::Stored { place, bytes } = extent {
            assert!((place + bytes) / PAGE_BYTES <= read.sums.len() as u64);
        }
        at += extent.bytes();
    }
}
