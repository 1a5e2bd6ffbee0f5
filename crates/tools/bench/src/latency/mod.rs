//! The modelled cost of a slow pool: `farfork bench latency` (CXLfork's figure 9).
//!
//! ```text
//!  emulated   each function under QEMU: call ─► record which pages calls access ─► "checkpoint" ─►
//!             first call, other calls: which lines miss, which pages are copied
//!  measured   rounds, on this machine's own memory: local fork │ clones: copied, mow, moa, hybrid
//!  modelled   time of a call, measured + what it reads from the pool × added latency
//! ```
//! The pool of this machine is as fast as its memory, and its hardware counters of misses are not
//! accessible. So misses are counted in an emulated processor, and their cost is modelled: [`model`].

mod emulator;
mod model;
mod rows;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use farfork_caches::Seen;
use farfork_types::Tiering;

use self::emulator::Emulated;
pub use self::model::Traffic;
use crate::cases::clone::{CloneOptions, Memory, learn, measure_as};
use crate::cases::{Bench, Lane, fitting, local, pause, rounds};
use crate::error::{BenchError, io};
use crate::machine::Machine;
use crate::protocol::SAME_INPUT;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::{Subject, needed_root, pool_bytes};
use crate::testbed::Testbed;
use crate::{Options, progress};

/// Sizes of last-level caches: that of CXLfork's machine, and the part that a function may have of a
/// shared one.
const LAST_LEVELS: [u64; 2] = [64 << 20, 4 << 20];
/// Calls whose accesses are recorded before the checkpoint. A platform has more.
const LEARNING: u64 = 4;
/// Warm calls of each process. Their median is its sample: a single call depends too much on other load.
const LATER_CALLS: u64 = 7;
/// Clones whose calls are measured.
const CLONES: [(&str, Tiering); 4] = [
    ("copy", Tiering::Copy),
    ("mow", Tiering::Mow),
    ("moa", Tiering::Moa),
    ("hybrid", Tiering::Hybrid),
];

// A round's processes, the fork among them, have the same input.
const _: () = assert!((CLONES.len() as u64 + 1) * (2 + LATER_CALLS) <= SAME_INPUT);

/// What the calls of a function do to the caches.
struct Counted {
    first: Seen,
    warm: Vec<Seen>,
}

/// One function, with its counts.
struct Function {
    lane: Lane,
    counted: Counted,
}

/// Counts of several functions, for other benchmarks that model a slow pool.
#[derive(Default)]
pub struct Emulation(BTreeMap<String, Counted>);

impl Emulation {
    /// Emulates the selected functions.
    pub fn run(root: &Path, options: &Options) -> Result<Emulation, BenchError> {
        let place = tempfile::tempdir().map_err(io("make", std::env::temp_dir()))?;
        let count = |subject: Subject| {
            progress(&format!("emulating {}", subject.name));
            let counted = emulate(root, &subject, 1, &place.path().join("plugin.sock"))?;
            Ok((subject.name, counted))
        };
        let subjects = Subject::functions(root, options, 1 + LEARNING + 1 + 1, &[])?;
        subjects.into_iter().map(count).collect::<Result<_, _>>().map(Emulation)
    }

    /// The traffic to the pool of a clone's first call and of a later one, by function. It is that of the
    /// smaller cache, because clones of many functions share a cache.
    pub fn traffic(&self, tiering: Tiering) -> impl Iterator<Item = (&str, [Traffic; 2])> {
        let of = move |seen: &Seen| Traffic::from_counts(seen, LAST_LEVELS.len() - 1, tiering);
        self.0.iter().map(move |(name, counted)| {
            let later = counted.warm.last().unwrap_or(&counted.first);
            (&**name, [of(&counted.first), of(later)])
        })
    }
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    let (number, warm): (_, u64) = if options.quick { (2, 1) } else { (21, 5) };
    let root = needed_root()?;
    let mut notes = vec![MODELLED.to_owned()];
    let subjects = Subject::functions(&root, options, 1 + LEARNING + 1 + warm, &[])?;
    let testbed = Testbed::new(pool_bytes(&subjects))?;
    let subjects = fitting(subjects, false, &mut notes);
    let mut functions = Vec::new();
    for subject in subjects {
        progress(&format!("emulating {}", subject.name));
        let counted = emulate(&root, &subject, warm, &testbed.path("plugin.sock"))?;
        let no_criu = Err::<Rc<_>, _>("CRIU is not compared here".to_owned());
        match Lane::start(subject, &testbed, &no_criu)? {
            Ok(mut lane) => {
                lane.later_calls = LATER_CALLS;
                functions.push(Function { lane, counted });
            }
            Err(note) => notes.push(note),
        }
    }
    let mut samples = Samples::default();
    let mut bench = Bench { testbed: &testbed, samples: &mut samples };
    for function in &mut functions {
        learn(&mut function.lane, &testbed)?;
    }
    rounds(number, &mut bench, |bench| {
        functions.iter_mut().try_for_each(|function| one_round(&mut function.lane, bench))
    })?;
    functions.iter().for_each(|function| rows::add(function, &mut samples));
    Ok(Report {
        benchmark: "latency",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: functions.iter().flat_map(|function| rows::goals(function, &samples)).collect(),
        rows: samples.rows(),
        notes,
    })
}

const MODELLED: &str = "Rows with a pool's latency in their names are modelled: times measured on this \
    machine, whose pool is as fast as its memory, plus the time for misses counted in an emulated \
    processor.";

fn one_round(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cid = lane.warm.cid;
    lane.next_round();
    pause();
    local::measure(lane, bench)?;
    for (name, tiering) in CLONES {
        pause();
        measure_as(lane, bench, &CloneOptions::new(cid, tiering), name, Memory::Here)?;
    }
    Ok(())
}

fn emulate(
    root: &Path,
    subject: &Subject,
    warm: u64,
    socket: &Path,
) -> Result<Counted, BenchError> {
    let path = |relative: &str| root.join(relative).display().to_string();
    let words = [
        path(".venv/bin/python"),
        path("bench/programs/answer_lines.py"),
        path(&format!("functions/{}", subject.name)),
    ];
    let protocol = &*subject.protocol;
    // Each call has another input.
    let number = |call: u64| call * protocol.same_input();
    let mut process = Emulated::start(&subject.name, &words, &LAST_LEVELS, socket)?;
    process.call(protocol, number(0))?;
    process.learn()?;
    (1..=LEARNING).try_for_each(|call| process.call(protocol, number(call)))?;
    process.checkpoint()?;
    let first = LEARNING + 1;
    let mut measure = |call| process.measure(protocol, number(call));
    let counted = measure(first)?;
    let warm = (first + 1..=first + warm).map(measure).collect::<Result<_, _>>()?;
    Ok(Counted { first: counted, warm })
}
