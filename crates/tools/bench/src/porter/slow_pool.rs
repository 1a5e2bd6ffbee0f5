//! A pool that is slower than this machine's memory. What it would add to calls is modelled as in
//! [`latency`](crate::latency), and waited for in the functions themselves, which keeps a processor busy
//! as waiting for memory does.

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
/// Misses that are waited for at the same time.
const OVERLAP: f64 = 4.0;

/// What makes functions wait.
const PROGRAM: &str = "bench/programs/slow_pool.py";

/// What such a pool adds to calls, and where functions are told of it.
pub struct SlowPool {
    emulation: Emulation,
    program: String,
    file: PathBuf,
}

impl SlowPool {
    /// Emulates functions; they are told by `file`, which there is as long as a system is told of.
    pub fn of(root: &Path, functions: &[&str], file: PathBuf) -> Result<SlowPool, BenchError> {
        let only = functions.iter().map(|name| (*name).to_owned()).collect();
        let emulation = Emulation::of(root, &Options { quick: true, only })?;
        let program = root.join(PROGRAM);
        let program = fs::read_to_string(&program).map_err(io("read", &program))?;
        Ok(SlowPool { emulation, program, file })
    }

    /// A function's code, which waits for that pool.
    pub fn slowed(&self, name: &str, code: &str) -> String {
        let (name, file) = (json!(name), json!(self.file));
        // Texts are written in Python as in JSON.
        format!("{code}\n\n{}\n\nmain = _slowed(main, {name}, {file})\n", self.program)
    }

    /// Tells functions of what the pool adds under a system's policies.
    pub fn tell(&self, system: &System) -> Result<(), BenchError> {
        let told = match self.added(system) {
            Some(added) => fs::write(&self.file, added.to_string()),
            // Functions without images: nothing of theirs lies in the pool.
            None => match fs::remove_file(&self.file) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        };
        told.map_err(io("tell functions by", &self.file))
    }

    /// Microseconds that are added to the first call of a clone and to a later one, by how its pages are
    /// mapped; those for each page that is copied before it runs.
    fn added(&self, system: &System) -> Option<Value> {
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
    fn systems_are_told_of_what_is_theirs() {
        for system in systems::all() {
            let added = slow_pool().added(&system);
            assert_eq!(added.is_some(), system.has_images(), "{}", system.name);
            let page_us = added.map_or(0.0, |added| added["copied_page_us"].as_f64().unwrap());
            // 64 lines, ten at a time, each 291 ns later.
            let expected = if system.name == FULL_COPY { 1.8624 } else { 0.0 };
            assert!((page_us - expected).abs() < 1e-9, "{}: {page_us}", system.name);
        }
    }
}
