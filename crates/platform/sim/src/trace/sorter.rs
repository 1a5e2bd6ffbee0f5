//! Sorts calls by their arrival, in bounded memory.
//!
//! ```text
//!  calls ─► buffer ─► full: sorted, to the temporary file ─► runs ─► merged, to another one ─► Sorted
//!              └─ never full: sorted in place ──────────────────────────────────────────────►
//! ```
//! Calls with equal arrivals keep the order in which they came. The temporary files have no name, and no other
//! process reads them: they hold plain records, one after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::mem::take;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Calls in memory: about 60 MiB while they are sorted.
pub const IN_MEMORY: usize = 1 << 20;
/// Bytes of a call in a temporary file.
const RECORD: usize = 28;
/// Bytes of buffers while runs are merged.
const BUFFERS: usize = 16 << 20;
/// Bytes that are read at once.
const PIECE: usize = RECORD * 2048;
/// A call of unknown duration.
const UNKNOWN: u64 = u64::MAX;

/// A call with its time as in the trace, which may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub arrival_us: i64,
    pub function: u32,
    pub duration_us: Option<u64>,
    pub payload_bytes: u64,
}

impl Call {
    fn encode(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&self.arrival_us.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.function.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.duration_us.unwrap_or(UNKNOWN).to_le_bytes());
        bytes[20..].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Call {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            number
        };
        let mut function = [0; 4];
        function.copy_from_slice(&bytes[8..12]);
        let duration_us = u64::from_le_bytes(number(12));
        Call {
            arrival_us: i64::from_le_bytes(number(0)),
            function: u32::from_le_bytes(function),
            duration_us: (duration_us != UNKNOWN).then_some(duration_us),
            payload_bytes: u64::from_le_bytes(number(20)),
        }
    }
}

/// Calls that are still to be sorted.
#[derive(Debug)]
pub struct Sorter {
    buffer: Vec<Call>,
    most: usize,
    runs: Option<Runs>,
    count: u64,
}

/// Sorted runs, one after the other in a file.
#[derive(Debug)]
struct Runs {
    file: BufWriter<File>,
    /// Calls in each.
    lengths: Vec<u64>,
}

impl Sorter {
    /// Keeps so many calls in memory.
    pub fn new(most: usize) -> Sorter {
        Sorter { buffer: Vec::new(), most: most.max(1), runs: None, count: 0 }
    }

    /// Adds a call.
    pub fn add(&mut self, call: Call) -> io::Result<()> {
        self.count += 1;
        self.buffer.push(call);
        if self.buffer.len() >= self.most { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> io::Result<()> {
        let runs = match &mut self.runs {
            Some(runs) => runs,
            None => self.runs.insert(Runs {
                file: BufWriter::with_capacity(1 << 18, tempfile::tempfile()?),
                lengths: Vec::new(),
            }),
        };
        self.buffer.sort_by_key(|call| call.arrival_us);
        runs.lengths.push(self.buffer.len() as u64);
        for call in self.buffer.drain(..) {
            runs.file.write_all(&call.encode())?;
        }
        Ok(())
    }

    /// Sorts them.
    pub fn sorted(mut self) -> io::Result<Sorted> {
        let count = self.count;
        if self.runs.is_some() && !self.buffer.is_empty() {
            self.spill()?;
        }
        let mut buffer = take(&mut self.buffer);
        let Some(Runs { file, lengths }) = self.runs else {
            buffer.sort_by_key(|call| call.arrival_us);
            buffer.shrink_to_fit();
            return Ok(Sorted { calls: Calls::Memory(Arc::new(buffer)), count });
        };
        drop(buffer);
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let merged = if lengths.len() == 1 { file } else { merge(&Arc::new(file), &lengths)? };
        Ok(Sorted { calls: Calls::File(Arc::new(merged)), count })
    }
}

/// Merges runs into a file.
fn merge(file: &Arc<File>, lengths: &[u64]) -> io::Result<File> {
    let piece = (BUFFERS / lengths.len() / RECORD).clamp(16, 2048) * RECORD;
    let mut readers = Vec::with_capacity(lengths.len());
    let mut at = 0;
    for length in lengths {
        readers.push(Reader::new(Arc::clone(file), at, *length, piece));
        at += length * RECORD as u64;
    }
    let mut heads = Vec::with_capacity(readers.len());
    let mut least = BinaryHeap::with_capacity(readers.len());
    for (run, reader) in readers.iter_mut().enumerate() {
        let head = reader.next().transpose()?;
        least.extend(head.map(|call| Reverse((call.arrival_us, run))));
        heads.push(head);
    }
    let mut merged = BufWriter::with_capacity(1 << 18, tempfile::tempfile()?);
    while let Some(Reverse((_, run))) = least.pop() {
        let next = readers[run].next().transpose()?;
        // Runs are in the order of the trace, so that equal arrivals keep theirs.
        least.extend(next.map(|call| Reverse((call.arrival_us, run))));
        if let Some(call) = std::mem::replace(&mut heads[run], next) {
            merged.write_all(&call.encode())?;
        }
    }
    merged.into_inner().map_err(io::IntoInnerError::into_error)
}

/// Sorted calls, which can be read many times, also by many threads.
#[derive(Clone, Debug)]
pub struct Sorted {
    calls: Calls,
    count: u64,
}

#[derive(Clone, Debug)]
enum Calls {
    Memory(Arc<Vec<Call>>),
    File(Arc<File>),
}

impl Sorted {
    /// Calls that are sorted already.
    pub fn from_sorted(calls: Vec<Call>) -> Sorted {
        let count = calls.len() as u64;
        Sorted { calls: Calls::Memory(Arc::new(calls)), count }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The calls from the first one on.
    pub fn calls(&self) -> Reading {
        match &self.calls {
            Calls::Memory(calls) => Reading::Memory(Arc::clone(calls), 0),
            Calls::File(file) => Reading::File(Reader::new(Arc::clone(file), 0, self.count, PIECE)),
        }
    }
}

/// Reads sorted calls.
#[derive(Debug)]
pub enum Reading {
    Memory(Arc<Vec<Call>>, usize),
    File(Reader),
}

impl Iterator for Reading {
    type Item = io::Result<Call>;

    fn next(&mut self) -> Option<io::Result<Call>> {
        match self {
            Reading::Memory(calls, next) => {
                let call = calls.get(*next)?;
                *next += 1;
                Some(Ok(*call))
            }
            Reading::File(reader) => reader.next(),
        }
    }
}

/// Reads calls that lie one after the other in a file.
#[derive(Debug)]
pub struct Reader {
    file: Arc<File>,
    at: u64,
    left: u64,
    buffer: Vec<u8>,
    next: usize,
    piece: usize,
}

impl Reader {
    fn new(file: Arc<File>, at: u64, count: u64, piece: usize) -> Reader {
        Reader { file, at, left: count, buffer: Vec::new(), next: 0, piece }
    }

    fn fill(&mut self) -> io::Result<()> {
        let left = self.left.saturating_mul(RECORD as u64);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(self.piece);
        self.buffer.resize(length, 0);
        self.file.read_exact_at(&mut self.buffer, self.at)?;
        (self.at, self.next) = (self.at + length as u64, 0);
        Ok(())
    }
}

impl Iterator for Reader {
    type Item = io::Result<Call>;

    fn next(&mut self) -> Option<io::Result<Call>> {
        if self.left == 0 {
            return None;
        }
        if self.next >= self.buffer.len()
            && let Err(error) = self.fill()
        {
            self.left = 0;
            return Some(Err(error));
        }
        let Some(bytes) = self.buffer.get(self.next..self.next + RECORD) else {
            self.left = 0;
            return Some(Err(ErrorKind::UnexpectedEof.into()));
        };
        let call = Call::decode(bytes);
        self.next += RECORD;
        self.left -= 1;
        Some(Ok(call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn calls(count: u64) -> Vec<Call> {
        let mut random = Random::new(3, count);
        let one = |number: u64| Call {
            arrival_us: (random.next() % 97) as i64 - 40,
            function: number as u32,
            duration_us: (!number.is_multiple_of(3)).then_some(number),
            payload_bytes: random.next(),
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn calls_are_sorted_alike_whatever_fits_into_memory() {
        for count in [0, 1, 7, 1000, 10_000] {
            let all = calls(count);
            let mut expected = all.clone();
            expected.sort_by_key(|call| call.arrival_us);
            for most in [1, 2, 99, 1000, 20_000] {
                if count / most as u64 > 2000 {
                    continue;
                }
                let mut sorter = Sorter::new(most);
                all.iter().for_each(|call| sorter.add(*call).unwrap());
                let sorted = sorter.sorted().unwrap();
                for _ in 0..2 {
                    let read: io::Result<Vec<Call>> = sorted.calls().collect();
                    assert!(read.unwrap() == expected, "{count} calls, {most} in memory");
                }
                assert_eq!(sorted.count(), count);
            }
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let mut sorter = Sorter::new(2);
        calls(9).iter().for_each(|call| sorter.add(*call).unwrap());
        let sorted = sorter.sorted().unwrap();
        let Calls::File(file) = &sorted.calls else { panic!("{sorted:?}") };
        file.set_len(RECORD as u64 * 5).unwrap();
        assert!(sorted.calls().any(|call| call.is_err()));
    }
}
