//! Files without a name: made anew with their content, and opened again by way of `/proc` where
//! the parent had them open more than once, or in a way in which nothing can be written.

use std::os::unix::ffi::OsStrExt;

use farfork_plan::{Op, What, nr};

use super::make::{is_unnamed, reopen};
use super::{Compiler, LATER};
use crate::model::{OpenFile, UnnamedFile};

/// What a file is made with that once had a name.
const PLAIN: u32 = libc::O_TMPFILE as u32 | libc::O_RDWR as u32;
/// `O_LARGEFILE`, which the kernel gives to every file that a 64-bit program opens.
const LARGE: u32 = 0o100_000;
/// No other user may open the file until it is finished.
const PRIVATE: u64 = 0o600;

impl Compiler<'_> {
    /// Makes description `index` of file `unnamed`; the first description makes the file.
    pub fn unnamed(&mut self, index: u32, unnamed: u32, flags: u32, offset: u64) {
        let is_same =
            |file: &OpenFile| matches!(file, OpenFile::Unnamed { file, .. } if *file == unnamed);
        let model = self.model;
        match self.earlier(index, is_same).and_then(|first| self.first(first)) {
            Some(first) => self.reopen(first, flags),
            None => {
                self.fill(&model.unnamed[unnamed as usize], flags);
                self.finish(index, flags);
            }
        }
        if offset != 0 {
            self.push_on(self.slots.made, libc::SYS_lseek, &[offset, libc::SEEK_SET as u64]);
        }
        self.place(self.slots.made, index);
    }

    /// Makes the file in the slot for it, in the parent's way if that was one without a name.
    fn fill(&mut self, file: &UnnamedFile, flags: u32) {
        let flags = if is_unnamed(flags) { flags & !(LATER | LARGE) } else { PLAIN };
        let made = self.slots.made;
        let directory = self.arena.text(file.directory.as_os_str().as_bytes());
        let text = format!("a file without a name in {}", file.directory.display());
        self.detail = self.arena.detail(&text);
        let args = [libc::AT_FDCWD as i64 as u64, directory, flags.into(), PRIVATE];
        let open = Op::new(What::File, libc::SYS_openat as u32, &args);
        self.ops.push(open.store(made).about(self.detail));
        for (offset, bytes) in &file.extents {
            let at = self.arena.put(bytes, 1);
            self.push_on(made, nr::WRITE_ALL.into(), &[at, bytes.len() as u64, *offset]);
        }
        self.push_on(made, libc::SYS_ftruncate, &[file.size]);
        for (name, value) in &file.attributes {
            let (name, at) = (self.arena.text(name.as_bytes()), self.arena.put(value, 1));
            self.push_on(made, libc::SYS_fsetxattr, &[name, at, value.len() as u64, 0]);
        }
        // A change of the owner takes the set-id bits away.
        let (user, group) = file.owner;
        self.push_on(made, libc::SYS_fchown, &[user.into(), group.into()]);
        self.push_on(made, libc::SYS_fchmod, &[file.mode.into()]);
        let times = self.arena.words(&file.times.map(|part| part as u64));
        self.push_on(made, libc::SYS_utimensat, &[0, times, 0]);
    }

    /// Gives the description that made the file the parent's flags, by another description in its
    /// place if need be.
    fn finish(&mut self, index: u32, flags: u32) {
        if is_unnamed(flags) {
            self.set_flags(self.slots.made, flags);
            return;
        }
        let Some(first) = self.first(index) else { return };
        let args = [self.slots.made.into(), first.into(), libc::O_CLOEXEC as u64];
        let moved = Op::new(What::Descriptor, nr::MOVE_FD, &args).slot_arg(0);
        self.ops.push(moved.about(self.detail));
        self.reopen(first, flags);
        self.push(libc::SYS_close, &[first.into()]);
    }

    /// Opens what is at number `first` once more, into the slot for what is being made.
    fn reopen(&mut self, first: u32, flags: u32) {
        self.ops.push(reopen(first, flags).store(self.slots.made).about(self.detail));
    }
}
