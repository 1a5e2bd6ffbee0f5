//! Other libraries for shared memory, if this machine has what they need: boost.interprocess, whose program is compiled here,
//! and iceoryx2, with the feature of that name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bench/programs/boost.cpp"));

/// boost.interprocess: its program.
pub(super) struct Boost(PathBuf);

/// One run of it, in nanoseconds.
#[derive(Debug, PartialEq)]
pub(super) struct BoostFigures {
    pub(super) version: String,
    pub(super) pair: f64,
    pub(super) many: f64,
    pub(super) one_way: f64,
}

impl Boost {
    /// Compiles the program. The error says what is missing.
    pub(super) fn compile(directory: &Path) -> Result<Boost, String> {
        let (source, program) = (directory.join("boost.cpp"), directory.join("boost"));
        std::fs::write(&source, PROGRAM).map_err(|error| error.to_string())?;
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-O2", "-w", "-o"]).arg(&program).arg(&source);
        let compiled = compiler.args(["-pthread", "-lrt"]).stderr(Stdio::piped()).output();
        match compiled {
            Err(error) => Err(format!("no C++ compiler ({error}): install g++ and libboost-dev")),
            Ok(output) if output.status.success() => Ok(Boost(program)),
            Ok(_) => Err("its program did not compile: install libboost-dev".to_owned()),
        }
    }

    pub(super) fn run(&self) -> Option<BoostFigures> {
        let output = Command::new(&self.0).stderr(Stdio::null()).output().ok()?;
        BoostFigures::of(&String::from_utf8_lossy(&output.stdout))
    }
}

impl BoostFigures {
    fn of(line: &str) -> Option<BoostFigures> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [version, "pair", pair, "many", many, "one-way", one_way] = words[..] else {
            return None;
        };
        let ns = |word: &str| word.parse().ok();
        let version = version.replace('_', ".");
        Some(BoostFigures { version, pair: ns(pair)?, many: ns(many)?, one_way: ns(one_way)? })
    }
}

#[cfg(feature = "iceoryx2")]
pub(super) use iceoryx::one_way_ns;

/// Half of a round trip between two processes. `None`: this program was built without iceoryx2.
#[cfg(not(feature = "iceoryx2"))]
pub(super) fn one_way_ns(_trips: usize) -> Option<Result<f64, String>> {
    None
}

#[cfg(feature = "iceoryx2")]
mod iceoryx;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_line_is_read() {
        let line = "1_74 pair 50.5 many 90.25 one-way 700.0\n";
        let (version, pair, many, one_way) = ("1.74".to_owned(), 50.5, 90.25, 700.0);
        assert_eq!(BoostFigures::of(line), Some(BoostFigures { version, pair, many, one_way }));
        assert_eq!(BoostFigures::of("1_74 pair x many 1 one-way 2"), None);
    }
}
