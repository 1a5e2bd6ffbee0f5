//! What one clone has done to the pages of its image.

use std::ops::Range;

use farfork_image::layout::MappedSpan;
use farfork_types::PAGE_BYTES;

use crate::access::Access;
use crate::policy::pages;
use crate::set::PageSet;

/// How pages were touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Read: the clone sees the pool's page.
    Read,
    /// Written: the clone has a page of its own.
    Written,
}

/// Pages of an image as one clone, or several, have used them. A page that one has read and another
/// written is in both sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Pages that were read, and not written.
    pub read: PageSet,
    /// Pages that were written.
    pub written: PageSet,
}

impl Observed {
    /// Notes that the clone has touched `addresses`, as far as they belong to `span`.
    pub fn add(&mut self, span: MappedSpan, addresses: Range<u64>, touched: Touched) {
        let from = addresses.start.max(span.address);
        let to = addresses.end.min(span.address + span.bytes);
        let set = match touched {
            Touched::Read => &mut self.read,
            Touched::Written => &mut self.written,
        };
        let first = pages(span).start;
        for address in (from..to).step_by(PAGE_BYTES as usize) {
            set.insert(first + (address - span.address) / PAGE_BYTES);
        }
    }

    /// Pages of `mapped` that were not touched.
    pub fn untouched(&self, mapped: &PageSet) -> PageSet {
        let mut untouched = mapped.clone();
        untouched.subtract(&self.read);
        untouched.subtract(&self.written);
        untouched
    }

    /// As a side table of the image.
    pub fn access(&self) -> Access {
        let mut accessed = self.read.clone();
        accessed.merge(&self.written);
        Access { accessed, dirtied: self.written.clone(), hot: PageSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_known_by_place_up_to_the_end_of_the_span() {
        let page = PAGE_BYTES;
        let span = MappedSpan {
            address: 100 * page,
            bytes: 10 * page,
            place: 700 * page,
            is_writable: true,
        };
        let mut observed = Observed::default();
        observed.add(span, 90 * page..102 * page, Touched::Read);
        observed.add(span, 108 * page..120 * page, Touched::Written);
        observed.add(span, 0..50 * page, Touched::Written);
        assert_eq!(observed.read, PageSet::from_iter([700, 701]));
        assert_eq!(observed.written, PageSet::from_iter([708, 709]));
        let untouched = observed.untouched(&pages(span).collect());
        assert_eq!(untouched, PageSet::from_iter(702..708));
        let access = observed.access();
        assert_eq!(access.accessed, PageSet::from_iter([700, 701, 708, 709]));
        assert_eq!((access.dirtied, access.hot), (observed.written, PageSet::new()));
    }
}
