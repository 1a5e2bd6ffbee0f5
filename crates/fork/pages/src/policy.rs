//! Tiering policies (CXLfork §4.3).

use std::ops::Range;

use farfork_image::layout::MappedSpan;
use farfork_types::{PAGE_BYTES, Tiering};

use crate::access::Access;
use crate::set::PageSet;

/// How a policy treats the pages of one span. Pages that it does not name are mapped when they are
/// touched, and copied when they are written. Pages are known by their places in the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// Pages that become local before the clone touches them, if there is time.
    pub write: PageSet,
    /// Whether all of it becomes local before the clone runs.
    pub is_copied: bool,
    /// None if the kernel maps pages when they are touched. Otherwise the page service supplies each,
    /// and makes these local.
    pub local: Option<PageSet>,
    /// Whether the `local` pages after a touched one become local with it: one fault for each takes
    /// longer than copying many.
    pub is_ahead: bool,
}

impl Treatment {
    /// Whether the kernel maps pages as they are touched.
    pub fn is_left_to_the_kernel(&self) -> bool {
        self.local.is_none() && !self.is_copied
    }
}

/// Pages that lie beside each other in an image, wherever a process or a guest has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Their numbers.
    pub pages: Range<u64>,
    /// Whether they may be written.
    pub is_writable: bool,
}

impl From<MappedSpan> for Places {
    fn from(span: MappedSpan) -> Places {
        Places { pages: pages(span), is_writable: span.is_writable }
    }
}

/// Decides what becomes of the pages of an image: from their places and what is known of accesses, whatever maps them.
pub trait Policy {
    /// What becomes of the pages at `places`.
    fn treat(&self, places: Places, access: &Access) -> Treatment;
}

/// The policy of this name.
pub fn policy(tiering: Tiering) -> &'static dyn Policy {
    match tiering {
        Tiering::Mow => &MigrateOnWrite,
        Tiering::Moa => &MigrateOnAccess,
        Tiering::Hybrid => &Hybrid,
        Tiering::Copy => &CopyAll,
    }
}

/// Pages become local when they are written. Pages that clones were seen to write become local earlier
/// if there is time.
#[derive(Clone, Copy, Debug)]
pub struct MigrateOnWrite;

impl Policy for MigrateOnWrite {
    fn treat(&self, places: Places, access: &Access) -> Treatment {
        let mut treatment = Treatment::default();
        if places.is_writable {
            treatment.write = access.dirtied.runs(places.pages).flatten().collect();
        }
        treatment
    }
}

/// Pages become local when they are touched.
#[derive(Clone, Copy, Debug)]
pub struct MigrateOnAccess;

impl Policy for MigrateOnAccess {
    fn treat(&self, places: Places, _: &Access) -> Treatment {
        Treatment { local: Some(places.pages.collect()), ..Treatment::default() }
    }
}

/// Pages that clones were seen to access, or that are declared hot, become local when they are
/// touched; the others are mapped from the pool.
#[derive(Clone, Copy, Debug)]
pub struct Hybrid;

impl Policy for Hybrid {
    fn treat(&self, places: Places, access: &Access) -> Treatment {
        let hot = [&access.accessed, &access.dirtied, &access.hot];
        let runs = hot.into_iter().flat_map(|set| set.runs(places.pages.clone()));
        let local = Some(runs.flatten().collect());
        Treatment { local, is_ahead: true, ..Treatment::default() }
    }
}

/// Everything becomes local before the clone runs.
#[derive(Clone, Copy, Debug)]
pub struct CopyAll;

impl Policy for CopyAll {
    fn treat(&self, _: Places, _: &Access) -> Treatment {
        Treatment { is_copied: true, ..Treatment::default() }
    }
}

/// The pages of a span, by their places.
pub fn pages(span: MappedSpan) -> Range<u64> {
    let first = span.place / PAGE_BYTES;
    first..first + span.bytes / PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: MappedSpan = MappedSpan {
        address: 0x10_0000,
        bytes: 100 * PAGE_BYTES,
        place: 512 * PAGE_BYTES,
        is_writable: true,
    };

    fn set(pages: impl IntoIterator<Item = u64>) -> PageSet {
        pages.into_iter().collect()
    }

    fn access() -> Access {
        Access {
            accessed: set([500, 512, 513, 520, 540, 611, 612]),
            dirtied: set([513, 611, 700]),
            hot: set([560]),
        }
    }

    fn treated(tiering: Tiering, span: MappedSpan) -> Treatment {
        policy(tiering).treat(span.into(), &access())
    }

    #[test]
    fn written_pages_are_made_local() {
        let treatment = treated(Tiering::Mow, SPAN);
        assert_eq!(treatment.write, set([513, 611]));
        assert_eq!(treatment.local, None);
    }

    #[test]
    fn memory_that_cannot_be_written_is_not() {
        let span = MappedSpan { is_writable: false, ..SPAN };
        assert_eq!(treated(Tiering::Mow, span), Treatment::default());
    }

    /// What decides is where pages lie in the image, not where a process has them.
    #[test]
    fn addresses_decide_nothing() {
        let elsewhere = MappedSpan { address: 0x7fff_0000_0000, ..SPAN };
        for tiering in [Tiering::Mow, Tiering::Moa, Tiering::Hybrid, Tiering::Copy] {
            assert_eq!(treated(tiering, elsewhere), treated(tiering, SPAN));
            let places = Places { pages: 512..612, is_writable: true };
            assert_eq!(policy(tiering).treat(places, &access()), treated(tiering, SPAN));
        }
    }

    #[test]
    fn every_touched_page_is_local() {
        assert_eq!(treated(Tiering::Moa, SPAN).local, Some(set(512..612)));
    }

    #[test]
    fn known_and_declared_pages_are_local() {
        let local = set([512, 513, 520, 540, 560, 611]);
        let treatment = treated(Tiering::Hybrid, SPAN);
        assert_eq!((treatment.local, treatment.is_ahead), (Some(local), true));
        assert!(!treated(Tiering::Moa, SPAN).is_ahead, "what is touched, and no more");
    }
}
