//! C programs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Forking, LISTEN_FD, Subject};
use crate::error::BenchError;
use crate::protocol::{Footprint, Touches};

const FOOTPRINT_SOURCE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bench/programs/footprint.c"));

impl Subject {
    /// A C program with this many megabytes.
    pub fn footprint(program: &Path, megabytes: u64, touches: Touches) -> Subject {
        let suffix = if touches == Touches::Scattered { "-scattered" } else { "" };
        let program = program.display().to_string();
        let words = [LISTEN_FD.to_string(), megabytes.to_string(), touches.argument().to_owned()];
        Subject {
            name: format!("c-{megabytes}M{suffix}"),
            megabytes,
            protocol: Box::new(Footprint { megabytes, touches }),
            forking: Forking::OnRequest,
            prepare: None,
            arguments: [program].into_iter().chain(words).collect(),
            environment: Vec::new(),
        }
    }
}

/// Compiles the C subject to `program`.
pub fn compile_footprint(program: &Path) -> Result<(), BenchError> {
    compile(FOOTPRINT_SOURCE, program, &[])
}

/// Compiles a C program.
pub fn compile(source: &str, program: &Path, options: &[&str]) -> Result<(), BenchError> {
    let lacking = |reason: String| BenchError::Lacking {
        doing: "compile a C program with cc".to_owned(),
        reason,
        remedy: "install a C compiler (Debian: build-essential)",
    };
    let mut cc = Command::new("cc")
        .args(["-O2", "-x", "c", "-", "-o"])
        .arg(program)
        .args(options)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| lacking(error.to_string()))?;
    let mut input = cc.stdin.take();
    let written = input.as_mut().map(|input| input.write_all(source.as_bytes()));
    drop(input);
    let output = cc.wait_with_output().map_err(|error| lacking(error.to_string()))?;
    if output.status.success() && matches!(written, Some(Ok(()))) {
        return Ok(());
    }
    Err(lacking(String::from_utf8_lossy(&output.stderr).into_owned()))
}
