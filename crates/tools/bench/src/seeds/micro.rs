//! A C function of any size that touches any part of its memory: one clone on demand and fetched whole, and
//! herds of clones of one seed (MITOSIS's figures 16 and 17, and its many children of one parent).

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{BenchError, io};
use crate::goals::Goal;
use crate::samples::Samples;
use crate::subject::compile;
use crate::testbed::Testbed;
use crate::usage;

use super::{farfork, missing, progress};

const SOURCE: &str = include_str!("../../../../../bench/programs/seed_micro.c");
const SIZES_MB: [u64; 2] = [16, 128];
/// What is touched, in thousandths.
const TOUCHED: [u64; 3] = [100, 600, 900];
/// The function of which herds are made.
const HERD: (u64, u64) = (64, 100);
const ANSWER: &str = "the whole command, to the answer";
const ALL: &str = "all answered";
const US: &str = "us";
/// Goal: seconds in which so many children of one seed have answered.
const MOST_S: f64 = 30.0;
const CHILDREN: usize = 10_000;

/// How many children, and how many live at a time.
pub struct Herds {
    children: usize,
    at_once: usize,
}

impl Herds {
    pub fn new(is_quick: bool) -> Herds {
        match is_quick {
            true => Herds { children: 1_000, at_once: 250 },
            false => Herds { children: CHILDREN, at_once: 1_000 },
        }
    }

    fn case(&self) -> String {
        let (megabytes, touched) = HERD;
        let (children, at_once) = (self.children, self.at_once);
        format!("micro-{megabytes}M-{touched}/{children} children of one seed, {at_once} at a time")
    }

    /// The goal, if so many children were started.
    pub fn goal(&self, samples: &Samples) -> Option<Goal> {
        let goal = format!("{CHILDREN} children of one seed answer in, s");
        let values = samples.values(&self.case(), ALL);
        (self.children == CHILDREN).then(|| Goal::median(goal, MOST_S, values))
    }

    /// Starts them, herd after herd. A child counts when its answer has come, and is right.
    pub fn measure(
        &self,
        testbed: &Testbed,
        program: &Path,
        samples: &mut Samples,
    ) -> Result<(), BenchError> {
        let case = self.case();
        let (megabytes, touched) = HERD;
        let parent = Parent::start(program, &case, megabytes, touched)?;
        let handle = parent.prepare(testbed, &TCP)?;
        let begun = Instant::now();
        for _ in 0..self.children / self.at_once {
            progress(&format!("{} children of one seed", self.at_once));
            let mut herd = Herd::start(testbed, &parent, &handle, self.at_once, &[])?;
            herd.await_answers()?;
            herd.end()?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        samples.add(&case, ALL, "s", seconds);
        samples.add(&case, "clones that answered", "1/s", self.children as f64 / seconds);
        farfork(testbed, &case, &["reclaim", "--json", "--wait", "0", &handle]).map(drop)
    }
}

/// The function, compiled.
pub fn program(testbed: &Testbed) -> Result<PathBuf, BenchError> {
    let program = testbed.path("seed_micro");
    compile(SOURCE, &program, &[])?;
    Ok(program)
}

/// The way of most clones.
const TCP: [&str; 1] = ["--tcp-only"];
/// What a clone is given that has pages of an earlier one first. Both have caches of their own.
const LEARNED: [&str; 3] = ["--no-cache", "--push-ms", "10000"];
/// More than nodes take to have a keeper know which pages clones needed.
const LEARNING: Duration = Duration::from_millis(1200);

/// One clone in each way, of a new seed each, for each size and each share.
pub fn measure(testbed: &Testbed, program: &Path, samples: &mut Samples) -> Result<(), BenchError> {
    for (megabytes, touched) in SIZES_MB.into_iter().flat_map(|mb| TOUCHED.map(|part| (mb, part))) {
        for (what, options, transport) in [
            ("on demand", &["--no-prefetch"][..], &TCP[..]),
            ("adaptive", &[], &TCP),
            ("adaptive, shm", &[], &[]),
            ("pages of an earlier clone first, mount included", &LEARNED, &TCP),
            ("whole", &["--eager"], &TCP),
        ] {
            let case = format!("micro-{megabytes}M-{touched}/{what}");
            let parent = Parent::start(program, &case, megabytes, touched)?;
            let handle = parent.prepare(testbed, transport)?;
            if options == LEARNED {
                let alone = ["--no-cache", "--no-prefetch"];
                let mut earlier = Herd::start(testbed, &parent, &handle, 1, &alone)?;
                earlier.await_answers()?;
                std::thread::sleep(LEARNING);
                earlier.end()?;
            }
            let begun = Instant::now();
            let mut clone = Herd::start(testbed, &parent, &handle, 1, options)?;
            clone.await_answers()?;
            samples.add(&case, ANSWER, US, begun.elapsed().as_secs_f64() * 1e6);
            clone.end()?;
            farfork(testbed, &case, &["reclaim", "--json", "--wait", "0", &handle])?;
        }
    }
    Ok(())
}

/// The function, which waits for a byte.
struct Parent {
    case: String,
    child: Child,
    /// The sum that a clone has to answer with.
    sum: u64,
}

impl Parent {
    fn start(
        program: &Path,
        case: &str,
        megabytes: u64,
        touched: u64,
    ) -> Result<Parent, BenchError> {
        let mut command = Command::new(program);
        command.args([megabytes.to_string(), touched.to_string()]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(io("start", program))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.as_mut() {
            let mut output = BufReader::new(output);
            output.read_line(&mut line).map_err(io("read from", "seed_micro"))?;
        }
        let pages = megabytes * 256 * touched / 1000;
        let sum = pages * pages.saturating_sub(1) / 2;
        let parent = Parent { case: case.to_owned(), child, sum };
        match line.starts_with("READY") {
            true => Ok(parent),
            false => Err(missing(case, "it did not start")),
        }
    }

    fn prepare(&self, testbed: &Testbed, more: &[&str]) -> Result<String, BenchError> {
        let pid = self.child.id().to_string();
        let arguments = ["prepare", "--json", "--listen", "127.0.0.1", "--pid", &pid];
        let (seed, _) = farfork(testbed, &self.case, &[&arguments[..], more].concat())?;
        Ok(seed["handle"].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Clones that share an input and an output.
struct Herd {
    case: String,
    command: Child,
    output: BufReader<ChildStdout>,
    count: usize,
    sum: u64,
    pids: Vec<i32>,
}

impl Herd {
    fn start(
        testbed: &Testbed,
        parent: &Parent,
        handle: &str,
        count: usize,
        options: &[&str],
    ) -> Result<Herd, BenchError> {
        let program = crate::program::farfork()?;
        let mut command = Command::new(&program);
        command.args(["resume", "--detach", "--count", &count.to_string(), handle]).args(options);
        command.env("FARFORK_NODE", &testbed.node).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut command = command.spawn().map_err(io("run", program))?;
        let (Some(input), Some(output)) = (command.stdin.as_mut(), command.stdout.take()) else {
            return Err(missing(&parent.case, "it has no pipes"));
        };
        input.write_all(&vec![b'g'; count]).map_err(io("write to", "clones"))?;
        let (case, sum, output) = (parent.case.clone(), parent.sum, BufReader::new(output));
        Ok(Herd { case, command, output, count, sum, pids: Vec::new() })
    }

    /// The command prints the pids between the answers.
    fn await_answers(&mut self) -> Result<(), BenchError> {
        let (right, mut answers) = (format!("A {}", self.sum), 0);
        let mut line = String::new();
        while answers < self.count {
            line.clear();
            if self.output.read_line(&mut line).map_err(io("read from", "clones"))? == 0 {
                return Err(missing(&self.case, &format!("{answers} of {} answered", self.count)));
            }
            match (line.trim(), line.trim().parse()) {
                (_, Ok(pid)) => self.pids.push(pid),
                (answer, _) if answer == right => answers += 1,
                (other, _) => return Err(missing(&self.case, other)),
            }
        }
        Ok(())
    }

    /// Ends them, and waits for the end of all.
    fn end(mut self) -> Result<(), BenchError> {
        drop(self.command.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).map_err(io("read from", "clones"))?;
        self.command.wait().map_err(io("wait for", "farfork resume"))?;
        self.pids.extend(rest.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
        self.pids.drain(..).for_each(usage::await_end);
        Ok(())
    }
}

impl Drop for Herd {
    fn drop(&mut self) {
        for pid in self.pids.drain(..).filter(|pid| *pid > 1) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}
