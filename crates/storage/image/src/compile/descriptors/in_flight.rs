//! Descriptors in flight: files that wait in Unix sockets to be received (SCM_RIGHTS).
//!
//! ```text
//!  numbers   0 ... spare_fd  own │ external │ shared objects │ in flight: files, then far ends │ held
//!  order     every file, at its own number or one of these ─► messages ─► these are closed
//! ```
//! A message can be sent when all that comes with it is there, which may be a socket that itself
//! has messages waiting, or the very one that it is sent through. So what comes with descriptors
//! is sent after all files are made; and its far end, if the parent had closed it, is kept as long.
//! Both are closed before locks are taken, since closing drops the process's own.

use super::Compiler;

impl Compiler<'_> {
    /// Fills the pairs with descriptors in flight, and closes what is not the parent's.
    pub fn late_messages(&mut self) {
        for (file, partner) in std::mem::take(&mut self.late) {
            let model = self.model;
            self.name(file, &model.files[file as usize]);
            let far = partner.and_then(|partner| self.first(partner));
            let ends = (self.first(file), far.or_else(|| self.in_flight.far_end(file)));
            let (Some(near), Some(far)) = ends else { continue };
            let (made, second) = (self.slots.made, self.slots.second);
            for (number, slot) in [(near, made), (far, second)] {
                let args =
                    [number.into(), libc::F_DUPFD_CLOEXEC as u64, self.fds.spare.start.into()];
                let op = self.op(libc::SYS_fcntl, &args).store(slot);
                self.ops.push(op);
            }
            self.fill_sockets(file, partner);
            self.push_on(made, libc::SYS_close, &[]);
            self.push_on(second, libc::SYS_close, &[]);
        }
        for number in self.in_flight.numbers() {
            self.push(libc::SYS_close, &[number.into()]);
        }
    }
}
