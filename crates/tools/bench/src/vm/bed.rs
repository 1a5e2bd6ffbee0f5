//! A snapshot, its files in memory and on a disk, and all page servers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use farfork_image::catalog::Catalog;
use farfork_image::vm;
use farfork_minivmm::{Backing, Monitor, PAGE_BYTES};
use farfork_pool::Pool;
use rustix::fs::{Advice, fadvise};
use serde_json::Value;
use tempfile::TempDir;

use super::far::{NearNode, OtherNode};
use super::handler::{Handler, WorkingSet, runs};
use super::scene::{Guests, Scene};
use super::serve::Serve;
use super::waits;
use super::{
    ALL_FAR, AT_ONCE, COLD_FAR, FAASNAP, FAASNAP_COLD, FARFORK, FILE_COLD, HUGE, NAME, PLAIN, REAP,
    REAP_COLD, RESIDENT, UNRECORDED, failed,
};
use crate::error::{BenchError, io};
use crate::program;

const POOL_BYTES: u64 = 512 << 20;
/// FaaSnap maps regions as one that lie so near to each other.
const REGION_GAP: u64 = 32 * PAGE_BYTES;

/// What there is for one task.
struct Recorded {
    farfork: Serve,
    reap: Handler,
    reap_cold: Handler,
    /// The working sets of these two.
    set: WorkingSet,
    cold: WorkingSet,
}

/// What fills any number of machines at once.
const NO_LIMIT: [&str; 3] = ["--no-record", "--fill-at-once", "1000"];

/// Nodes that do not have all of the snapshot. The order is that in which they go.
struct Far {
    cold: NearNode,
    all: NearNode,
    _other: OtherNode,
}

/// Times of one restore.
pub struct Restored {
    /// Milliseconds until the guest has done its task.
    pub ms: f64,
    /// The same for doing it once more.
    pub again_ms: f64,
    /// Pages per second of the replay.
    pub pages_per_s: Option<f64>,
}

/// Everything that is measured.
pub struct Bed {
    far: Option<Far>,
    unrecorded: Serve,
    /// The image of the last task, with a limit of machines that are filled at once, and without.
    limits: Option<[Serve; 2]>,
    plain: Handler,
    recorded: Vec<Recorded>,
    /// Parts of the memory file that hold something.
    regions: Vec<(u64, u64)>,
    /// What the guests do.
    pub guests: Guests,
    directory: TempDir,
    disk: TempDir,
}

impl Bed {
    /// Makes a snapshot, starts all servers, and has each task recorded.
    pub fn new(scene: &Scene) -> Result<Bed, BenchError> {
        let directory =
            tempfile::tempdir_in("/dev/shm").map_err(io("make a directory in", "/dev/shm"))?;
        let disk = tempfile::tempdir().map_err(io("make a directory in", "the temporary files"))?;
        let path = |name: &str| directory.path().join(name);
        let (state, memory) = (path("state"), path("memory"));
        let pool = Pool::create(&path("pool"), POOL_BYTES)?;
        let (monitor, guests) = scene.start()?;
        monitor.snapshot(&state, &memory).map_err(failed)?;
        drop(monitor);
        let on_disk = disk.path().join("memory");
        std::fs::copy(&memory, &on_disk).map_err(io("copy the memory to", &on_disk))?;
        write_out(&on_disk)?;
        import(&pool, &state, &memory, "unrecorded")?;
        let bytes: Arc<[u8]> = std::fs::read(&memory).map_err(io("read", &memory))?.into();
        let unrecorded = Serve::start(directory.path(), "unrecorded", &["--no-record"])?;
        let plain = Handler::start(&path("plain"), &bytes, None)?;
        let (regions, recorded, (far, limits)) = (regions(&bytes), Vec::new(), (None, None));
        let mut bed =
            Bed { far, unrecorded, limits, plain, recorded, regions, guests, directory, disk };
        for number in 0..bed.guests.tasks.len() {
            let recorded = bed.record(&pool, number, &bytes)?;
            bed.recorded.push(recorded);
        }
        if scene.is_recorded() {
            bed.far = Some(bed.move_away()?);
        } else {
            bed.limits = Some(bed.serve_with_limits()?);
        }
        Ok(bed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Has one machine of each kind recorded.
    fn record(
        &self,
        pool: &Pool,
        number: usize,
        bytes: &Arc<[u8]>,
    ) -> Result<Recorded, BenchError> {
        let (state, memory) = (self.path("state"), self.path("memory"));
        let run = |socket: &Path| {
            let mut monitor = Monitor::restore(&state, Backing::Uffd(socket)).map_err(failed)?;
            self.guests.run(&mut monitor, &self.guests.tasks[number])
        };
        run(&self.plain.socket)?;
        let faults = self.plain.take_faults();
        let name = |kind: &str| format!("{kind}-{number}");
        let set = WorkingSet::write(&self.path(&name("set")), &memory, &faults)?;
        let cold = WorkingSet::write(&self.disk.path().join(name("set")), &memory, &faults)?;
        write_out(&cold.path)?;
        let reap = Handler::start(&self.path(&name("reap")), bytes, Some(set.clone()))?;
        let reap_cold = Handler::start(&self.path(&name("cold")), bytes, Some(cold.clone()))?;
        // An image of its own, so that it has a record of its own.
        let tag = number.to_string();
        import(pool, &state, &memory, &tag)?;
        let farfork = Serve::start(self.directory.path(), &tag, &[])?;
        run(&farfork.socket)?;
        farfork.wait("ended")?;
        Ok(Recorded { farfork, reap, reap_cold, set, cold })
    }

    /// Has two other nodes pull the recorded image, repacked, and move parts of it away again.
    fn move_away(&self) -> Result<Far, BenchError> {
        let image = format!("{NAME}:0");
        self.farfork(&["vm", "repack", &image])?;
        let other = OtherNode::start(self.directory.path())?;
        let (cold, all) = (other.near("0", "cold-far", false)?, other.near("0", "all-far", true)?);
        Ok(Far { cold, all, _other: other })
    }

    fn serve_with_limits(&self) -> Result<[Serve; 2], BenchError> {
        let (directory, tag) = (self.directory.path(), (self.recorded.len() - 1).to_string());
        let start = |name: &str, options: &[&str]| {
            Serve::start_at(&self.path(name), directory, &tag, options)
        };
        Ok([start("limited", &NO_LIMIT[..1])?, start("unlimited", &NO_LIMIT)?])
    }

    /// Restores many machines at once, of which each touches some of the pages that are filled last: how long it waits for
    /// each, in microseconds. With a limit of machines that are filled at once, or without. `None` if the scene has no
    /// such servers.
    pub fn fault_waits(
        &self,
        has_limit: bool,
        machines: usize,
    ) -> Result<Option<Vec<f64>>, BenchError> {
        let Some([limited, unlimited]) = &self.limits else { return Ok(None) };
        let serve = if has_limit { limited } else { unlimited };
        let waits = waits::measure(&self.path("state"), &serve.socket, machines)?;
        (0..machines).try_for_each(|_| serve.wait("ended").map(drop))?;
        Ok(Some(waits))
    }

    fn farfork(&self, words: &[&str]) -> Result<Vec<u8>, BenchError> {
        let program = program::farfork()?;
        let mut command = Command::new(&program);
        command.args(words).env("FARFORK_POOL", self.path("pool")).stderr(Stdio::null());
        let output = command.output().map_err(io("run", &program))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(failed(format!("farfork {words:?} failed"))),
        }
    }

    /// What `farfork vm show` has of the recorded image.
    pub fn shown(&self) -> Result<Value, BenchError> {
        let shown = self.farfork(&["vm", "show", &format!("{NAME}:0"), "--json"])?;
        serde_json::from_slice(&shown).map_err(failed)
    }

    /// Whether a case can be measured here; else why not.
    pub fn lacks(&self, case: &str) -> Option<String> {
        let far = [COLD_FAR, ALL_FAR].contains(&case) && self.far.is_none();
        let memory = std::fs::metadata(self.path("memory")).map_or(0, |found| found.len());
        let free = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
        let free = std::fs::read_to_string(free).ok().and_then(|free| free.trim().parse().ok());
        let (free, wanted) = (free.unwrap_or(0u64), memory >> 21);
        match case {
            HUGE if free < wanted => Some(format!(
                "not measured: {free} huge pages are set aside (vm.nr_hugepages), {wanted} are needed"
            )),
            _ if far => Some("not measured: only of recorded workloads".to_owned()),
            _ => None,
        }
    }

    /// Restores a machine and has it do a task.
    pub fn restore(&self, case: &str, number: usize) -> Result<Restored, BenchError> {
        let (task, recorded) = (&self.guests.tasks[number], &self.recorded[number]);
        let far = self.far_server(case)?;
        let backing = self.files(number);
        let (socket, backing) = (far.as_ref().map(|serve| serve.socket.as_path()), backing);
        let backing = backing.of(case, socket);
        self.drop_cached(recorded)?;
        let mut begun = Instant::now();
        let on_disk = self.disk.path().join("memory");
        let loading = (case == FAASNAP_COLD).then(|| load(&on_disk, &recorded.set.runs));
        let mut monitor = Monitor::restore(&self.path("state"), backing).map_err(failed)?;
        let serve = far.as_ref().unwrap_or(&recorded.farfork);
        let mut pages_per_s = None;
        match case {
            FARFORK | HUGE | COLD_FAR | ALL_FAR => {
                let filled = serve.wait("filled")?;
                let number = |key: &str| filled[key].as_f64().unwrap_or(0.0);
                pages_per_s = Some(number("pages") / number("took_ms") * 1e3);
            }
            REAP => recorded.reap.wait()?,
            REAP_COLD => recorded.reap_cold.wait()?,
            // Mapping all of it is not what the bound is about.
            RESIDENT => begun = Instant::now(),
            _ => {}
        }
        self.guests.run(&mut monitor, task)?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        begun = Instant::now();
        self.guests.go(&mut monitor, task)?;
        let again_ms = begun.elapsed().as_secs_f64() * 1e3;
        drop(monitor);
        if far.is_some() || [AT_ONCE, FARFORK, HUGE].contains(&case) {
            serve.wait("ended")?;
        }
        loading.map(thread::JoinHandle::join);
        Ok(Restored { ms, again_ms, pages_per_s })
    }

    /// Restores many machines at once, each of which runs as soon as it can: milliseconds until the last has
    /// ended.
    pub fn restore_crowd(&self, case: &str, machines: usize) -> Result<f64, BenchError> {
        let (guests, recorded) = (&self.guests, &self.recorded[0]);
        let task = &guests.tasks[0];
        let (state, far) = (self.path("state"), self.far_server(case)?);
        let files = self.files(0);
        let backing = files.of(case, far.as_ref().map(|serve| serve.socket.as_path()));
        self.drop_cached(recorded)?;
        let begun = Instant::now();
        let loading = (case == FAASNAP_COLD)
            .then(|| load(&self.disk.path().join("memory"), &recorded.set.runs));
        thread::scope(|threads| {
            let run = || {
                let mut monitor = Monitor::restore(&state, backing).map_err(failed)?;
                guests.run(&mut monitor, task)
            };
            let running: Vec<_> = (0..machines).map(|_| threads.spawn(run)).collect();
            running.into_iter().try_for_each(|one| match one.join() {
                Ok(ran) => ran,
                Err(_) => Err(failed("a machine panicked")),
            })
        })?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        loading.map(thread::JoinHandle::join);
        for _ in 0..machines {
            match case {
                REAP => recorded.reap.wait()?,
                AT_ONCE => drop(recorded.farfork.wait("ended")?),
                _ => drop(far.as_ref().map(|serve| serve.wait("ended")).transpose()?),
            }
        }
        Ok(ms)
    }

    /// A page server of its own for a case whose pages lie on another node.
    fn far_server(&self, case: &str) -> Result<Option<Serve>, BenchError> {
        let Some(far) = &self.far else { return Ok(None) };
        match case {
            COLD_FAR => far.cold.serve().map(Some),
            ALL_FAR => far.all.serve().map(Some),
            _ => Ok(None),
        }
    }

    fn files(&self, number: usize) -> Files<'_> {
        let [memory, on_disk] = [self.path("memory"), self.disk.path().join("memory")];
        Files { bed: self, recorded: &self.recorded[number], memory, on_disk }
    }

    fn drop_cached(&self, recorded: &Recorded) -> Result<(), BenchError> {
        drop_cached(&[&self.disk.path().join("memory"), &recorded.cold.path])
    }
}

/// Where the memory of the machines of each case comes from.
struct Files<'a> {
    bed: &'a Bed,
    recorded: &'a Recorded,
    memory: PathBuf,
    on_disk: PathBuf,
}

impl Files<'_> {
    fn of<'a>(&'a self, case: &str, far: Option<&'a Path>) -> Backing<'a> {
        let (recorded, memory, on_disk) = (self.recorded, &self.memory, &self.on_disk);
        match case {
            PLAIN => Backing::Uffd(&self.bed.plain.socket),
            REAP => Backing::Uffd(&recorded.reap.socket),
            REAP_COLD => Backing::Uffd(&recorded.reap_cold.socket),
            UNRECORDED => Backing::Uffd(&self.bed.unrecorded.socket),
            AT_ONCE | FARFORK => Backing::Uffd(&recorded.farfork.socket),
            HUGE => Backing::HugeUffd(&recorded.farfork.socket),
            RESIDENT => Backing::Resident(memory),
            FAASNAP => Backing::Regions(memory, &self.bed.regions),
            FAASNAP_COLD => Backing::Regions(on_disk, &self.bed.regions),
            FILE_COLD => Backing::File(on_disk),
            _ => far.map_or(Backing::File(memory), Backing::Uffd),
        }
    }
}

fn import(pool: &Pool, state: &Path, memory: &Path, tag: &str) -> Result<(), BenchError> {
    let made = vm::import(pool, Some("bench"), state, memory, None, &mut |_, _, _| ());
    let name = format!("{NAME}:{tag}").parse().map_err(failed)?;
    Ok(Catalog::of(pool).set(&name, made.map_err(failed)?.cid).map(drop)?)
}

/// Parts of the memory file that are not zeros.
fn regions(bytes: &[u8]) -> Vec<(u64, u64)> {
    let pages = bytes.chunks(PAGE_BYTES as usize).enumerate();
    let stored = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let stored: Vec<u64> = stored.map(|(page, _)| page as u64 * PAGE_BYTES).collect();
    runs(&stored, REGION_GAP)
}

/// Reads parts of a file, so that the page cache has them.
fn load(path: &Path, parts: &[(u64, u64)]) -> thread::JoinHandle<()> {
    let (path, parts) = (path.to_owned(), parts.to_vec());
    thread::spawn(move || {
        let Ok(file) = File::open(path) else { return };
        for (offset, bytes) in parts {
            let _ = file.read_exact_at(&mut vec![0; bytes as usize], offset);
        }
    })
}

/// Writes a file to its disk: pages that are not written are not dropped.
fn write_out(path: &Path) -> Result<(), BenchError> {
    let file = File::open(path).map_err(io("open", path))?;
    file.sync_all().map_err(io("write to its disk", path))
}

/// Drops files from the page cache.
fn drop_cached(paths: &[&Path]) -> Result<(), BenchError> {
    for path in paths {
        let file = File::open(path).map_err(io("open", path))?;
        let dropped = fadvise(&file, 0, None, Advice::DontNeed);
        dropped.map_err(|errno| io("drop from the page cache", path)(errno.into()))?;
    }
    Ok(())
}
