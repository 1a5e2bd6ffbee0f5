//! Pages that earlier machines needed, read into the page cache before a machine asks.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use farfork_sys::words;
use farfork_types::PAGE_BYTES;
use rustix::fs::{Advice, fadvise};

use super::files::MEMORY;

/// Bytes that are read at once: as many as the largest request has.
const STEP_BYTES: u64 = 1 << 20;

/// A thread that reads.
pub(super) struct Advance {
    is_stopping: Arc<AtomicBool>,
}

impl Advance {
    /// Reads these ranges of the memory that is mounted on `at`, in their order. Not a thread of the server may do that: it
    /// could wait for itself.
    pub(super) fn begin(at: &Path, ranges: Vec<Range<u64>>) -> Advance {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (path, stopping) = (at.join(MEMORY), Arc::clone(&is_stopping));
        let read = move || {
            let begun = Instant::now();
            match read_all(&path, &ranges, &stopping) {
                Ok(0) => {}
                Ok(pages) => eprintln!(
                    "{pages} pages that earlier machines needed are in the page cache, {:.1} ms",
                    begun.elapsed().as_secs_f64() * 1e3
                ),
                Err(error) => eprintln!(
                    "farfork: cannot read pages of {} in advance: {}; machines read them when they need them",
                    path.display(),
                    words::of(&error)
                ),
            }
        };
        // Without the thread, machines read the pages when they need them.
        let _ = std::thread::Builder::new().name("map-advance".to_owned()).spawn(read);
        Advance { is_stopping }
    }

    /// Has it end after its next read, so that its file does not keep the file system busy.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }
}

fn read_all(path: &Path, ranges: &[Range<u64>], is_stopping: &AtomicBool) -> io::Result<u64> {
    if ranges.is_empty() {
        return Ok(0);
    }
    let file = File::open(path)?;
    // No pages beside these.
    fadvise(&file, 0, None, Advice::Random)?;
    let mut buffer = vec![0; STEP_BYTES as usize];
    let mut pages = 0;
    for range in ranges {
        for at in range.clone().step_by(STEP_BYTES as usize) {
            if is_stopping.load(Ordering::Relaxed) {
                return Ok(pages);
            }
            let bytes = (range.end - at).min(STEP_BYTES);
            file.read_exact_at(&mut buffer[..bytes as usize], at)?;
            pages += bytes / PAGE_BYTES;
        }
    }
    Ok(pages)
}
