//! A place for pools: a tmpfs with huge pages where we may mount one, else a plain directory.
#![allow(dead_code)] // Every test program uses a part of it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use farfork_pool::{Extent, NodeRow, PinFile, Pool, mount_tmpfs};
use farfork_types::{CHUNK_BYTES, Cid};

pub struct Place {
    dir: tempfile::TempDir,
    pub mounted: bool,
    /// Cgroups of the pools made here.
    groups: RefCell<Vec<String>>,
}

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let mounted = match mount_tmpfs(dir.path(), 256 << 20) {
            Ok(()) => true,
            Err(error) => {
                println!("testing on a plain directory: {error}");
                false
            }
        };
        Place { dir, mounted, groups: RefCell::default() }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    pub fn pool(&self, chunks: u64) -> Pool {
        let pool = Pool::create(&self.path(), chunks * CHUNK_BYTES).unwrap();
        self.groups.borrow_mut().push(pool.info().unwrap().charged_to);
        pool
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Pool::destroy(&self.path());
        // What a test left unreadable on purpose cannot be destroyed.
        for group in self.groups.borrow().iter().filter(|group| group.starts_with('/')) {
            let _ = std::fs::remove_dir(group);
        }
        if self.mounted {
            let detach = rustix::mount::UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(self.dir.path(), detach);
        }
    }
}

/// Publishes an image of `chunks` chunks, every byte of which is `fill`.
pub fn publish(pool: &Pool, chunks: u32, fill: u8) -> Cid {
    let mut writer = pool.begin().unwrap();
    for extent in writer.allocate(chunks).unwrap() {
        writer.bytes_mut(extent).fill(fill);
    }
    writer.publish(1).unwrap()
}

/// The file with the pins of a node, which stays where it is.
pub fn pins(pool: &Pool, node: &str) -> PinFile {
    PinFile::open(&pool.path().with_extension(node)).unwrap()
}

/// Registers a node with a file of its own.
pub fn register(pool: &Pool, node: &str) -> NodeRow {
    pool.register_node(node, &pins(pool, node)).unwrap()
}

/// Whether every byte of the extents is `fill`.
pub fn is_filled(pool: &Pool, extents: &[Extent], fill: u8) -> bool {
    let bytes = |run: &Extent| pool.bytes(run.offset, run.bytes()).unwrap();
    extents.iter().all(|run| bytes(run).iter().all(|byte| *byte == fill))
}

/// Runs the test `child` of this program in a process of its own.
pub fn child(role: &str, pool: &Path, cid: Cid, step: Option<u64>) -> Child {
    let program = Command::new(std::env::current_exe().unwrap());
    let mut command = as_child(program, role, pool, cid);
    if let Some(step) = step {
        command.env("FARFORK_KILL_AT_STEP", step.to_string());
    }
    command.spawn().unwrap()
}

/// Lets a command that ends in this program run the test `child`.
pub fn as_child(mut command: Command, role: &str, pool: &Path, cid: Cid) -> Command {
    command
        .args(["--exact", "child"])
        .env("ROLE", role)
        .env("POOL", pool)
        .env("CID", cid.to_string())
        .stdout(Stdio::null())
        .stdin(Stdio::piped());
    command
}

/// What `child` gave the process that it started: role, pool, image. `None` in any other process.
pub fn orders() -> Option<(String, Pool, Cid)> {
    let Ok(role) = std::env::var("ROLE") else {
        println!("nothing to do: the other tests run this one in processes of its own");
        return None;
    };
    let pool = Pool::open(Path::new(&std::env::var("POOL").unwrap())).unwrap();
    Some((role, pool, std::env::var("CID").unwrap().parse().unwrap()))
}

/// Whether the process was killed; panics if it failed in another way.
pub fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    match status.signal() {
        Some(9) => true,
        _ => {
            assert!(status.success(), "the child failed: {status}");
            false
        }
    }
}
