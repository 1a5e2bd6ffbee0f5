//! Virtual machines from a snapshot whose cold pages are on another node.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farfork_tests::driver::Tests;
use farfork_tests::nodes::{AWAY, HOME, SOON, demand, json, missing, refused};
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, farfork, testbed};
use nix::sys::signal::Signal;
use rustix::fs::{Advice, fadvise};

use crate::bed::Bed;

const IMAGE: &str = "far/vm";
const PAGES: u64 = 8192;
/// Every page of the snapshot that is stored, and every page that its machines need first.
const STORED: u64 = 4;
const HOT: &str = "16";
const ALL: &str = "1";

/// Adds the tests.
pub fn add(tests: &mut Tests) {
    tests.add("far::vm_cold_pages", missing(), cold_pages);
}

/// Two nodes, and the files of a snapshot.
struct Machines {
    bed: Bed,
    directory: PathBuf,
    near: PathBuf,
}

impl Machines {
    fn set(test: &'static str) -> Outcome<Machines> {
        let bed = Bed::hasty(test)?;
        let directory = testbed::work_dir(&format!("far-{test}"))?;
        let failed = |error| Trouble::during("writing a snapshot", error);
        fs::write(directory.join("state"), b"a state").map_err(failed)?;
        let word = |page: u64, at: u64| (page * 512 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let stored = |page: u64| page.is_multiple_of(STORED);
        let words =
            (0..PAGES * 512).map(|at| if stored(at / 512) { word(at / 512, at % 512) } else { 0 });
        let memory: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        fs::write(directory.join("memory"), memory).map_err(failed)?;
        let near = directory.join("near");
        Ok(Machines { bed, directory, near })
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn command(&self, side: &str, pool: &Path, words: &[&str]) -> Outcome {
        let mut command = self.bed.on(side, &words[..2])?;
        command.arg("--pool").arg(pool).args(&words[2..]);
        farfork::must_run(command).map(drop)
    }

    fn with_node(&self, words: &[&str]) -> Outcome {
        let key = self.bed.key.display().to_string();
        let node = ["--far", self.bed.address(), "--far-key", &key];
        self.command(AWAY, &self.near, &[words, &[IMAGE], &node].concat())
    }

    fn serve(&self, side: &str, pool: &Path) -> Outcome<Subject> {
        let socket = self.path("socket");
        let mut command =
            self.bed.process_on(side, &["vm", "serve", IMAGE, "--socket", &socket])?;
        command.arg("--pool").arg(pool);
        let mut serve = Subject::start("vm serve", &mut command, SOON)?;
        serve.await_line(&socket)?;
        Ok(serve)
    }

    fn guest(&self, pages: &str) -> Outcome<Subject> {
        let mut command = compile::command(&Program::c("vm_guest"))?;
        command.args([&self.path("socket"), &self.path("memory"), pages]);
        let mut guest = Subject::start("guest", &mut command, SOON)?;
        guest.await_ready()?;
        Ok(guest)
    }

    fn passes(&self, pages: &str) -> Outcome {
        self.guest(pages)?.must_pass()
    }

    /// Has a machine need the hot pages, so that they are recorded in a pool.
    fn record(&self, side: &str, pool: &Path) -> Outcome {
        let mut serve = self.serve(side, pool)?;
        self.passes(HOT)?;
        testbed::eventually("the machine's end", || {
            serve.hear(Duration::from_millis(20));
            Ok(serve.transcript().contains("ended: "))
        })?;
        Ok(())
    }

    fn shown(&self, key: &str) -> Outcome<u64> {
        let mut command = self.bed.on(AWAY, &["vm", "show", IMAGE, "--json", "--pool"])?;
        command.arg(&self.near);
        let shown = json(command)?;
        Ok(shown[key].as_u64().unwrap_or(u64::MAX))
    }

    fn same(&self, one: &str, other: &str) -> bool {
        let read = |name| fs::read(self.directory.join(name)).ok();
        read(one).is_some() && read(one) == read(other)
    }

    /// Drops what this node has cached of the other's images.
    fn drop_cached(&self) -> Outcome {
        for place in fs::read_dir(self.bed.run().join("far")).into_iter().flatten().flatten() {
            let images = place.path().join("pool/images");
            for image in fs::read_dir(&images).into_iter().flatten().flatten() {
                let failed = |error| Trouble::during("dropping cached pages", error);
                let file = File::open(image.path()).map_err(failed)?;
                fadvise(&file, 0, None, Advice::DontNeed).map_err(|errno| failed(errno.into()))?;
            }
        }
        Ok(())
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let _ = self.bed.unmount().and_then(farfork::run);
        let near = self.near.display().to_string();
        if let Ok(command) = self.bed.on(AWAY, &["pool", "destroy", "--force", &near]) {
            let _ = farfork::run(command);
        }
    }
}

/// Hot pages come from the pool, cold ones from the other node, and none is made up when that is gone.
fn cold_pages() -> Outcome {
    let mut machines = Machines::set("vm-cold")?;
    let (home, near) = (machines.bed.pool.clone(), machines.near.clone());
    let [state, memory] = ["state", "memory"].map(|name| machines.path(name));
    machines.command(HOME, &home, &["vm", "import", "--name", IMAGE, &state, &memory])?;
    machines.record(HOME, &home)?;
    machines.command(HOME, &home, &["vm", "repack", IMAGE])?;
    machines.bed.serve()?;
    let path = near.display().to_string();
    farfork::must_run(machines.bed.on(AWAY, &["pool", "create", &path, "--size", "128M"])?)?;
    // The record comes along.
    machines.with_node(&["images", "pull"])?;
    machines.with_node(&["images", "tier"])?;
    let (pool, far) = (machines.shown("pool_bytes")?, machines.shown("far_bytes")?);
    demand(far >= 4 << 20 && pool < 5 << 20, "cold pages far", &(pool, far))?;
    machines.drop_cached()?;
    let serve = machines.serve(AWAY, &near)?;
    let (before, _) = machines.bed.fetched()?;
    machines.passes(HOT)?;
    let (hot, _) = machines.bed.fetched()?;
    demand(hot - before < 64 << 10, "hot pages from the pool", &(before, hot))?;
    machines.passes(ALL)?;
    let (all, _) = machines.bed.fetched()?;
    demand(all - hot >= 4 << 20, "cold pages fetched", &(hot, all))?;
    let [state, memory] = ["state-2", "memory-2"].map(|name| machines.path(name));
    machines.command(AWAY, &near, &["vm", "export", IMAGE, &state, &memory])?;
    let is_same = machines.same("state", "state-2") && machines.same("memory", "memory-2");
    demand(is_same, "what was imported", &is_same)?;
    without_the_other_node(&mut machines, serve)
}

/// Hot pages are there, and the first cold one ends the guest by the deadline. The other node comes back.
fn without_the_other_node(machines: &mut Machines, mut serve: Subject) -> Outcome {
    machines.bed.signal_server(Signal::SIGKILL)?;
    machines.drop_cached()?;
    machines.passes(HOT)?;
    let mut guest = machines.guest(ALL)?;
    let begun = Instant::now();
    guest.send_byte();
    let status = guest.finish()?;
    let took = begun.elapsed();
    demand(
        status.signal() == Some(Signal::SIGBUS as i32),
        "SIGBUS",
        &(status, guest.transcript()),
    )?;
    demand(
        took < 3 * machines.bed.deadline + Duration::from_secs(4),
        "an end by the deadline",
        &took,
    )?;
    testbed::eventually("a report", || {
        serve.hear(Duration::from_millis(20));
        Ok(serve.transcript().contains("could not be read"))
    })?;
    commands_without_it(machines)?;
    machines.bed.serve()?;
    // For a second after a failure reads fail at once.
    std::thread::sleep(Duration::from_millis(1100));
    machines.passes(ALL)?;
    Ok(())
}

/// What needs a cold page fails, and leaves no image and no file.
fn commands_without_it(machines: &Machines) -> Outcome {
    let changes = File::create(machines.directory.join("changes"));
    let failed = |error| Trouble::during("writing a snapshot of changes", error);
    changes.and_then(|file| file.set_len(PAGES * 4096)).map_err(failed)?;
    let [state, changes, other, memory] =
        ["state", "changes", "state-3", "memory-3"].map(|name| machines.path(name));
    let pool = machines.near.display().to_string();
    let images = || farfork::images(&machines.near);
    let before = images()?;
    let commands: [&[&str]; 3] = [
        &["vm", "import", "--name", "far/changed", "--base", IMAGE, &state, &changes],
        &["vm", "export", IMAGE, &other, &memory],
        &["vm", "repack", IMAGE],
    ];
    for words in commands {
        let mut command = machines.bed.on(AWAY, &words[..2])?;
        command.args(["--pool", &pool]).args(&words[2..]);
        let (status, why) = refused(command)?;
        let is_clear = status == 1 && why.contains(machines.bed.address());
        demand(is_clear, "an error that names the other node", &(words, status, why))?;
    }
    demand(images()? == before, "the images from before", &images()?)?;
    let files = fs::read_dir(&machines.directory).map_err(failed)?.flatten();
    let left: Vec<_> =
        files.filter(|file| file.file_name().to_string_lossy().contains("-3")).collect();
    demand(left.is_empty(), "no unfinished file", &left)
}
