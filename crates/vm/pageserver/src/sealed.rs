//! The first words of memory that holder and servers share.
//!
//! ```text
//!  word   0    magic
//!         1    version (low half), CRC-32C of magic, version and pages (high half)
//!         2    pages of the snapshot's memory
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

const VERSION: u64 = 2;

/// Words of a header; those that have no meaning are zeros.
pub(crate) const HEADER_WORDS: usize = 8;

/// Writes the header, the word with the checksum last.
pub(crate) fn seal(words: &[AtomicU64], magic: u64, pages: u64) {
    words[0].store(magic, Ordering::Relaxed);
    words[2].store(pages, Ordering::Relaxed);
    words[1].store(checked(magic, pages), Ordering::Release);
}

/// Whether the header is the one of memory with this magic number for so many pages.
pub(crate) fn is_sealed(words: &[AtomicU64], magic: u64, pages: u64) -> bool {
    let found = [0, 1, 2].map(|word| words[word].load(Ordering::Acquire));
    found == [magic, checked(magic, pages), pages]
}

fn checked(magic: u64, pages: u64) -> u64 {
    let mut bytes = Vec::with_capacity(24);
    for word in [magic, VERSION, pages] {
        bytes.extend(word.to_le_bytes());
    }
    VERSION | u64::from(crc32c::crc32c(&bytes)) << 32
}
