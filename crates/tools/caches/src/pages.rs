//! What is known of each page.

use std::collections::HashMap;

use crate::ByKind;

/// The unit that is copied.
pub const PAGE_BYTES: u64 = 4096;

/// What a page is at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No image has it.
    Own,
    /// Of the image, and written since the checkpoint.
    Written,
    /// Of the image, and accessed before the checkpoint.
    Accessed,
    /// Of the image, and not accessed before.
    Unaccessed,
}

impl ByKind {
    /// Counts one.
    pub fn add(&mut self, kind: Kind) {
        *match kind {
            Kind::Own => &mut self.own,
            Kind::Written => &mut self.written,
            Kind::Accessed => &mut self.accessed,
            Kind::Unaccessed => &mut self.unaccessed,
        } += 1;
    }
}

/// What one page is.
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

/// All pages, and the last ones at hand.
#[derive(Debug)]
pub struct Pages {
    all: HashMap<u64, Page>,
    recent: Vec<(u64, Page)>,
}

/// So many are at hand.
const RECENT: usize = 4096;
/// No page: addresses of user space have no such number.
const NONE: u64 = u64::MAX;

impl Default for Pages {
    fn default() -> Pages {
        Pages { all: HashMap::new(), recent: vec![(NONE, Page::default()); RECENT] }
    }
}

impl Pages {
    /// What a page is.
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

    /// Says what it is.
    pub fn set(&mut self, number: u64, page: Page) {
        self.all.insert(number, page);
        self.recent[number as usize % RECENT] = (number, page);
    }

    /// Begins the image: these pages are in it, and none has been touched since.
    pub fn begin_image(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for page in self.all.values_mut() {
            *page = Page { is_learned: page.is_learned, ..Page::default() };
        }
        for number in numbers {
            self.all.entry(number).or_default().is_in_image = true;
        }
        self.recent.fill((NONE, Page::default()));
    }

    /// How many are like this.
    pub fn count(&self, is_so: impl Fn(&Page) -> bool) -> u64 {
        self.all.values().filter(|page| is_so(page)).count() as u64
    }
}
