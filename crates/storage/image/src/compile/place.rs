//! Opening by path what the parent had there, with the rights that the parent had.
//!
//! ```text
//!  ASSUME ─► OPEN, OPEN, BIND, … ─► RESUME        none of them for a parent that may open anything
//! ```
//! A plan runs with the agent's rights, and a user who may write to a directory may put something else
//! there after the checkpoint. With the parent's own rights nothing is opened that the parent, and so
//! its clone, could not open anyway.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_plan::place::{FILE_CAPABILITIES, Identity, Rights};
use farfork_plan::{Op, Table, What, nr};
use zerocopy::IntoBytes;

use super::arena::Arena;
use crate::model::{FileIdentity, FileStamp, Member};

/// Rights over all files: `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_FOWNER`.
const ALL_FILES: u64 = 1 << 1 | 1 << 2 | 1 << 3;
const EFFECTIVE: usize = 2;
const FILE_SYSTEM: usize = 3;
/// Flags that go together with `O_PATH`.
const HANDLE: u64 = (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;

/// Whose rights are in force where a plan has got to.
pub struct Opener {
    /// Address of the parent's, if it may not open just anything.
    rights: Option<u64>,
    is_assumed: bool,
}

impl Opener {
    /// At the beginning of ops of `member`, where the agent's own are in force.
    pub fn new(member: &Member, arena: &mut Arena) -> Opener {
        let leader = member.threads.first().map(|leader| &leader.credentials);
        let limited = leader.filter(|own| ALL_FILES & !own.capabilities[EFFECTIVE] != 0);
        let rights = limited.map(|own| {
            let groups: Vec<u8> = own.groups.iter().flat_map(|g| g.to_le_bytes()).collect();
            let groups = Table { address: arena.put(&groups, 8), count: own.groups.len() as u64 };
            let (user, group) = (own.uids[FILE_SYSTEM], own.gids[FILE_SYSTEM]);
            let capabilities = own.capabilities[EFFECTIVE] & FILE_CAPABILITIES;
            arena.put(Rights { user, group, groups, capabilities }.as_bytes(), 8)
        });
        Opener { rights, is_assumed: false }
    }

    /// Adds to `ops` what gives the steps after it the parent's rights, if they have not got them.
    pub fn assume(&mut self, ops: &mut Vec<Op>) {
        if let Some(rights) = self.rights.filter(|_| !self.is_assumed) {
            ops.push(Op::new(What::Credentials, nr::ASSUME, &[rights]));
            self.is_assumed = true;
        }
    }

    /// Adds to `ops` what gives the steps after it the agent's rights again.
    pub fn resume(&mut self, ops: &mut Vec<Op>) {
        if self.is_assumed {
            ops.push(Op::new(What::Credentials, nr::RESUME, &[]));
            self.is_assumed = false;
        }
    }
}

/// An op about `what` that opens `path` with `flags`, where there has to be what `wanted`, an
/// address in the plan, says.
pub fn open(what: What, path: &Path, flags: u64, wanted: u64, arena: &mut Arena) -> Op {
    let at = arena.text(path.as_os_str().as_bytes());
    let flags = if flags & libc::O_PATH as u64 != 0 { flags & HANDLE } else { flags };
    Op::new(what, nr::OPEN, &[at, flags, wanted])
}

/// Puts `of` into the plan and gives its address, 0 if nothing is known. With a stamp it also says
/// what must not have been written.
pub fn identity(of: &FileIdentity, stamp: Option<&FileStamp>, arena: &mut Arena) -> u64 {
    if *of == FileIdentity::default() {
        return 0;
    }
    let kind = of.mode & libc::S_IFMT;
    let is_device = kind == libc::S_IFCHR || kind == libc::S_IFBLK;
    let identity = Identity {
        mode: of.mode,
        user: of.user,
        group: of.group,
        // The number of a device says what it is; its owner differs between nodes.
        is_owned: u32::from(!of.is_kernel_s && !is_device),
        device: u64::from(of.device.0) << 32 | u64::from(of.device.1),
        inode: of.inode,
        born_ns: of.born_ns,
        is_bound: u64::from(stamp.is_some()),
        size: stamp.map_or(0, |stamp| stamp.size),
        written_ns: stamp.map_or(0, |stamp| stamp.mtime_ns as i64),
    };
    arena.put(identity.as_bytes(), 8)
}
