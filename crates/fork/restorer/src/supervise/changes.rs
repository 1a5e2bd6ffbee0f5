//! Where in the image the attributes of memory may no longer be those that the plan has.

use core::cell::RefCell;

/// Parts of the image, as places, whose mappings a program has given other attributes. One list
/// serves all processes: what is not in it is as in the plan in each of them.
pub struct Changes(RefCell<List>);

struct List {
    ranges: [(u64, u64); MOST],
    count: usize,
    is_all: bool,
    locks_future: bool,
    has_other: bool,
}

/// More than these, and everything counts as changed.
const MOST: usize = 64;

impl Changes {
    /// None.
    pub const fn new() -> Changes {
        let ranges = [(0, 0); MOST];
        let none = List { ranges, count: 0, is_all: false, locks_future: false, has_other: false };
        Changes(RefCell::new(none))
    }

    /// Puts `start..end` in.
    pub fn add(&self, start: u64, end: u64) {
        let mut list = self.0.borrow_mut();
        let count = list.count;
        let near = list.ranges[..count].iter_mut().find(|known| start <= known.1 && known.0 <= end);
        if let Some(known) = near {
            *known = (known.0.min(start), known.1.max(end));
        } else if let Some(free) = list.ranges.get_mut(count) {
            *free = (start, end);
            list.count += 1;
        } else {
            list.is_all = true;
        }
    }

    /// Puts everything in.
    pub fn add_all(&self) {
        self.0.borrow_mut().is_all = true;
    }

    /// Puts everything in, after a call that has to do with memory mapped from now on.
    pub fn add_future(&self) {
        let mut list = self.0.borrow_mut();
        (list.is_all, list.locks_future) = (true, true);
    }

    /// Notes that memory which is not of the image has changed, too.
    pub fn add_other(&self) {
        self.0.borrow_mut().has_other = true;
    }

    /// Whether any memory has other attributes than when the clone started.
    pub fn are_any(&self) -> bool {
        let list = self.0.borrow();
        list.count > 0 || list.is_all || list.has_other
    }

    /// Whether any of `start..end` is in.
    pub fn has(&self, start: u64, end: u64) -> bool {
        let list = self.0.borrow();
        let mut known = list.ranges[..list.count].iter();
        list.is_all || known.any(|known| start < known.1 && known.0 < end)
    }

    /// Whether memory that is mapped from now on may be locked.
    pub fn locks_future(&self) -> bool {
        self.0.borrow().locks_future
    }
}
