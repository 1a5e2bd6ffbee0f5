//! Sizes of objects.
//!
//! ```text
//!  bytes     1 … 128   steps of 16                       classes 0 to 7
//!          129 … 32768 four steps for each doubling      classes 8 to 39
//!        32769 …       whole spans of 65,536 bytes       a run of spans, no class
//! ```
//! Each of these classes is there a second time (64 to 103) for objects with references: the first 16 bytes of each slot
//! are a header, and the object begins after it.
//!
//! An object wastes at most 15 bytes in the first line, a fifth in the second, half in the third.

use crate::layout::{GRANULE_BYTES, SPAN_BYTES, SPAN_GRANULES};

/// Number of sizes.
const CLASSES: u8 = 40;
/// In the number of a class: its objects have a header before them.
const COUNTED: u8 = 64;
/// Above all indices of classes.
pub(crate) const END: usize = 128;
/// Granules of a header.
const HEADER_GRANULES: u32 = 1;
const FINE_BYTES: usize = 128;
const FINE_CLASSES: usize = 8;
/// Largest object that has a class.
pub(crate) const LARGEST_CLASS_BYTES: usize = 32 << 10;

const LOOKED_UP: usize = LARGEST_CLASS_BYTES / GRANULE_BYTES as usize + 1;

/// [`Class::index`] of objects of so many granules. Looked up: C passes sizes that its compiler knows and this one does not.
static INDICES: [u8; LOOKED_UP] = {
    let mut indices = [0; LOOKED_UP];
    let mut granules = 1;
    while granules < LOOKED_UP {
        indices[granules] = number_of(granules * GRANULE_BYTES as usize) + 1;
        granules += 1;
    }
    indices
};

/// Number of the class of objects of so many bytes.
const fn number_of(bytes: usize) -> u8 {
    if bytes <= FINE_BYTES {
        return bytes.div_ceil(GRANULE_BYTES as usize) as u8 - 1;
    }
    let last = bytes - 1;
    let doubling = last.ilog2() as usize;
    let quarter = last >> (doubling - 2) & 3;
    (FINE_CLASSES + 4 * (doubling - 7) + quarter) as u8
}

/// A size of which a span holds several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(u8);

impl Class {
    /// The class of this number.
    #[inline]
    pub(crate) fn new(number: u8) -> Option<Class> {
        (number & !COUNTED < CLASSES).then_some(Class(number))
    }

    /// The smallest class that holds so many bytes. `None` if an object of them takes whole spans.
    pub(crate) fn of(bytes: usize) -> Option<Class> {
        Class::at_index(Class::index_of(bytes.max(1))?)
    }

    /// [`Class::index`] of that class. 0 for 0 bytes, which are rare. Of small objects it is computed: a look takes longer.
    #[inline]
    pub(crate) fn index_of(bytes: usize) -> Option<usize> {
        if bytes <= FINE_BYTES {
            return Some(bytes.div_ceil(GRANULE_BYTES as usize));
        }
        let has_class = bytes <= LARGEST_CLASS_BYTES;
        has_class.then(|| usize::from(INDICES[bytes.div_ceil(GRANULE_BYTES as usize)]))
    }

    /// The smallest class for objects of so many bytes with a header.
    pub(crate) fn of_counted(bytes: usize) -> Option<Class> {
        let class = Class::of(bytes.max(1).checked_add(16)?)?;
        Some(Class(class.0 | COUNTED))
    }

    /// This class and all larger ones of its kind.
    pub(crate) fn and_larger(self) -> impl Iterator<Item = Class> {
        let kind = self.0 & COUNTED;
        (self.0..kind + CLASSES).map(Class)
    }

    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Class> {
        (0..CLASSES).chain(COUNTED..COUNTED + CLASSES).map(Class)
    }

    /// Whether its objects have a header.
    pub(crate) fn is_counted(self) -> bool {
        self.0 & COUNTED != 0
    }

    /// Granules of a slot before its object.
    pub(crate) fn lead(self) -> u32 {
        if self.is_counted() { HEADER_GRANULES } else { 0 }
    }

    /// Bytes of its objects.
    pub(crate) fn usable_bytes(self) -> u64 {
        self.bytes() - GRANULE_BYTES * u64::from(self.lead())
    }

    #[inline]
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// Its place in tables of all classes, where 0 means no class.
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0) + 1
    }

    /// The class at such a place.
    pub(crate) fn at_index(index: usize) -> Option<Class> {
        Class::new(u8::try_from(index.checked_sub(1)?).ok()?)
    }

    /// Bytes of its slots.
    pub(crate) fn bytes(self) -> u64 {
        let number = u64::from(self.0 & !COUNTED);
        match number.checked_sub(FINE_CLASSES as u64) {
            None => (number + 1) * GRANULE_BYTES,
            Some(coarse) => (5 + coarse % 4) << (5 + coarse / 4),
        }
    }

    /// Granules of its slots.
    pub(crate) fn granules(self) -> u32 {
        (self.bytes() / GRANULE_BYTES) as u32
    }

    /// Slots of a span.
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
        for class in Class::all().filter(|class| !class.is_counted()) {
            assert!(class.bytes() > smaller && class.bytes().is_multiple_of(GRANULE_BYTES));
            for bytes in smaller + 1..=class.bytes() {
                assert_eq!(Class::of(bytes as usize), Some(class), "{bytes}");
                assert_eq!(Class::index_of(bytes as usize), Some(class.index()), "{bytes}");
            }
            assert!(class.slots() >= 2, "{class:?}");
            assert!(u64::from(class.slots()) * class.bytes() <= SPAN_BYTES, "{class:?}");
            smaller = class.bytes();
        }
        assert_eq!(smaller, LARGEST_CLASS_BYTES as u64);
        assert_eq!((Class::of(0), Class::index_of(0)), (Class::of(1), Some(0)));
        assert_eq!(Class::of(LARGEST_CLASS_BYTES + 1), None);
        assert_eq!(
            (Class::new(CLASSES), Class::new(COUNTED + CLASSES), Class::new(128)),
            (None, None, None)
        );
        let counted = Class::of_counted(48).expect("a class");
        assert_eq!((counted.bytes(), counted.usable_bytes(), counted.lead()), (64, 48, 1));
        assert_eq!((counted.number(), Class::of_counted(LARGEST_CLASS_BYTES - 15)), (67, None));
        assert!(
            Class::all()
                .all(|class| class.index() < END && Class::at_index(class.index()) == Some(class))
        );
        assert_eq!((spans_for(LARGEST_CLASS_BYTES + 1), spans_for(65_537)), (1, 2));
    }
}
