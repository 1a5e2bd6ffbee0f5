//! Profiling a function: payload by payload, measured, then emulated, then modelled for each share.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use farfork_types::{LocalShare, PAGE_BYTES};
use serde_json::Value;

use crate::emulator;
use crate::error::ProfileError;
use crate::format::{Cell, Latency, Model, PhaseBytes, Profile};
use crate::model::Misses;
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
    /// From misses to time.
    pub model: Model,
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
    let mut cells = Vec::new();
    for payload in &options.payloads {
        let (name, bytes) = (&options.name, payload.bytes);
        progress(&format!("measuring {name} with {bytes} bytes"));
        let measured = measure(options, payload)?;
        progress(&format!("emulating {name} with {bytes} bytes"));
        let misses = emulator::misses(
            name,
            &options.python,
            &options.function,
            &payload.args,
            options.model.cache_bytes,
        )?;
        cells.extend(
            options
                .shares
                .iter()
                .map(|share| cell(&options.model, payload, &measured, &misses, *share)),
        );
    }
    Ok(Profile {
        function: options.name.clone(),
        machine: machine(),
        modelled: true,
        model: options.model,
        version: env!("CARGO_PKG_VERSION"),
        cells,
    })
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

fn measure(options: &Options, payload: &Payload) -> Result<Measured, ProfileError> {
    let [program, arguments @ ..] = words(&options.python, &options.function);
    let mut command = Command::new(program);
    command.args(arguments);
    let begun = Instant::now();
    let mut process = Process::start(&options.name, command)?;
    process.ready()?;
    let init_us = micros(begun);
    let init = process.resident_bytes();
    let mut call = || -> Result<(u64, Value), ProfileError> {
        let begun = Instant::now();
        process.send(&payload.args)?;
        let result = process.receive()?;
        Ok((micros(begun), result))
    };
    // The first call is not a warm one.
    call()?;
    let mut results = Vec::new();
    for _ in 0..options.calls.max(1) {
        results.push(call()?);
    }
    process.forget_peak();
    process.send(&payload.args)?;
    process.receive()?;
    let phase_bytes =
        PhaseBytes { init, execution: process.peak_bytes(), keep_alive: process.resident_bytes() };
    let mut calls_us: Vec<u64> = results.iter().map(|(us, _)| *us).collect();
    calls_us.sort_unstable();
    let stage_us = stages(&results, &process)?;
    Ok(Measured { init_us, calls_us, stage_us, phase_bytes })
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
    let stage_us = measured.stage_us.iter().map(|(name, us)| {
        let far = misses.far_of_stage(name, placement, permille, pages);
        (name.clone(), us + model.added_us(far))
    });
    let us = &measured.calls_us;
    let at = |percent: usize| us[(us.len() * percent).div_ceil(100).saturating_sub(1)] + added_us;
    let latency_us = Latency { p50: at(50), p99: at(99), n: us.len() as u64 };
    let near_bytes = share.of(pages) * PAGE_BYTES;
    let rest = (pages * PAGE_BYTES).saturating_sub(near_bytes);
    let pool_bytes = rest.min(init);
    Cell {
        payload_bytes: payload.bytes,
        local_permille: permille,
        modelled: permille < LocalShare::ALL_PERMILLE,
        phase_us: BTreeMap::from([
            ("init", measured.init_us),
            ("cold", measured.init_us),
            ("execution", latency_us.p50),
        ]),
        phase_bytes: measured.phase_bytes,
        stage_us: stage_us.collect(),
        latency_us,
        near_bytes,
        pool_bytes,
        far_bytes: rest - pool_bytes,
        misses: misses.total(),
        far_misses,
    }
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
