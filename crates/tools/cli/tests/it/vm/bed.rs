//! A pool with the files of a snapshot, and page servers.

use std::fs::{self};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use farfork_minivmm::{Monitor, Pattern};
use serde_json::Value;

pub const PATTERN: Pattern =
    Pattern { memory_bytes: 16 << 20, zero_permille: 800, group_pages: 7, seed: 9 };

/// A pool, and the files of a snapshot. Dropped, all is removed.
pub struct Bed(pub PathBuf);

impl Bed {
    pub fn new(name: &str, size: &str) -> Bed {
        let path = std::env::temp_dir().join(format!("farfork-vm-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let bed = Bed(path);
        // An empty directory is not mounted on.
        fs::create_dir(bed.0.join("pool")).unwrap();
        bed.done(&["pool", "create", &bed.path("pool"), "--size", size]);
        let monitor = Monitor::start(&PATTERN, 1).unwrap();
        monitor.snapshot(&bed.0.join("state"), &bed.0.join("memory")).unwrap();
        bed
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
        command.args(arguments).current_dir(&self.0).env_remove("FARFORK_NODE");
        command.env("FARFORK_RUN", self.0.join("run")).env("FARFORK_POOL", self.0.join("pool"));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.done(arguments)).unwrap()
    }

    pub fn fails(&self, arguments: &[&str], words: &[&str]) {
        let output = self.run(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?}: no '{word}' in: {message}");
        }
    }

    pub fn import(&self, name: &str) -> String {
        self.done(&["vm", "import", "--name", name, "state", "memory"]).trim().to_owned()
    }

    pub fn same(&self, one: &str, other: &str) -> bool {
        fs::read(self.0.join(one)).unwrap() == fs::read(self.0.join(other)).unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.run(&["pool", "destroy", "--force", &self.path("pool")]);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `farfork vm serve`, ready.
pub struct Serve(pub Child);

impl Serve {
    pub fn start(bed: &Bed, image: &str) -> Serve {
        Serve::start_with(bed, image, &[])
    }

    pub fn start_with(bed: &Bed, image: &str, more: &[&str]) -> Serve {
        let mut command = bed.command(&["vm", "serve", image, "--socket", "socket"]);
        command.args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "socket");
        Serve(child)
    }

    /// Interrupts it; what it has reported.
    pub fn end(mut self) -> (Option<i32>, String) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let status = self.0.wait().unwrap().code();
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status, text)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process that serves for a holder.
pub fn server_of(holder: &Child) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", holder.id());
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(pid) = fs::read_to_string(&children).unwrap().split_whitespace().next() {
            return pid.parse().unwrap();
        }
        assert!(Instant::now() < until, "there is no server");
    }
}
