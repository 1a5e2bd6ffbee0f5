//! Guests that touch their memory as a real process did.
//!
//! `bench/workloads/record.py` records one invocation of a sample function: which pages the process had, which of them
//! were zeros, and which it touched, in order. The guest's memory:
//!
//! ```text
//!  page 0    what the guest runs from
//!      32    pages of the process, in the order of their addresses
//!       …    list of accesses: number of a page, and whether it is written, 4 bytes each
//!       …    zeros
//! ```
//! What is real: the order, which pages, and which of the process's pages are zeros. What is synthetic: the words,
//! where the pages lie in the guest, and how much more memory it has. Each page is in the list once.

use crate::error::VmmError;
use crate::memory::PAGE_BYTES;
use crate::pattern::mix;
use crate::processor::RESERVED_PAGES;
use crate::walk::add;

const MAGIC: &[u8; 8] = b"farforkW";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 28;
/// Pages of the longest recording.
const MOST_PAGES: u32 = 1 << 20;

macro_rules! recorded {
    ($($name:literal),*) => { [$(($name, include_bytes!(concat!("../workloads/", $name, ".bin")))),*] };
}

/// Names and recordings.
const RECORDED: [(&str, &[u8]); 9] = recorded![
    "json",
    "html",
    "pyaes",
    "compress",
    "imageproc",
    "thumbnail",
    "pagerank",
    "bfs",
    "cnn"
];

/// One access: the first to its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number of the page in the guest's memory.
    pub page: u64,
    /// Whether it is written, after it was read.
    pub writes: bool,
}

/// What a guest does that was recorded from a process.
#[derive(Clone, Debug)]
pub struct Workload {
    /// That of the sample function.
    pub name: &'static str,
    /// Bytes of the guest's memory.
    pub memory_bytes: u64,
    /// Of the pages of the process, which are zeros.
    zeros: Vec<bool>,
    accesses: Vec<Access>,
}

impl Workload {
    /// Names of all workloads.
    pub fn names() -> impl Iterator<Item = &'static str> {
        RECORDED.iter().map(|(name, _)| *name)
    }

    /// A workload in a guest with so much memory: a power of two, from 4 MiB to 4 GiB.
    ///
    /// # Errors
    /// [`VmmError::Workload`]: the name is not one of [`names`](Workload::names), the recording is damaged, or the
    /// memory is too small.
    pub fn named(name: &str, memory_bytes: u64) -> Result<Workload, VmmError> {
        let refused = |why| VmmError::Workload { name: name.to_owned(), why };
        let found = RECORDED.iter().find(|(known, _)| *known == name);
        let (name, bytes) = found.ok_or_else(|| refused("there is none with this name"))?;
        let parsed = parse(bytes);
        let (zeros, accesses) = parsed.ok_or_else(|| refused("its recording is damaged"))?;
        let workload = Workload { name, memory_bytes, zeros, accesses };
        match workload.list_end() <= memory_bytes {
            true => Ok(workload),
            false => Err(refused("its pages do not fit into the guest's memory")),
        }
    }

    /// What it touches, in order; pages that the guest runs from and the list are not among them.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// Pages of the guest's memory.
    pub fn pages(&self) -> u64 {
        self.memory_bytes / PAGE_BYTES
    }

    /// Where the list begins.
    pub(crate) fn list_at(&self) -> u64 {
        (RESERVED_PAGES + self.zeros.len() as u64) * PAGE_BYTES
    }

    fn list_end(&self) -> u64 {
        self.list_at() + self.accesses.len() as u64 * 4
    }

    /// Whether a page is zeros, apart from pages that the guest runs from.
    pub fn is_zeros(&self, page: u64) -> bool {
        match page.checked_sub(RESERVED_PAGES).map(|index| self.zeros.get(index as usize)) {
            Some(Some(is_zeros)) => *is_zeros,
            None => true,
            Some(None) => page * PAGE_BYTES >= self.list_end(),
        }
    }

    /// A word of a page, apart from pages that the guest runs from.
    pub fn word(&self, page: u64, word: u64) -> u64 {
        let address = page * PAGE_BYTES + word * 8;
        if self.is_zeros(page) {
            return 0;
        }
        match address.checked_sub(self.list_at()) {
            None => mix(page << 16 ^ word ^ 21 << 40) | 1,
            Some(into) => self.entry(into / 4) | self.entry(into / 4 + 1) << 32,
        }
    }

    /// An entry of the list.
    fn entry(&self, index: u64) -> u64 {
        let access = self.accesses.get(index as usize);
        access.map_or(0, |access| access.page << 1 | u64::from(access.writes))
    }

    /// What the guest ends with if each page that it reads is right.
    pub fn expected(&self) -> u64 {
        let words = |access: &Access| {
            let page = access.page;
            (0..PAGE_BYTES / 8).map(move |word| self.word(page, word))
        };
        self.accesses.iter().flat_map(words).fold(0, add)
    }
}

type Parsed = (Vec<bool>, Vec<Access>);

fn parse(bytes: &[u8]) -> Option<Parsed> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let number = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let is_sound = &header[..8] == MAGIC
        && number(8)? == VERSION
        && number(12)? == crc32c::crc32c(&bytes[16..])
        && number(16)? <= MOST_PAGES
        && number(20)? <= number(16)?;
    if !is_sound {
        return None;
    }
    let (mut runs, mut steps) = rest.split_at_checked(number(24)? as usize)?;
    let (pages, mut zeros, mut is_zeros) = (number(16)? as usize, Vec::new(), true);
    while !runs.is_empty() {
        let length = leb128(&mut runs)? as usize;
        if length > pages - zeros.len() {
            return None;
        }
        zeros.resize(zeros.len() + length, is_zeros);
        is_zeros = !is_zeros;
    }
    let (mut accesses, mut last) = (Vec::new(), 0i64);
    for _ in 0..number(20)? {
        let step = leb128(&mut steps)?;
        let zigzag = (step >> 1) as i64;
        last += zigzag >> 1 ^ -(zigzag & 1);
        let index = usize::try_from(last).ok().filter(|index| *index < pages)?;
        accesses.push(Access { page: RESERVED_PAGES + index as u64, writes: step & 1 != 0 });
    }
    (zeros.len() == pages && steps.is_empty()).then_some((zeros, accesses))
}

fn leb128(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MEMORY: u64 = 256 << 20;

    #[test]
    fn each_recording_is_whole_and_has_each_page_once() {
        for name in Workload::names() {
            let workload = Workload::named(name, MEMORY).unwrap();
            let pages: BTreeSet<u64> =
                workload.accesses().iter().map(|access| access.page).collect();
            assert_eq!(pages.len(), workload.accesses().len(), "{name}");
            assert!(pages.len() > 500 && pages.first() >= Some(&RESERVED_PAGES), "{name}");
            let zeros = (0..workload.pages()).filter(|page| workload.is_zeros(*page)).count();
            let share = 1000 * zeros as u64 / workload.pages();
            assert!((450..950).contains(&share), "{name}: {share} of a thousand pages are zeros");
            let neighbours = workload.accesses().windows(2);
            let neighbours = neighbours.filter(|pair| pair[0].page + 1 == pair[1].page).count();
            println!(
                "{name}: {} pages, {neighbours} behind the last; {share} ‰ zeros",
                pages.len()
            );
        }
        assert!(Workload::named("none", MEMORY).is_err());
        assert!(Workload::named("json", 16 << 20).is_err());
    }

    #[test]
    fn the_list_is_in_the_memory() {
        let workload = Workload::named("pyaes", 32 << 20).unwrap();
        let first = workload.list_at() / PAGE_BYTES;
        let [zero, one] = [0, 1].map(|index| workload.accesses()[index]);
        let entry = |access: Access| access.page << 1 | u64::from(access.writes);
        assert_eq!(workload.word(first, 0), entry(zero) | entry(one) << 32);
        assert!(!workload.is_zeros(first) && workload.is_zeros(workload.pages() - 1));
    }

    #[test]
    fn a_damaged_recording_is_refused() {
        let (_, bytes) = RECORDED[2];
        assert!(parse(bytes).is_some());
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            assert!(parse(&changed).is_none() && parse(&bytes[..at]).is_none(), "byte {at}");
        }
    }
}
