//! Processes that pass objects around are killed and stopped at random moments.

use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork::{Client, Mailbox, ObjectsError, Timeout};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{Signal as RustixSignal, set_parent_process_death_signal};

use crate::child::{self, End};
use crate::ends::use_beside_stopped;
use crate::objects::{number, set_number};
use crate::stage::{create, demand, words};

const WORKERS: usize = 3;
const SLOTS: u64 = 16;
const REGION_BYTES: u64 = 32 << 20;
pub const HELD: u64 = 50;
/// Objects that a worker owns at most.
const MOST: usize = 3000;
/// A client that waits so long is delayed. Far more than a check takes on a busy machine.
pub const LONGEST_STOP: Duration = Duration::from_secs(20);
/// Kills after which the test says how far it is: a long run that ends early leaves the number.
const REPORTED: u64 = 5000;

/// xorshift64*: the same seed gives the same decisions.
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

fn mailbox(client: &mut Client, worker: usize) -> Mailbox {
    client.mailbox(&format!("worker-{}", worker % WORKERS), SLOTS).expect("a mailbox")
}

/// Allocates, frees, receives and sends for ever, and calls `each` in between. Its objects must keep what it wrote.
pub fn work(path: &Path, worker: usize, seed: u64, mut each: impl FnMut()) {
    // A test that fails leaves none behind.
    set_parent_process_death_signal(Some(RustixSignal::KILL)).expect("a signal");
    // A kill in the middle of a panic must not hide it.
    let failure = path.with_extension("failed");
    std::panic::set_hook(Box::new(move |panic| {
        let _ = std::fs::write(&failure, panic.to_string());
    }));
    let mut client = Client::open(path).expect("a client");
    let (from, to) = (mailbox(&mut client, worker), mailbox(&mut client, worker + 1));
    let mut random = Random(seed);
    let mut owned: Vec<(NonNull<u8>, u64)> = Vec::new();
    loop {
        each();
        let content = random.below(1 << 30) << 8 | worker as u64;
        match random.below(8) {
            0..4 if owned.len() < MOST => {
                // Now and then of another class, and of whole spans.
                let bytes = match random.below(400) {
                    0 => 70_000,
                    1..40 => 64 + random.below(2000) as usize,
                    _ => 64,
                };
                let object = client.allocate(bytes).expect("an object");
                set_number(object, content);
                owned.push((object, content));
            }
            4 => {
                let object = patiently(|| client.receive(from, Timeout::Poll));
                if let Some(object) = object {
                    owned.push((object, number(object)));
                }
            }
            5 if !owned.is_empty() => {
                let at = random.below(owned.len() as u64) as usize;
                let (object, content) = owned[at];
                assert_eq!(number(object), content, "an object changed");
                if patiently(|| client.send(to, object, Timeout::Poll)) {
                    owned.swap_remove(at);
                }
            }
            _ if !owned.is_empty() => {
                let at = random.below(owned.len() as u64) as usize;
                let (object, content) = owned.swap_remove(at);
                assert_eq!(number(object), content, "an object changed");
                client.free(object).expect("its own");
            }
            _ => {}
        }
    }
}

/// A process that was stopped just before it began to recover a dead client keeps its end of a mailbox taken.
fn patiently<T>(mut call: impl FnMut() -> Result<T, ObjectsError>) -> T {
    let begun = Instant::now();
    loop {
        match call() {
            Err(ObjectsError::RoleTaken { .. }) if begun.elapsed() < LONGEST_STOP => {
                sleep(Duration::from_millis(1));
            }
            done => return done.expect("an end of a mailbox"),
        }
    }
}

/// A region with a client that lives on.
pub struct Stage {
    _directory: tempfile::TempDir,
    pub path: PathBuf,
    pub random: Random,
    pub observer: Client,
    held: Vec<NonNull<u8>>,
}

impl Stage {
    pub fn new() -> Result<Stage, String> {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = create(directory.path(), REGION_BYTES);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = now.as_nanos() as u64 ^ u64::from(std::process::id()) << 20 | 1;
        println!("seed {seed}");
        let mut observer = Client::open(&path).map_err(words)?;
        let held: Vec<_> = (0..HELD).map(|_| observer.allocate(64).expect("an object")).collect();
        held.iter().for_each(|object| set_number(*object, u64::MAX - 7));
        Ok(Stage { _directory: directory, path, random: Random(seed), observer, held })
    }

    /// What a worker said that failed.
    pub fn failure(&self) -> String {
        fs::read_to_string(self.path.with_extension("failed")).unwrap_or_default()
    }

    /// Accounts for everything, when no worker lives.
    pub fn account(&self) -> Result<(), String> {
        let failure = self.failure();
        demand(failure.is_empty(), || failure.clone())?;
        let check = self.observer.region().check().map_err(words)?;
        let most = WORKERS as u64 * SLOTS;
        let is_right = check.is_clean() && check.owned == HELD && check.in_mailboxes <= most;
        let sum = check.bytes_free + check.bytes_owned + check.bytes_in_mailboxes;
        demand(is_right && sum == check.bytes, || format!("{check:?}"))?;
        let is_kept = self.held.iter().all(|object| number(*object) == u64::MAX - 7);
        demand(is_kept, || "objects of a living client changed".to_owned())
    }
}

/// Kills workers, starts others, and accounts for everything now and then.
pub fn kills(count: u64) -> Result<(), String> {
    let mut stage = Stage::new()?;
    let begin = |worker: usize, stage: &mut Stage| {
        let seed = stage.random.below(1 << 30) + 1;
        child::start(|| work(&stage.path, worker, seed, || ()))
    };
    let mut workers: Vec<Pid> = (0..WORKERS).map(|worker| begin(worker, &mut stage)).collect();
    let mut stops = 0;
    for number in 0..count {
        sleep(Duration::from_micros(stage.random.below(3000)));
        let victim = stage.random.below(WORKERS as u64) as usize;
        is_running(workers[victim])?;
        if stage.random.below(4) == 0 {
            live_beside_stopped(&mut stage, workers[victim])?;
            stops += 1;
        }
        stop(workers[victim])?;
        workers[victim] = begin(victim, &mut stage);
        if number % 50 == 49 {
            for worker in workers.drain(..) {
                stop(worker)?;
            }
            stage.account()?;
            workers = (0..WORKERS).map(|worker| begin(worker, &mut stage)).collect();
        }
        if (number + 1) % REPORTED == 0 {
            println!("{} kills, {stops} of them of stopped clients or after a stop", number + 1);
        }
    }
    workers.into_iter().try_for_each(stop)?;
    stage.account()
}

/// A worker that is stopped in the middle of anything delays no other one, and goes on afterwards or is killed as it is.
fn live_beside_stopped(stage: &mut Stage, worker: Pid) -> Result<(), String> {
    let send = |signal| kill(worker, signal).map_err(|error| error.to_string());
    stage.observer.region().recover().map_err(words)?;
    send(Signal::SIGSTOP)?;
    use_beside_stopped(&mut stage.observer, worker)?;
    sleep(Duration::from_micros(stage.random.below(1000)));
    if stage.random.below(2) == 0 {
        send(Signal::SIGCONT)?;
        sleep(Duration::from_micros(stage.random.below(1000)));
        is_running(worker)?;
    }
    Ok(())
}

/// A worker that failed has ended by itself.
fn is_running(worker: Pid) -> Result<(), String> {
    let state = waitpid(worker, Some(WaitPidFlag::WNOHANG)).map_err(|error| error.to_string())?;
    demand(state == WaitStatus::StillAlive, || format!("a worker ended by {state:?}"))
}

fn stop(worker: Pid) -> Result<(), String> {
    kill(worker, Signal::SIGKILL).map_err(|error| error.to_string())?;
    demand(child::end(worker)? == End::Killed, || "a worker finished".to_owned())
}

/// A memory cgroup with little memory. Removed at the end.
struct SmallGroup(PathBuf);

impl SmallGroup {
    /// `None` if this process may not make one.
    fn new() -> Option<SmallGroup> {
        let name = format!("farfork-objects-{}", std::process::id());
        let kinds = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        kinds.into_iter().find_map(|(place, limit)| {
            let path = Path::new("/sys/fs/cgroup").join(place).join(&name);
            fs::create_dir(&path).ok()?;
            let group = SmallGroup(path);
            fs::write(group.0.join(limit), "16M").ok()?;
            Some(group)
        })
    }

    /// How many of its processes were OOM-killed.
    fn kills(&self) -> u64 {
        let texts = ["memory.oom_control", "memory.events"]
            .map(|name| fs::read_to_string(self.0.join(name)));
        let lines = texts.iter().flatten().flat_map(|text| text.lines());
        lines.filter_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok()).sum()
    }
}

impl Drop for SmallGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Workers that take more and more memory of their own are killed by the kernel, beside one that lives on.
pub fn out_of_memory() -> Result<(), String> {
    let Some(group) = SmallGroup::new() else {
        println!("skipped: this process cannot make a memory cgroup with a limit");
        return Ok(());
    };
    let stage = Stage::new()?;
    for round in 1..=5 {
        let peer = child::start(|| work(&stage.path, 1, round, || ()));
        let victim = child::start(|| {
            let own = std::process::id().to_string();
            fs::write(group.0.join("cgroup.procs"), own).expect("it joins the group");
            let mut kept = Vec::new();
            work(&stage.path, 0, round, || kept.push(Box::new([1u8; 2048])));
        });
        demand(child::end(victim)? == End::Killed, || "the victim finished".to_owned())?;
        demand(group.kills() == round, || format!("{} of {round} kills", group.kills()))?;
        is_running(peer)?;
        stop(peer)?;
        stage.account()?;
    }
    Ok(())
}
