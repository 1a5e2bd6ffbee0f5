//! The metadata of an image in the pool, also where its checksum is right, and the plan that an
//! import would compile from it.

use farfork_image::format::{self, Metadata};
use farfork_types::Cid;

const CID: Cid = Cid::from_bytes([7; 16]);

/// One run.
pub fn run(bytes: &[u8]) {
    let _ = Metadata::parse(bytes, CID);
    let mut sealed = bytes.to_vec();
    format::reseal(&mut sealed);
    if let Ok(read) = Metadata::parse(&sealed, CID) {
        format::encode(&read.model, CID, &read.sums);
    }
}
