//! Rings of io_uring. The agent makes them, since clones may not, and the clone takes each from the agent by
//! way of a socket pair that comes with the request. A message cannot carry a ring.

use farfork_plan::nr;

use super::Compiler;
use crate::model::RingQueue;

impl Compiler<'_> {
    /// Takes a ring and maps its queues.
    pub fn ring(&mut self, index: u32, flags: u32, queues: &[RingQueue]) {
        let Some(slot) = self.slot_of(index, u32::MAX) else { return };
        let take = self.op(nr::TAKE_RING.into(), &[slot.into()]);
        self.ops.push(take.slot_arg(0).store(self.slots.made));
        self.push_on(slot, libc::SYS_close, &[]);
        self.set_flags(self.slots.made, flags);
        self.place(self.slots.made, index);
        let fd = self.first(index).unwrap_or(0);
        for RingQueue { start, bytes, prot, offset } in queues {
            let args = [fd.into(), *start, *bytes, (*prot).into(), *offset];
            self.push(nr::MAP_RING.into(), &args);
        }
    }
}
