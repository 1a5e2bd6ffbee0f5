//! Looking for pages of zeros in a memory file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use farfork_types::{CHUNK_BYTES, PAGE_BYTES, align_down};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::model::WINDOW_WORDS;

/// Pages of a window.
pub(super) const WINDOW_PAGES: u64 = CHUNK_BYTES / PAGE_BYTES;

/// Which pages of a memory are not zeros, by windows of 2 MiB.
pub(super) struct Windows {
    pub(super) memory_bytes: u64,
    bits: Vec<[u64; WINDOW_WORDS]>,
}

/// What a memory file holds.
pub(super) struct Scanned {
    /// Pages that are not zeros.
    pub(super) stored: Windows,
    /// Pages that the file has, zeros or not. The others are holes.
    pub(super) present: Windows,
}

impl Windows {
    pub(super) fn of_zeros(memory_bytes: u64) -> Windows {
        let count = memory_bytes.div_ceil(CHUNK_BYTES) as usize;
        Windows { memory_bytes, bits: vec![[0; WINDOW_WORDS]; count] }
    }

    /// Reads a memory of whole pages. Holes of the file are not read. `progress` gets the bytes that are
    /// done.
    pub(super) fn scan(
        memory: &File,
        memory_bytes: u64,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<Scanned> {
        let [mut stored, mut present] = [(); 2].map(|()| Windows::of_zeros(memory_bytes));
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        let mut at = 0;
        while let Some(start) = next_data(memory, at)?.filter(|start| *start < memory_bytes) {
            let start = align_down(start, PAGE_BYTES);
            let hole = seek(memory, SeekFrom::Hole(start)).unwrap_or(memory_bytes);
            let hole = hole.next_multiple_of(PAGE_BYTES).clamp(start + PAGE_BYTES, memory_bytes);
            let end = (align_down(start, CHUNK_BYTES) + CHUNK_BYTES).min(hole);
            let part = &mut buffer[..(end - start) as usize];
            memory.read_exact_at(part, start)?;
            for (page, bytes) in (start / PAGE_BYTES..).zip(part.chunks(PAGE_BYTES as usize)) {
                present.add(page);
                if !is_zeros(bytes) {
                    stored.add(page);
                }
            }
            at = end;
            progress(at);
        }
        // Also of a memory that ends in a hole.
        progress(memory_bytes);
        Ok(Scanned { stored, present })
    }

    pub(super) fn add(&mut self, page: u64) {
        let (window, page) = (page / WINDOW_PAGES, page % WINDOW_PAGES);
        self.bits[window as usize][page as usize / 64] |= 1 << (page % 64);
    }

    /// Whether a page of any number is not zeros.
    pub(super) fn has(&self, page: u64) -> bool {
        let (window, page) = (page / WINDOW_PAGES, page % WINDOW_PAGES);
        let words = self.bits.get(window as usize);
        words.is_some_and(|words| words[page as usize / 64] >> (page % 64) & 1 != 0)
    }

    /// How many windows there are.
    pub(super) fn count(&self) -> usize {
        self.bits.len()
    }

    /// How many pages it has.
    pub(super) fn count_pages(&self) -> u64 {
        self.bits.iter().flatten().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether no page of the window is zeros.
    pub(super) fn is_whole(&self, window: usize) -> bool {
        self.bits[window].iter().all(|word| *word == u64::MAX)
    }

    /// The pages of the window that are not zeros.
    pub(super) fn pages(&self, window: usize) -> impl Iterator<Item = u64> {
        let bits = self.bits[window];
        (0..WINDOW_PAGES).filter(move |page| bits[*page as usize / 64] >> (page % 64) & 1 != 0)
    }
}

/// Where data begins at or after `at`; none if only a hole follows.
fn next_data(memory: &File, at: u64) -> io::Result<Option<u64>> {
    match seek(memory, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        // A file system that does not know where its holes are.
        Err(Errno::INVAL) => Ok(Some(at)),
        Err(errno) => Err(errno.into()),
    }
}

fn is_zeros(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<16>();
    let set = words.iter().fold(0, |set, word| set | u128::from_ne_bytes(*word));
    set == 0 && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data of any alignment, pages of zeros that are written, and holes.
    #[test]
    fn pages_of_zeros_are_found_written_or_not() {
        let file = tempfile::tempfile().unwrap();
        let pages = 3 * WINDOW_PAGES + 5;
        file.set_len(pages * PAGE_BYTES).unwrap();
        let write = |page: u64, bytes: &[u8]| file.write_all_at(bytes, page * PAGE_BYTES).unwrap();
        write(1, &[0; 8192]);
        write(7, &[3]);
        file.write_all_at(&[9], 12 * PAGE_BYTES - 1).unwrap();
        write(WINDOW_PAGES, &vec![1; CHUNK_BYTES as usize]);
        write(pages - 1, &[5]);
        let mut last = 0;
        let bytes = pages * PAGE_BYTES;
        let scanned = Windows::scan(&file, bytes, &mut |done| last = done).unwrap();
        let found = scanned.stored;
        let pages_of = |window| found.pages(window).collect::<Vec<u64>>();
        assert_eq!((pages_of(0), pages_of(2), pages_of(3)), (vec![7, 11], vec![], vec![4]));
        assert_eq!([0, 1, 2, 3].map(|window| found.is_whole(window)), [false, true, false, false]);
        assert_eq!((found.count(), found.count_pages(), last), (4, 515, bytes));
        let present: Vec<u64> = scanned.present.pages(0).collect();
        assert_eq!(present, [1, 2, 7, 11]);
    }
}
