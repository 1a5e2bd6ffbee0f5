//! The words of the catalog.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use farfork_pool::failpoint::step;
use farfork_pool::words::{load_bytes, store_bytes};
use farfork_types::Cid;

use super::name::{ImageName, MAX_NAME_BYTES};

const MAGIC: u64 = u64::from_le_bytes(*b"farforkC");
/// Version of the arrangement of the words.
pub(super) const VERSION: u64 = 1;

const HEADER_WORDS: usize = 8;
const ENTRY_WORDS: usize = 40;
const NAME_AT: usize = 5;
const _: () = assert!(NAME_AT + MAX_NAME_BYTES.div_ceil(8) <= ENTRY_WORDS);

/// A name and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    /// Which entry of the table it is.
    pub(super) place: usize,
    pub(super) cid: Cid,
    pub(super) created_unix_s: u64,
    pub(super) name: ImageName,
}

/// What a place of the table holds.
enum Content {
    Nothing,
    Damaged,
    Entry(Entry),
}

pub(super) struct Table<'p> {
    words: &'p [AtomicU64],
}

impl<'p> Table<'p> {
    pub(super) fn new(words: &'p [AtomicU64]) -> Table<'p> {
        Table { words }
    }

    fn magic(&self) -> &AtomicU64 {
        &self.words[0]
    }

    /// Places ever used; readers look no further.
    fn used(&self) -> &AtomicU64 {
        &self.words[2]
    }

    fn move_count(&self) -> &AtomicU64 {
        &self.words[3]
    }

    fn highest_sequence(&self) -> &AtomicU64 {
        &self.words[4]
    }

    pub(super) fn is_blank(&self) -> bool {
        self.magic().load(Acquire) == 0
    }

    /// Makes an empty catalog of blank words. Under the lock; only the first call does it.
    pub(super) fn format(&self) {
        if self.is_blank() {
            self.words[1].store(VERSION, Relaxed);
            step();
            self.magic().store(MAGIC, Release);
            step();
        }
    }

    /// The version; `None` if the words are not a catalog.
    pub(super) fn version(&self) -> Option<u64> {
        let ours = self.magic().load(Acquire) == MAGIC;
        ours.then(|| self.words[1].load(Relaxed))
    }

    pub(super) fn moves(&self) -> u64 {
        self.move_count().load(Acquire)
    }

    pub(super) fn capacity(&self) -> usize {
        (self.words.len() - HEADER_WORDS) / ENTRY_WORDS
    }

    fn entry(&self, place: usize) -> &'p [AtomicU64] {
        let start = HEADER_WORDS + place * ENTRY_WORDS;
        &self.words[start..start + ENTRY_WORDS]
    }

    fn used_places(&self) -> std::ops::Range<usize> {
        0..self.capacity().min(self.used().load(Acquire) as usize)
    }

    /// Reads a place, again if a writer was in the middle of it.
    fn read(&self, place: usize) -> Content {
        let words = self.entry(place);
        loop {
            let sequence = words[0].load(Acquire);
            if sequence == 0 {
                return Content::Nothing;
            }
            let entry = decode(place, sequence, words);
            fence(Acquire);
            if words[0].load(Relaxed) == sequence {
                return entry.map_or(Content::Damaged, Content::Entry);
            }
        }
    }

    /// All sound entries by place.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let sound = |place| match self.read(place) {
            Content::Entry(entry) => Some(entry),
            Content::Nothing | Content::Damaged => None,
        };
        self.used_places().filter_map(sound).collect()
    }

    /// The entries of one name, the one that counts last.
    pub(super) fn named(&self, name: &ImageName) -> Vec<Entry> {
        let text = name.to_string();
        let named = |place: &usize| name_tag(text.as_bytes()) == tag_of(self.entry(*place));
        let sound = |place| match self.read(place) {
            Content::Entry(entry) if entry.name == *name => Some(entry),
            _ => None,
        };
        let mut entries: Vec<_> = self.used_places().filter(named).filter_map(sound).collect();
        entries.sort_by_key(|entry| entry.sequence);
        entries
    }

    /// The places whose entries do not fit their checksums.
    pub(super) fn damaged(&self) -> Vec<usize> {
        let damaged = |place: &usize| matches!(self.read(*place), Content::Damaged);
        self.used_places().filter(damaged).collect()
    }

    /// Commits `entry` under the next number; `false` if no place is free. Under the lock.
    pub(super) fn add(&self, entry: &Entry) -> bool {
        let used = self.used_places();
        let is_free = |place: &usize| self.entry(*place)[0].load(Acquire) == 0;
        let place = used.clone().find(is_free).unwrap_or(used.end);
        if place >= self.capacity() {
            return false;
        }
        let sequence = self.next_sequence();
        encode(self.entry(place), &Entry { sequence, ..entry.clone() });
        step();
        self.used().fetch_max(place as u64 + 1, Release);
        step();
        self.entry(place)[0].store(sequence, Release);
        step();
        true
    }

    /// A number above every one that was ever used, also by writers that died. Under the lock.
    fn next_sequence(&self) -> u64 {
        let sequence = self.highest_sequence().load(Acquire) + 1;
        self.highest_sequence().store(sequence, Release);
        step();
        sequence
    }

    /// Takes an entry away. Under the lock.
    pub(super) fn take_away(&self, place: usize) {
        self.move_count().fetch_add(1, Release);
        step();
        self.entry(place)[0].store(0, Release);
        step();
    }
}

/// crc32c of the name, to find it without reading it all.
fn name_tag(name: &[u8]) -> u32 {
    crc32c::crc32c(name)
}

fn tag_of(words: &[AtomicU64]) -> u32 {
    (words[1].load(Relaxed) >> 32) as u32
}

/// crc32c of the number, the id, the time and the name.
fn checksum(sequence: u64, cid: Cid, created_unix_s: u64, name: &[u8]) -> u32 {
    let parts: [&[u8]; 4] =
        [&sequence.to_le_bytes(), &cid.to_bytes(), &created_unix_s.to_le_bytes(), name];
    parts.iter().fold(0, |sum, part| crc32c::crc32c_append(sum, part))
}

/// Stores everything but the number. The length of the name stands in the last word.
fn encode(words: &[AtomicU64], entry: &Entry) {
    let name = entry.name.to_string();
    let name = name.as_bytes();
    let sum = checksum(entry.sequence, entry.cid, entry.created_unix_s, name);
    // A reader that sees any of these words sees that the number has changed.
    fence(Release);
    words[1].store(u64::from(name_tag(name)) << 32 | u64::from(sum), Relaxed);
    store_bytes(&words[2..4], &entry.cid.to_bytes());
    step();
    words[4].store(entry.created_unix_s, Relaxed);
    store_bytes(&words[NAME_AT..], name);
    words[ENTRY_WORDS - 1].store(name.len() as u64, Relaxed);
}

fn decode(place: usize, sequence: u64, words: &[AtomicU64]) -> Option<Entry> {
    let cid = Cid::from_bytes(load_bytes(&words[2..4], 16).try_into().ok()?);
    let created_unix_s = words[4].load(Relaxed);
    let len = words[ENTRY_WORDS - 1].load(Relaxed) as usize;
    let name = load_bytes(&words[NAME_AT..ENTRY_WORDS - 1], len);
    let sum = checksum(sequence, cid, created_unix_s, &name);
    if words[1].load(Relaxed) as u32 != sum {
        return None;
    }
    let name = std::str::from_utf8(&name).ok()?.parse().ok()?;
    Some(Entry { sequence, place, cid, created_unix_s, name })
}
