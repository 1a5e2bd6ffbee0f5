//! Copying pages into the pool, straight from the process's memory to the pool's.

use std::fs::File;

use farfork_pool::{Extent, ImageWriter};
use farfork_sys::memory;
use farfork_types::CHUNK_BYTES;

use farfork_image::model::StoredWindow;

use crate::error::{CheckpointError, doing};
use crate::memory::Run;

/// Copies `runs`, which lie in `windows`, one window after the other into the chunks of
/// `extents`. Returns the bytes copied.
pub fn copy(
    pid: i32,
    runs: &[Run],
    windows: &[StoredWindow],
    writer: &mut ImageWriter<'_>,
    extents: &[Extent],
) -> Result<u64, CheckpointError> {
    let mem = File::open(format!("/proc/{pid}/mem"))
        .map_err(|_| CheckpointError::Proc { pid, what: "the memory" })?;
    let mut first_window = 0;
    let mut copied = 0;
    for extent in extents {
        let count = (extent.chunks as usize).min(windows.len() - first_window);
        let part = &windows[first_window..first_window + count];
        let bytes = writer.bytes_mut(*extent);
        for (start, end, at) in placed(runs, part) {
            let to = &mut bytes[at..at + (end - start) as usize];
            memory::read_exact(pid, &mem, start, to).map_err(doing(pid, "read the memory"))?;
            copied += end - start;
        }
        first_window += count;
    }
    Ok(copied)
}

/// Cuts `runs` at the windows' edges: start, end, and offset among the windows' bytes. Windows
/// that follow each other are not cut apart.
pub fn placed(runs: &[Run], windows: &[StoredWindow]) -> Vec<(u64, u64, usize)> {
    let mut parts: Vec<(u64, u64, usize)> = Vec::new();
    for (start, end) in runs {
        let mut index = windows.partition_point(|w| w.address + CHUNK_BYTES <= *start);
        while let Some(window) = windows.get(index).filter(|window| window.address < *end) {
            let (from, to) =
                (*start.max(&window.address), *end.min(&(window.address + CHUNK_BYTES)));
            let at = index * CHUNK_BYTES as usize + (from - window.address) as usize;
            match parts.last_mut() {
                Some(last) if last.1 == from && last.2 + (from - last.0) as usize == at => {
                    last.1 = to;
                }
                _ => parts.push((from, to, at)),
            }
            index += 1;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(address: u64) -> StoredWindow {
        StoredWindow { address, pages: Default::default() }
    }

    #[test]
    fn runs_are_cut_only_where_windows_are_not_neighbours() {
        let c = CHUNK_BYTES;
        let windows = [window(4 * c), window(5 * c), window(9 * c)];
        let runs = [(4 * c + 4096, 5 * c + 8192), (9 * c, 9 * c + 4096)];
        let size = c as usize;
        assert_eq!(
            placed(&runs, &windows),
            [(4 * c + 4096, 5 * c + 8192, 4096), (9 * c, 9 * c + 4096, 2 * size)]
        );
    }

    #[test]
    fn a_run_that_starts_before_the_first_window_is_cut() {
        let c = CHUNK_BYTES;
        assert_eq!(placed(&[(3 * c, 4 * c + 4096)], &[window(4 * c)]), [(4 * c, 4 * c + 4096, 0)]);
    }
}
