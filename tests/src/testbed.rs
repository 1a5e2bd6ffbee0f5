//! What all tests of one test binary share: a directory, a pool, other nodes.
//!
//! The pool lies on a tmpfs with huge pages that is mounted for it, or in the directory that
//! [`MEDIUM`] names: so the same tests show other media at work.
//!
//! Agents listen below that directory: those of the machine, or of other checkouts, never answer.

use crate::patience::Patience;
use crate::places::base;
pub use crate::places::{run_directory, work_dir};
use crate::{Outcome, Trouble, farfork};
use farfork_pool::Pool;
use farfork_sys::sync::locked;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt,
};
use nix::unistd::Pid;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

const POOL_SIZE: &str = "6G";
/// The pool and its metadata; sparse, so only what images hold is used.
const TMPFS_OPTIONS: &str = "huge=always,size=7g,mode=0755";
/// The names of nodes that are not this one, each in a network namespace of its own. The clocks of
/// both stand behind this one's, and the second one says that it has another boot.
pub const OTHER_NODES: [&str; 2] = ["n2", "n3"];

/// The variable that names a directory for pools, instead of a tmpfs mounted for each.
pub const MEDIUM: &str = "FARFORK_TEST_MEDIUM";
/// The variable that says how large pools in there may be, as `farfork pool create` takes it.
const MEDIUM_SIZE: &str = "FARFORK_TEST_MEDIUM_SIZE";

static MOUNTED: Mutex<Option<PathBuf>> = Mutex::new(None);
static MADE: Mutex<Option<PathBuf>> = Mutex::new(None);
static AGENTS: Mutex<[Option<Child>; OTHER_NODES.len()]> = Mutex::new([const { None }; 2]);

/// Whether there can be a pool and something to use it.
pub fn possible() -> Outcome {
    if !nix::unistd::geteuid().is_root() {
        return Err(Trouble::Skipped("mounting a tmpfs for the pool needs root".into()));
    }
    farfork::binary().map(drop)
}

/// Where [`MEDIUM`] says that pools are made.
pub fn medium() -> Option<PathBuf> {
    std::env::var_os(MEDIUM).map(PathBuf::from)
}

/// The pool of this test binary, made on first use.
pub fn pool() -> Outcome<&'static Path> {
    static POOL: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match POOL.get_or_init(make_pool) {
        Ok(path) => Ok(path),
        Err(message) => Err(Trouble::Failed(message.clone())),
    }
}

fn make_pool() -> Result<PathBuf, String> {
    let size = std::env::var(MEDIUM_SIZE).unwrap_or_else(|_| POOL_SIZE.to_owned());
    let name = format!("farfork-tests-{}", std::process::id());
    let path = match medium() {
        Some(place) => place.join(name),
        None => mount_tmpfs()?.join(name),
    };
    create(&path, &size).map_err(|trouble| format!("{trouble:?}"))?;
    *locked(&MADE) = Some(path.clone());
    Ok(path)
}

fn mount_tmpfs() -> Result<PathBuf, String> {
    let place = base().join("pool");
    std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    mount(Some("farfork-tests"), &place, Some("tmpfs"), MsFlags::empty(), Some(TMPFS_OPTIONS))
        .map_err(|error| format!("mounting tmpfs on {}: {error}", place.display()))?;
    *locked(&MOUNTED) = Some(place.clone());
    Ok(place)
}

fn create(path: &Path, size: &str) -> Outcome {
    let mut command = farfork::command(&["pool", "create"])?;
    command.arg(path).args(["--size", size]);
    farfork::must_run(command)?;
    if path.is_dir() {
        return Ok(());
    }
    Err(Trouble::during("farfork pool create", format!("made no {}", path.display())))
}

/// Starts another node once: an agent that shares the pool and nothing else with this one.
pub fn other_node(pool: &Path, which: usize) -> Outcome<&'static str> {
    let name = OTHER_NODES[which];
    let mut agents = locked(&AGENTS);
    if let Some(running) = agents[which].as_mut()
        && matches!(running.try_wait(), Ok(None))
    {
        return Ok(name);
    }
    agents[which] = Some(start_agent(pool, name, which == 1)?);
    await_node(pool, name)?;
    Ok(name)
}

const OTHER_BOOT: &str = "7be2b0c9-9d51-4b2b-8d0f-2f8ad3c21f5e\n";

fn start_agent(pool: &Path, name: &str, has_other_boot: bool) -> Outcome<Child> {
    let boot = base().join("boot_id");
    std::fs::write(&boot, OTHER_BOOT)
        .map_err(|error| Trouble::during("writing another boot's id", error))?;
    let mount = format!("mount --bind {} /proc/sys/kernel/random/boot_id", boot.display());
    let mount = if has_other_boot { mount.as_str() } else { "true" };
    let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec;
    let [monotonic, boottime] = [since_boot / 2, since_boot / 3].map(|behind| -behind);
    Command::new("unshare")
        .args([format!("--monotonic={monotonic}"), format!("--boottime={boottime}")])
        .args(["--kill-child", "-pfmnT", "--mount-proc", "--", "sh", "-c"])
        .args([&format!("ip link set lo up && {mount} && exec \"$@\""), "agent"])
        .arg(farfork::binary()?)
        .args(["node", "--name", name, "--pool"])
        .arg(pool)
        .env(farfork::RUN, run_directory())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| Trouble::during("starting another node", error))
}

/// Waits until the agent has registered in the pool.
fn await_node(pool: &Path, name: &str) -> Outcome {
    let mut patience = Patience::new(Duration::from_secs(120));
    loop {
        let mut info = farfork::command(&["pool", "info", "--json"])?;
        info.arg(pool);
        let seen = farfork::text(&farfork::must_run(info)?);
        if seen.contains(&format!("\"{name}\"")) {
            return Ok(());
        }
        if patience.is_over() {
            return Err(Trouble::during(&format!("waiting for node {name} in pool info"), seen));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until `holds` does.
pub fn eventually(what: &str, mut holds: impl FnMut() -> Outcome<bool>) -> Outcome {
    let mut patience = Patience::new(Duration::from_secs(120));
    while !holds()? {
        if patience.is_over() {
            return Err(Trouble::Failed(format!("{what}: not in time")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Ends the agent that listens at `socket`, which the first restore has started, without waiting for its
/// idle exit.
pub fn end_agent(socket_path: &Path) -> nix::Result<()> {
    kill(Pid::from_raw(agent_pid(socket_path)?), Signal::SIGKILL)
}

/// The agent that listens at a socket.
///
/// # Errors
/// None does.
pub fn agent_pid(socket_path: &Path) -> nix::Result<i32> {
    let client = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    connect(client.as_raw_fd(), &UnixAddr::new(socket_path)?)?;
    getsockopt(&client, sockopt::PeerCredentials).map(|agent| agent.pid())
}

/// Ends the agents, unmounts the pool, removes the directory.
pub fn tear_down() {
    let mut agents = locked(&AGENTS);
    for mut agent in agents.iter_mut().filter_map(Option::take) {
        let _ = agent.kill();
        let _ = agent.wait();
    }
    // There is none if nothing was restored on this node.
    let _ = end_agent(&run_directory().join("local.sock"));
    if let Some(path) = locked(&MADE).take() {
        // Agents that were killed have left pins.
        let _ = Pool::destroy_used(&path);
    }
    if let Some(place) = locked(&MOUNTED).take() {
        let _ = umount2(&place, MntFlags::MNT_DETACH);
    }
    let _ = std::fs::remove_dir_all(base());
}
