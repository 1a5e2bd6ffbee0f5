//! A place of its own for each test: a pool, a run directory, an agent. Struck, it has to be as
//! empty as it was.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farfork_pool::{Pool, mount_tmpfs};
use farfork_tests::patience::Patience;
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, farfork, testbed};
use farfork_types::{CHUNK_BYTES, Cid};
use rustix::mount::{UnmountFlags, unmount};

use crate::pages::parent_of;

/// How long anything may take that does not hang.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The place.
pub struct Scene {
    directory: PathBuf,
    pool: PathBuf,
    /// Whether the pool is a mount of its own, as `farfork pool create` makes it.
    is_pool_mounted: bool,
    agents: Vec<Child>,
}

/// Fails with words.
pub fn fail<T>(what: impl std::fmt::Display) -> Outcome<T> {
    Err(Trouble::Failed(what.to_string()))
}

/// For `map_err`: what was being done.
pub fn during<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> Trouble {
    move |error| Trouble::during(what, error)
}

/// Demands a condition.
pub fn demand(condition: bool, what: impl std::fmt::Display) -> Outcome {
    if condition { Ok(()) } else { fail(what) }
}

/// Waits until `condition` holds.
pub fn await_until(what: &str, mut condition: impl FnMut() -> bool) -> Outcome {
    let is_so = Patience::new(PATIENCE).until(Duration::from_millis(2), &mut condition);
    demand(is_so, format!("waited in vain: {what}"))
}

impl Scene {
    /// A place with a pool of `chunks` chunks, on a tmpfs of its own unless a medium is named.
    pub fn set(chunks: u64) -> Outcome<Scene> {
        let scene = Scene::begin(chunks, testbed::medium().is_none())?;
        if scene.is_pool_mounted {
            fs::create_dir(&scene.pool).map_err(during("making a directory"))?;
            mount_tmpfs(&scene.pool, chunks * CHUNK_BYTES).map_err(during("mounting a tmpfs"))?;
        }
        scene.with_pool(chunks)
    }

    /// The same with a pool that is one directory of several on its tmpfs.
    pub fn set_in_directory(chunks: u64) -> Outcome<Scene> {
        Scene::begin(chunks, false)?.with_pool(chunks)
    }

    fn begin(chunks: u64, is_pool_mounted: bool) -> Outcome<Scene> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farfork-faults-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).map_err(during("making a directory"))?;
        mount_tmpfs(&directory, (chunks + 32) * CHUNK_BYTES).map_err(during("mounting a tmpfs"))?;
        let pool = match testbed::medium() {
            Some(medium) => medium.join(format!("faults-{}-{number}", std::process::id())),
            None => directory.join("pool"),
        };
        let scene = Scene { directory, pool, is_pool_mounted, agents: Vec::new() };
        fs::create_dir(scene.run_directory()).map_err(during("making a directory"))?;
        Ok(scene)
    }

    fn with_pool(self, chunks: u64) -> Outcome<Scene> {
        Pool::create(&self.pool, chunks * CHUNK_BYTES).map_err(during("making a pool"))?;
        Ok(self)
    }

    /// Everything of this test lies here.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the pool is.
    pub fn pool_path(&self) -> PathBuf {
        self.pool.clone()
    }

    /// The file of an image.
    pub fn image_path(&self, cid: Cid) -> PathBuf {
        self.pool.join("images").join(cid.to_string())
    }

    /// The pool, open.
    pub fn pool(&self) -> Outcome<Pool> {
        Pool::open(&self.pool_path()).map_err(during("opening the pool"))
    }

    /// What the path of everything in here begins with.
    fn trace(&self) -> String {
        format!("{}/", self.directory.display())
    }

    fn run_directory(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// A `farfork` command line in this place.
    pub fn command(&self, arguments: &[&str]) -> Outcome<Command> {
        let mut command = farfork::command(arguments)?;
        self.set_place_of(&mut command);
        Ok(command)
    }

    /// Has a command of `farfork` find this place.
    pub fn set_place_of(&self, command: &mut Command) {
        command.env("FARFORK_RUN", self.run_directory()).env("FARFORK_POOL", self.pool_path());
    }

    /// Starts the agent, or another after it has gone. It has no child but its template.
    pub fn agent(&mut self) -> Outcome<u32> {
        self.agent_with(&["--no-spare"])
    }

    /// Starts the agent with an init in advance.
    pub fn agent_with_spare(&mut self) -> Outcome<u32> {
        self.agent_with(&[])
    }

    /// Starts the agent that copies images into memory.
    pub fn agent_that_copies(&mut self) -> Outcome<u32> {
        self.agent_with(&["--copy-images"])
    }

    fn agent_with(&mut self, more: &[&str]) -> Outcome<u32> {
        let mut command = self.with_own_mounts();
        command.arg(farfork::binary()?).arg("node").args(more).arg("--pool").arg(self.pool_path());
        self.start_agent(command)
    }

    /// Starts the agent where it sees what is mounted later.
    pub fn agent_among_mounts(&mut self) -> Outcome<u32> {
        let mut command = Command::new(farfork::binary()?);
        command.args(["node", "--no-spare", "--pool"]).arg(self.pool_path());
        self.start_agent(command)
    }

    /// Starts an agent of the same name beside the other; its run directory.
    pub fn agent_beside(&mut self) -> Outcome<PathBuf> {
        let run = self.directory.join("beside");
        fs::create_dir(&run).map_err(during("making a directory"))?;
        let mut command = self.with_own_mounts();
        command.arg(farfork::binary()?).args(["node", "--no-spare", "--pool"]);
        command.arg(self.pool_path());
        self.start_agent_in(&run, command)?;
        Ok(run)
    }

    /// Starts the agent with a limit of open files, as `prlimit` takes it.
    pub fn agent_with_files(&mut self, limit: &str) -> Outcome<u32> {
        let mut command = self.with_own_mounts();
        command.arg("prlimit").arg(format!("--nofile={limit}")).arg(farfork::binary()?);
        command.arg("node").arg("--pool").arg(self.pool_path());
        self.start_agent(command)
    }

    /// Starts the agent where it takes these for the memory nodes, and for those with processors, as the kernel lists them.
    pub fn agent_with_nodes(&mut self, memory: &str, processors: &str) -> Outcome<u32> {
        let mut script = WITHOUT_OTHERS.to_owned();
        for (name, nodes) in [("has_memory", memory), ("has_cpu", processors)] {
            let list = self.directory.join(name);
            fs::write(&list, nodes).map_err(during("writing a list of nodes"))?;
            let place = format!("/sys/devices/system/node/{name}");
            script += &format!("mount -o bind \"$0/{name}\" {place} || exit 1\n");
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", &format!("{script}exec \"$@\"")]);
        command.arg(&self.directory).arg(farfork::binary()?).args(["node", "--no-spare", "--pool"]);
        command.arg(self.pool_path());
        self.start_agent(command)
    }

    /// Starts the agent where it finds no other programs.
    pub fn agent_without_programs(&mut self) -> Outcome<u32> {
        let mut command = Command::new(farfork::binary()?);
        command.arg("node").env("PATH", "/nowhere");
        self.start_agent(command)
    }

    /// Starts the agent in a PID namespace of its own, where every other pid is free.
    pub fn agent_apart(&mut self) -> Outcome<u32> {
        let mut command = Command::new("unshare");
        let script = format!("{WITHOUT_OTHERS}\"$@\" & wait");
        command.args(["--kill-child", "-pfm", "--mount-proc", "sh", "-c", &script]);
        command
            .arg(&self.directory)
            .arg(farfork::binary()?)
            .args(["node", "--no-spare", "--pool"])
            .arg(self.pool_path());
        let outside = self.start_agent(command)?;
        // unshare, then the shell that reaps the namespace's orphans, then the agent.
        let only_child = |pid: u32| children(pid).first().map_or(0, |child| *child as u32);
        Ok(only_child(only_child(outside)))
    }

    /// Runs a command where nothing of what other tests mount or unmount is seen: an agent would start
    /// another template for each, and some tests look at it.
    fn with_own_mounts(&self) -> Command {
        let mut command = Command::new("unshare");
        let script = format!("{WITHOUT_OTHERS}exec \"$@\"");
        command.args(["--mount", "--", "sh", "-c", &script]).arg(&self.directory);
        command
    }

    fn start_agent(&mut self, command: Command) -> Outcome<u32> {
        self.start_agent_in(&self.run_directory(), command)
    }

    fn start_agent_in(&mut self, run: &Path, mut command: Command) -> Outcome<u32> {
        command.env("FARFORK_RUN", run);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let agent = command.spawn().map_err(during("starting an agent"))?;
        let pid = agent.id();
        self.agents.push(agent);
        let socket = run.join("local.sock");
        await_until("the agent listens", || testbed::agent_pid(&socket).is_ok())?;
        Ok(pid)
    }

    /// Kills the agent that was started last.
    pub fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agents.pop() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    /// Runs a command that has to work; what it prints on stdout.
    pub fn works(&self, arguments: &[&str]) -> Outcome<String> {
        let output = farfork::must_run(self.command(arguments)?)?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs a command that has to fail in words, with this exit status.
    pub fn fails(&self, arguments: &[&str], status: i32, words: &[&str]) -> Outcome {
        let output = farfork::run(self.command(arguments)?)?;
        failed_in_words(&format!("{arguments:?}"), &output, status, words)
    }

    /// Starts a program in this place and waits until it is ready.
    pub fn subject(&self, name: &'static str) -> Outcome<Subject> {
        let mut command = compile::command(&Program::c(name))?;
        command.current_dir("/");
        let mut subject = Subject::start(name, &mut command, PATIENCE)?;
        subject.await_ready()?;
        Ok(subject)
    }

    /// The same in a directory of its own in this place, for one that makes files.
    pub fn subject_in_place(&self, name: &'static str) -> Outcome<Subject> {
        let directory = self.directory.join(name);
        fs::create_dir(&directory).map_err(during("making a directory"))?;
        let mut command = compile::command(&Program::c(name))?;
        command.current_dir(directory);
        let mut subject = Subject::start(name, &mut command, PATIENCE)?;
        subject.await_ready()?;
        Ok(subject)
    }

    /// Checkpoints a subject.
    pub fn checkpoint(&self, subject: &Subject, name: &str) -> Outcome<String> {
        self.works(&["checkpoint", "--pid", &subject.pid().to_string(), "--name", name])
    }

    /// Declares hot what the image has of its parent's memory: `hybrid` makes all of it local.
    pub fn declare_all_hot(&self, parent: &Subject, image: &str) -> Outcome {
        let maps = fs::read_to_string(format!("/proc/{}/maps", parent.pid()));
        let maps = maps.map_err(during("looking at the parent"))?;
        let ranges = maps.lines().filter_map(|line| line.split(' ').next());
        let set = |range| self.works(&["hot", "set", image, range]);
        // Not all of it is in the image.
        let count = ranges.map(set).filter(Outcome::is_ok).count();
        demand(count > 0, "nothing could be declared hot")
    }

    /// Bytes of the pool that no image takes, removed ones included that processes still map. What nodes and
    /// profiles write beside the images counts as free: it comes and goes.
    pub fn free_bytes(&self) -> Outcome<u64> {
        let info = self.pool()?.info().map_err(during("looking at the pool"))?;
        let beside = match self.is_pool_mounted {
            true => beside_images(&self.pool),
            false => info.images.iter().map(|image| image.table_bytes).sum(),
        };
        Ok(info.free_bytes + beside)
    }

    /// What takes room in the pool: each file with its bytes.
    pub fn takes(&self) -> String {
        let command = "find . -type f -printf '%k KiB %s %p\n'; df -k . | tail -1";
        let output = Command::new("sh").args(["-c", command]).current_dir(&self.pool).output();
        output.map_or_else(|error| error.to_string(), |output| farfork::text(&output))
    }

    /// Bytes that the images take which a clone or its page service has, removed ones too.
    pub fn image_bytes_of(&self, clone: i32) -> Outcome<u64> {
        let mut images = BTreeMap::new();
        for pid in [clone, parent_of(clone)?.as_raw()] {
            for kind in ["map_files", "fd"] {
                let entries = fs::read_dir(format!("/proc/{pid}/{kind}"));
                for entry in entries.map_err(during("looking at a clone"))?.flatten() {
                    // The path is that within the pool's mount, where the clone has one of its own.
                    let of_image =
                        |path: PathBuf| path.parent().is_some_and(|at| at.ends_with("images"));
                    if fs::read_link(entry.path()).is_ok_and(of_image) {
                        // A page service may just have closed it.
                        let Ok(file) = fs::metadata(entry.path()) else { continue };
                        images.insert((file.dev(), file.ino()), file.blocks() * 512);
                    }
                }
            }
        }
        demand(!images.is_empty(), "the clone has no image")?;
        Ok(images.values().sum())
    }

    /// Nodes that pin an image, by image.
    pub fn pins(&self) -> Outcome<Vec<(String, Vec<String>)>> {
        let info = self.pool()?.info().map_err(during("looking at the pool"))?;
        let pinned = info.images.into_iter().filter(|image| !image.pinned_by.is_empty());
        Ok(pinned.map(|image| (image.cid, image.pinned_by)).collect())
    }

    /// Demands that nothing of a ghost is left: no state of `runc`, no bundle, no cgroup.
    pub fn has_no_ghost(&self, ghost: &str) -> Outcome {
        let places = self.directory().join("run/local.ghosts");
        let kept = [places.join(ghost), places.join("runc").join(ghost)];
        let left = || -> Vec<PathBuf> {
            let own = kept.iter().filter(|path| path.exists()).cloned();
            own.chain(farfork::cgroups(ghost)).collect()
        };
        await_until("what a ghost had is gone", || left().is_empty())
            .map_err(|_| Trouble::Failed(format!("of ghost {ghost} there is still {:?}", left())))
    }

    /// Demands that `pool check` finds nothing to complain about.
    pub fn check(&self) -> Outcome {
        let said = self.works(&["pool", "check"])?;
        demand(said == "the pool is sound", format!("pool check: {said}"))
    }

    /// Demands that nothing of this place is left but the place, and removes that.
    pub fn strike(mut self) -> Outcome {
        while !self.agents.is_empty() {
            self.kill_agent();
        }
        let trace = self.trace();
        let outcome = await_until("processes of this test are gone", || users(&trace).is_empty())
            .map_err(|_| Trouble::Failed(format!("processes stay behind: {:?}", users(&trace))));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = self.directory.display().to_string();
        let count =
            mounts.split(' ').filter(|word| *word == own || word.starts_with(&trace)).count();
        let expected = 1 + usize::from(self.is_pool_mounted);
        outcome.and(demand(count == expected, format!("mounts stay behind:\n{mounts}")))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        while !self.agents.is_empty() {
            self.kill_agent();
        }
        for pid in users(&self.trace()) {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        let group = self.pool().and_then(|pool| pool.info().map_err(during("looking")));
        let group = group.map(|info| info.charged_to).unwrap_or_default();
        // A killed agent has left pins; what a test has damaged is just files.
        if Pool::destroy_used(&self.pool).is_err() && !self.is_pool_mounted {
            let _ = fs::remove_dir_all(&self.pool);
        }
        // With what is mounted in it.
        let _ = unmount(&self.directory, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.directory);
        // The cgroup of a pool that was damaged stays when it is unmounted.
        if group.starts_with('/') {
            let _ = fs::remove_dir(group);
        }
    }
}

/// Bytes of the files in a pool that are not images.
fn beside_images(pool: &Path) -> u64 {
    let mut bytes = 0;
    let mut directories = vec![pool.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() && entry.file_name() != "images" => {
                    directories.push(entry.path());
                }
                Ok(found) if found.is_file() => bytes += found.blocks() * 512,
                _ => {}
            }
        }
    }
    bytes
}

/// Leaves out of a mount namespace what other tests have mounted (a pool goes
/// with the mount that it lies in): its mount points go with their
/// directories, in every namespace. After it comes what is run, with the scene's directory as `$0`.
const WITHOUT_OTHERS: &str = r#"
    for at in $(cut -d ' ' -f 5 /proc/self/mountinfo); do
        case $at in "$0" | "$0"/*) ;; */farfork-*) umount -l "$at" 2>/dev/null ;; esac
    done
"#;

/// Pids of the children of a process.
pub fn children(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Processes that map or have open something whose path contains `trace`.
pub fn users(trace: &str) -> Vec<i32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| !is_own(*pid) && uses(*pid, trace)).collect()
}

/// Whether it is this process, or one that the pool has forked from it for a moment, in the name of
/// another test maybe: that one has everything open that this process has.
fn is_own(pid: i32) -> bool {
    let command = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command(&pid.to_string()) == command("self")
}

fn uses(pid: i32, trace: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut targets = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    maps.contains(trace) || targets.any(|target| target.to_string_lossy().contains(trace))
}

/// Demands an exit status and a message that a person understands.
pub fn failed_in_words(what: &str, output: &Output, status: i32, words: &[&str]) -> Outcome {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = || format!("{what}: {}\n{}", output.status, farfork::text(output));
    demand(
        output.status.code() == Some(status),
        format!("expected status {status}; {}", report()),
    )?;
    for word in words {
        demand(said.contains(word), format!("expected '{word}'; {}", report()))?;
    }
    for dump in ["(os error", "panicked", "Some(", "None", "Err(", " { ", "unwrap"] {
        demand(!said.contains(dump), format!("saw '{dump}'; {}", report()))?;
    }
    let is_reported = status == 2 || said.starts_with("farfork: ");
    demand(is_reported, format!("expected a message of farfork; {}", report()))
}
