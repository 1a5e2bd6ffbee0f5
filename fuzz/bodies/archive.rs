//! An archive, read part by part to its end.

use farfork_image::archive::Reader;
use farfork_types::CHUNK_BYTES;

/// One run.
pub fn run(bytes: &[u8]) {
    let Ok(mut reader) = Reader::open(bytes) else { return };
    let chunks = reader.model().chunk_pages();
    for stored in &chunks {
        if reader.chunk(stored, &mut vec![0; CHUNK_BYTES as usize]).is_err() {
            return;
        }
    }
    let _ = reader.finish();
}
