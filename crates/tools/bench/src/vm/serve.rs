//! `farfork vm serve`, started, and what it reports.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{NAME, failed};
use crate::error::{BenchError, io};
use crate::program;

/// How long an event is waited for.
const LIMIT: Duration = Duration::from_secs(20);

/// A page server that listens. Dropped, it is stopped.
pub struct Serve {
    child: Child,
    /// Where.
    pub socket: PathBuf,
    events: Receiver<Value>,
}

impl Serve {
    /// Starts it for the image with this tag, with the pool and the run directory of a node in `directory`.
    pub fn start(directory: &Path, tag: &str, options: &[&str]) -> Result<Serve, BenchError> {
        Serve::start_at(&directory.join(format!("socket-{tag}")), directory, tag, options)
    }

    /// The same at a socket of that path, for one of several of an image.
    pub fn start_at(
        socket: &Path,
        directory: &Path,
        tag: &str,
        options: &[&str],
    ) -> Result<Serve, BenchError> {
        let (program, socket) = (program::farfork()?, socket.to_owned());
        let mut command = Command::new(&program);
        command.args(["vm", "serve"]).arg(format!("{NAME}:{tag}")).arg("--socket").arg(&socket);
        command.arg("--json").args(options);
        command.env("FARFORK_POOL", directory.join("pool"));
        command.env("FARFORK_RUN", directory.join("run"));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(io("start", &program))?;
        let stdout = child.stdout.take();
        let (sender, events) = channel();
        let serve = Serve { child, socket, events };
        let stdout = stdout.ok_or_else(|| failed("farfork vm serve has no stdout"))?;
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(event) = serde_json::from_str(&line) else { return };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        serve.wait("listening")?;
        Ok(serve)
    }

    /// Waits for an event; others before it are passed over.
    pub fn wait(&self, name: &str) -> Result<Value, BenchError> {
        loop {
            let event = self.events.recv_timeout(LIMIT);
            let event = event.map_err(|_| failed(format!("farfork vm serve: no event {name}")))?;
            if event["event"] == name {
                return Ok(event);
            }
        }
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // All machines have ended: it ends at once.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}
