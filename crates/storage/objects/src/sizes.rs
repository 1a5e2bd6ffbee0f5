//! Sizes of objects.
//!
//! ```text
//!  bytes     1 … 128   steps of 16                       classes 0 to 7
//!          129 … 32768 four steps for each doubling      classes 8 to 39
//!        32769 …       whole spans of 65,536 bytes       a run of spans, no class
//! ```
//! An object wastes at most 15 bytes in the first line, a fifth in the second, half in the third.

use crate::layout::{GRANULE_BYTES, SPAN_BYTES, SPAN_GRANULES};

/// Number of classes.
pub(crate) const CLASSES: usize = 40;
const FINE_BYTES: usize = 128;
const FINE_CLASSES: usize = 8;
/// Largest object that has a class.
pub(crate) const LARGEST_CLASS_BYTES: usize = 32 << 10;

/// A size of which a span holds several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(u8);

impl Class {
    /// The class of this number.
    #[inline]
    pub(crate) fn new(number: u8) -> Option<Class> {
        (usize::from(number) < CLASSES).then_some(Class(number))
    }

    /// The smallest class that holds so many bytes. `None` if an object of them takes whole spans.
    #[inline]
    pub(crate) fn of(bytes: usize) -> Option<Class> {
        if bytes <= FINE_BYTES {
            return Some(Class((bytes.saturating_sub(1) / GRANULE_BYTES as usize) as u8));
        }
        if bytes > LARGEST_CLASS_BYTES {
            return None;
        }
        let last = bytes - 1;
        let doubling = last.ilog2() as usize;
        let quarter = last >> (doubling - 2) & 3;
        Some(Class((FINE_CLASSES + 4 * (doubling - 7) + quarter) as u8))
    }

    /// This class and all larger ones.
    pub(crate) fn and_larger(self) -> impl Iterator<Item = Class> {
        (self.0..CLASSES as u8).map(Class)
    }

    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Class> {
        (0..CLASSES as u8).map(Class)
    }

    #[inline]
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Bytes of its objects.
    pub(crate) fn bytes(self) -> u64 {
        let number = u64::from(self.0);
        match number.checked_sub(FINE_CLASSES as u64) {
            None => (number + 1) * GRANULE_BYTES,
            Some(coarse) => (5 + coarse % 4) << (5 + coarse / 4),
        }
    }

    /// Granules of its objects.
    pub(crate) fn granules(self) -> u32 {
        (self.bytes() / GRANULE_BYTES) as u32
    }

    /// Objects of a span.
    pub(crate) fn slots(self) -> u32 {
        SPAN_GRANULES / self.granules()
    }
}

/// Spans of an object that has no class.
pub(crate) fn spans_for(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(SPAN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_holds_it() {
        let mut smaller = 0;
        for class in Class::all() {
            assert!(class.bytes() > smaller && class.bytes().is_multiple_of(GRANULE_BYTES));
            for bytes in smaller + 1..=class.bytes() {
                assert_eq!(Class::of(bytes as usize), Some(class), "{bytes}");
            }
            assert!(class.slots() >= 2, "{class:?}");
            assert!(u64::from(class.slots()) * class.bytes() <= SPAN_BYTES, "{class:?}");
            smaller = class.bytes();
        }
        assert_eq!(smaller, LARGEST_CLASS_BYTES as u64);
        assert_eq!(Class::of(0), Class::of(1));
        assert_eq!(Class::of(LARGEST_CLASS_BYTES + 1), None);
        assert_eq!(Class::new(CLASSES as u8), None);
        assert_eq!((spans_for(LARGEST_CLASS_BYTES + 1), spans_for(65_537)), (1, 2));
    }
}
