//! A snapshot, its files in memory and on a disk, and all page servers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use farfork_image::catalog::Catalog;
use farfork_image::vm;
use farfork_minivmm::{Backing, Monitor, PAGE_BYTES, Pattern, Walk};
use farfork_pool::Pool;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use super::handler::{Handler, WorkingSet, runs};
use super::serve::Serve;
use super::{
    AT_ONCE, FAASNAP, FAASNAP_COLD, FARFORK, FILE_COLD, IN_ORDER, JUMPING, NAME, PLAIN, REAP,
    REAP_COLD, RESIDENT, UNRECORDED, WHOLE, failed,
};
use crate::error::{BenchError, io};

/// The share of pages of zeros is the one that Aquifer reports of real snapshots.
const PATTERN: Pattern =
    Pattern { memory_bytes: 128 << 20, zero_permille: 828, group_pages: 4, seed: 11 };
const POOL_BYTES: u64 = 256 << 20;
/// FaaSnap maps regions as one that lie so near to each other.
const REGION_GAP: u64 = 32 * PAGE_BYTES;

/// What there is for one walk.
struct Recorded {
    farfork: Serve,
    reap: Handler,
    reap_cold: Handler,
    /// The working sets of these two.
    set: WorkingSet,
    cold: WorkingSet,
}

/// Everything that is measured.
pub struct Bed {
    directory: TempDir,
    disk: TempDir,
    unrecorded: Serve,
    plain: Handler,
    recorded: Vec<Recorded>,
    /// Parts of the memory file that hold something.
    regions: Vec<(u64, u64)>,
    /// Metric, walk, and what the guest has to read.
    pub walks: Vec<(&'static str, Walk, u64)>,
    /// What a reader has to know.
    pub notes: Vec<String>,
}

impl Bed {
    /// Makes a snapshot, starts all servers, and has each walk recorded.
    pub fn new() -> Result<Bed, BenchError> {
        let directory =
            tempfile::tempdir_in("/dev/shm").map_err(io("make a directory in", "/dev/shm"))?;
        let disk = tempfile::tempdir().map_err(io("make a directory in", "the temporary files"))?;
        let path = |name: &str| directory.path().join(name);
        let (state, memory) = (path("state"), path("memory"));
        let pool = Pool::create(&path("pool"), POOL_BYTES)?;
        let mut monitor = Monitor::start(&PATTERN, 1).map_err(failed)?;
        monitor.snapshot(&state, &memory).map_err(failed)?;
        let on_disk = disk.path().join("memory");
        std::fs::copy(&memory, &on_disk).map_err(io("copy the memory to", &on_disk))?;
        let notes = vec![import(&pool, &state, &memory, "unrecorded", monitor.has_kvm())?];
        let regions = regions(&memory)?;
        let walks = walks(&mut monitor)?;
        let unrecorded = Serve::start(directory.path(), "unrecorded", &["--no-record"])?;
        let plain = Handler::start(&path("plain"), &memory, None)?;
        let recorded = Vec::new();
        let mut bed = Bed { directory, disk, unrecorded, plain, recorded, regions, walks, notes };
        for number in 0..bed.walks.len() {
            let recorded = bed.record(&pool, number)?;
            bed.recorded.push(recorded);
        }
        Ok(bed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Has one machine of each kind recorded.
    fn record(&self, pool: &Pool, number: usize) -> Result<Recorded, BenchError> {
        let (state, memory) = (self.path("state"), self.path("memory"));
        let run = |socket: &Path| {
            let (_, walk, expected) = &self.walks[number];
            let mut monitor = Monitor::restore(&state, Backing::Uffd(socket)).map_err(failed)?;
            let found = monitor.walk(walk).map_err(failed)?;
            if found == *expected { Ok(()) } else { Err(failed("the guest read other bytes")) }
        };
        run(&self.plain.socket)?;
        let faults = self.plain.take_faults();
        let name = |kind: &str| format!("{kind}-{number}");
        let set = WorkingSet::write(&self.path(&name("set")), &memory, &faults)?;
        let cold = WorkingSet::write(&self.disk.path().join(name("set")), &memory, &faults)?;
        let reap = Handler::start(&self.path(&name("reap")), &memory, Some(set.clone()))?;
        let reap_cold = Handler::start(&self.path(&name("cold")), &memory, Some(cold.clone()))?;
        // An image of its own, so that it has a record of its own.
        let tag = number.to_string();
        import(pool, &state, &memory, &tag, true)?;
        let farfork = Serve::start(self.directory.path(), &tag, &[])?;
        run(&farfork.socket)?;
        farfork.wait("ended")?;
        Ok(Recorded { farfork, reap, reap_cold, set, cold })
    }

    /// Restores a machine and runs it to its end: milliseconds, and those of running it once more.
    pub fn restore(&self, case: &str, number: usize) -> Result<(f64, f64), BenchError> {
        let (metric, walk, expected) = &self.walks[number];
        let recorded = &self.recorded[number];
        let (memory, on_disk) = (self.path("memory"), self.disk.path().join("memory"));
        let backing = match case {
            PLAIN => Backing::Uffd(&self.plain.socket),
            REAP => Backing::Uffd(&recorded.reap.socket),
            REAP_COLD => Backing::Uffd(&recorded.reap_cold.socket),
            UNRECORDED => Backing::Uffd(&self.unrecorded.socket),
            AT_ONCE | FARFORK => Backing::Uffd(&recorded.farfork.socket),
            RESIDENT => Backing::Resident(&memory),
            FAASNAP => Backing::Regions(&memory, &self.regions),
            FAASNAP_COLD => Backing::Regions(&on_disk, &self.regions),
            FILE_COLD => Backing::File(&on_disk),
            _ => Backing::File(&memory),
        };
        drop_cached(&[&on_disk, &recorded.cold.path])?;
        let mut begun = Instant::now();
        let loading = (case == FAASNAP_COLD).then(|| load(&on_disk, &recorded.set.runs));
        let mut monitor = Monitor::restore(&self.path("state"), backing).map_err(failed)?;
        match case {
            FARFORK => drop(recorded.farfork.wait("filled")?),
            REAP => recorded.reap.wait()?,
            REAP_COLD => recorded.reap_cold.wait()?,
            // Mapping all of it is not what the bound is about.
            RESIDENT => begun = Instant::now(),
            _ => {}
        }
        let found = monitor.walk(walk).map_err(failed)?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        if found != *expected {
            let reason = format!("{metric}: the guest has read other bytes");
            return Err(BenchError::Answer { case: case.to_owned(), reason });
        }
        begun = Instant::now();
        monitor.walk(walk).map_err(failed)?;
        let again = begun.elapsed().as_secs_f64() * 1e3;
        drop(monitor);
        if [AT_ONCE, FARFORK].contains(&case) {
            recorded.farfork.wait("ended")?;
        }
        loading.map(thread::JoinHandle::join);
        Ok((ms, again))
    }

    /// Restores many machines at once, each of which runs as soon as it can: milliseconds until the last has
    /// ended.
    pub fn restore_crowd(&self, case: &str, machines: usize) -> Result<f64, BenchError> {
        let (_, walk, expected) = &self.walks[0];
        let (state, memory) = (self.path("state"), self.path("memory"));
        let recorded = &self.recorded[0];
        let backing = match case {
            PLAIN => Backing::Uffd(&self.plain.socket),
            REAP => Backing::Uffd(&recorded.reap.socket),
            AT_ONCE => Backing::Uffd(&recorded.farfork.socket),
            _ => Backing::File(&memory),
        };
        let begun = Instant::now();
        thread::scope(|threads| {
            let run = || {
                let mut monitor = Monitor::restore(&state, backing).map_err(failed)?;
                let found = monitor.walk(walk).map_err(failed)?;
                if found == *expected { Ok(()) } else { Err(failed("the guest read other bytes")) }
            };
            let running: Vec<_> = (0..machines).map(|_| threads.spawn(run)).collect();
            running.into_iter().try_for_each(|one| match one.join() {
                Ok(ran) => ran,
                Err(_) => Err(failed("a machine panicked")),
            })
        })?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        for _ in 0..machines {
            match case {
                AT_ONCE => drop(recorded.farfork.wait("ended")?),
                REAP => recorded.reap.wait()?,
                _ => {}
            }
        }
        Ok(ms)
    }
}

fn import(
    pool: &Pool,
    state: &Path,
    memory: &Path,
    tag: &str,
    has_kvm: bool,
) -> Result<String, BenchError> {
    let begun = Instant::now();
    let made = vm::import(pool, Some("bench"), state, memory, &mut |_, _, _| ());
    let made = made.map_err(failed)?;
    let name = format!("{NAME}:{tag}").parse().map_err(failed)?;
    Catalog::of(pool).set(&name, made.cid)?;
    Ok(format!(
        "A memory of {} MiB, {:.1} % zeros; the image takes {:.1} MiB of the pool; imported in {:.0} ms. A {} \
         runs the guest.",
        made.raw_bytes >> 20,
        100.0 - 100.0 * made.stored_bytes as f64 / made.raw_bytes as f64,
        made.pool_bytes as f64 / f64::from(1 << 20),
        begun.elapsed().as_secs_f64() * 1e3,
        if has_kvm { "vCPU of KVM" } else { "thread of the host (there is no KVM)" },
    ))
}

/// Metric, walk, and what the guest reads, for each walk.
fn walks(monitor: &mut Monitor) -> Result<Vec<(&'static str, Walk, u64)>, BenchError> {
    let pages = PATTERN.pages();
    let in_order = Walk { count: pages / 10, first: pages / 4, ..Walk::whole(pages) };
    let walks = [
        (JUMPING, Walk::jumping(pages, pages / 10)),
        (IN_ORDER, in_order),
        (WHOLE, Walk::whole(pages)),
    ];
    let expected =
        |(metric, walk): (_, Walk)| Ok((metric, walk, monitor.walk(&walk).map_err(failed)?));
    walks.into_iter().map(expected).collect()
}

/// Parts of the memory file that are not zeros.
fn regions(memory: &Path) -> Result<Vec<(u64, u64)>, BenchError> {
    let bytes = std::fs::read(memory).map_err(io("read", memory))?;
    let pages = bytes.chunks(PAGE_BYTES as usize).enumerate();
    let stored = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let stored: Vec<u64> = stored.map(|(page, _)| page as u64 * PAGE_BYTES).collect();
    Ok(runs(&stored, REGION_GAP))
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

/// Writes files to their disk and drops them from the page cache.
fn drop_cached(paths: &[&Path]) -> Result<(), BenchError> {
    for path in paths {
        let file = File::open(path).map_err(io("open", path))?;
        file.sync_all().map_err(io("write to its disk", path))?;
        let dropped = fadvise(&file, 0, None, Advice::DontNeed);
        dropped.map_err(|errno| io("drop from the page cache", path)(errno.into()))?;
    }
    Ok(())
}
