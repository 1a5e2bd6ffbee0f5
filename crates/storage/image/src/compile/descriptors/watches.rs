//! What inotify instances and fanotify groups watch.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_plan::{Op, What, nr};

use super::Compiler;
use crate::compile::place;
use crate::model::{FanotifyMark, FileIdentity, InotifyWatch, OpenFile};

/// `INOTIFY_IOC_SETNEXTWD` (Linux 4.16, `CONFIG_CHECKPOINT_RESTORE`).
const SET_NEXT: u64 = 0x4004_4900;
/// Flags of a mark that apply to the events that it ignores.
const OF_IGNORED: u32 = libc::FAN_MARK_IGNORED_SURV_MODIFY | FAN_MARK_IGNORE;
/// Linux 6.0.
const FAN_MARK_IGNORE: u32 = 0x400;

/// Whether it watches any place.
pub fn watches_places(file: &OpenFile) -> bool {
    match file {
        OpenFile::Inotify { watches, .. } => !watches.is_empty(),
        OpenFile::Fanotify { marks, .. } => !marks.is_empty(),
        _ => false,
    }
}

impl Compiler<'_> {
    /// Adds all that is watched.
    pub fn places(&mut self) {
        let model = self.model;
        for (index, file) in model.files.iter().enumerate() {
            let own = self.first(index as u32).filter(|_| self.comes_first(index as u32));
            match (file, own) {
                (OpenFile::Inotify { watches, .. }, Some(fd)) => {
                    watches.iter().for_each(|watch| self.watch_place(fd, watch));
                }
                (OpenFile::Fanotify { marks, .. }, Some(fd)) => {
                    marks.iter().for_each(|mark| self.mark_place(fd, mark));
                }
                _ => {}
            }
        }
        self.opener.resume(&mut self.ops);
    }

    /// A watch, with the parent's number.
    fn watch_place(&mut self, fd: u32, watch: &InotifyWatch) {
        let (path, identity) = self.watched(fd, "inotify", &watch.path, &watch.identity);
        self.push(libc::SYS_ioctl, &[fd.into(), SET_NEXT, watch.number.into()]);
        let args = [fd.into(), path, watch.mask.into(), identity];
        self.ops.push(Op::new(What::File, nr::WATCH, &args).about(self.detail));
    }

    /// A mark: the events that it reports and those that it ignores are added one after the other.
    fn mark_place(&mut self, fd: u32, mark: &FanotifyMark) {
        let (path, identity) = self.watched(fd, "fanotify", &mark.path, &mark.identity);
        let whole = if mark.is_file_system { libc::FAN_MARK_FILESYSTEM } else { 0 };
        let common = libc::FAN_MARK_ADD | whole | mark.flags & !OF_IGNORED;
        let own = if mark.flags & FAN_MARK_IGNORE != 0 { 0 } else { libc::FAN_MARK_IGNORED_MASK };
        let ignored = common | mark.flags & OF_IGNORED | own;
        for (mask, flags) in [(mark.mask, common), (mark.ignored, ignored)] {
            if mask != 0 {
                let args = [fd.into(), path, mask, identity, flags.into()];
                self.ops.push(Op::new(What::File, nr::MARK, &args).about(self.detail));
            }
        }
    }

    /// The path and the identity of what descriptor `fd` watches, found with the parent's rights.
    fn watched(&mut self, fd: u32, kind: &str, path: &Path, of: &FileIdentity) -> (u64, u64) {
        self.detail = self.arena.detail(&format!("fd {fd} ({kind}) watching {}", path.display()));
        self.opener.assume(&mut self.ops);
        let at = self.arena.text(path.as_os_str().as_bytes());
        (at, place::identity(of, None, self.arena))
    }
}
