//! Layers: views of a directory to which processes can write without a change of the directory.
//!
//! ```text
//!  the view = overlay ─┬─ upper: a tmpfs of its own; a page is charged to the cgroup of the process that writes it
//!                      └─ lower: the directory, never written
//! ```
//! The tmpfs has no other name, and goes with the view. What is put into the directory later, under a name that
//! no process has looked for in the view, is seen there.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};

use crate::mounts;

/// A view of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// What the mount calls itself.
    pub name: &'a str,
    /// The directory that is seen.
    pub lower: &'a Path,
    /// Where the view is to be.
    pub at: &'a Path,
    /// What may be written, in bytes: half of the machine's memory if not given.
    pub most_bytes: Option<u64>,
}

impl Layer<'_> {
    /// Mounts it in this thread's mount namespace.
    ///
    /// # Errors
    /// The kernel has no overlayfs, or it cannot show this directory; this process may not mount.
    pub fn mount(&self) -> io::Result<()> {
        let Layer { name, lower, at, most_bytes } = *self;
        let found = fs::metadata(lower)?;
        let size = most_bytes.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
        let options = format!("mode=0700{size}");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some(name), at, Some("tmpfs"), flags, Some(&*options))?;
        let (upper, work) = (at.join("upper"), at.join("work"));
        for directory in [&upper, &work] {
            DirBuilder::new().mode(0o700).create(directory)?;
        }
        // The view has the owner and mode of this.
        chown(&upper, Some(found.uid()), Some(found.gid()))?;
        fs::set_permissions(&upper, Permissions::from_mode(found.mode() & 0o7777))?;
        // Over the tmpfs, which has no name after that.
        mount(Some(name), at, Some("overlay"), flags, Some(&*options_of(lower, &upper, &work)))?;
        Ok(())
    }

    /// Tries whether it can be mounted, in a mount namespace of its own.
    ///
    /// # Errors
    /// As [`mount`](Layer::mount).
    pub fn try_out(&self) -> io::Result<()> {
        let mount_apart = || {
            mounts::own_namespace()?;
            self.mount()
        };
        thread::scope(|scope| {
            let tried = scope.spawn(mount_apart).join();
            tried.unwrap_or_else(|_| Err(io::Error::other("a thread of farfork's panicked")))
        })
    }
}

fn options_of(lower: &Path, upper: &Path, work: &Path) -> OsString {
    let parts = [("lowerdir=", lower), (",upperdir=", upper), (",workdir=", work)];
    let mut written = parts.map(|(key, path)| [key.as_bytes(), &escaped(path)].concat()).concat();
    // A watch (inotify) is known by the handle of its file alone, and only with these do handles lead to files. Where
    // the file system of `lower` has none, the kernel goes on without.
    written.extend(b",index=on,nfs_export=on");
    OsString::from_vec(written)
}

/// A path as an option: a comma would end it, a colon begin another directory.
fn escaped(path: &Path) -> Vec<u8> {
    let mut escaped = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b',' | b':') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::inotify;

    use super::*;
    use crate::handle;

    /// Runs `look` at a view of `lower`, in a mount namespace of its own. Returns false where it cannot be mounted.
    fn viewed(lower: &Path, most_bytes: Option<u64>, look: impl Fn(&Path) + Sync) -> bool {
        if !rustix::process::geteuid().is_root() {
            return false;
        }
        let at = tempfile::tempdir().unwrap();
        let layer = Layer { name: "test", lower, at: at.path(), most_bytes };
        thread::scope(|scope| {
            scope.spawn(|| {
                mounts::own_namespace().unwrap();
                layer.mount().unwrap();
                look(at.path());
            });
        });
        assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0, "it went with its thread");
        true
    }

    #[test]
    fn what_is_written_to_a_view_stays_in_it() {
        let lower = tempfile::tempdir().unwrap();
        // Characters that mean something in options.
        let lower = lower.path().join(r"a:b,c\d");
        fs::create_dir(&lower).unwrap();
        fs::set_permissions(&lower, Permissions::from_mode(0o751)).unwrap();
        fs::write(lower.join("file"), "old").unwrap();
        let is_viewed = viewed(&lower, None, |view| {
            assert_eq!(fs::metadata(view).unwrap().mode() & 0o7777, 0o751);
            fs::write(view.join("file"), "new").unwrap();
            fs::write(view.join("more"), "x").unwrap();
            fs::write(lower.join("later"), "seen").unwrap();
            assert_eq!(fs::read_to_string(view.join("later")).unwrap(), "seen");
            assert_eq!(fs::read_to_string(view.join("file")).unwrap(), "new");
        });
        if is_viewed {
            let names = fs::read_dir(&lower).unwrap().count();
            assert_eq!((names, &*fs::read_to_string(lower.join("file")).unwrap()), (2, "old"));
        }
    }

    #[test]
    fn files_of_a_view_are_found_by_their_handles() {
        let lower = tempfile::tempdir().unwrap();
        fs::create_dir(lower.path().join("directory")).unwrap();
        fs::write(lower.path().join("file"), "old").unwrap();
        fs::write(lower.path().join("written"), "old").unwrap();
        viewed(lower.path(), None, |view| {
            fs::write(view.join("written"), "new").unwrap();
            fs::write(view.join("new"), "new").unwrap();
            let mount = fs::File::open(view).unwrap();
            for name in ["", "directory", "file", "written", "new"] {
                let named = fs::metadata(view.join(name)).unwrap();
                let (kind, bytes) = handle_of(&view.join(name));
                let found = fs::File::from(handle::open(&mount, kind, &bytes).expect(name));
                assert_eq!(found.metadata().unwrap().ino(), named.ino(), "{name}");
            }
        });
    }

    /// Kind and bytes of a handle, as the kernel shows it of a watch.
    fn handle_of(path: &Path) -> (i32, Vec<u8>) {
        let flags = inotify::CreateFlags::CLOEXEC;
        let watching = inotify::init(flags).unwrap();
        inotify::add_watch(&watching, path, inotify::WatchFlags::MODIFY).unwrap();
        let shown = format!("/proc/self/fdinfo/{}", watching.as_raw_fd());
        let shown = fs::read_to_string(shown).unwrap();
        let field = |key: &str| {
            let mut words = shown.split_whitespace();
            words.find_map(|word| word.strip_prefix(key)).unwrap().to_owned()
        };
        let digits = field("f_handle:");
        let bytes = (0..digits.len()).step_by(2);
        let bytes = bytes.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect();
        (i32::from_str_radix(&field("fhandle-type:"), 16).unwrap(), bytes)
    }

    #[test]
    fn a_view_takes_no_more_than_its_limit() {
        let lower = tempfile::tempdir().unwrap();
        viewed(lower.path(), Some(1 << 20), |view| {
            let full = fs::write(view.join("large"), vec![1; 2 << 20]).unwrap_err();
            assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        });
    }

    #[test]
    fn a_trial_leaves_nothing() {
        let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(lower.path().join("file"), "seen while it is mounted").unwrap();
        let layer = Layer { name: "test", lower: lower.path(), at: at.path(), most_bytes: None };
        if rustix::process::geteuid().is_root() {
            layer.try_out().unwrap();
            assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_cannot_be_mounted_is_an_error() {
        let at = tempfile::tempdir().unwrap();
        let lower = Path::new("/nowhere/at/all");
        let layer = Layer { name: "test", lower, at: at.path(), most_bytes: None };
        let expected = match rustix::process::geteuid().is_root() {
            true => io::ErrorKind::NotFound,
            false => io::ErrorKind::PermissionDenied,
        };
        assert_eq!(layer.try_out().unwrap_err().kind(), expected);
    }
}
