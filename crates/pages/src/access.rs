//! What clones did to the pages of their image.

use crate::set::PageSet;

/// Access patterns of an image (CXLfork §4.3): the image itself is sealed, so they are kept beside
/// it, in tables of which each has one writer, and merged by whoever reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Pages that a clone has read or written.
    pub accessed: PageSet,
    /// Pages that a clone has written.
    pub dirtied: PageSet,
    /// Pages that the user has declared hot.
    pub hot: PageSet,
}

impl Access {
    /// Adds what another table tells.
    pub fn merge(&mut self, other: &Access) {
        self.accessed.merge(&other.accessed);
        self.dirtied.merge(&other.dirtied);
        self.hot.merge(&other.hot);
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.accessed.is_empty() && self.dirtied.is_empty() && self.hot.is_empty()
    }
}
