//! The protocol of `bench/programs/footprint.c`, and its arithmetic again: answers are compared with the
//! sums computed here.

use super::{Answerer, Protocol};
use crate::stats::mix;

const PAGES_PER_MB: u64 = 256;
const PAGE_WORDS: u64 = 512;

/// The pattern of pages that a request touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touches {
    /// Reads in runs of 64 pages, writes in runs of 16.
    Clustered,
    /// Each page alone: the hard case for large pages.
    Scattered,
}

impl Touches {
    /// The argument of the program.
    pub fn argument(self) -> &'static str {
        match self {
            Touches::Clustered => "clustered",
            Touches::Scattered => "scattered",
        }
    }

    fn runs(self) -> (u64, u64) {
        match self {
            Touches::Clustered => (64, 16),
            Touches::Scattered => (1, 1),
        }
    }
}

/// A process with this many megabytes of data.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// Its size.
    pub megabytes: u64,
    /// The pages that its requests touch.
    pub touches: Touches,
}

impl Footprint {
    fn checksum(&self, seed: u64) -> u64 {
        let pages = self.megabytes * PAGES_PER_MB;
        let (read_run, write_run) = self.touches.runs();
        let in_runs = |length: u64, is_chosen: fn(u64) -> bool| {
            (0..pages.div_ceil(length))
                .filter(move |run| is_chosen(*run))
                .flat_map(move |run| run * length..((run + 1) * length).min(pages))
        };
        let written = in_runs(write_run, |run| mix(run).is_multiple_of(100));
        let sum = written.fold(mix(seed), |sum, page| sum.wrapping_add(mix(seed ^ page)));
        let read = in_runs(read_run, |run| mix(!run).is_multiple_of(5));
        read.fold(sum, |sum, page| {
            let word = page * PAGE_WORDS + 1 + seed.wrapping_add(page) % (PAGE_WORDS - 1);
            sum.rotate_left(1).wrapping_add(mix(word + 1))
        })
    }
}

impl Protocol for Footprint {
    fn request(&self, number: u64, answerer: Answerer) -> Vec<u8> {
        let op: u64 = match answerer {
            Answerer::Itself => 1,
            Answerer::ForkedChild => 2,
        };
        [op.to_le_bytes(), number.to_le_bytes()].concat()
    }

    fn is_complete(&self, answer: &[u8]) -> bool {
        answer.len() >= 16
    }

    fn check(&self, number: u64, answer: &[u8]) -> Result<i32, String> {
        let word = |at: usize| answer.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        let (Some(sum), Some(pid)) = (word(0), word(8)) else {
            return Err(format!("truncated answer of {} bytes", answer.len()));
        };
        let (sum, wanted) = (u64::from_le_bytes(sum), self.checksum(number));
        if sum != wanted {
            return Err(format!("request {number}: got {sum:x}, expected {wanted:x}"));
        }
        Ok(u64::from_le_bytes(pid) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_sums_and_truncated_answers_are_errors() {
        let subject = Footprint { megabytes: 1, touches: Touches::Scattered };
        let mut answer = [subject.checksum(7).to_le_bytes(), 42u64.to_le_bytes()].concat();
        assert_eq!(subject.check(7, &answer), Ok(42));
        assert!(subject.check(8, &answer).is_err(), "another request has another answer");
        assert!(!subject.is_complete(&answer[..15]) && subject.check(7, &answer[..15]).is_err());
        answer[3] ^= 1;
        assert!(subject.check(7, &answer).is_err());
    }
}
