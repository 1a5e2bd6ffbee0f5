//! What clones did to the pages of their image.

use farfork_pool::PageBits;

use crate::set::PageSet;

/// The side tables of an image: its access patterns (CXLfork §4.3). The image itself is sealed, so they
/// are kept beside it. Each table has one writer; readers merge them.
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
    /// Adds the pages of another table.
    pub fn merge(&mut self, other: &Access) {
        self.accessed.merge(&other.accessed);
        self.dirtied.merge(&other.dirtied);
        self.hot.merge(&other.hot);
    }

    /// Pages that clones have read, and not written.
    pub fn only_read(&self) -> PageSet {
        let mut read = self.accessed.clone();
        read.subtract(&self.dirtied);
        read
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.accessed.is_empty() && self.dirtied.is_empty() && self.hot.is_empty()
    }
}

impl From<PageBits> for Access {
    fn from(bits: PageBits) -> Access {
        let [accessed, dirtied, hot] =
            [bits.accessed, bits.dirtied, bits.hot].map(PageSet::from_words);
        Access { accessed, dirtied, hot }
    }
}

impl From<&Access> for PageBits {
    fn from(access: &Access) -> PageBits {
        let [accessed, dirtied, hot] =
            [&access.accessed, &access.dirtied, &access.hot].map(|set| set.words().to_vec());
        PageBits { accessed, dirtied, hot }
    }
}
