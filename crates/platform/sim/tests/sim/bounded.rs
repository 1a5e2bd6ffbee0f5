//! Traces are read in bounded memory: a child process has a limit of its data.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::{Command, Output};

use farfork_sim::trace::open_within;
use rustix::process::{Resource, Rlimit, setrlimit};

const CALLS: u64 = 400_000;
/// The calls take 16 MB and their sorting half of that again; the reader may take this more than the process has.
const MORE_BYTES: u64 = 8 << 20;
/// What a child reads, and with how many calls in memory.
const TRACE: &str = "FARFORK_TEST_TRACE";
const IN_MEMORY: &str = "FARFORK_TEST_IN_MEMORY";

/// Bytes of data of this process.
fn data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Does nothing but in a child of the test below.
#[test]
fn reads_within_a_limit() {
    let Ok(path) = std::env::var(TRACE) else { return };
    let in_memory = std::env::var(IN_MEMORY).unwrap().parse().unwrap();
    let most = Some(data_bytes() + MORE_BYTES);
    setrlimit(Resource::Data, Rlimit { current: most, maximum: most }).unwrap();
    let stream = open_within(&[PathBuf::from(path)], None, 1, in_memory).unwrap();
    let (mut last, mut count) = (0, 0);
    for request in stream.requests() {
        let at = request.unwrap().arrival_us;
        assert!(at >= last);
        (last, count) = (at, count + 1);
    }
    println!("{count} calls, sorted");
}

fn child(trace: &str, in_memory: usize) -> Output {
    let test = ["--exact", "bounded::reads_within_a_limit", "--nocapture", "--test-threads", "1"];
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(test).env(TRACE, trace).env(IN_MEMORY, in_memory.to_string());
    command.output().unwrap()
}

#[test]
fn a_trace_is_read_in_bounded_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    let mut file = BufWriter::new(File::create(&path).unwrap());
    writeln!(file, "function,arrival_us,duration_us").unwrap();
    for call in 0..CALLS {
        writeln!(file, "f{},{},5", call % 50, call.wrapping_mul(2_654_435_761) % 1_000_000)
            .unwrap();
    }
    file.into_inner().unwrap();
    let path = path.to_str().unwrap();
    let bounded = child(path, 1 << 14);
    let words = String::from_utf8_lossy(&bounded.stdout).into_owned();
    assert!(words.contains("400000 calls, sorted"), "{bounded:?}");
    // The limit is one: with all calls in memory it does not suffice.
    let unbounded = child(path, usize::MAX);
    assert!(!unbounded.status.success(), "{unbounded:?}");
}
