//! What the next server has to know of a machine.
//!
//! ```text
//!  word   0    header, magic "farforkG" (`sealed`)
//!         8    messages: the kernel writes them here, 64 of 4 words
//!       264    removed: one bit for each page of the memory
//!              touched: log of pages that the machine has asked for (`pagelog`)
//! ```
//! A message that was read is not delivered again. So the kernel writes it where it outlives the server that
//! read it: the next server finds discarded ranges here that the last one had no time to note. Noting one
//! again changes nothing, because a page that was discarded once is zeros from then on whenever it faults.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use farfork_sys::shared_words::SharedWords;
use farfork_sys::userfault::{MESSAGE_WORDS, Message, Userfault, load_message};
use farfork_types::PAGE_BYTES;
use rustix::io::Errno;

use crate::pagelog::PageLog;
use crate::sealed::{HEADER_WORDS, is_sealed, seal};

const MAGIC: u64 = u64::from_le_bytes(*b"farforkG");
const MESSAGES_AT: usize = HEADER_WORDS;
/// Messages that are read at once.
const MESSAGES: usize = 64;
const REMOVED_AT: usize = MESSAGES_AT + MESSAGES * MESSAGE_WORDS;

const _: () = assert!(REMOVED_AT == 264);

/// The shared memory of one machine.
#[derive(Debug)]
pub struct Ledger {
    words: SharedWords,
    pages: u64,
}

impl Ledger {
    /// A new file for the ledger of a machine with so much memory.
    ///
    /// # Errors
    /// As `memfd_create(2)`.
    pub fn create(memory_bytes: u64) -> io::Result<File> {
        let pages = memory_bytes / PAGE_BYTES;
        let file = SharedWords::create("farfork-ledger", words_for(pages))?;
        let words = SharedWords::map(&file, words_for(pages))?;
        seal(&words, MAGIC, pages);
        Ok(file)
    }

    /// Maps the ledger in a file.
    ///
    /// # Errors
    /// `InvalidInput` if it is not that of a machine with so much memory.
    pub fn open(file: impl AsFd, memory_bytes: u64) -> io::Result<Ledger> {
        let pages = memory_bytes / PAGE_BYTES;
        let words = SharedWords::map(file, words_for(pages))?;
        match is_sealed(&words, MAGIC, pages) {
            true => Ok(Ledger { words, pages }),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn messages(&self) -> &[AtomicU64] {
        &self.words[MESSAGES_AT..REMOVED_AT]
    }

    /// Reads messages of a machine; the caller notes discarded ranges before it reads again.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn read(&self, userfault: &Userfault) -> Result<Vec<Message>, Errno> {
        let words = userfault.read(self.messages())?;
        Ok(self.messages()[..words].chunks(MESSAGE_WORDS).filter_map(load_message).collect())
    }

    /// The messages that were read last, and older ones behind them.
    pub fn last(&self) -> Vec<Message> {
        self.messages().chunks(MESSAGE_WORDS).filter_map(load_message).collect()
    }

    /// Notes that pages were discarded, by offsets of whole pages; how many of them were not noted before.
    pub fn remove(&self, start: u64, end: u64) -> u64 {
        let range = start / PAGE_BYTES..end.div_ceil(PAGE_BYTES).min(self.pages);
        range.map(|page| u64::from(self.remove_page(page))).sum()
    }

    fn remove_page(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        self.words[REMOVED_AT + page as usize / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Whether the page at an offset was discarded.
    pub fn is_removed(&self, offset: u64) -> bool {
        let page = offset / PAGE_BYTES;
        let word = self.words.get(REMOVED_AT + page as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (page % 64) & 1 != 0)
    }

    fn log(&self) -> PageLog<'_> {
        PageLog::of(&self.words[touched_at(self.pages)..], self.pages)
    }

    /// Notes that the machine has asked for pages, by offsets of whole pages.
    pub fn touch(&self, start: u64, end: u64) {
        let range = start / PAGE_BYTES..end.div_ceil(PAGE_BYTES).min(self.pages);
        range.for_each(|page| self.log().add(page));
    }

    /// Numbers of the pages that the machine has asked for, in the order in which it did.
    pub fn touched(&self) -> Vec<u32> {
        self.log().pages()
    }

    /// Bytes from an offset on, at most `bytes`, whose pages are all discarded or all not.
    pub fn alike(&self, offset: u64, bytes: u64) -> (bool, u64) {
        let is_removed = self.is_removed(offset);
        let mut alike = PAGE_BYTES;
        while alike < bytes && self.is_removed(offset + alike) == is_removed {
            alike += PAGE_BYTES;
        }
        (is_removed, alike.min(bytes))
    }
}

fn touched_at(pages: u64) -> usize {
    REMOVED_AT + pages.div_ceil(64) as usize
}

fn words_for(pages: u64) -> usize {
    touched_at(pages) + PageLog::words_for(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 130 * PAGE_BYTES;

    #[test]
    fn the_layout_is_as_drawn() {
        let file = Ledger::create(MEMORY).unwrap();
        let words = SharedWords::map(&file, 267 + 69).unwrap();
        let load = |word: usize| words[word].load(Ordering::Relaxed);
        assert_eq!((load(0).to_le_bytes(), load(1) as u32, load(2)), (*b"farforkG", 2, 130));
        assert!(SharedWords::map(&file, 267 + 70).is_err());
        let ledger = Ledger::open(&file, MEMORY).unwrap();
        ledger.remove(129 * PAGE_BYTES, MEMORY);
        ledger.touch(63 * PAGE_BYTES, 65 * PAGE_BYTES);
        assert_eq!([264, 265, 266].map(load), [0, 0, 2]);
        assert_eq!([267, 268, 269, 270, 271].map(load), [1 << 63, 1, 0, 2, 64 | 65 << 32]);
        ledger.touch(0, PAGE_BYTES);
        assert_eq!(ledger.touched(), [63, 64, 0]);
    }

    #[test]
    fn a_ledger_of_another_machine_is_refused() {
        let file = Ledger::create(MEMORY).unwrap();
        assert!(Ledger::open(&file, MEMORY - PAGE_BYTES).is_err());
        assert!(Ledger::open(&file, MEMORY + (64 << 12)).is_err());
        let words = SharedWords::map(&file, 8).unwrap();
        for (word, bit) in [(0, 3), (1, 1), (1, 40), (2, 0)] {
            words[word].fetch_xor(1 << bit, Ordering::Relaxed);
            assert!(Ledger::open(&file, MEMORY).is_err());
            words[word].fetch_xor(1 << bit, Ordering::Relaxed);
        }
        assert!(Ledger::open(&file, MEMORY).is_ok());
    }

    #[test]
    fn pages_stay_removed() {
        let file = Ledger::create(MEMORY).unwrap();
        let ledger = Ledger::open(&file, MEMORY).unwrap();
        assert_eq!(ledger.remove(62 * PAGE_BYTES, 66 * PAGE_BYTES), 4);
        assert_eq!(ledger.remove(65 * PAGE_BYTES, 1 << 40), 64);
        let other = Ledger::open(&file, MEMORY).unwrap();
        assert_eq!(
            [61, 62, 65, 129].map(|page| other.is_removed(page * PAGE_BYTES)),
            [false, true, true, true]
        );
        assert_eq!(other.alike(60 * PAGE_BYTES, MEMORY), (false, 2 * PAGE_BYTES));
        assert_eq!(other.alike(62 * PAGE_BYTES, 3 * PAGE_BYTES), (true, 3 * PAGE_BYTES));
    }
}
