//! A pool, a snapshot in it, and a holder with its server.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farfork_image::tier::{self, FarNode};
use farfork_image::vm::{self, Snapshot};
use farfork_minivmm::{Backing, Monitor, PAGE_BYTES, Pattern, Walk, Workload};
use farfork_pageserver::{Counters, Event, Holder, Learnt, Record, Recording};
use farfork_pool::Pool;
use farfork_sys::userfault::Userfault;
use farfork_types::Cid;
use rustix::process::{Pid, Signal, kill_process};

pub const PATTERN: Pattern =
    Pattern { memory_bytes: 16 << 20, zero_permille: 700, group_pages: 3, seed: 5 };

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Whether userfaultfds can be made here; prints why not.
pub fn can_serve() -> bool {
    let can = Userfault::create(0).is_ok();
    if !can {
        println!("skipped: this process may not create a userfaultfd");
    }
    can
}

/// An imported snapshot.
pub struct Bed {
    directory: tempfile::TempDir,
    pub pool: Pool,
    pub cid: Cid,
    saved: Vec<u8>,
}

impl Bed {
    pub fn new(pattern: &Pattern, parts: u64) -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let [state, memory] = ["state", "memory"].map(|name| directory.path().join(name));
        Monitor::start(pattern, parts).unwrap().snapshot(&state, &memory).unwrap();
        Bed::import(directory, &state, &memory)
    }

    /// The memory of a workload.
    pub fn of_workload(workload: &Workload, parts: u64) -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let [state, memory] = ["state", "memory"].map(|name| directory.path().join(name));
        Monitor::start_workload(workload, parts).unwrap().snapshot(&state, &memory).unwrap();
        Bed::import(directory, &state, &memory)
    }

    /// A snapshot that was taken elsewhere.
    pub fn of_files(state: &Path, memory: &Path) -> Bed {
        Bed::import(tempfile::tempdir().unwrap(), state, memory)
    }

    fn import(directory: tempfile::TempDir, state: &Path, memory: &Path) -> Bed {
        let saved = std::fs::read(memory).unwrap();
        let size = (saved.len() as u64).next_multiple_of(2 << 20) + (48 << 20);
        let pool = Pool::create(&directory.path().join("pool"), size).unwrap();
        let made = vm::import(&pool, None, state, memory, None, &mut |_, _, _| ()).unwrap();
        Bed { directory, pool, cid: made.cid, saved }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn pages(&self) -> u64 {
        self.saved.len() as u64 / PAGE_BYTES
    }

    /// A word of the memory that was saved.
    pub fn word(&self, page: u64, word: u64) -> u64 {
        let at = (page * PAGE_BYTES + word * 8) as usize;
        u64::from_le_bytes(self.saved[at..at + 8].try_into().unwrap())
    }

    /// Runs a walk, and checks each byte that it reads.
    pub fn check(&self, monitor: &mut Monitor, walk: &Walk) {
        let expected = walk.expected(self.pages(), |page, word| self.word(page, word));
        assert_eq!(monitor.walk(walk).unwrap(), expected, "{walk:?}");
    }

    /// Checks each byte of a machine's memory, as the monitor sees it.
    pub fn check_memory(&self, monitor: &Monitor, is_removed: impl Fn(u64) -> bool) {
        for address in (0..self.saved.len() as u64).step_by(8) {
            let page = address / PAGE_BYTES;
            let word = self.word(page, address % PAGE_BYTES / 8);
            let expected = if is_removed(page) { 0 } else { word };
            assert_eq!(monitor.load(address), expected, "{address:#x}");
        }
    }

    /// Leaves no page in the pool; the pool that has them all.
    pub fn move_away(&self) -> PathBuf {
        let other = Pool::create(&self.path(OTHER), 128 << 20).unwrap();
        let file = self.pool.find(self.cid).unwrap();
        tier::pull(&other, None, &file, &mut |_, _| ()).unwrap();
        let chunks = Snapshot::read_from(&file).unwrap().map.chunks() as usize;
        let whole = file.with_far_file(side(&self.path(OTHER), self.cid).unwrap()).unwrap();
        let node =
            FarNode { address: "a:1".into(), key: "/key".into(), tls: None, deadline_ms: 5000 };
        tier::retier(&self.pool, &whole, &(0..chunks).collect(), &node, &mut |_, _| ()).unwrap();
        other.path().to_owned()
    }

    pub fn serve(&self) -> Serving {
        self.serve_with(Record::Nothing, Vec::new())
    }

    /// Serves machines that get these pages first.
    pub fn serve_with(&self, record: Record, known: Vec<u32>) -> Serving {
        Serving::start(&self.pool, self.cid, self.path("socket"), (record, known), None)
    }

    /// The same, so many machines at once.
    pub fn serve_in_turn(&self, known: Vec<u32>, replays: usize) -> Serving {
        let recorded = (Record::Nothing, known);
        Serving::start(&self.pool, self.cid, self.path("socket"), recorded, Some(replays))
    }

    pub fn restore(&self, socket: &Path) -> Monitor {
        Monitor::restore(&self.path("state"), Backing::Uffd(socket)).unwrap()
    }
}

/// Ends this process if a test takes too long: a guest that waits for a page cannot be interrupted.
struct Watchdog {
    _ended: std::sync::mpsc::Sender<()>,
}

impl Watchdog {
    fn start() -> Watchdog {
        let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
        let limit = LIMIT * if is_long { 30 } else { 2 };
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let (ended, over) = channel::<()>();
        std::thread::spawn(move || {
            if over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!(
                    "{test}: a guest waits for a page, or the test takes longer than {limit:?}"
                );
                std::process::abort();
            }
        });
        Watchdog { _ended: ended }
    }
}

/// A holder on a thread of this process, whose servers are processes of this test's program.
pub struct Serving {
    pub socket: PathBuf,
    servers: Arc<Mutex<Vec<u32>>>,
    is_failing: Arc<AtomicBool>,
    /// What was recorded, each time that it changed.
    pub recorded: Arc<Mutex<Vec<Vec<u32>>>>,
    stops: UnixStream,
    events: Receiver<Event>,
    holder: Option<JoinHandle<Result<(), String>>>,
    _watchdog: Watchdog,
}

impl Serving {
    fn start(
        pool: &Pool,
        cid: Cid,
        socket: PathBuf,
        (record, known): (Record, Vec<u32>),
        replays: Option<usize>,
    ) -> Serving {
        let _watchdog = Watchdog::start();
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let saved = Arc::clone(&recorded);
        let (mut file, path) = (pool.find(cid).unwrap(), socket.clone());
        if file.far().is_some() {
            file = file.with_far_file(side(&socket.with_file_name(OTHER), cid).unwrap()).unwrap();
        }
        let servers = Arc::new(Mutex::new(Vec::new()));
        let (sender, events) = channel();
        let (stops, stopped) = UnixStream::pair().unwrap();
        let started = Arc::clone(&servers);
        let is_failing = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&is_failing);
        let holder = std::thread::spawn(move || {
            let snapshot = Snapshot::read_from(&file).unwrap();
            let mut start = |channel: OwnedFd| {
                if fails.load(Ordering::Relaxed) {
                    return Err(std::io::ErrorKind::OutOfMemory.into());
                }
                let child = server(channel)?;
                started.lock().unwrap().push(child.id());
                Ok(child)
            };
            let mut show = |event: Event| drop(sender.send(event));
            let mut save = |learnt: Learnt| saved.lock().unwrap().push(learnt.hot);
            let recording = Recording { record, known, save: &mut save };
            let listening =
                Holder::listen(&path, (&snapshot, &file), &mut start, &mut show, recording);
            let holder = listening.unwrap();
            let mut holder = match replays {
                Some(replays) => holder.with_replays(replays),
                None => holder,
            };
            holder.run(stopped.as_fd()).map_err(|error| error.to_string())
        });
        let serving = Serving {
            socket,
            servers,
            recorded,
            is_failing,
            stops,
            events,
            holder: Some(holder),
            _watchdog,
        };
        serving.wait(|event| matches!(event, Event::Listening { .. }).then_some(()));
        serving
    }

    /// Waits for an event; others before it are passed over.
    pub fn wait<T>(&self, mut is_it: impl FnMut(&Event) -> Option<T>) -> T {
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => {
                    println!("{event}");
                    if let Some(found) = is_it(&event) {
                        return found;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("the event did not come"),
                Err(RecvTimeoutError::Disconnected) => panic!("the holder has ended"),
            }
        }
    }

    /// Of the events that have come already, those that `is_it` takes.
    pub fn come<T>(&self, is_it: impl FnMut(Event) -> Option<T>) -> Vec<T> {
        self.events.try_iter().filter_map(is_it).collect()
    }

    /// Waits for the end of a machine.
    pub fn ended(&self) -> Counters {
        self.wait(|event| match event {
            Event::Ended { counters, .. } => Some(*counters),
            _ => None,
        })
    }

    /// Waits until a machine's hot pages are there; how many a server has filled.
    pub fn filled(&self) -> u64 {
        self.wait(|event| match event {
            Event::Filled { pages, .. } => Some(*pages),
            _ => None,
        })
    }

    /// Pid of the server that serves now.
    pub fn server(&self) -> i32 {
        *self.servers.lock().unwrap().last().unwrap() as i32
    }

    /// Kills it.
    pub fn kill_server(&self) {
        kill_process(Pid::from_raw(self.server()).unwrap(), Signal::KILL).unwrap();
    }

    /// Kills it, and lets no other start.
    pub fn fail(&self) {
        self.is_failing.store(true, Ordering::Relaxed);
        self.kill_server();
    }

    /// Asks it to stop.
    pub fn stop(&mut self) {
        let _ = self.stops.write_all(&[1]); // it may have failed and ended
    }

    /// How it ended.
    pub fn join(mut self) -> Result<(), String> {
        self.holder.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(holder) = self.holder.take() {
            self.stop();
            let _ = holder.join();
        }
    }
}

/// What a process of this test's program is to do.
pub const CHILD: &str = "FARFORK_TEST_CHILD";

/// A process of this test's program that does what `child` says.
pub fn child(what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child::process", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, what).stdout(Stdio::null());
    command
}

fn server(channel: OwnedFd) -> std::io::Result<std::process::Child> {
    child("serve").stdin(Stdio::from(channel)).spawn()
}

/// The pool of another node, beside that of this one.
const OTHER: &str = "other";

/// The image in it.
fn side(pool: &Path, cid: Cid) -> std::io::Result<File> {
    File::open(pool.join(format!("images/{cid}")))
}

/// Writes to the file of an image, which no process should.
pub fn image_file(pool: &Path, cid: Cid) -> File {
    let path = pool.join(format!("images/{cid}"));
    File::options().write(true).open(path).unwrap()
}
