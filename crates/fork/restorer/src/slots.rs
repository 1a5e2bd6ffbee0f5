//! What ops leave to later ones.

use farfork_plan::protocol::SLOTS;

use crate::call;
use crate::rights::FileRights;

/// What ops leave to later ones: descriptors, which they refer to by slot, and whose rights they
/// work with.
pub struct Slots {
    fds: [i32; SLOTS],
    /// Rights over files.
    pub rights: FileRights,
}

impl Slots {
    /// Slots that hold nothing.
    pub const fn new() -> Slots {
        Slots { fds: [-1; SLOTS], rights: FileRights::agents() }
    }

    /// Keeps `fd` in `slot`.
    pub fn set(&mut self, slot: u8, fd: i32) {
        if let Some(place) = self.fds.get_mut(usize::from(slot)) {
            *place = fd;
        }
    }

    /// What `slot` holds.
    pub fn get(&self, slot: u64) -> i32 {
        self.fds.get(slot as usize).copied().unwrap_or(-1)
    }

    /// Closes what `slot` holds, which no op takes any more.
    pub fn close(&mut self, slot: u8) {
        if let Ok(fd) = u32::try_from(self.get(slot.into())) {
            call::close_range(fd, fd);
            self.set(slot, -1);
        }
    }
}
