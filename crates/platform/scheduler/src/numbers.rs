//! Tables by number.
//!
//! Numbers are given one after the other, so the number itself spreads well: no key is anybody's choice. Such a
//! table is about five times as fast as a tree of some thousand entries.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by number. What is done to all of its entries must not depend on their order, or sort them first.
pub type ByNumber<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// Spreads numbers over all bits, by Fibonacci's multiplication (Knuth, TAOCP 3, section 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Tables use both ends of it.
        self.0 ^= self.0 >> 32;
    }
}
