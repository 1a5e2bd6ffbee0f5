//! What it costs to protect metadata by a key. A process does so for all of its regions, so that another one measures it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::{Bench, GUARDED, MESSAGE, NS, PAIR, SHUFFLED, failed, pairs};
use crate::error::{BenchError, io};
use crate::objects::allocators::touch;
use crate::samples::Samples;

const CASE: &str = "farfork, protected";
const METRICS: [&str; 4] = [PAIR, SHUFFLED, MESSAGE, GUARDED];
/// In the environment: the region, for the process that measures.
const REGION: &str = "FARFORK_BENCH_PROTECTED";

/// The region, if this is the process that measures.
pub(super) fn region() -> Option<OsString> {
    std::env::var_os(REGION)
}

/// Measures in this process, and prints the figures.
pub(super) fn measure(region: &Path) -> Result<(), BenchError> {
    let bench = Bench::on(region);
    let mut client = bench.client()?;
    let pair = pairs(&mut client, 64, touch);
    let shuffled = bench.many(&mut client);
    drop(client);
    println!("{pair} {shuffled} {} {}", bench.messages()?, bench.guarded()?);
    Ok(())
}

/// Has another process measure.
pub(super) fn add(region: &Path, samples: &mut Samples) -> Result<(), BenchError> {
    let processors =
        std::fs::read_to_string("/proc/cpuinfo").map_err(io("read", "/proc/cpuinfo"))?;
    if !processors.split_whitespace().any(|flag| flag == "ospke") {
        samples.note(
            CASE,
            PAIR,
            NS,
            "not measured: the processor or the kernel has no protection keys",
        );
        return Ok(());
    }
    let program = std::env::current_exe().map_err(io("find this program in", "/proc/self"))?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1)).env("FARFORK_PROTECTED", "1").env(REGION, region);
    let output = command.output().map_err(io("start", &program))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    if !output.status.success() || figures.len() != METRICS.len() {
        return Err(failed(format!("{CASE}: {output:?}")));
    }
    for (metric, ns) in METRICS.into_iter().zip(figures) {
        samples.add(CASE, metric, NS, ns);
    }
    Ok(())
}
