//! Why a checkpoint could not be made.

use std::io;
use std::time::Duration;

use farfork_image::error::ImageError;
use farfork_pool::PoolError;
use farfork_sys::frozen::FrozenGroup;
use farfork_sys::status::StatusError;
use farfork_sys::words;

use crate::descriptors::DescriptorError;
use crate::refuse::Refusal;

/// Why a checkpoint could not be made. Nothing is left in the pool, and the process goes on.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The process does not exist.
    #[error("process {pid} does not exist: check the pid, as seen in this PID namespace")]
    NoProcess {
        /// The pid asked for.
        pid: i32,
    },
    /// The process is the one that checkpoints.
    #[error("cannot checkpoint process {pid}: it is farfork itself; name another process")]
    Itself {
        /// The pid asked for.
        pid: i32,
    },
    /// The process that checkpoints is in the tree.
    #[error(
        "cannot checkpoint the tree: its process {pid} is farfork itself; run farfork from \
         outside of the tree"
    )]
    Descendant {
        /// The process.
        pid: i32,
    },
    /// The process may not be traced.
    #[error("cannot trace process {pid}: {why}")]
    NotPermitted {
        /// The pid asked for.
        pid: i32,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// A thread did not stop in time.
    #[error(
        "cannot stop thread {tid} of process {pid}: {why}; all threads go on running; try again \
         when this one has returned from the kernel"
    )]
    DoesNotStop {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// What keeps it from stopping.
        why: String,
    },
    /// A cgroup of the process is frozen, so that it cannot make calls for the checkpoint.
    #[error("cannot checkpoint process {pid}: its cgroup {group} {when}; {}, then try again", .group.remedy())]
    Frozen {
        /// The process.
        pid: i32,
        /// The cgroup.
        group: Box<FrozenGroup>,
        /// When it was frozen: before the checkpoint, or during it.
        when: &'static str,
    },
    /// Another checkpoint of the process is in progress.
    #[error(
        "cannot checkpoint process {pid}: another farfork checkpoint of it is in progress \
         (process {tracer}); try again when that has ended"
    )]
    UnderWay {
        /// The process.
        pid: i32,
        /// The thread that traces it.
        tracer: u32,
    },
    /// A thread may return to the stub that a killed checkpointer has left.
    #[error(
        "cannot checkpoint process {pid}: thread {tid} runs a signal handler that returns through \
         instructions of a checkpoint that was killed; try again when the handler has returned"
    )]
    Returning {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// The process ended or executed another program meanwhile.
    #[error("process {pid} {what} while it was being checkpointed: try again when it has settled")]
    Changed {
        /// The process.
        pid: i32,
        /// What it did.
        what: &'static str,
    },
    /// A thread of a clone has not reached its parent's code.
    #[error(
        "cannot checkpoint process {pid}: a thread of this clone is still in farfork's code \
         after {} s, without CPU time or blocked in the kernel; try again when it runs",
        waited.as_secs()
    )]
    Arriving {
        /// The process.
        pid: i32,
        /// How long farfork has waited.
        waited: Duration,
    },
    /// Something of the process cannot be carried.
    #[error("cannot checkpoint the process:{}", list(.0))]
    Refused(Vec<Refusal>),
    /// A system call failed.
    #[error("cannot {doing} of process {pid}: {}", words::of(.source))]
    Kernel {
        /// The process.
        pid: i32,
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The vDSO is missing, or has no room for the instructions that make system calls.
    #[error(
        "cannot checkpoint process {pid}: its vDSO is missing or has no room for farfork's \
         instructions; checkpoint 64-bit programs, on a kernel started without vdso=0"
    )]
    NoVdso {
        /// The process.
        pid: i32,
    },
    /// A clone has unmapped what says which image its memory shows.
    #[error(
        "cannot checkpoint process {pid}: it is a clone that has unmapped farfork's memory at {:#x}, \
        without which its image is unknown; leave that memory mapped",
        farfork_plan::window::BASE
    )]
    WindowUnmapped {
        /// The process.
        pid: i32,
    },
    /// A file of `/proc` cannot be read, or has unexpected content.
    #[error("cannot read {what} of process {pid} from /proc: mount /proc of its PID namespace")]
    Proc {
        /// The process.
        pid: i32,
        /// What was to be read.
        what: &'static str,
    },
    /// The descriptors could not be looked at.
    #[error(transparent)]
    Descriptors(#[from] DescriptorError),
    /// The pool could not take the image.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The image could not be written.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl CheckpointError {
    /// The pool's own error, if it is one.
    pub fn pool(&self) -> Option<&PoolError> {
        match self {
            CheckpointError::Pool(error) | CheckpointError::Image(ImageError::Pool(error)) => {
                Some(error)
            }
            _ => None,
        }
    }
}

impl From<StatusError> for CheckpointError {
    fn from(StatusError { pid }: StatusError) -> CheckpointError {
        CheckpointError::Proc { pid, what: "the status" }
    }
}

fn list(refusals: &[Refusal]) -> String {
    refusals.iter().map(|refusal| format!("\n  {refusal}")).collect()
}

/// Turns an I/O error into [`CheckpointError::Kernel`], with the operation that failed.
pub fn doing(pid: i32, doing: &'static str) -> impl Fn(io::Error) -> CheckpointError {
    move |source| CheckpointError::Kernel { pid, doing, source }
}
