//! From an image back to the memory file of a monitor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use farfork_pool::ImageFile;
use farfork_types::CHUNK_BYTES;

use super::error::VmError;
use super::snapshot::Snapshot;

/// Writes the guest's memory, bit for bit what was imported, to an empty file. Pages of zeros become holes. Every page is
/// verified first. `progress` gets the bytes that are done, and all of them.
///
/// # Errors
/// [`VmError::Io`]; [`VmError::Image`] if the image is damaged.
pub fn export(
    snapshot: &Snapshot,
    file: &ImageFile,
    (memory_path, memory): (&Path, &File),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), VmError> {
    let map = &snapshot.map;
    memory.set_len(map.memory_bytes()).map_err(VmError::io("write", memory_path))?;
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    let mut done = 0;
    for run in map.runs() {
        for step in (0..run.bytes).step_by(CHUNK_BYTES as usize) {
            let part = &mut buffer[..(run.bytes - step).min(CHUNK_BYTES) as usize];
            snapshot.read_pages(file, run.place + step, part)?;
            let written = memory.write_all_at(part, run.offset + step);
            written.map_err(VmError::io("write", memory_path))?;
            done += part.len() as u64;
            progress(done, map.stored_bytes());
        }
    }
    Ok(())
}
