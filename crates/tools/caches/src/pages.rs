//! The state of each page.

use std::collections::HashMap;

use crate::ByKind;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not in the image.
    Own,
    /// In the image, and written since the checkpoint.
    Written,
    /// In the image, and accessed before the checkpoint.
    Accessed,
    /// In the image, and not accessed before.
    Unaccessed,
}

impl Kind {
    /// Counts one page of this kind.
    pub fn count(self, counts: &mut ByKind) {
        *match self {
            Kind::Own => &mut counts.own,
            Kind::Written => &mut counts.written,
            Kind::Accessed => &mut counts.accessed,
            Kind::Unaccessed => &mut counts.unaccessed,
        } += 1;
    }
}

/// The state of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub is_learned: bool,
    pub is_in_image: bool,
    pub is_touched: bool,
    pub is_written: bool,
}

impl Page {
    pub fn kind(self) -> Kind {
        match self {
            Page { is_in_image: false, .. } => Kind::Own,
            Page { is_written: true, .. } => Kind::Written,
            Page { is_learned: true, .. } => Kind::Accessed,
            _ => Kind::Unaccessed,
        }
    }
}

/// All pages, with a direct-mapped cache of recent ones.
#[derive(Debug)]
pub struct Pages {
    all: HashMap<u64, Page>,
    recent: Vec<(u64, Page)>,
}

/// Slots for recent pages.
const RECENT: usize = 4096;
/// An empty slot: no page of user space has this number.
const NONE: u64 = u64::MAX;

impl Default for Pages {
    fn default() -> Pages {
        Pages { all: HashMap::new(), recent: vec![(NONE, Page::default()); RECENT] }
    }
}

impl Pages {
    /// The state of a page.
    pub fn get(&mut self, number: u64) -> Page {
        let slot = number as usize % RECENT;
        let (held, page) = self.recent[slot];
        if held == number {
            return page;
        }
        let page = self.all.get(&number).copied().unwrap_or_default();
        self.recent[slot] = (number, page);
        page
    }

    /// Sets the state of a page.
    pub fn set(&mut self, number: u64, page: Page) {
        self.all.insert(number, page);
        self.recent[number as usize % RECENT] = (number, page);
    }

    /// Marks the moment of the checkpoint: these pages are in the image, and no page is touched.
    pub fn begin_image(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for page in self.all.values_mut() {
            *page = Page { is_learned: page.is_learned, ..Page::default() };
        }
        for number in numbers {
            self.all.entry(number).or_default().is_in_image = true;
        }
        self.recent.fill((NONE, Page::default()));
    }

    /// Number of pages for which `is_counted` holds.
    pub fn count(&self, is_counted: impl Fn(&Page) -> bool) -> u64 {
        self.all.values().filter(|page| is_counted(page)).count() as u64
    }
}
