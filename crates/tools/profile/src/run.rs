//! Profiling a function: payload by payload, measured, then emulated, then modelled for each share; or measured for each
//! share, on a machine with far memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use farfork_types::{LocalShare, PAGE_BYTES};
use rustix::thread::disable_transparent_huge_pages;
use serde_json::Value;

use crate::emulator;
use crate::error::{ProfileError, io};
use crate::format::{Cell, Latency, Model, PhaseBytes, Profile};
use crate::model::Misses;
use crate::placed::Nodes;
use crate::process::{Process, words};

/// What to profile.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name in the profile.
    pub name: String,
    /// A Python file, a zip, or a folder.
    pub function: PathBuf,
    /// Python with the package farfork.
    pub python: PathBuf,
    /// The payloads.
    pub payloads: Vec<Payload>,
    /// The shares.
    pub shares: Vec<LocalShare>,
    /// Measured calls of each payload.
    pub calls: u64,
    /// From misses to time; `None` to measure far memory.
    pub model: Option<Model>,
}

/// Arguments of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Payload {
    /// Their size: what the arguments say (`payload_bytes`), for functions that fetch their input, or else that of their
    /// text.
    pub bytes: u64,
    /// The arguments.
    pub args: Value,
}

impl Payload {
    /// Without arguments.
    pub fn none() -> Payload {
        Payload { bytes: 0, args: Value::Object(serde_json::Map::new()) }
    }

    /// Reads arguments from a JSON file.
    ///
    /// # Errors
    /// It cannot be read, or is not a JSON object.
    pub fn read(path: &Path) -> Result<Payload, ProfileError> {
        let wrong = |reason: String| ProfileError::Payload { path: path.to_owned(), reason };
        let text = fs::read(path).map_err(|error| wrong(farfork_sys::words::of(&error)))?;
        let args: Value = serde_json::from_slice(&text)
            .map_err(|invalid| wrong(format!("it is not JSON: {invalid}")))?;
        if !args.is_object() {
            return Err(wrong("it is not a JSON object, as arguments of a call are".to_owned()));
        }
        let bytes = match &args["payload_bytes"] {
            Value::Null => text.len() as u64,
            said => said.as_u64().ok_or_else(|| {
                wrong(format!("invalid payload_bytes {said} (expected a number of bytes)"))
            })?,
        };
        Ok(Payload { bytes, args })
    }
}

/// What a process of the function took.
struct Measured {
    init_us: u64,
    /// Sorted.
    calls_us: Vec<u64>,
    stage_us: BTreeMap<String, u64>,
    phase_bytes: PhaseBytes,
}

/// Profiles a function; `progress` gets what is being done.
///
/// # Errors
/// Payloads that cannot be distinguished, a function that fails, or no emulator.
pub fn run(options: &Options, progress: impl Fn(&str)) -> Result<Profile, ProfileError> {
    let options = &Options { python: found(&options.python)?, ..options.clone() };
    let mut sizes: Vec<u64> = options.payloads.iter().map(|payload| payload.bytes).collect();
    sizes.sort_unstable();
    if let Some(same) = sizes.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(ProfileError::SamePayload { bytes: same[0] });
    }
    let far = match options.model {
        Some(model) => Far::Modelled(model),
        None => Far::Measured(far_nodes()?),
    };
    let mut cells = Vec::new();
    for payload in &options.payloads {
        progress(&format!("measuring {} with {} bytes", options.name, payload.bytes));
        cells.extend(match &far {
            Far::Modelled(model) => modelled_cells(options, model, payload, &progress)?,
            Far::Measured(nodes) => measured_cells(options, payload, nodes, &progress)?,
        });
    }
    let mut machine = machine();
    if let Far::Measured(nodes) = far {
        let [near, far] = nodes.shown();
        machine.extend([("near_nodes", near), ("far_nodes", far)]);
    }
    Ok(Profile {
        function: options.name.clone(),
        machine,
        modelled: options.model.is_some(),
        model: options.model,
        version: env!("CARGO_PKG_VERSION"),
        cells,
    })
}

/// How latencies with far memory are known.
enum Far {
    Modelled(Model),
    Measured(Nodes),
}

fn far_nodes() -> Result<Nodes, ProfileError> {
    Nodes::of_machine().ok_or_else(|| ProfileError::Lacking {
        doing: "measure far memory".to_owned(),
        reason: "this machine has no memory node without processors".to_owned(),
        remedy: "model it".to_owned(),
    })
}

fn modelled_cells(
    options: &Options,
    model: &Model,
    payload: &Payload,
    progress: &impl Fn(&str),
) -> Result<Vec<Cell>, ProfileError> {
    let measured = Running::start(options, payload)?.measure()?;
    let name = &options.name;
    progress(&format!("emulating {name} with {} bytes", payload.bytes));
    let (python, function) = (&options.python, &options.function);
    let misses = emulator::misses(name, python, function, &payload.args, model.cache_bytes)?;
    let shares = options.shares.iter();
    Ok(shares.map(|share| cell(model, payload, &measured, &misses, *share)).collect())
}

/// The cells of one process, whose pages are moved from share to share.
fn measured_cells(
    options: &Options,
    payload: &Payload,
    nodes: &Nodes,
    progress: &impl Fn(&str),
) -> Result<Vec<Cell>, ProfileError> {
    // Pages of 2 MiB move as a whole, and then no share is exact. The process inherits that.
    let huge = rustix::thread::transparent_huge_pages_are_disabled()
        .and_then(|are_off| disable_transparent_huge_pages(true).map(|()| are_off))
        .map_err(|errno| io("turn off huge pages")(errno.into()))?;
    let running = Running::start(options, payload);
    // Cannot fail: it is what was set before.
    let _ = disable_transparent_huge_pages(huge);
    let mut running = running?;
    let whole = running.measure()?;
    let mut cells = Vec::new();
    for share in &options.shares {
        let permille = share.permille();
        progress(&format!("measuring {} with {permille} thousandths near", options.name));
        let pages = whole.phase_bytes.execution / PAGE_BYTES;
        let wanted = pages - share.of(pages);
        let place = |pid| {
            let placed = nodes.place(pid, wanted);
            placed.map_err(io("move pages of the function"))
        };
        let (mut far, mut peak_bytes) = (0, 0);
        let mut results = Vec::new();
        for _ in 0..options.calls.max(1) {
            // What the call before has taken is near.
            far = place(running.process.pid())?.far;
            running.process.forget_peak();
            results.push(running.call()?);
            peak_bytes = peak_bytes.max(running.process.peak_bytes());
        }
        let far_bytes = far * PAGE_BYTES;
        let mut measured = running.of(results)?;
        measured.phase_bytes.execution = peak_bytes;
        let near_bytes = peak_bytes.saturating_sub(far_bytes);
        cells.push(measured.cell(payload, *share, Held { near_bytes, pool_bytes: 0, far_bytes }));
    }
    Ok(cells)
}

/// An emulator does not look for programs in `PATH`.
fn found(program: &Path) -> Result<PathBuf, ProfileError> {
    if program.components().count() > 1 {
        return Ok(program.to_owned());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&paths).map(|folder| folder.join(program));
    places.find(|place| place.is_file()).ok_or_else(|| ProfileError::Lacking {
        doing: format!("run {}", program.display()),
        reason: "it is not in PATH".to_owned(),
        remedy: "name a Python with the package farfork by --python".to_owned(),
    })
}

/// A process of the function.
struct Running<'o> {
    process: Process,
    payload: &'o Payload,
    calls: u64,
    init_us: u64,
    phase_bytes: PhaseBytes,
}

/// Where the memory of a call lies, in bytes.
struct Held {
    near_bytes: u64,
    pool_bytes: u64,
    far_bytes: u64,
}

impl<'o> Running<'o> {
    /// Loads the function, and calls it once: that call is not a warm one.
    fn start(options: &Options, payload: &'o Payload) -> Result<Running<'o>, ProfileError> {
        let [program, arguments @ ..] = words(&options.python, &options.function);
        let mut command = Command::new(program);
        command.args(arguments);
        let begun = Instant::now();
        let mut process = Process::start(&options.name, command)?;
        process.ready()?;
        let init_us = micros(begun);
        let phase_bytes = PhaseBytes { init: process.resident_bytes(), ..PhaseBytes::default() };
        let calls = options.calls.max(1);
        let mut running = Running { process, payload, calls, init_us, phase_bytes };
        running.call()?;
        Ok(running)
    }

    fn call(&mut self) -> Result<(u64, Value), ProfileError> {
        let begun = Instant::now();
        self.process.send(&self.payload.args)?;
        let result = self.process.receive()?;
        Ok((micros(begun), result))
    }

    /// Warm calls, and the memory of one more.
    fn measure(&mut self) -> Result<Measured, ProfileError> {
        let mut results = Vec::new();
        for _ in 0..self.calls {
            results.push(self.call()?);
        }
        self.process.forget_peak();
        self.call()?;
        self.phase_bytes.execution = self.process.peak_bytes();
        self.of(results)
    }

    /// What these calls were.
    fn of(&mut self, results: Vec<(u64, Value)>) -> Result<Measured, ProfileError> {
        self.phase_bytes.keep_alive = self.process.resident_bytes();
        let mut calls_us: Vec<u64> = results.iter().map(|(us, _)| *us).collect();
        calls_us.sort_unstable();
        let stage_us = stages(&results, &self.process)?;
        Ok(Measured { init_us: self.init_us, calls_us, stage_us, phase_bytes: self.phase_bytes })
    }
}

impl Measured {
    /// The cell of a share, as measured.
    fn cell(&self, payload: &Payload, share: LocalShare, held: Held) -> Cell {
        let us = &self.calls_us;
        let at = |percent: usize| us[(us.len() * percent).div_ceil(100).saturating_sub(1)];
        let latency_us = Latency { p50: at(50), p99: at(99), n: us.len() as u64 };
        let Held { near_bytes, pool_bytes, far_bytes } = held;
        Cell {
            payload_bytes: payload.bytes,
            local_permille: share.permille(),
            modelled: false,
            phase_us: BTreeMap::from([
                ("init", self.init_us),
                ("cold", self.init_us),
                ("execution", latency_us.p50),
            ]),
            phase_bytes: self.phase_bytes,
            stage_us: self.stage_us.clone(),
            latency_us,
            near_bytes,
            pool_bytes,
            far_bytes,
            misses: None,
            far_misses: None,
        }
    }
}

/// The median of each stage that the results report (key `stages_us`).
fn stages(
    results: &[(u64, Value)],
    process: &Process,
) -> Result<BTreeMap<String, u64>, ProfileError> {
    let mut all = BTreeMap::<String, Vec<u64>>::new();
    for (_, result) in results {
        let Some(stages) = result.get("stages_us") else { continue };
        let wrong = || {
            process.failed(format!(
                "invalid stages_us {stages} (expected microseconds by the names of stages)"
            ))
        };
        for (name, us) in stages.as_object().ok_or_else(wrong)? {
            all.entry(name.clone()).or_default().push(us.as_u64().ok_or_else(wrong)?);
        }
    }
    let median = |mut us: Vec<u64>| {
        us.sort_unstable();
        us[us.len() / 2]
    };
    Ok(all.into_iter().map(|(name, us)| (name, median(us))).collect())
}

fn cell(
    model: &Model,
    payload: &Payload,
    measured: &Measured,
    misses: &Misses,
    share: LocalShare,
) -> Cell {
    let (permille, placement) = (share.permille(), model.placement);
    let PhaseBytes { init, execution, .. } = measured.phase_bytes;
    let pages = execution / PAGE_BYTES;
    let far_misses = misses.far(placement, permille, pages);
    let added_us = model.added_us(far_misses);
    let near_bytes = share.of(pages) * PAGE_BYTES;
    let rest = (pages * PAGE_BYTES).saturating_sub(near_bytes);
    let pool_bytes = rest.min(init);
    let held = Held { near_bytes, pool_bytes, far_bytes: rest - pool_bytes };
    let mut cell = measured.cell(payload, share, held);
    for (name, us) in &mut cell.stage_us {
        *us += model.added_us(misses.far_of_stage(name, placement, permille, pages));
    }
    let Latency { p50, p99, .. } = cell.latency_us;
    (cell.latency_us.p50, cell.latency_us.p99) = (p50 + added_us, p99 + added_us);
    cell.phase_us.insert("execution", cell.latency_us.p50);
    cell.modelled = permille < LocalShare::ALL_PERMILLE;
    (cell.misses, cell.far_misses) = (Some(misses.total()), Some(far_misses));
    cell
}

fn machine() -> BTreeMap<&'static str, String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
    };
    BTreeMap::from([
        ("cpu", field(&read("/proc/cpuinfo"), "model name")),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
    ])
}

fn micros(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Payload, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("payload.json");
        fs::write(&path, text).unwrap();
        Payload::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn payloads_are_objects_with_a_size() {
        assert_eq!(read(r#"{"a": 1}"#).unwrap().bytes, 8);
        assert_eq!(read(r#"{"payload_bytes": 70000}"#).unwrap().bytes, 70_000);
        for (wrong, words) in [
            ("[1]", "is not a JSON object"),
            ("{", "is not JSON"),
            (r#"{"payload_bytes": "7"}"#, "invalid payload_bytes"),
        ] {
            let message = read(wrong).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
        assert!(Payload::read(Path::new("/nowhere")).is_err());
    }
}
