//! A pool that is slower than this machine's memory. The time that it would add to calls is modelled as in
//! [`latency`](crate::latency). The functions themselves wait for it in a busy loop, as a processor is
//! busy while it waits for memory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use farfork_types::Tiering;
use serde_json::{Value, json};

use super::systems::{FULL_COPY, MIGRATE_ON_ACCESS, System};
use crate::Options;
use crate::error::{BenchError, io};
use crate::latency::{Emulation, Traffic};

/// The latency of CXLfork's device (§7.1).
pub const POOL_NS: f64 = 391.0;
/// Number of overlapping misses.
const OVERLAP: f64 = 4.0;

/// The code that makes functions wait.
const PROGRAM: &str = "bench/programs/slow_pool.py";

/// The delays of a slow pool, and the file in which functions read them.
pub struct SlowPool {
    emulation: Emulation,
    program: String,
    file: PathBuf,
}

impl SlowPool {
    /// Emulates functions to compute their delays. `file` exists while a system with delays runs.
    pub fn emulate(root: &Path, functions: &[&str], file: PathBuf) -> Result<SlowPool, BenchError> {
        let only = functions.iter().map(|name| (*name).to_owned()).collect();
        let emulation = Emulation::run(root, &Options { quick: true, only })?;
        let program = root.join(PROGRAM);
        let program = fs::read_to_string(&program).map_err(io("read", &program))?;
        Ok(SlowPool { emulation, program, file })
    }

    /// The code of a function, with the delays.
    pub fn slowed(&self, name: &str, code: &str) -> String {
        let (name, file) = (json!(name), json!(self.file));
        // Strings have the same syntax in Python as in JSON.
        format!("{code}\n\n{}\n\nmain = _slowed(main, {name}, {file})\n", self.program)
    }

    /// Writes the delays under a system's policies for the functions.
    pub fn write_delays(&self, system: &System) -> Result<(), BenchError> {
        let written = match self.delays(system) {
            Some(added) => fs::write(&self.file, added.to_string()),
            // Functions without images have no pages in the pool.
            None => match fs::remove_file(&self.file) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        };
        written.map_err(io("write delays to", &self.file))
    }

    /// Delays in microseconds: of the first call of a clone and of a later one, by how its pages are
    /// mapped; and of each page that is copied before the clone runs.
    fn delays(&self, system: &System) -> Option<Value> {
        let of = |tiering| {
            let one = |name: &str, traffic: [Traffic; 2]| {
                (name.to_owned(), json!(traffic.map(|traffic| traffic.added_us(POOL_NS, OVERLAP))))
            };
            let all = self.emulation.traffic(tiering).map(|(name, traffic)| one(name, traffic));
            Value::Object(all.collect())
        };
        let served = if system.name == MIGRATE_ON_ACCESS { Tiering::Moa } else { Tiering::Hybrid };
        let page = Traffic { lines: 0, pages: 1 }.added_us(POOL_NS, OVERLAP);
        system.has_images().then(|| {
            json!({
                "mapped": of(Tiering::Mow),
                "served": of(served),
                "copied_page_us": if system.name == FULL_COPY { page } else { 0.0 },
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::systems;
    use super::*;

    fn slow_pool() -> SlowPool {
        let file = PathBuf::from("/run/\"it\"/delays.json");
        SlowPool { emulation: Emulation::default(), program: "def _slowed(): ...".into(), file }
    }

    #[test]
    fn main_waits_by_the_last_line() {
        let code = slow_pool().slowed("cnn", "def main(args): ...");
        assert!(code.starts_with("def main(args): ...\n\ndef _slowed(): ...\n"), "{code}");
        let last = code.lines().last().unwrap();
        assert_eq!(last, r#"main = _slowed(main, "cnn", "/run/\"it\"/delays.json")"#);
    }

    #[test]
    fn systems_with_images_have_delays() {
        for system in systems::all() {
            let delays = slow_pool().delays(&system);
            assert_eq!(delays.is_some(), system.has_images(), "{}", system.name);
            let page_us = delays.map_or(0.0, |delays| delays["copied_page_us"].as_f64().unwrap());
            // 64 lines, ten at a time, each 291 ns later.
            let expected = if system.name == FULL_COPY { 1.8624 } else { 0.0 };
            assert!((page_us - expected).abs() < 1e-9, "{}: {page_us}", system.name);
        }
    }
}
