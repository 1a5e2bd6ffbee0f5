//! A started process that the driver talks to: a program, or a `farfork restore` with its clone.

use crate::patience::Patience;
use crate::{Outcome, Trouble};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

enum Line {
    Out(String),
    Err(String),
}

/// A process, its pipes and all it has printed. Dropped, it is killed.
pub struct Subject {
    label: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Line>,
    printed: Vec<String>,
    timeout: Duration,
}

impl Subject {
    /// Starts `command`; `timeout` bounds each single wait for it, as [`Patience`] counts time.
    pub fn start(label: &str, command: &mut Command, timeout: Duration) -> Outcome<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Trouble::during(&format!("starting {label}"), error))?;
        let (sender, lines) = channel();
        forward(child.stdout.take(), sender.clone(), Line::Out);
        forward(child.stderr.take(), sender, Line::Err);
        let stdin = child.stdin.take();
        Ok(Self { label: label.to_owned(), child, stdin, lines, printed: Vec::new(), timeout })
    }

    /// The pid of the started process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line `READY`.
    pub fn await_ready(&mut self) -> Outcome {
        self.await_line("READY")
    }

    /// Waits for this line to be printed once more on stdout.
    pub fn await_line(&mut self, wanted: &str) -> Outcome {
        let mut patience = Patience::new(self.timeout);
        loop {
            match self.lines.recv_timeout(patience.slice()) {
                Ok(Line::Out(line)) if line == wanted => {
                    self.record(Line::Out(line));
                    return Ok(());
                }
                Ok(line) => self.record(line),
                Err(RecvTimeoutError::Timeout) if !patience.is_over() => {}
                Err(RecvTimeoutError::Timeout) => {
                    return self.fail(&format!("no {wanted} in time"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return self.fail(&format!("ended before {wanted}"));
                }
            }
        }
    }

    /// Takes in what is printed for so long.
    pub fn hear(&mut self, span: Duration) {
        let deadline = Instant::now() + span;
        while let Ok(line) =
            self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            self.record(line);
        }
    }

    /// Sends the byte that lets the program go on. One that is dead already is found out later.
    pub fn send_byte(&mut self) {
        self.send(b"\n");
    }

    /// Sends commands to a program that takes some.
    pub fn send(&mut self, bytes: &[u8]) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(bytes);
            self.stdin = Some(stdin);
        }
    }

    /// Waits for the end alone: a clone that was detached keeps the pipes, and goes on.
    pub fn leave(&mut self) -> Outcome<ExitStatus> {
        let mut patience = Patience::new(self.timeout);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if !patience.is_over() => thread::sleep(Duration::from_millis(3)),
                Ok(None) => return self.fail("did not end in time"),
                Err(error) => return self.fail(&format!("wait: {error}")),
            }
        }
    }

    /// Waits for the end, and for all that was printed until then.
    pub fn finish(&mut self) -> Outcome<ExitStatus> {
        let status = self.leave()?;
        // What it has left behind may keep the pipes open.
        self.hear(Duration::from_secs(10));
        Ok(status)
    }

    /// Sends the byte and demands `PASS` and exit status 0.
    pub fn must_pass(&mut self) -> Outcome {
        self.send_byte();
        let status = self.finish()?;
        if status.code() == Some(0) && self.said("PASS") {
            return Ok(());
        }
        self.fail(&format!("expected PASS and exit status 0, saw {status}"))
    }

    /// Whether this line was printed on stdout.
    pub fn said(&self, line: &str) -> bool {
        self.printed.iter().any(|printed| printed == line)
    }

    /// What stands behind `word` on the lines that begin with it.
    pub fn after(&self, word: &str) -> Vec<String> {
        let rest = |line: &String| line.strip_prefix(word).map(|rest| rest.trim().to_owned());
        self.printed.iter().filter_map(rest).collect()
    }

    /// All that was printed, for a report.
    pub fn transcript(&self) -> String {
        let lines = self.printed.iter().map(|line| format!("    {line}\n"));
        format!("  {} printed:\n{}", self.label, lines.collect::<String>())
    }

    /// Fails with `what` and all that was printed so far.
    pub fn fail<T>(&mut self, what: &str) -> Outcome<T> {
        while let Ok(line) = self.lines.try_recv() {
            self.record(line);
        }
        Err(Trouble::Failed(format!("{}: {what}\n{}", self.label, self.transcript())))
    }

    fn record(&mut self, line: Line) {
        self.printed.push(match line {
            Line::Out(line) => line,
            Line::Err(line) => format!("(stderr) {line}"),
        });
    }

    /// Asked first: an attached `restore` takes its clone along.
    fn terminate(&mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        let _ = kill(pid, Signal::SIGTERM);
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
        }
    }
}

fn forward(stream: Option<impl Read + Send + 'static>, to: Sender<Line>, wrap: fn(String) -> Line) {
    let Some(stream) = stream else { return };
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if to.send(wrap(text)).is_err() {
                return;
            }
            line.clear();
        }
    });
}
