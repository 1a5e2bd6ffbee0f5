//! Locks, leases, and signals about files. None of them waits: what another process holds makes
//! the clone fail, as it would be wrong to run without.

use farfork_plan::{Op, What, nr};

use super::{Compiler, LATER};
use crate::compile::place;
use crate::model::{Lock, LockKind, OpenFile};

const F_SETSIG: u64 = 10;
const F_SETOWN: u64 = libc::F_SETOWN as u64;
const ASYNC: u32 = libc::O_ASYNC as u32;
const EXCLUSIVE: u64 = (libc::LOCK_EX | libc::LOCK_NB) as u64;
const SHARED: u64 = (libc::LOCK_SH | libc::LOCK_NB) as u64;

impl Compiler<'_> {
    /// Makes files send signals as they did to the parent.
    pub fn notices(&mut self) {
        let member = self.member;
        for notice in &member.notices {
            let file = &self.model.files[notice.file as usize];
            let (Some(fd), Some(flags)) = (self.first(notice.file), file.flags()) else { continue };
            self.name(notice.file, file);
            let owner = i64::from(notice.owner) as u64;
            self.push(libc::SYS_fcntl, &[fd.into(), F_SETOWN, owner]);
            self.push(libc::SYS_fcntl, &[fd.into(), F_SETSIG, notice.signal.into()]);
            if notice.is_async {
                let flags = u64::from(flags & LATER | ASYNC);
                self.push(libc::SYS_fcntl, &[fd.into(), libc::F_SETFL as u64, flags]);
            }
        }
    }

    /// Takes all locks again.
    pub fn locks(&mut self) {
        let member = self.member;
        for lock in &member.locks {
            let Some(fd) = self.first(lock.file) else { continue };
            let kind = if lock.kind == LockKind::Lease { "lease" } else { "lock" };
            let how = if lock.is_write { "write" } else { "read" };
            let file = super::noun(&self.model.files[lock.file as usize]);
            self.detail = self.arena.detail(&format!("fd {fd} ({file}, {how} {kind})"));
            let (number, args) = self.lock(fd, lock);
            self.ops.push(Op::new(What::Lock, number as u32, &args).about(self.detail));
        }
        if !member.locks.is_empty() {
            self.unwritten();
        }
    }

    /// Checks that files which the process has read are unchanged. Without its locks another process
    /// could write after the check.
    fn unwritten(&mut self) {
        let model = self.model;
        let read: Vec<u32> = self.numbers.keys().copied().collect();
        for index in read {
            let file = &model.files[index as usize];
            let OpenFile::Path { stamp: Some(stamp), identity, .. } = file else { continue };
            let Some(fd) = self.first(index) else { continue };
            self.name(index, file);
            let wanted = place::identity(identity, Some(stamp), self.arena);
            if wanted == 0 {
                continue;
            }
            let compare = Op::new(What::Lock, nr::UNCHANGED, &[fd.into(), wanted]);
            self.ops.push(compare.about(self.detail));
        }
    }

    fn lock(&mut self, fd: u32, lock: &Lock) -> (i64, [u64; 3]) {
        let kind = if lock.is_write { libc::F_WRLCK } else { libc::F_RDLCK };
        let command = match lock.kind {
            LockKind::Whole => {
                let how = if lock.is_write { EXCLUSIVE } else { SHARED };
                return (libc::SYS_flock, [fd.into(), how, 0]);
            }
            LockKind::Lease => {
                let command = libc::F_SETLEASE as u64;
                return (libc::SYS_fcntl, [fd.into(), command, kind as u64]);
            }
            LockKind::Process => libc::F_SETLK,
            LockKind::Description => libc::F_OFD_SETLK,
        };
        // struct flock: type and whence in one word, start, length, pid.
        let at = self.arena.words(&[kind as u64, lock.start, lock.length, 0]);
        (libc::SYS_fcntl, [fd.into(), command as u64, at])
    }
}
