//! Images of another node: `farfork bench far`.
//!
//! ```text
//!  set up   for each footprint and function: start, warm, checkpoint; for each transport a server of far memory in this
//!           process, and a far process that reads from it: over TCP on the loopback device, by shared memory
//!  rounds   for each transport: reads of the far file with nothing cached: 1 │ 32 │ 128 pages at random
//!           places │ single pages by 1, 4, 16, 32 readers at once │ 64 MiB in order
//!  rounds   for each of them: clone from the pool │ for each transport: nothing cached │ all cached │ from a pool
//!           that has only the parts which a profiling clone touched, and the rest over TCP
//! ```
//! Invariants: before a case with nothing cached the kernel has dropped the pages of the image, which is
//! checked: all bytes are fetched again. What is fetched although all was cached stands in the report: the kernel drops pages that
//! no process uses. Each byte that is read is compared with the pool's.

mod parts;
mod reads;

use std::ffi::OsString;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use farfork_far::place::Place;
use farfork_far::{FarError, FarServer, Offers, new_key_at, start};
use farfork_pool::Pool;
use farfork_types::{Cid, PAGE_BYTES, Tiering};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{Advice, fadvise};

use self::parts::Parts;
use crate::cases::clone::{CloneOptions, Memory, measure_as};
use crate::cases::{Bench, Lane, rounds};
use crate::error::{BenchError, io};
use crate::goals::Goal;
use crate::machine::Machine;
use crate::protocol::Touches;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::{Subject, compile_footprint, needed_root, pool_bytes};
use crate::testbed::Testbed;
use crate::{Options, clones, progress};

const FOOTPRINTS: [u64; 2] = [24, 100];
/// Inputs of a function.
const EXAMPLES: u64 = 16;
/// Enough for an interval: their calls take long.
const FUNCTION_ROUNDS: usize = 11;

/// One way to read the server, and how its cases are named.
struct Transport {
    name: &'static str,
    cold: &'static str,
    cached: &'static str,
    /// Goal: how much later a clone may start than from the pool, in microseconds.
    most_later_us: f64,
}

const TRANSPORTS: [Transport; 2] = [
    Transport { name: "tcp", cold: "far-cold", cached: "far-cached", most_later_us: 2000.0 },
    Transport { name: "shm", cold: "shm-cold", cached: "shm-cached", most_later_us: 300.0 },
];

const NOTE: &str = "Servers and far processes are on one machine: TCP on the loopback device with every frame \
    sealed (far, tcp), and shared memory (shm). Neither is one-sided. \
    The agent has read each image before: its metadata is not read again.";

/// The far side of a benchmark.
struct Far {
    transport: &'static Transport,
    place: Place,
    address: String,
    key: PathBuf,
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
    let mut notes = vec![NOTE.to_owned()];
    let functions = functions(options, &mut notes)?;
    let sizes: u64 = FOOTPRINTS.iter().sum();
    let testbed = Testbed::new(pool_bytes(&functions) + (sizes << 20))?;
    let mut lanes = start_all(functions, &testbed, &mut notes)?;
    let functions = lanes.len();
    lanes.extend(start_all(footprints(options, &testbed)?, &testbed, &mut notes)?);
    let fars = TRANSPORTS.iter().map(|transport| Far::start(&testbed, transport));
    let fars = fars.collect::<Result<Vec<_>, _>>()?;
    let images = |far: &Far| {
        lanes.iter().map(|lane| far.image(&testbed, lane.warm.cid)).collect::<Result<Vec<_>, _>>()
    };
    let images = fars.iter().map(images).collect::<Result<Vec<_>, _>>()?;
    let parts = lanes.iter_mut().map(|lane| Parts::new(lane, &testbed, &fars[0]));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let mut samples = Samples::default();
    let mut bench = Bench { testbed: &testbed, samples: &mut samples };
    let count = if options.quick { 5 } else { 31 };
    rounds(count, &mut bench, |bench| {
        fars.iter().zip(&images).try_for_each(|(far, images)| match images.last() {
            Some(image) => reads::measure(far.transport.name, image, bench.samples),
            None => Ok(()),
        })
    })?;
    let mut one_round = |those: Range<usize>, bench: &mut Bench<'_>| {
        those.into_iter().try_for_each(|index| {
            let lane = &mut lanes[index];
            lane.next_round();
            let near = CloneOptions::new(lane.warm.cid, Tiering::Mow);
            measure_as(lane, bench, &near, "clone", Memory::Elsewhere)?;
            let with_images = fars.iter().zip(&images);
            with_images
                .map(|(far, images)| (far, &images[index]))
                .try_for_each(|(far, image)| far.measure(lane, image, &near, bench))?;
            parts[index].measure(lane, bench)
        })
    };
    let (of_functions, all) = (0..functions, functions..parts.len());
    let function_rounds = if options.quick { count } else { FUNCTION_ROUNDS };
    rounds(function_rounds, &mut bench, |bench| one_round(of_functions.clone(), bench))?;
    rounds(count, &mut bench, |bench| one_round(all.clone(), bench))?;
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

fn start_all(
    subjects: Vec<Subject>,
    testbed: &Testbed,
    notes: &mut Vec<String>,
) -> Result<Vec<Lane>, BenchError> {
    let mut lanes = Vec::new();
    for subject in subjects {
        progress(&format!("starting {}, warming it, checkpointing it", subject.name));
        let no_criu = Err("it is not compared here".to_owned());
        match Lane::start(subject, testbed, &no_criu)? {
            Ok(lane) => lanes.push(lane),
            Err(note) => notes.push(note),
        }
    }
    Ok(lanes)
}

/// The functions of the papers, unless the run is short and asks for none.
fn functions(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Subject>, BenchError> {
    let footprints = FOOTPRINTS.map(|megabytes| format!("c-{megabytes}M"));
    let others = footprints.each_ref().map(String::as_str);
    if options.quick && options.only.is_empty() {
        notes.push("Short runs leave the functions out.".to_owned());
        return Ok(Vec::new());
    }
    Subject::functions(&needed_root()?, options, EXAMPLES, &others)
}

fn footprints(options: &Options, testbed: &Testbed) -> Result<Vec<Subject>, BenchError> {
    let program = testbed.path("footprint");
    compile_footprint(&program)?;
    let all =
        FOOTPRINTS.map(|megabytes| Subject::footprint(&program, megabytes, Touches::Clustered));
    Ok(all.into_iter().filter(|subject| options.wants(&subject.name)).collect())
}

fn failed(error: FarError) -> BenchError {
    BenchError::Lacking {
        doing: "read far memory".to_owned(),
        reason: error.to_string(),
        remedy: "see that /dev/fuse exists",
    }
}

impl Far {
    fn start(testbed: &Testbed, transport: &'static Transport) -> Result<Far, BenchError> {
        let key_path = testbed.path(&format!("{}.key", transport.name));
        let sockets = testbed.path(&format!("{}-sockets", transport.name));
        std::fs::create_dir_all(&sockets).map_err(io("make", &sockets))?;
        let local = (transport.name == "shm").then_some(&*sockets);
        let key = new_key_at(&key_path).map_err(failed)?;
        let offers = Offers { local, ..Offers::default() };
        let pools = [testbed.pool().path()];
        let server = FarServer::start("127.0.0.1:0", &pools, key, None, offers).map_err(failed)?;
        let address = server.address().to_string();
        let place = Place::of(&testbed.path("run"), &address);
        let (own_address, key) = (address.clone(), key_path.clone());
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
        Ok(Far { transport, place, address: own_address, key, _server: server })
    }

    fn image(&self, testbed: &Testbed, cid: Cid) -> Result<Image, BenchError> {
        start::find(&self.place, &cid.to_string(), false).map_err(failed)?;
        self.must_use_its_transport()?;
        let near = testbed.pool().find(cid)?;
        let far = Pool::open(&self.place.pool())?.find(cid)?;
        let copy = |file: &File| file.try_clone().map_err(io("open", self.place.images()));
        Ok(Image { near: copy(near.file())?, far: copy(far.file())?, bytes: near.id.bytes, cid })
    }

    fn must_use_its_transport(&self) -> Result<(), BenchError> {
        let status = start::status(&self.place).map_err(failed)?;
        let name = self.transport.name;
        if status.images.iter().all(|image| image.transport.as_deref() == Some(name)) {
            return Ok(());
        }
        let reason = "the far process uses another transport".to_owned();
        Err(BenchError::Answer { case: name.to_owned(), reason })
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
        near: &CloneOptions,
        bench: &mut Bench<'_>,
    ) -> Result<(), BenchError> {
        let Transport { cold, cached, .. } = self.transport;
        let far = CloneOptions { pool: Some(self.place.pool()), ..near.clone() };
        image.drop_cached()?;
        let before = self.fetched(image.cid)?;
        measure_as(lane, bench, &far, cold, Memory::Elsewhere)?;
        let fetched = self.fetched(image.cid)? - before;
        let case = lane.subject.case(cold);
        bench.samples.add(&case, "fetched", "KiB", fetched as f64 / 1024.0);
        if fetched == 0 {
            let reason =
                "nothing was fetched: the kernel has not dropped the image's pages".to_owned();
            return Err(BenchError::Answer { case, reason });
        }
        self.prefetch(image)?;
        let before = self.fetched(image.cid)?;
        measure_as(lane, bench, &far, cached, Memory::Elsewhere)?;
        let (case, again) = (lane.subject.case(cached), self.fetched(image.cid)? - before);
        bench.samples.add(&case, "fetched", "KiB", again as f64 / 1024.0);
        if again > image.bytes / 8 {
            let reason = format!("{again} bytes were fetched that another clone had fetched");
            return Err(BenchError::Answer { case, reason });
        }
        Ok(())
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        end(&self.place);
    }
}

/// Unmounts what is mounted at `place`.
fn end(place: &Place) {
    let status = start::status(place);
    // It refuses while the agent has an image open. With both processes the file system goes: one alone goes on.
    if let (Err(_), Ok(status)) = (start::stop(place), status) {
        let send = |pid: u32, signal| {
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        };
        send(status.pid, Signal::SIGSTOP);
        send(status.holder_pid, Signal::SIGKILL);
        send(status.pid, Signal::SIGKILL);
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
    let goal = |start: &str, most: f64| {
        let later: Vec<f64> = of(start).iter().zip(near).map(|(far, near)| far - near).collect();
        let goal = format!("{}: {start} starts later than from the pool, us", lane.subject.name);
        Goal::median(goal, most, &later)
    };
    let of_transport = |transport: &Transport| {
        [transport.cold, transport.cached].map(|start| goal(start, transport.most_later_us))
    };
    TRANSPORTS.iter().flat_map(of_transport).collect()
}
