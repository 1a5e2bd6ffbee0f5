//! Prefetch: a process of its own reads pages of a far image, so that they are in the page cache when clones
//! touch them.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use farfork_types::{Cid, PAGE_BYTES};
use rustix::fs::{Advice, fadvise};

use crate::error::FarError;
use crate::orders::IN_ADVANCE;
use crate::place::Place;
use crate::protocol::PageRange;

/// Bytes of one read that a command waits for.
const PIECE_BYTES: u64 = 1 << 20;
/// The same where a time is kept, which ends with a read, and in the background: a page that a clone touches comes
/// behind what was asked for before.
const SMALL_PIECE_BYTES: u64 = 256 << 10;
/// Reads at once that a command waits for.
const THREADS: usize = 4;
/// The same in the background.
const BACKGROUND_THREADS: usize = 2;
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
    let file = open(path)?;
    let lines = io::stdin().lock().lines();
    let ranges: Vec<PageRange> =
        lines.map_while(Result::ok).filter_map(|line| parse(&line)).collect();
    let (pieces, threads) = (SMALL_PIECE_BYTES, BACKGROUND_THREADS);
    let fetched = fetch(&file, &ranges, (pieces, threads), None);
    fetched.map(drop).map_err(FarError::io("prefetch", path))
}

/// Opens an image to read it in advance.
fn open(path: &Path) -> Result<File, FarError> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(IN_ADVANCE).open(path);
    let file = file.map_err(FarError::io("open", path))?;
    // The kernel adds nothing to what is asked for.
    let advised = fadvise(&file, 0, None, Advice::Random);
    advised.map_err(|errno| FarError::io("prefetch", path)(errno.into()))?;
    Ok(file)
}

/// Reads these ranges of the image at `path`, in their order, until `until`; how many bytes were read.
///
/// # Errors
/// The image cannot be opened or read.
pub fn run_until(path: &Path, ranges: &[PageRange], until: Instant) -> Result<u64, FarError> {
    let file = open(path)?;
    let fetched = fetch(&file, ranges, (SMALL_PIECE_BYTES, THREADS), Some(until));
    fetched.map_err(FarError::io("fetch", path))
}

/// Reads all of the image at `path`, up to its first `bytes`, before a clone starts.
///
/// # Errors
/// The image cannot be opened or read.
pub fn run_whole(path: &Path, bytes: u64) -> Result<(), FarError> {
    let file = open(path)?;
    fetch(&file, &[(0, bytes.div_ceil(PAGE_BYTES))], (PIECE_BYTES, THREADS), None)
        .map(drop)
        .map_err(FarError::io("fetch", path))
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

/// Starts a process that reads these ranges of the image `cid` at `place`: `command` with the path of its file.
///
/// # Errors
/// It cannot be started.
pub fn start(
    command: &[PathBuf],
    place: &Place,
    cid: Cid,
    ranges: Vec<PageRange>,
) -> io::Result<()> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).arg(place.images().join(cid.to_string()));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let attend = move || {
        if let Some(mut input) = child.stdin.take() {
            // It may have ended at an error.
            let _ = input.write_all(show(&ranges).as_bytes());
        }
        let _ = child.wait();
    };
    std::thread::Builder::new().name("far-prefetch".to_owned()).spawn(attend).map(drop)
}

/// The lines that [`run`] reads.
fn show(ranges: &[PageRange]) -> String {
    ranges.iter().map(|(first, count)| format!("{first} {count}\n")).collect()
}

fn parse(line: &str) -> Option<PageRange> {
    let (first, count) = line.split_once(' ')?;
    Some((first.parse().ok()?, count.parse().ok()?))
}

/// Offset and length of each read in a file of so many bytes. The ranges are another node's word.
fn pieces(ranges: &[PageRange], piece_bytes: u64, file_bytes: u64) -> Vec<(u64, u64)> {
    let place = |page: u64| {
        let end = farfork_types::align_up(file_bytes, PAGE_BYTES);
        page.saturating_mul(PAGE_BYTES).min(end)
    };
    let mut pieces = Vec::new();
    for (first, count) in ranges {
        let (start, end) = (place(*first), place(first.saturating_add(*count)));
        let starts = (start..end).step_by(piece_bytes as usize);
        pieces.extend(starts.map(|at| (at, piece_bytes.min(end - at))));
    }
    pieces
}

/// Reads all pieces of so many bytes, so many at once, or those that are begun before `until`; how many bytes were read.
fn fetch(
    file: &File,
    ranges: &[PageRange],
    (piece_bytes, threads): (u64, usize),
    until: Option<Instant>,
) -> io::Result<u64> {
    let pieces = pieces(ranges, piece_bytes, file.metadata()?.len());
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<u64> {
        let mut into = vec![0; piece_bytes as usize];
        let mut fetched = 0;
        while let Some((at, bytes)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            // The last page of the file may be short.
            let mut done = 0;
            while done < *bytes {
                match file.read_at(&mut into[done as usize..*bytes as usize], at + done)? {
                    0 => break,
                    read => done += read as u64,
                }
            }
            fetched += done;
        }
        Ok(fetched)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: ScopedJoinHandle<'_, io::Result<u64>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        };
        threads.into_iter().map(join).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
            pieces(&[(1, 2), (4, 300)], PIECE_BYTES, 1 << 30),
            [(4096, 8192), (16384, 1 << 20), (16384 + (1 << 20), 44 * 4096),]
        );
    }

    #[test]
    fn all_pieces_are_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5 << 20).unwrap();
        let fetched =
            |ranges: &[PageRange], until| fetch(&file, ranges, (PIECE_BYTES, THREADS), until);
        assert_eq!(fetched(&[(0, 1280)], None).unwrap(), 5 << 20);
        // Beyond the end there is nothing to fetch.
        assert_eq!(fetched(&[(1279, 2)], None).unwrap(), 4096);
        let odd = [(0, 1 << 60), (1 << 60, 1 << 60), (u64::MAX, u64::MAX)];
        assert_eq!(fetched(&odd, None).unwrap(), 5 << 20, "another node's word");
        let now = Instant::now();
        assert_eq!(fetched(&[(0, 1280)], Some(now)).unwrap(), 0);
        assert_eq!(fetched(&[(0, 3)], Some(now + Duration::from_secs(60))).unwrap(), 3 * 4096);
    }
}
