//! Copying pages into the pool, straight from the process's memory to the pool's
//! (`process_vm_readv`). One thread copies: a second one was not faster in a trial on two
//! processors.

use std::fs::File;

use farfork_image::model::Segment;
use farfork_sys::memory;

use crate::error::{CheckpointError, doing};
use crate::image_pages::ImageBackedPages;
use crate::runs::Run;

/// Bytes between two reports of progress: some 20 ms.
const REPORT_BYTES: usize = 64 << 20;

/// Called with the bytes copied and the bytes to copy in all. The process is stopped meanwhile.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);

/// Copies `runs` of a process to where `segments` have them in `data`, the chunks of an image.
/// `image_pages` are read from the image that the process is a clone of. Returns the bytes copied.
pub fn copy(
    pid: i32,
    image_pages: &ImageBackedPages,
    runs: &[Run],
    segments: &[Segment],
    data: &mut [u8],
    progress: Progress<'_>,
) -> Result<u64, CheckpointError> {
    let mem = open(pid)?;
    let all = runs.iter().map(|(start, end)| end - start).sum();
    let mut copied = 0;
    for (start, end, at) in placed(runs, segments) {
        let to = &mut data[at..at + (end - start) as usize];
        for (index, part) in to.chunks_mut(REPORT_BYTES).enumerate() {
            let from = start + (index * REPORT_BYTES) as u64;
            read(pid, &mem, image_pages, from, part)?;
            copied += part.len() as u64;
            progress(copied, all);
        }
    }
    Ok(copied)
}

/// The memory of a process as a file.
pub fn open(pid: i32) -> Result<File, CheckpointError> {
    let what = "the memory";
    File::open(format!("/proc/{pid}/mem")).map_err(|_| CheckpointError::Proc { pid, what })
}

/// Fills `to` from `from` of a process's memory, `mem`.
pub fn read(
    pid: i32,
    mem: &File,
    image_pages: &ImageBackedPages,
    from: u64,
    to: &mut [u8],
) -> Result<(), CheckpointError> {
    let mut rest = to;
    for ((start, end), in_image) in image_pages.pieces(from, from + rest.len() as u64) {
        let (part, after) = rest.split_at_mut((end - start) as usize);
        match in_image {
            Some(offset) => image_pages.read(offset, part)?,
            None => {
                memory::read_exact(pid, mem, start, part).map_err(doing(pid, "read the memory"))?;
            }
        }
        rest = after;
    }
    Ok(())
}

/// Cuts `runs` where segments begin and end: start, end, and offset in the chunks of the image. What
/// follows each other in both is not cut apart.
pub fn placed(runs: &[Run], segments: &[Segment]) -> Vec<(u64, u64, usize)> {
    let mut parts: Vec<(u64, u64, usize)> = Vec::new();
    let mut next = 0;
    for segment in segments {
        next += runs[next..].partition_point(|run| run.1 <= segment.address);
        for run in runs[next..].iter().take_while(|run| run.0 < segment.end()) {
            let (from, to) = (run.0.max(segment.address), run.1.min(segment.end()));
            let at = (segment.place + (from - segment.address)) as usize;
            match parts.last_mut() {
                Some(last) if last.1 == from && last.2 + (from - last.0) as usize == at => {
                    last.1 = to;
                }
                _ => parts.push((from, to, at)),
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_types::CHUNK_BYTES;

    const C: u64 = CHUNK_BYTES;

    fn segment(address: u64, bytes: u64, place: u64) -> Segment {
        Segment { address, bytes, place }
    }

    #[test]
    fn runs_are_cut_only_where_segments_are_not_neighbours() {
        let segments =
            [segment(4 * C, C, 0), segment(5 * C, C, C), segment(9 * C, 8192, 2 * C + 4096)];
        let runs = [(4 * C + 4096, 5 * C + 8192), (9 * C, 9 * C + 4096)];
        let size = C as usize;
        assert_eq!(
            placed(&runs, &segments),
            [(4 * C + 4096, 5 * C + 8192, 4096), (9 * C, 9 * C + 4096, 2 * size + 4096)]
        );
    }

    #[test]
    fn a_run_that_reaches_beyond_its_segments_is_cut() {
        let segments = [segment(4 * C, 4096, 8192)];
        assert_eq!(placed(&[(3 * C, 4 * C + 8192)], &segments), [(4 * C, 4 * C + 4096, 8192)]);
    }
}
