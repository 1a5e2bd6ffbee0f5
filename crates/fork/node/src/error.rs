//! Why a call to the agent failed.

use farfork_sys::words;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use farfork_pool::PoolError;
use farfork_restore::RestoreError;
use farfork_types::wire::{AddressRange, InheritedFd};
use farfork_types::{Cid, Tiering};

/// Why a call to the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The clone could not be started.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The pool could not be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The agent said no.
    #[error("{0}")]
    Agent(String),
    /// A descriptor of the image was not supplied.
    #[error(
        "image {name} needs descriptor {place} ({description}) from outside: give it with \
         --inherit-fd {place}=PATH"
    )]
    MissingDescriptor {
        /// The image.
        name: String,
        /// The descriptor.
        place: InheritedFd,
        /// What the parent had there.
        description: String,
    },
    /// A descriptor was supplied that the image has no place for.
    #[error(
        "image {name} does not take descriptor {place} from outside: only connections to others, and \
         sockets with an address of their own, can be given with --inherit-fd"
    )]
    NeedlessDescriptor {
        /// The image.
        name: String,
        /// The descriptor.
        place: InheritedFd,
    },
    /// Another policy decides about each page.
    #[error(
        "a clone under {tiering} cannot be profiled, since its pages are supplied one by one: leave \
         --tiering out, or --profile"
    )]
    ProfileTiering {
        /// The policy.
        tiering: Tiering,
    },
    /// The policy supplies pages itself.
    #[error(
        "a clone cannot start under {tiering}: the kernel lets pages be supplied (userfaultfd) only \
         where a pool lies on tmpfs, and that at {path} does not; use mow, or have images copied into \
         memory (farfork node --copy-images)",
        path = pool.display()
    )]
    TieringMedium {
        /// The policy.
        tiering: Tiering,
        /// The pool.
        pool: PathBuf,
    },
    /// Clones map a copy, and there cannot be one.
    #[error(
        "image {cid} is to be copied into this node's memory, {bytes} bytes, and less is free there: end \
         clones of other images, or raise the limit of the agent's cgroup"
    )]
    NoRoomForCopy {
        /// The image.
        cid: Cid,
        /// What the copy takes.
        bytes: u64,
    },
    /// A trial takes memory beside that of the parent.
    #[error(
        "image {cid} cannot be tried: that takes {bytes} bytes of memory beside the process's own, and \
         less is free; end other processes, or raise the limit of the agent's cgroup"
    )]
    NoRoomForTrial {
        /// The image.
        cid: Cid,
        /// What a clone takes of its own.
        bytes: u64,
    },
    /// There is no network for a trial.
    #[error(
        "cannot make a network namespace to try an image in: {}; raise user.max_net_namespaces, or give the \
         agent CAP_SYS_ADMIN",
        words::of(.source)
    )]
    TrialNetwork {
        /// The kernel's answer.
        source: io::Error,
    },
    /// A clone took too long.
    #[error(
        "the trial of image {cid} did not end within {seconds} s: look for files that block whoever opens \
         them (network file systems), or give it longer (farfork checkpoint --verify-timeout)"
    )]
    TrialTooSlow {
        /// The image.
        cid: Cid,
        /// How long it had.
        seconds: u64,
    },
    /// The last thing that a clone does failed.
    #[error(
        "cannot restore image {cid}: installing its seccomp filters failed; look for memory limits"
    )]
    TrialFilters {
        /// The image.
        cid: Cid,
    },
    /// What was read would look as if it had been written.
    #[error(
        "a clone of the pool at {} cannot be profiled: this kernel does not tell which pages of a \
         DAX file system were only read; use Linux 6.15 or later, or keep the image in a pool on \
         tmpfs too (farfork images export, then import)",
        pool.display()
    )]
    ProfileMedium {
        /// The pool.
        pool: PathBuf,
    },
    /// A range was named that the clone does not map from the pool.
    #[error(
        "no process of the image maps {range} from the pool: it is shared, or was never touched, or \
         every clone has a copy of it anyway; farfork images show tells which processes it has"
    )]
    NotMapped {
        /// The range.
        range: AddressRange,
    },
    /// The pages of a clone could not be made local.
    #[error("cannot make pages of clone {pid} local: {}", words::of(.source))]
    Promotion {
        /// Its pid, as the client sees it.
        pid: i32,
        /// Why; it may have ended.
        source: io::Error,
    },
    /// What the tiering policy wants could not be laid down.
    #[error("cannot prepare what the tiering policy wants of the clone's pages: {}", words::of(.source))]
    Overlay {
        /// Why.
        source: io::Error,
    },
    /// A clone that waits in its ghost is as it is.
    #[error("a clone that waits in its ghost is not watched: use an empty ghost, or none")]
    ProfileAttached,
    /// Whoever asked for a clone has gone, before it ran.
    #[error("whoever asked for the clone has gone: it was ended")]
    CallerGone,
    /// What was given cannot name a node.
    #[error(
        "'{name}' is no name of a node: take at most {longest} letters, digits, dots, dashes and \
         underscores, the first one a letter or digit"
    )]
    BadName {
        /// What was given.
        name: String,
        /// Most bytes.
        longest: usize,
    },
    /// A connection has one process at each end.
    #[error(
        "image {name} holds TCP connections that go on where its parent ended: start it with \
         --pid-mode same, once"
    )]
    Connections {
        /// The image.
        name: String,
    },
    /// The agent is not root, and there is no user namespace for it.
    #[error(
        "cannot make a user namespace, in which a node agent works that is not root: {}; run it as \
         root, or allow user namespaces ({})",
        words::of(.source),
        "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp profile"
    )]
    UserNamespace {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The agent is not root, and the image's process was somebody else.
    #[error(
        "cannot restore {name}: its process {what}; a node agent that is not root starts clones \
         with its own identity only: have the agent run as that user, or as root"
    )]
    OtherIdentity {
        /// The image.
        name: String,
        /// In which respect.
        what: String,
    },
    /// The agent is not root, and the clone shall have pids of its choice in a namespace of root's.
    #[error(
        "cannot restore {name} with --pid-mode same: the kernel lets only root choose pids in this \
         PID namespace; leave the option out, and the clone has them in a PID namespace of its own"
    )]
    SamePidUnprivileged {
        /// The image.
        name: String,
    },
    /// The agent is not root, and may not supply pages.
    #[error(
        "a clone cannot start under {tiering} here: the kernel lets only root supply a clone's pages \
         (userfaultfd); use mow, or have root allow it to all users (sysctl \
         vm.unprivileged_userfaultfd=1)"
    )]
    TieringUnprivileged {
        /// The policy.
        tiering: Tiering,
    },
    /// A ghost's container could not be made.
    #[error("cannot make ghost {id}: {reason}; farfork doctor tells what ghosts need")]
    Container {
        /// Its name.
        id: String,
        /// Why.
        reason: String,
    },
    /// A bundle is not fit for a ghost.
    #[error("cannot make a ghost from the bundle {}: {reason}", .path.display())]
    Bundle {
        /// Its directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// A directory of a ghost's cannot be one in memory.
    #[error("cannot make a ghost with an empty directory at {}: {reason}", .path.display())]
    Tmpfs {
        /// The directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The agent is not root.
    #[error(
        "ghosts are containers with networks and cgroups of their own, which only root can make: run \
         the node agent as root, or start clones without ghosts"
    )]
    GhostUnprivileged,
    /// There never was such a ghost.
    #[error("no ghost on this node is named {id}: farfork ghost list tells which there are")]
    NoGhost {
        /// What was asked for.
        id: String,
    },
    /// The ghost is no more.
    #[error("ghost {id} {what}: start another with farfork ghost start")]
    GhostGone {
        /// Its name.
        id: String,
        /// What became of it.
        what: String,
    },
    /// A tree waits nowhere.
    #[error(
        "image {name} is of several processes, which wait for each other when they start: start it in \
         an empty ghost (farfork ghost start without --image)"
    )]
    GhostOfTree {
        /// The image.
        name: String,
    },
    /// The ghost has another image.
    #[error("ghost {id} has image {has} and no other: start one for {name}, or an empty one")]
    GhostOfImage {
        /// The ghost.
        id: String,
        /// The name by which its image was asked for.
        has: String,
        /// The image.
        name: String,
    },
    /// A ghost has a PID namespace of its own.
    #[error(
        "a clone in a ghost has its pids in the ghost's PID namespace: leave out --pid-mode same"
    )]
    GhostSamePid,
    /// The image is somebody else's.
    #[error(
        "ghost {id} takes images of {user} only, and {name} is none: start one for its user (farfork \
         ghost start --user)"
    )]
    GhostOfOther {
        /// The ghost.
        id: String,
        /// Whose it is.
        user: String,
        /// The image.
        name: String,
    },
    /// There is no such clone here.
    #[error("no clone has pid {pid} on this node: farfork ps lists them")]
    NoClone {
        /// The pid asked for.
        pid: i32,
    },
    /// The agent's socket cannot be used.
    #[error("cannot {doing} the node agent at {}: {}; see farfork node --help", .path.display(), words::of(.source))]
    Socket {
        /// What was being done.
        doing: &'static str,
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the node agent went away: {}; clones go on, and farfork node starts a new one", words::of(.0))]
    Connection(io::Error),
    /// It says nothing for longer than whoever asks waits.
    #[error(
        "the node agent does not answer within {} s: it hangs, or was stopped (SIGSTOP, a debugger)",
        .0.as_secs()
    )]
    Late(Duration),
    /// The agent's limit of open files is reached.
    #[error(
        "the node agent has as many files open as it may: end clones, or start it with a higher \
         limit (ulimit -n)"
    )]
    TooManyFiles,
    /// What came over the connection is no known message.
    #[error("the node agent speaks another language ({0}): is it another version of farfork?")]
    Language(String),
}
