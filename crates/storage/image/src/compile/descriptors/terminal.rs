//! Pseudo-terminals: masters like any file, their slaves when every master is in place.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_plan::{Op, What};

use super::make::open_flags;
use super::{Compiler, LATER};
use crate::model::{OpenFile, Terminal};

/// `TCSETS2`.
const SET_SETTINGS: u64 = 0x402c_542b;
/// `TIOCSPTLCK`.
const SET_LOCK: u64 = 0x4004_5431;
/// `TIOCGPTPEER` (Linux 4.13).
pub const OPEN_SLAVE: u64 = 0x5441;
const READ_WRITE: u64 = (libc::O_RDWR | libc::O_NOCTTY) as u64;

impl Compiler<'_> {
    /// Makes a terminal, which its master is.
    pub fn master(&mut self, index: u32, terminal: u32, path: &Path, flags: u32) {
        let made = self.slots.made;
        let at = self.arena.text(path.as_os_str().as_bytes());
        let args = [libc::AT_FDCWD as i64 as u64, at, open_flags(flags)];
        let open = Op::new(What::File, libc::SYS_openat as u32, &args);
        self.ops.push(open.store(made).about(self.detail));
        self.set_lock(made, false);
        let model = self.model;
        let known = &model.terminals[terminal as usize];
        self.settings(known);
        if known.is_hung_up {
            let open = self.op(libc::SYS_ioctl, &[made.into(), OPEN_SLAVE, READ_WRITE]);
            self.ops.push(open.slot_arg(0).store(self.slots.second));
            self.push_on(self.slots.second, libc::SYS_close, &[]);
        }
        if known.is_packet {
            let yes = self.arena.words(&[1]);
            self.push_on(made, libc::SYS_ioctl, &[libc::TIOCPKT, yes]);
        }
        if known.is_locked && known.access.is_none() {
            self.set_lock(made, true);
        }
        self.place(made, index);
    }

    fn settings(&mut self, terminal: &Terminal) {
        let made = self.slots.made;
        let settings = self.arena.put(&terminal.settings, 8);
        self.push_on(made, libc::SYS_ioctl, &[SET_SETTINGS, settings]);
        let size: Vec<u8> = terminal.size.iter().flat_map(|part| part.to_le_bytes()).collect();
        let size = self.arena.put(&size, 8);
        self.push_on(made, libc::SYS_ioctl, &[libc::TIOCSWINSZ, size]);
    }

    fn set_lock(&mut self, slot: u8, is_locked: bool) {
        let value = self.arena.words(&[is_locked.into()]);
        self.push_on(slot, libc::SYS_ioctl, &[SET_LOCK, value]);
    }

    /// Opens all slaves.
    pub fn slaves(&mut self) {
        let model = self.model;
        for (index, file) in model.files.iter().enumerate() {
            let OpenFile::TerminalSlave { terminal, flags } = file else { continue };
            let (index, terminal) = (index as u32, *terminal);
            if self.root_fds.number(index).is_some() {
                continue;
            }
            let is_master = |file: &OpenFile| is_master(file, terminal);
            let master = self.earlier(u32::MAX, is_master).and_then(|master| self.first(master));
            if let (Some(master), Some(_)) = (master, self.first(index)) {
                self.name(index, file);
                self.slave(index, master, *flags, &model.terminals[terminal as usize]);
            }
        }
    }

    fn slave(&mut self, index: u32, master: u32, flags: u32, terminal: &Terminal) {
        let made = self.slots.made;
        let how = open_flags(flags & !LATER);
        let open = self.op(libc::SYS_ioctl, &[master.into(), OPEN_SLAVE, how]);
        self.ops.push(open.store(made));
        self.set_flags(made, flags);
        if let Some((user, group, mode)) = terminal.access {
            self.push_on(made, libc::SYS_fchown, &[user.into(), group.into()]);
            self.push_on(made, libc::SYS_fchmod, &[mode.into()]);
        }
        self.place(made, index);
    }

    /// Gives terminals what would be in the way of opening their slaves, and makes one control the
    /// session that the clone leads.
    pub fn control(&mut self) {
        let model = self.model;
        for (index, terminal) in model.terminals.iter().enumerate() {
            let number = |compiler: &Self, wanted: &dyn Fn(&OpenFile) -> bool| {
                compiler.earlier(u32::MAX, wanted).and_then(|file| compiler.first(file))
            };
            let index = index as u32;
            let slave = number(self, &|file| is_slave(file, index));
            let master = number(self, &|file| is_master(file, index));
            let (Some(slave), Some(master)) = (slave, master) else { continue };
            if self.root_fds.find(model, |file| is_slave(file, index)).is_some() {
                continue;
            }
            // Several processes have it before their births.
            let is_ours = terminal.session != 0 && terminal.session == self.member.process.pid;
            if is_ours && !model.is_tree() {
                self.push(libc::SYS_ioctl, &[slave.into(), libc::TIOCSCTTY, 0]);
            }
            if terminal.is_exclusive {
                self.push(libc::SYS_ioctl, &[slave.into(), libc::TIOCEXCL]);
            }
            if terminal.is_locked {
                let yes = self.arena.words(&[1]);
                self.push(libc::SYS_ioctl, &[master.into(), SET_LOCK, yes]);
            }
        }
    }
}

fn is_master(file: &OpenFile, wanted: u32) -> bool {
    matches!(file, OpenFile::TerminalMaster { terminal, .. } if *terminal == wanted)
}

/// Whether it is a slave of terminal `wanted`.
pub fn is_slave(file: &OpenFile, wanted: u32) -> bool {
    matches!(file, OpenFile::TerminalSlave { terminal, .. } if *terminal == wanted)
}
