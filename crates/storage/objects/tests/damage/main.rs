//! Words of a region are damaged, one at a time, and then every operation is done: it fails in words or works. None ends
//! its process, waits for ever, or touches memory outside of the region, and a client of another region in the same process
//! notices nothing.
//!
//! A child does the work, and names each case before it begins. A case that ends the child, or takes longer than
//! [`PATIENCE`], is damage that the library does not withstand. `FARFORK_TEST_LONG=1` runs all cases, else some of them;
//! `FARFORK_TEST_CASE` says how the names of those that run begin.

mod cases;
mod files;
mod full;
mod operations;
mod stage;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use farfork::seeded::Fault;
use farfork::words::Mapped;
use farfork::{Node, Platform};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::cases::Job;

/// How long a case may take.
const PATIENCE: Duration = Duration::from_secs(20);
const ROLE: &str = "FARFORK_DAMAGE";

/// A platform whose receivers do not look whether a slot names a place for objects.
pub struct Trusting;

impl Platform for Trusting {
    type Words = Mapped;
    type Liveness = <Node as Platform>::Liveness;

    fn fault() -> Option<Fault> {
        Some(Fault::ReceiveTrustsSlots)
    }
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        if role == files::FOREIGN {
            files::open_foreign();
            return ExitCode::SUCCESS;
        }
        cases::run(&role, |line| {
            let mut out = std::io::stdout();
            writeln!(out, "{line}").and_then(|()| out.flush()).expect("a reader");
        });
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let mut trials: Vec<Trial> = Job::all()
        .into_iter()
        .map(|job| {
            let role = job.role();
            Trial::test(format!("no damaged word ends or stops a process ({role})"), move || {
                println!("{role}: {} cases", run(&role)?);
                Ok(())
            })
        })
        .collect();
    trials.push(Trial::test("ReceiveTrustsSlots is found", || {
        let found = run(Job::SEEDED);
        let found = found.err().ok_or("no case found it")?;
        let is_found = found.message().is_some_and(|said| said.contains("outside of the region"));
        is_found.then_some(()).ok_or(found)
    }));
    trials.push(Trial::test("a header with flipped bits is refused", files::flipped_headers));
    trials.push(Trial::test("files that are cut or removed", files::cut_or_removed));
    trials
        .push(Trial::test("a client of another user is refused", || run(files::FOREIGN).map(drop)));
    trials.push(Trial::test("a file system that is unmounted", files::unmounted));
    trials.push(Trial::test("a region that is full at each step", full::at_each_step));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs the cases of a role in a child; how many.
fn run(role: &str) -> Result<usize, Failed> {
    let errors = tempfile::NamedTempFile::new()?;
    let mut child = Command::new(std::env::current_exe()?)
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .stderr(errors.reopen()?)
        .spawn()?;
    let out = child.stdout.take().ok_or("no output")?;
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let (mut count, mut last) = (0, "the beginning".to_owned());
    let end = loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => (count, last) = (count + 1, line),
            Err(end) => break end,
        }
    };
    let has_hung = end == mpsc::RecvTimeoutError::Timeout;
    if has_hung {
        child.kill()?;
    }
    let status = child.wait()?;
    let _ = reader.join();
    if status.success() {
        return Ok(count);
    }
    let said = std::fs::read_to_string(errors.path()).unwrap_or_default();
    let said = &said[said.floor_char_boundary(said.len().saturating_sub(4000))..];
    let what = if has_hung { "it hung".to_owned() } else { status.to_string() };
    Err(format!("at {last}: {what}\n{said}").into())
}
