//! Why a clone could not be started.

use farfork_sys::words;
use std::io;

use farfork_image::error::ImageError;
use farfork_plan::What;
use farfork_pool::PoolError;
use farfork_types::Cid;

/// Why a clone could not be started. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The image could not be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The pool could not be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The image does not fit this machine.
    #[error("image {cid} cannot run here: {reason}; run it on a node like the one it was made on")]
    Incompatible {
        /// The image.
        cid: Cid,
        /// In which respect.
        reason: String,
    },
    /// Files that the process has open or mapped have changed.
    #[error(
        "cannot restore image {cid}: files are not as they were at the checkpoint:{}\nput them back, or \
         make the image again",
        list(.changes)
    )]
    FilesChanged {
        /// The image.
        cid: Cid,
        /// One line each.
        changes: Vec<String>,
    },
    /// A step of the plan failed.
    #[error("cannot restore image {cid}: {}{}", failure(.what, .detail, .source), advice(.what, .source))]
    Step {
        /// The image.
        cid: Cid,
        /// Which kind of step.
        what: Option<What>,
        /// What it was about, empty if nothing particular.
        detail: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The restorer did not start, or has exited.
    #[error("cannot {doing}: {}; look for memory or process limits", words::of(.source))]
    Restorer {
        /// What failed, verb first.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The agent may not make containers.
    #[error(
        "cannot start clones: this node's agent lacks CAP_SYS_ADMIN; run farfork as root, or see farfork \
         doctor for what is missing"
    )]
    NoRights,
    /// The clone did not run in time.
    #[error(
        "the clone of image {cid} did not start within {seconds} s and was ended; look for files that \
         block when they are opened (named pipes, network file systems), or allow more time with --timeout"
    )]
    TooSlow {
        /// The image.
        cid: Cid,
        /// How long it had.
        seconds: u64,
    },
    /// The clone was killed before it ran.
    #[error("the clone of image {cid} was killed before it ran; look for memory limits")]
    Killed {
        /// The image.
        cid: Cid,
    },
}

fn list(changes: &[String]) -> String {
    changes.iter().map(|change| format!("\n  {change}")).collect()
}

/// Which step failed, and why.
pub(crate) fn failure(what: &Option<What>, detail: &str, source: &io::Error) -> String {
    format!("{} failed{}: {}", step(what), about(detail), words::of(source))
}

fn about(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" for {detail}") }
}

fn step(what: &Option<What>) -> &'static str {
    match what {
        Some(What::Map) => "mapping memory",
        Some(What::Fill) => "filling memory",
        Some(What::MemoryLayout) => "describing the address space to the kernel",
        Some(What::Vdso) => "placing the vDSO",
        Some(What::File) => "opening a file",
        Some(What::Descriptor) => "making a descriptor",
        Some(What::Signal) => "restoring signals",
        Some(What::Timer) => "restoring a timer",
        Some(What::Directory) => "entering the working directory",
        Some(What::Credentials) => "restoring user and group ids",
        Some(What::Attribute) => "restoring an attribute",
        Some(What::Thread) => "creating a thread with its id",
        Some(What::Process) => "creating the process with its pid",
        Some(What::Container) => "mounting /proc in the new container",
        Some(What::Lock) => "taking a lock again",
        Some(What::Supervisor) => "installing the supervisor of memory calls",
        Some(What::Mount) => "mounting",
        Some(What::SharedMemory) => "making shared memory",
        Some(What::Scheduling) => "setting priorities",
        Some(What::Address) => "giving a socket its address",
        Some(What::Reset) => "resetting a connection that does not go on",
        Some(What::Kinship) => "placing a process in its session and group",
        Some(What::Clocks) => "setting its clocks to continue those of its parent",
        Some(What::SystemV) => "making a System V IPC object",
        Some(What::Pages) => "setting up its page service (userfaultfd)",
        Some(What::Watch) => {
            "watching its pages (userfaultfd with WP_ASYNC, Linux 6.7; farfork doctor)"
        }
        Some(What::HugePages) => "mapping huge pages of hugetlbfs",
        Some(What::AsyncIo) => "making a Linux AIO context",
        Some(What::FarMemory) => {
            "taking new memory from far nodes (mbind, Linux 5.15; it will be near)"
        }
        None => "a step",
    }
}

fn advice(what: &Option<What>, source: &io::Error) -> &'static str {
    match (what, source.raw_os_error()) {
        (Some(What::Process | What::Thread), Some(libc::EEXIST)) => {
            "; the pid is taken in this PID namespace: use --pid-mode new, or end that process"
        }
        (Some(What::Address), Some(libc::EADDRINUSE)) => {
            "; another process, maybe the parent, uses the address: give the clone another \
             (--inherit-fd FD=tcp:ADDRESS:PORT, udp:ADDRESS:PORT or listen:PATH), or, unless it is a \
             path, start it on a node in a network namespace of its own (ip netns exec NAME \
             farfork restore --node NAME)"
        }
        (Some(What::Lock), Some(libc::ESTALE)) => {
            "; its files were written to since the checkpoint, so they are not as they were: put them \
             back, or make the image again"
        }
        (_, Some(libc::ESTALE | libc::ELOOP)) => {
            "; its path leads to something else than at the checkpoint, or to a file that was written \
             since: put back what was there, without symbolic links on the way, or make the image again"
        }
        (Some(What::Address), Some(libc::EADDRNOTAVAIL | libc::ENODEV)) => {
            "; no interface of the node's network namespace has it: add it there (ip address \
             add, ip link set lo up), or give the clone another with --inherit-fd"
        }
        (Some(What::Address), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
            "; the node's network namespace has no route to it: add one (ip route add), or start \
             the clone on another node"
        }
        (Some(What::Lock), Some(libc::EAGAIN | libc::EACCES)) => {
            "; another process holds it, the parent perhaps: end it first (farfork checkpoint \
             --kill), or have the parent release the lock before the checkpoint"
        }
        (Some(What::HugePages), Some(libc::ENOMEM)) => {
            "; the node has too few free huge pages of that size: set more aside (vm.nr_hugepages, \
             or /sys/kernel/mm/hugepages for other sizes), or let it find them when they are needed \
             (vm.nr_overcommit_hugepages)"
        }
        (Some(What::AsyncIo), Some(libc::EAGAIN)) => {
            "; the limit of AIO requests is reached: raise fs.aio-max-nr"
        }
        (Some(What::AsyncIo), Some(libc::EOVERFLOW)) => {
            "; AIO rings are larger on this node, which has more processors: start the clone on a node \
             with at most as many processors as the parent's"
        }
        (Some(What::Map | What::Fill), Some(libc::ENOMEM)) => {
            "; look for memory limits, and for the limit of mappings (vm.max_map_count), of which a clone \
             has more than its parent"
        }
        (_, Some(libc::EPERM)) => "; run as root, or see farfork doctor for what is missing",
        (_, Some(libc::ENOMEM | libc::EAGAIN)) => "; look for memory or process limits",
        _ => "",
    }
}
