//! Files that one call makes.

use farfork_plan::{Op, What, nr};

use super::{Compiler, LATER};
use crate::compile::place;
use crate::model::{ObjectKind, OpenFile};

/// `TFD_IOC_SET_TICKS` (Linux 3.17, `CONFIG_CHECKPOINT_RESTORE`, which the address space needs
/// as well).
const SET_TICKS: u64 = 0x4008_5400;
/// Bytes of the kernel's `sigset_t`.
const SIGNAL_SET_BYTES: u64 = 8;
const NONBLOCK: u32 = libc::O_NONBLOCK as u32;
/// `O_LARGEFILE` as the kernel shows it.
const LARGE: u32 = 0o100_000;
/// Flags that matter only when a file is made.
const CREATION: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC;

impl Compiler<'_> {
    /// Makes a file of its own, in the slot for it.
    pub fn make(&mut self, file: &OpenFile) {
        match file {
            OpenFile::Path { path, flags, offset, stamp, identity } => {
                let wanted = place::identity(identity, stamp.as_ref(), self.arena);
                let open = place::open(What::File, path, open_flags(*flags), wanted, self.arena);
                self.opened(open, *offset);
            }
            OpenFile::Object { object, flags, offset } => {
                let made = self.fds.objects.number(*object);
                self.opened(reopen(made, *flags), *offset);
            }
            OpenFile::Event { count, flags, is_semaphore } => {
                self.event(*count, *flags, *is_semaphore);
            }
            OpenFile::Signal { mask, flags } => self.signals(*mask, *flags),
            OpenFile::Timer { clock, flags, set_flags, ticks, setting } => {
                self.create(libc::SYS_timerfd_create, &[*clock as u64, (flags & NONBLOCK).into()]);
                self.set_timer(*set_flags, *ticks, setting);
            }
            OpenFile::Epoll { flags, .. } => {
                self.create(libc::SYS_epoll_create1, &[0]);
                self.set_flags(self.slots.made, *flags);
            }
            OpenFile::Inotify { flags, .. } => {
                self.create(libc::SYS_inotify_init1, &[(flags & NONBLOCK).into()]);
            }
            OpenFile::Fanotify { flags, group, event_flags, .. } => {
                let group = group & !libc::FAN_NONBLOCK | waits(*flags);
                self.create(libc::SYS_fanotify_init, &[group.into(), (*event_flags).into()]);
            }
            OpenFile::ProcessHandle { member, flags } => {
                let pid = self.model.members[*member as usize].process.pid;
                let flags = flags & (NONBLOCK | libc::PIDFD_THREAD);
                self.create(libc::SYS_pidfd_open, &[pid.into(), flags.into()]);
            }
            OpenFile::Unnamed { .. }
            | OpenFile::TerminalMaster { .. }
            | OpenFile::TerminalSlave { .. }
            | OpenFile::Pipe { .. }
            | OpenFile::SocketPair { .. }
            | OpenFile::Socket(_)
            | OpenFile::Ring { .. }
            | OpenFile::External { .. } => {}
        }
    }

    /// Whether file `index` is the first of all with the flags of a memfd as it was made. It stands for the
    /// description that came with the object: the kernel does not count that as open for writing, and so
    /// executes the object as long as it is the only one that could write.
    pub fn is_original(&self, index: u32, object: u32) -> bool {
        let is_memfd = matches!(self.model.objects[object as usize].kind, ObjectKind::Memfd(_));
        let is_as_made = |file: &OpenFile| {
            matches!(file, OpenFile::Object { object: own, flags, .. }
                if *own == object && flags & !LATER & !LARGE == libc::O_RDWR as u32)
        };
        is_memfd && self.model.files.iter().position(is_as_made) == Some(index as usize)
    }

    /// Gives the description that came with the object to the numbers of file `index`.
    pub fn original(&mut self, index: u32, object: u32, flags: u32, offset: u64) {
        let made = self.fds.objects.number(object);
        let duplicated = self.op(libc::SYS_dup, &[made.into()]).store(self.slots.made);
        self.ops.push(duplicated);
        self.set_flags(self.slots.made, flags);
        if offset != 0 {
            self.push_on(self.slots.made, libc::SYS_lseek, &[offset, libc::SEEK_SET as u64]);
        }
        self.place(self.slots.made, index);
    }

    fn create(&mut self, number: i64, args: &[u64]) {
        let op = self.op(number, args).store(self.slots.made);
        self.ops.push(op);
    }

    /// Opens the file in the making, and goes to its position.
    fn opened(&mut self, open: Op, offset: u64) {
        self.ops.push(open.store(self.slots.made).about(self.detail));
        if offset != 0 {
            self.push_on(self.slots.made, libc::SYS_lseek, &[offset, libc::SEEK_SET as u64]);
        }
    }

    fn event(&mut self, count: u64, flags: u32, is_semaphore: bool) {
        let semaphore = if is_semaphore { libc::EFD_SEMAPHORE as u32 } else { 0 };
        let flags = u64::from(flags & NONBLOCK | semaphore);
        // The call takes 32 bits of a counter that has 64.
        let initial = u32::try_from(count).unwrap_or(0);
        self.create(libc::SYS_eventfd2, &[initial.into(), flags]);
        if u64::from(initial) != count {
            let at = self.arena.words(&[count]);
            self.push_on(self.slots.made, libc::SYS_write, &[at, size_of::<u64>() as u64]);
        }
    }

    fn signals(&mut self, mask: u64, flags: u32) {
        let at = self.arena.words(&[mask]);
        let flags = u64::from(flags & NONBLOCK);
        self.create(libc::SYS_signalfd4, &[-1i64 as u64, at, SIGNAL_SET_BYTES, flags]);
    }

    /// Arms the timer first, which clears its ticks, and then gives it those that the parent had
    /// not read: it is readable at once, with the parent's count.
    fn set_timer(&mut self, set_flags: u32, ticks: u64, setting: &[u64; 4]) {
        let made = self.slots.made;
        if setting.iter().any(|part| *part != 0) {
            let at = self.arena.words(setting);
            self.push_on(made, libc::SYS_timerfd_settime, &[set_flags.into(), at, 0]);
        }
        if ticks != 0 {
            let at = self.arena.words(&[ticks]);
            self.push_on(made, libc::SYS_ioctl, &[SET_TICKS, at]);
        }
    }
}

/// `FAN_NONBLOCK` of a group with these status flags.
fn waits(flags: u32) -> u32 {
    if flags & NONBLOCK == 0 { 0 } else { libc::FAN_NONBLOCK }
}

const UNNAMED: u32 = libc::O_TMPFILE as u32;

/// Whether the file was made by `O_TMPFILE`.
pub fn is_unnamed(flags: u32) -> bool {
    flags & UNNAMED == UNNAMED
}

/// Opens once more what is open as `fd`.
pub fn reopen(fd: u32, flags: u32) -> Op {
    Op::new(What::File, nr::REOPEN, &[fd.into(), open_flags(flags)])
}

/// A terminal must not become the clone's controlling one by being opened, and the flag of
/// unnamed files asks for a directory.
pub fn open_flags(flags: u32) -> u64 {
    let flags = if is_unnamed(flags) { flags & !UNNAMED } else { flags };
    u64::from(flags & !(CREATION as u32) | libc::O_NOCTTY as u32)
}
