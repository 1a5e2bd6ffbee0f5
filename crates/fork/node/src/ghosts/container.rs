//! A container made by `runc`, whose first process is a ghost.
//!
//! ```text
//!  thread of its own:  own mount namespace ─► the node's root at ROOT, layers beside it ─► runc run ─► container
//!                      (gone with the thread, so that the node never sees the mounts)
//! ```
//! `runc` leaves when the container runs; the container's first process becomes a child of this
//! agent, which alone waits for it. The state of `runc` lies in the run directory, so that
//! `runc --root` lists the ghosts of a node.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_image::mounts::LAYER;
use farfork_restore::{Ghost, GhostLauncher, PendingGhost};
use farfork_sys::cgroup::MemoryGroup;
use farfork_sys::freezer::Freezer;
use farfork_sys::layer::Layer;
use farfork_sys::{mounts, pidfd, words};
use nix::mount::{MsFlags, mount};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use rustix::fs::{MemfdFlags, Mode, memfd_create};

use super::bundle::{self, ContainerOptions};
use super::groups;
use super::orphans::{self, Adopting};
use crate::error::NodeError;
use crate::headroom::MemoryHeadroom;

/// How long the first process of a container may take to say that it is a ghost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the containers of one node are kept.
#[derive(Clone, Debug)]
pub struct ContainerPaths {
    directory: PathBuf,
}

/// A container, gone when this is dropped.
#[derive(Debug)]
pub struct Container {
    /// Its name, for `runc` too.
    pub id: String,
    /// Pid of its first process, as seen here.
    pub init_pid: i32,
    init: OwnedFd,
    places: ContainerPaths,
    memory: Option<MemoryGroup>,
    freezer: Option<Freezer>,
}

/// How long it took to make a container.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreationTimes {
    /// Writing what it shall be.
    pub bundle: Duration,
    /// `runc`: namespaces, mounts, cgroup.
    pub container: Duration,
    /// Until its first process waits for an image.
    pub init: Duration,
}

impl ContainerPaths {
    /// Those below `directory`, which need not exist.
    pub fn new(directory: PathBuf) -> ContainerPaths {
        ContainerPaths { directory }
    }

    /// `runc`'s own.
    pub fn state(&self) -> PathBuf {
        self.directory.join("runc")
    }

    /// Bundles, by their containers' names.
    pub fn bundles(&self) -> PathBuf {
        self.directory.clone()
    }

    /// That of one container.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    /// Where the node's root is mounted, visible only to the container.
    fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// The same as [`delete`](ContainerPaths::delete); a failure is logged.
    fn clear(&self, id: &str) {
        if let Err(reason) = self.delete(id) {
            eprintln!("farfork: cannot delete what ghost {id} has left: {reason}");
        }
    }

    /// Deletes what `runc` and this agent have kept of a container. Its processes must have ended.
    pub fn delete(&self, id: &str) -> Result<(), String> {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.state()).args(["delete", "--force", id]);
        let deleted = run(&mut command);
        // Where it was killed while it made the container, it knows of no cgroups. They are known by the bundle.
        groups::remove(&self.bundle(id))?;
        let _ = fs::remove_dir_all(self.bundle(id));
        deleted
    }
}

impl Container {
    /// Makes the container `id` and waits until its ghost does.
    pub fn create(
        places: &ContainerPaths,
        id: String,
        options: &ContainerOptions<'_>,
    ) -> Result<(Container, Ghost, CreationTimes), NodeError> {
        let failed = |reason: String| NodeError::Container { id: id.clone(), reason };
        let begun = Instant::now();
        let root = options.bundle.is_none().then(|| NodeRoot { at: places.root(), options });
        let directory = places.bundle(&id);
        write_bundle(places, &id, options).inspect_err(|_| {
            let _ = fs::remove_dir_all(&directory);
        })?;
        let bundle = begun.elapsed();
        let begun = Instant::now();
        let launcher = GhostLauncher::new()?;
        // From here on a failure may leave something to delete.
        let made = make(places, &id, root.as_ref(), launcher);
        let (pending, init_pid, init) = made.map_err(|reason| {
            places.clear(&id);
            failed(reason)
        })?;
        let memory = MemoryGroup::of_process(init_pid);
        limit_sockets(memory.as_ref(), options).map_err(|error| {
            places.clear(&id);
            failed(format!("cannot limit its sockets' memory: {}", words::of(&error)))
        })?;
        let freezer = groups::freezer(&directory);
        let places = places.clone();
        let container = Container { id, init_pid, init, places, memory, freezer };
        let made = begun.elapsed();
        let begun = Instant::now();
        let ghost = pending.await_hello(init_pid, PATIENCE)?;
        Ok((container, ghost, CreationTimes { bundle, container: made, init: begun.elapsed() }))
    }

    /// The memory that may still be charged to it.
    pub fn headroom(&self) -> MemoryHeadroom {
        MemoryHeadroom::of_group(self.memory.clone())
    }

    /// Bytes of kernel memory charged to it.
    pub fn kernel_bytes(&self) -> Option<u64> {
        self.memory.as_ref()?.kernel_bytes()
    }

    /// A message if processes in it were OOM-killed.
    pub fn shortage(&self) -> Option<String> {
        let group = self.memory.as_ref().filter(|group| group.oom_kills() > 0)?;
        let own = group.limit_bytes().filter(|_| group.has_reached_limit());
        let limit = own.map_or_else(
            || "a limit above that of its ghost".to_owned(),
            |bytes| format!("its ghost's limit of {} MiB", bytes >> 20),
        );
        Some(format!(
            "out of memory in ghost {}: the kernel killed a process, as {limit} was reached; start a \
             ghost with more memory (farfork ghost start --memory)",
            self.id
        ))
    }

    /// Kills all processes in it but the first, which ends when its clone has. Where hundreds run, the clone alone
    /// would take long to end: each waits for a processor.
    pub fn kill_all_but_first(&self) {
        groups::kill_all_but(&self.places.bundle(&self.id), self.init_pid);
    }

    /// Freezes all processes in it.
    pub fn freeze(&self) -> io::Result<()> {
        let none =
            || io::Error::new(io::ErrorKind::Unsupported, "it has no cgroup that can be frozen");
        self.freezer.as_ref().ok_or_else(none)?.freeze()
    }

    /// Thaws it. Processes that were killed meanwhile end now.
    pub fn thaw(&self) -> io::Result<()> {
        self.freezer.as_ref().map_or(Ok(()), Freezer::thaw)
    }

    /// Kills all processes in it, and waits for their end.
    fn end(&self) {
        let _ = pidfd::send_signal(&self.init, libc::SIGKILL);
        let _ = self.thaw();
        // Fails if it was reaped already.
        let _ = waitid(Id::PIDFd(self.init.as_fd()), WaitPidFlag::WEXITED);
        orphans::waited(self.init_pid);
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
        self.places.clear(&self.id);
    }
}

/// The buffers of a container's sockets take this part of its memory limit at most: with cgroup v1 they are not
/// a part of its memory.
const SOCKETS_PART: u64 = 4;

fn limit_sockets(memory: Option<&MemoryGroup>, options: &ContainerOptions<'_>) -> io::Result<()> {
    match memory.zip(options.memory_bytes) {
        Some((group, bytes)) => group.limit_sockets(bytes / SOCKETS_PART),
        None => Ok(()),
    }
}

fn write_bundle(
    places: &ContainerPaths,
    id: &str,
    options: &ContainerOptions<'_>,
) -> Result<(), NodeError> {
    let spec = bundle::spec(id, &places.root(), options)?;
    let directory = places.bundle(id);
    let layers = (0..options.layered.len()).map(|number| bundle::layer_at(&places.root(), number));
    let mut directories = [places.root(), directory.clone()].into_iter().chain(layers);
    let written = directories.try_for_each(fs::create_dir_all).and_then(|()| {
        groups::note(&directory, id, options.group)?;
        let text = serde_json::to_vec(&spec)?;
        fs::write(directory.join("config.json"), text)
    });
    written.map_err(|error| NodeError::Container {
        id: id.to_owned(),
        reason: format!("cannot write {}: {}", directory.display(), words::of(&error)),
    })
}

/// Has `runc` make the container, in a mount namespace where the node's root is at `root`.
fn make(
    places: &ContainerPaths,
    id: &str,
    root: Option<&NodeRoot<'_>>,
    launcher: GhostLauncher,
) -> Result<(PendingGhost, i32, OwnedFd), String> {
    let pid_file = places.bundle(id).join("pid");
    let mut command = Command::new("runc");
    command.arg("--root").arg(places.state()).args(["run", "--detach", "--preserve-fds"]);
    command.arg(GhostLauncher::DESCRIPTORS.to_string()).arg("--pid-file").arg(&pid_file);
    command.arg("--bundle").arg(places.bundle(id)).arg(id);
    // If it is killed, the processes that it leaves are found by their group.
    command.process_group(0);
    let pending = launcher.hand_to(&mut command).map_err(|error| error.to_string())?;
    let adopting = Adopting::begin();
    let mut runc = None;
    let made = thread::scope(|scope| {
        let pid = &mut runc;
        let made = scope.spawn(move || {
            root.map_or(Ok(()), |root| show_root(root).and_then(|()| show_layers(root)))?;
            let (child, said) = begin(&mut command)?;
            *pid = Some(child.id() as i32);
            // With this process's copies of what is the ghost's.
            drop(command);
            end(child, said)
        });
        made.join().unwrap_or_else(|_| Err("the thread that ran runc has panicked".to_owned()))
    });
    let first = made.and_then(|()| first_process(&pid_file)).inspect_err(|_| {
        adopting.end_all(runc, &places.bundle(id));
    });
    first.map(|(pid, init)| {
        adopting.keep(pid);
        (pending, pid, init)
    })
}

/// What `runc` says is the first process of the container.
fn first_process(pid_file: &Path) -> Result<(i32, OwnedFd), String> {
    let text = fs::read_to_string(pid_file).map_err(|error| words::of(&error))?;
    let pid = text.trim().parse().map_err(|_| format!("runc reported the invalid pid '{text}'"))?;
    let init = pidfd::open(pid).map_err(|error| words::of(&error))?;
    Ok((pid, init))
}

/// The node's root file system, as a container sees it.
struct NodeRoot<'o> {
    /// Where it is mounted.
    at: PathBuf,
    options: &'o ContainerOptions<'o>,
}

/// Gives this thread a mount namespace of its own, and mounts the node's root in it.
fn show_root(root: &NodeRoot<'_>) -> Result<(), String> {
    mount_root(root).map_err(|error| {
        format!("cannot mount the node's root file system in it: {}", words::of(&error))
    })
}

/// `runc` cannot use its own root as the root of a container.
fn mount_root(root: &NodeRoot<'_>) -> io::Result<()> {
    mounts::own_namespace()?;
    // Of this thread, which now shares no such state with others, and of `runc`: directories that it makes for
    // mounts are on the way of processes of other users.
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let nothing = None::<&str>;
    mount(Some("/"), &root.at, nothing, MsFlags::MS_REC | MsFlags::MS_BIND, nothing)?;
    // All of it, whichever of the node's directories are world-writable.
    if root.options.is_read_only { mounts::make_read_only(&root.at) } else { Ok(()) }
}

/// What is in a layer takes this part of the container's memory at most: a process that has filled it gets an error
/// before it is killed for its memory.
const LAYER_PART: u64 = 2;

/// Mounts the container's layers where `runc` finds them. The node's root in it is not one of their places.
fn show_layers(root: &NodeRoot<'_>) -> Result<(), String> {
    let most_bytes = root.options.memory_bytes.map(|bytes| bytes / LAYER_PART);
    for (number, lower) in root.options.layered.iter().enumerate() {
        let at = bundle::layer_at(&root.at, number);
        let layer = Layer { name: LAYER, lower, at: &at, most_bytes };
        layer.mount().map_err(|error| {
            let directory = lower.display();
            format!("cannot mount a layer over {directory} for it: {}", words::of(&error))
        })?;
    }
    Ok(())
}

/// Runs a command of `runc` to its end. If it fails, returns its standard error.
fn run(command: &mut Command) -> Result<(), String> {
    let (child, said) = begin(command)?;
    end(child, said)
}

/// Starts it, and returns the file with its standard error. Processes that it leaves running keep that
/// open, so it is not a pipe, whose end would never come.
fn begin(command: &mut Command) -> Result<(Child, File), String> {
    let said = memfd_create("runc", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let said = File::from(said);
    let stderr = said.try_clone().map_err(failed)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    Ok((command.spawn().map_err(failed)?, said))
}

fn end(mut child: Child, mut said: File) -> Result<(), String> {
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    said.rewind().and_then(|()| said.read_to_string(&mut text)).map_err(failed)?;
    match status.signal() {
        Some(signal) => Err(format!("runc was killed by signal {signal}")),
        None => Err(format!("runc failed: {}", text.trim())),
    }
}

fn failed(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "runc is not installed; install it (apt-get install runc)".to_owned()
        }
        _ => format!("cannot run runc: {}", words::of(&error)),
    }
}
