//! Why a call to the agent failed.

use farfork_sys::words;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use farfork_pool::PoolError;
use farfork_restore::RestoreError;
use farfork_types::wire::{AddressRange, InheritedFd};
use farfork_types::{Cid, LocalShare, Tiering};

/// Why a call to the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The clone could not be started.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The pool could not be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The agent reported a failure.
    #[error("{0}")]
    Agent(String),
    /// A descriptor of the image was not supplied.
    #[error(
        "cannot restore image {name}: its external descriptor {place} ({description}) was not given; \
         add --inherit-fd {place}=PATH"
    )]
    MissingDescriptor {
        /// The image.
        name: String,
        /// The descriptor.
        place: InheritedFd,
        /// What the parent had there.
        description: String,
    },
    /// A descriptor was supplied that the image does not take.
    #[error(
        "cannot give image {name} descriptor {place}: --inherit-fd takes only connections to other \
         processes, and sockets with an address of their own"
    )]
    NeedlessDescriptor {
        /// The image.
        name: String,
        /// The descriptor.
        place: InheritedFd,
    },
    /// Another policy decides about each page.
    #[error(
        "cannot profile a clone under {tiering}: its pages are supplied one by one; omit --tiering or \
         --profile"
    )]
    ProfileTiering {
        /// The policy.
        tiering: Tiering,
    },
    /// A share is local, and pages are watched, or another policy decides about them.
    #[error(
        "cannot start a clone with a local share: --local-share excludes --profile and any --tiering but mow"
    )]
    ShareTiering,
    /// The pages of a ghost's clone have been mapped already.
    #[error(
        "cannot change the local share of a clone that waits in its ghost; use an empty ghost, or none"
    )]
    ShareAttached,
    /// Pages are watched, or another policy decides about them.
    #[error(
        "cannot change the share of near memory of clone {pid}: only clones under mow that are not profiled \
         have one; start one with farfork restore --local-share"
    )]
    ShareOfOther {
        /// Its pid, as the client sees it.
        pid: i32,
    },
    /// No page goes back into the pool.
    #[error(
        "cannot lower the share of near memory of clone {pid} from {from} to {to} thousandths: this machine \
         has one kind of memory only, and pages are never given back to the pool; start another clone with \
         farfork restore --local-share {to}"
    )]
    ShareLowered {
        /// Its pid, as the client sees it.
        pid: i32,
        /// What it has.
        from: LocalShare,
        /// What was asked for.
        to: LocalShare,
    },
    /// There is not so much memory.
    #[error(
        "cannot make {bytes} bytes of the image local: the clone's cgroup, or this machine, has less free; \
         ask for a smaller --local-share"
    )]
    ShareRoom {
        /// What would become local.
        bytes: u64,
    },
    /// The policy supplies pages itself.
    #[error(
        "cannot start a clone under {tiering}: its pages can be supplied (userfaultfd) only where the pool \
         lies on tmpfs, and that at {path} does not; use mow, or copy images into memory (farfork node \
         --copy-images)",
        path = pool.display()
    )]
    TieringMedium {
        /// The policy.
        tiering: Tiering,
        /// The pool.
        pool: PathBuf,
    },
    /// Parts of an image lie on another node, which this one cannot use.
    #[error("cannot use the parts of image {cid} that lie at {node}: {reason}")]
    FarParts {
        /// The image.
        cid: Cid,
        /// Address of the other node.
        node: String,
        /// Why, and what to do.
        reason: String,
    },
    /// Clones map a copy, and there cannot be one.
    #[error(
        "image {cid} cannot be copied into this node's memory: {bytes} bytes needed, less free; end clones \
         of other images, or raise the limit of the agent's cgroup"
    )]
    NoRoomForCopy {
        /// The image.
        cid: Cid,
        /// What the copy takes.
        bytes: u64,
    },
    /// A trial needs memory beside that of the parent.
    #[error(
        "image {cid} cannot be tried: {bytes} bytes needed beside the memory of the process itself, less \
         free; end other processes, or raise the limit of the agent's cgroup"
    )]
    NoRoomForTrial {
        /// The image.
        cid: Cid,
        /// What a clone takes of its own.
        bytes: u64,
    },
    /// A trial needs a network namespace.
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
        "the trial of image {cid} did not end within {seconds} s; look for files that block when they are \
         opened (network file systems), or allow more time (farfork checkpoint --verify-timeout)"
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
    /// The kernel cannot distinguish read pages from written ones.
    #[error(
        "clones of the pool at {} cannot be profiled: this kernel does not report which pages of a DAX \
         file system were only read; use Linux 6.15 or later, or keep the image in a pool on tmpfs too \
         (farfork images export, then import)",
        pool.display()
    )]
    ProfileMedium {
        /// The pool.
        pool: PathBuf,
    },
    /// No process of the image maps the range from the pool.
    #[error(
        "no process of the image maps {range} from the pool: the range is shared, was never touched, or \
         is copied into every clone; farfork images show lists the processes"
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
    /// The overlay of a tiering policy could not be written.
    #[error("cannot prepare the overlay of a tiering policy: {}", words::of(.source))]
    Overlay {
        /// Why.
        source: io::Error,
    },
    /// A clone that waits in its ghost is as it is.
    #[error("cannot profile a clone that waits in its ghost; use an empty ghost, or none")]
    ProfileAttached,
    /// The caller has exited before its clone ran.
    #[error("the process that asked for the clone has exited; the clone was ended")]
    CallerGone,
    /// An invalid name of a node.
    #[error(
        "invalid node name '{name}' (expected at most {longest} letters, digits, dots, dashes and \
         underscores, starting with a letter or digit)"
    )]
    BadName {
        /// What was given.
        name: String,
        /// Most bytes.
        longest: usize,
    },
    /// A TCP connection has one process at each end.
    #[error(
        "image {name} holds TCP connections, which can go on in one clone only; end the parent, and start \
         one clone with --pid-mode same"
    )]
    Connections {
        /// The image.
        name: String,
    },
    /// The agent is not root, and cannot make a user namespace.
    #[error(
        "cannot make a user namespace, which a node agent without root needs: {}; run it as root, or \
         allow user namespaces ({})",
        words::of(.source),
        "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp profile"
    )]
    UserNamespace {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The agent is not root, and the image's process ran as another user.
    #[error(
        "cannot restore {name}: its process {what}; a node agent without root starts clones with its own \
         identity only: run the agent as that user, or as root"
    )]
    OtherIdentity {
        /// The image.
        name: String,
        /// In which respect.
        what: String,
    },
    /// The agent is not root, and the clone shall have pids of its choice in a namespace of root's.
    #[error(
        "cannot restore {name} with --pid-mode same: only root can choose pids in this PID namespace; \
         omit the option, and the clone has its pids in a PID namespace of its own"
    )]
    SamePidUnprivileged {
        /// The image.
        name: String,
    },
    /// The agent is not root, and may not supply pages.
    #[error(
        "cannot start a clone under {tiering}: only root may supply its pages (userfaultfd); use mow, or \
         have root allow it to all users (sysctl vm.unprivileged_userfaultfd=1)"
    )]
    TieringUnprivileged {
        /// The policy.
        tiering: Tiering,
    },
    /// A ghost's container could not be made.
    #[error("cannot make ghost {id}: {reason}; farfork doctor shows what ghosts need")]
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
        /// Why, and the remedy.
        reason: String,
    },
    /// A directory of a ghost's cannot be one in memory.
    #[error("cannot make a ghost with a directory of its own at {}: {reason}", .path.display())]
    Tmpfs {
        /// The directory.
        path: PathBuf,
        /// Why, and the remedy.
        reason: String,
    },
    /// The agent is not root.
    #[error(
        "cannot make a ghost: only root can make its network and cgroup; run the node agent as root, or \
         start clones without ghosts"
    )]
    GhostUnprivileged,
    /// No ghost has had this name.
    #[error("no ghost on this node is named {id}; farfork ghost list shows the ghosts")]
    NoGhost {
        /// What was asked for.
        id: String,
    },
    /// The ghost has ended.
    #[error("ghost {id} {what}; start another with farfork ghost start")]
    GhostGone {
        /// Its name.
        id: String,
        /// Why it takes no clone.
        what: String,
    },
    /// The image of a tree cannot wait in a ghost.
    #[error(
        "cannot attach image {name} to a ghost: it has several processes, which wait for each other when \
         they start; use an empty ghost (farfork ghost start without --image)"
    )]
    GhostOfTree {
        /// The image.
        name: String,
    },
    /// The ghost has another image.
    #[error(
        "cannot start {name} in ghost {id}: the ghost holds image {has}; start a ghost for {name}, or an \
         empty one"
    )]
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
        "cannot use --pid-mode same in a ghost: a ghost has a PID namespace of its own; omit the option"
    )]
    GhostSamePid,
    /// The image belongs to another user.
    #[error(
        "cannot start {name} in ghost {id}: the ghost takes images of {user} only; start one for the \
         user of the image (farfork ghost start --user)"
    )]
    GhostOfOther {
        /// The ghost.
        id: String,
        /// The user of the ghost.
        user: String,
        /// The image.
        name: String,
    },
    /// The node has no such clone.
    #[error("no clone has pid {pid} on this node; farfork ps lists the clones")]
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
    #[error("lost the connection to the node agent: {}; clones go on, and farfork node starts a new agent", words::of(.0))]
    Connection(io::Error),
    /// The agent did not answer in time.
    #[error(
        "the node agent does not answer within {} s; it hangs, or was stopped (SIGSTOP, a debugger)",
        .0.as_secs()
    )]
    Late(Duration),
    /// The agent's limit of open files is reached.
    #[error(
        "the node agent has reached its limit of open files; end clones, or start it with a higher limit \
         (ulimit -n)"
    )]
    TooManyFiles,
    /// A message cannot be decoded.
    #[error("protocol version mismatch with the node agent ({0}); use one version of farfork")]
    Protocol(String),
}
