//! Prefetch: a process of its own reads pages of a far image, so that they are in the page cache when clones
//! touch them.

use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use farfork_types::PAGE_BYTES;
use rustix::fs::{Advice, fadvise};

use crate::error::FarError;
use crate::protocol::PageRange;

/// Bytes of one read.
const PIECE_BYTES: u64 = 1 << 20;
/// Reads at once.
const THREADS: usize = 4;
/// Most descriptors of seeds have less.
const FRONT_BYTES: u64 = 128 << 10;
/// The most that is fetched of an image in advance.
pub const LIMIT_BYTES: u64 = 1 << 30;

/// Reads the ranges that stand on standard input, `FIRST COUNT` in pages, of the image at `path`. Ends with
/// the first error: what was not fetched is fetched when it is touched.
///
/// # Errors
/// The image cannot be opened or read.
pub fn run(path: &Path) -> Result<(), FarError> {
    let file = File::open(path).map_err(FarError::io("open", path))?;
    // The kernel adds nothing to what is asked for.
    let advised = fadvise(&file, 0, None, Advice::Random);
    advised.map_err(|errno| FarError::io("prefetch", path)(errno.into()))?;
    let lines = io::stdin().lock().lines();
    let ranges: Vec<PageRange> =
        lines.map_while(Result::ok).filter_map(|line| parse(&line)).collect();
    fetch(&file, &pieces(&ranges)).map_err(FarError::io("prefetch", path))
}

/// Reads all of the image at `path`, up to its first `bytes`, before a clone starts.
///
/// # Errors
/// The image cannot be opened or read.
pub fn run_whole(path: &Path, bytes: u64) -> Result<(), FarError> {
    let file = File::open(path).map_err(FarError::io("open", path))?;
    let advised = fadvise(&file, 0, None, Advice::Random);
    advised.map_err(|errno| FarError::io("fetch", path)(errno.into()))?;
    fetch(&file, &pieces(&[(0, bytes.div_ceil(PAGE_BYTES))])).map_err(FarError::io("fetch", path))
}

/// Reads what a start of a clone reads first of the image at `path`. It came by the read that found the image:
/// nothing is fetched for it, and the clone's start does not wait for it.
///
/// # Errors
/// The image cannot be opened or read.
pub fn run_front(path: &Path) -> Result<(), FarError> {
    let file = File::open(path).map_err(FarError::io("open", path))?;
    let mut into = vec![0; FRONT_BYTES as usize];
    file.read_at(&mut into, 0).map(drop).map_err(FarError::io("read", path))
}

/// The lines that [`run`] reads.
pub(crate) fn show(ranges: &[PageRange]) -> String {
    ranges.iter().map(|(first, count)| format!("{first} {count}\n")).collect()
}

fn parse(line: &str) -> Option<PageRange> {
    let (first, count) = line.split_once(' ')?;
    Some((first.parse().ok()?, count.parse().ok()?))
}

/// Offset and length of each read.
fn pieces(ranges: &[PageRange]) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    for (first, count) in ranges {
        let (start, end) = (first * PAGE_BYTES, (first + count) * PAGE_BYTES);
        let starts = (start..end).step_by(PIECE_BYTES as usize);
        pieces.extend(starts.map(|at| (at, PIECE_BYTES.min(end - at))));
    }
    pieces
}

fn fetch(file: &File, pieces: &[(u64, u64)]) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<()> {
        let mut into = vec![0; PIECE_BYTES as usize];
        while let Some((at, bytes)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            // The last page of the file may be short.
            let mut done = 0;
            while done < *bytes {
                match file.read_at(&mut into[done as usize..*bytes as usize], at + done)? {
                    0 => break,
                    read => done += read as u64,
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_survive_their_lines() {
        let ranges = [(0, 3), (100, 1), (1 << 40, 7)];
        let read: Vec<PageRange> = show(&ranges).lines().filter_map(parse).collect();
        assert_eq!(read, ranges);
        assert_eq!(parse("1"), None);
        assert_eq!(parse("-1 4"), None);
    }

    #[test]
    fn pieces_cover_ranges_once() {
        assert_eq!(
            pieces(&[(1, 2), (4, 300)]),
            [(4096, 8192), (16384, 1 << 20), (16384 + (1 << 20), 44 * 4096),]
        );
    }

    #[test]
    fn all_pieces_are_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5 << 20).unwrap();
        fetch(&file, &pieces(&[(0, 1280)])).unwrap();
        // Beyond the end there is nothing to fetch.
        fetch(&file, &pieces(&[(1279, 2)])).unwrap();
    }
}
