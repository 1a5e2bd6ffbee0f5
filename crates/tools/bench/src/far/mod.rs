//! Images of another node: `farfork bench far`.
//!
//! ```text
//!  set up   for each footprint: start, warm, checkpoint; a server of far memory in this process, and a far
//!           process that reads from it over TCP on the loopback device
//!  rounds   reads of the far file with nothing cached: 1 │ 32 │ 128 pages at random places │ 64 MiB in order
//!  rounds   for each footprint: clone from the pool │ far, nothing cached │ far, all cached
//! ```
//! Invariants: before a case with nothing cached the kernel has dropped the pages of the image, which is
//! checked: all bytes are fetched again. Each byte that is read is compared with the pool's.

mod reads;

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use farfork_far::place::Place;
use farfork_far::{FarError, FarServer, new_key_at, start};
use farfork_pool::Pool;
use farfork_types::{Cid, PAGE_BYTES, Tiering};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{Advice, fadvise};

use crate::cases::clone::{CloneOptions, Memory, measure_as};
use crate::cases::{Bench, Lane, rounds};
use crate::error::{BenchError, io};
use crate::goals::Goal;
use crate::machine::Machine;
use crate::protocol::Touches;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::{Subject, compile_footprint};
use crate::testbed::Testbed;
use crate::{Options, clones, progress};

const FOOTPRINTS: [u64; 2] = [24, 100];
const POOL_BYTES: u64 = 1 << 30;
/// Goal: how much later a clone may start from far memory over TCP than from the pool.
const MOST_LATER_US: f64 = 2000.0;

const NOTE: &str = "Server and far process are on one machine: TCP on the loopback device, every frame sealed. \
    The agent has read each image before: its metadata is not read again.";

/// The far side of a benchmark.
struct Far {
    place: Place,
    _server: FarServer,
}

/// An image, near and far.
struct Image {
    near: File,
    far: File,
    bytes: u64,
    cid: Cid,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    let testbed = Testbed::new(POOL_BYTES)?;
    let program = testbed.path("footprint");
    compile_footprint(&program)?;
    let (mut lanes, mut notes) = (Vec::new(), vec![NOTE.to_owned()]);
    for megabytes in FOOTPRINTS {
        let subject = Subject::footprint(&program, megabytes, Touches::Clustered);
        progress(&format!("starting {}, warming it, checkpointing it", subject.name));
        let no_criu = Err("it is not compared here".to_owned());
        match Lane::start(subject, &testbed, &no_criu)? {
            Ok(lane) => lanes.push(lane),
            Err(note) => notes.push(note),
        }
    }
    let far = Far::start(&testbed)?;
    let images = lanes.iter().map(|lane| far.image(&testbed, lane.warm.cid));
    let images = images.collect::<Result<Vec<_>, _>>()?;
    let mut samples = Samples::default();
    let mut bench = Bench { testbed: &testbed, samples: &mut samples };
    let count = if options.quick { 5 } else { 31 };
    rounds(count, &mut bench, |bench| match images.last() {
        Some(image) => reads::measure(image, bench.samples),
        None => Ok(()),
    })?;
    rounds(count, &mut bench, |bench| {
        lanes.iter_mut().zip(&images).try_for_each(|(lane, image)| far.measure(lane, image, bench))
    })?;
    let goals = lanes.iter().flat_map(|lane| judge(lane, &samples)).collect();
    Ok(Report {
        benchmark: "far",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals,
        rows: samples.rows(),
        notes,
    })
}

fn failed(error: FarError) -> BenchError {
    BenchError::Lacking {
        doing: "read far memory".to_owned(),
        reason: error.to_string(),
        remedy: "see that /dev/fuse exists",
    }
}

impl Far {
    fn start(testbed: &Testbed) -> Result<Far, BenchError> {
        let key_path = testbed.path("far.key");
        let key = new_key_at(&key_path).map_err(failed)?;
        let server =
            FarServer::start("127.0.0.1:0", &[testbed.pool().path()], key).map_err(failed)?;
        let address = server.address().to_string();
        let place = Place::of(&testbed.path("run"), &address);
        let command: [OsString; 11] = [
            crate::program::farfork()?.into(),
            "far".into(),
            "mount".into(),
            "--place".into(),
            place.directory().into(),
            "--source".into(),
            address.into(),
            "--key".into(),
            key_path.into(),
            "--deadline-ms".into(),
            "5000".into(),
        ];
        start::ensure(&place, &command).map_err(failed)?;
        Ok(Far { place, _server: server })
    }

    fn image(&self, testbed: &Testbed, cid: Cid) -> Result<Image, BenchError> {
        start::find(&self.place, &cid.to_string(), false).map_err(failed)?;
        let near = testbed.pool().find(cid)?;
        let far = Pool::open(&self.place.pool())?.find(cid)?;
        let copy = |file: &File| file.try_clone().map_err(io("open", self.place.images()));
        Ok(Image { near: copy(near.file())?, far: copy(far.file())?, bytes: near.id.bytes, cid })
    }

    fn fetched(&self, cid: Cid) -> Result<u64, BenchError> {
        let status = start::status(&self.place).map_err(failed)?;
        let image = status.images.iter().find(|image| image.cid == cid.to_string());
        Ok(image.map_or(0, |image| image.fetched_bytes))
    }

    /// Has all of an image fetched by a process of its own.
    fn prefetch(&self, image: &Image) -> Result<(), BenchError> {
        let program = crate::program::farfork()?;
        let path: PathBuf = self.place.images().join(image.cid.to_string());
        let mut command = Command::new(&program);
        command.args(["far", "prefetch"]).arg(path).stdin(Stdio::piped());
        let mut child = command.spawn().map_err(io("start", &program))?;
        if let Some(mut input) = child.stdin.take() {
            let pages = image.bytes.div_ceil(PAGE_BYTES);
            let line = format!("0 {pages}\n");
            std::io::Write::write_all(&mut input, line.as_bytes())
                .map_err(io("write to", &program))?;
        }
        child.wait().map(drop).map_err(io("wait for", &program))
    }

    fn measure(
        &self,
        lane: &mut Lane,
        image: &Image,
        bench: &mut Bench<'_>,
    ) -> Result<(), BenchError> {
        lane.next_round();
        let near = CloneOptions::new(image.cid, Tiering::Mow);
        let far = CloneOptions { pool: Some(self.place.pool()), ..near.clone() };
        measure_as(lane, bench, &near, "clone", Memory::Elsewhere)?;
        image.drop_cached()?;
        let before = self.fetched(image.cid)?;
        measure_as(lane, bench, &far, COLD, Memory::Elsewhere)?;
        let fetched = self.fetched(image.cid)? - before;
        let case = lane.subject.case(COLD);
        bench.samples.add(&case, "fetched", "KiB", fetched as f64 / 1024.0);
        if fetched == 0 {
            let reason =
                "nothing was fetched: the kernel has not dropped the image's pages".to_owned();
            return Err(BenchError::Answer { case, reason });
        }
        self.prefetch(image)?;
        measure_as(lane, bench, &far, CACHED, Memory::Elsewhere)
    }
}

const COLD: &str = "far-cold";
const CACHED: &str = "far-cached";

impl Drop for Far {
    fn drop(&mut self) {
        let holder = start::status(&self.place).map(|status| status.holder_pid);
        // It refuses while the agent has an image open. Without its holder the file system goes.
        if let (Err(_), Ok(holder)) = (start::stop(&self.place), holder) {
            let _ = kill(Pid::from_raw(holder.cast_signed()), Signal::SIGKILL);
        }
    }
}

impl Image {
    /// Has the kernel drop what it has cached.
    fn drop_cached(&self) -> Result<(), BenchError> {
        let advised = fadvise(&self.far, 0, None, Advice::DontNeed);
        advised.map_err(|errno| io("drop pages of", "a far image")(errno.into()))
    }
}

/// How much later clones start than from the pool.
fn judge(lane: &Lane, samples: &Samples) -> Vec<Goal> {
    let of = |start: &str| samples.values(&lane.subject.case(start), clones::RESTORE);
    let near = of("clone");
    let goal = |start: &str| {
        let later: Vec<f64> = of(start).iter().zip(near).map(|(far, near)| far - near).collect();
        let goal = format!("{}: {start} starts later than from the pool, us", lane.subject.name);
        Goal::median(goal, MOST_LATER_US, &later)
    };
    vec![goal(COLD), goal(CACHED)]
}
