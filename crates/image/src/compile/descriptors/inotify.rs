//! Watches of inotify instances.

use std::os::unix::ffi::OsStrExt;

use farfork_plan::{Op, What, nr};

use super::Compiler;
use crate::compile::place;
use crate::model::OpenFile;

/// `INOTIFY_IOC_SETNEXTWD` (Linux 4.16, `CONFIG_CHECKPOINT_RESTORE`).
const SET_NEXT: u64 = 0x4004_4900;

impl Compiler<'_> {
    /// Adds all watches, each with the parent's number.
    pub fn places(&mut self) {
        let model = self.model;
        for (index, file) in model.files.iter().enumerate() {
            let OpenFile::Inotify { watches, .. } = file else { continue };
            let Some(fd) = self.first(index as u32) else { continue };
            for watch in watches {
                let path = self.arena.text(watch.path.as_os_str().as_bytes());
                let text = format!("fd {fd} (inotify) watching {}", watch.path.display());
                self.detail = self.arena.detail(&text);
                self.opener.assume(&mut self.ops);
                self.push(libc::SYS_ioctl, &[fd.into(), SET_NEXT, watch.number.into()]);
                let identity = place::identity(&watch.identity, self.arena);
                let args = [fd.into(), path, watch.mask.into(), identity];
                let add = Op::new(What::File, nr::WATCH, &args);
                self.ops.push(add.about(self.detail));
            }
        }
        self.opener.resume(&mut self.ops);
    }
}
