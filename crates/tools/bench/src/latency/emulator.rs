//! A function under QEMU's user mode. Its accesses go through a model of caches.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_caches::{Answer, Order, Phase, Seen};

use crate::error::{BenchError, io};
use crate::protocol::{Answerer, Protocol};
use crate::subject::computing_in;

const QEMU: &str = "qemu-x86_64";
/// All features except FMA, which QEMU 7.2 computes wrongly: `cnn` gives other answers with it.
const PROCESSOR: &str = "max,-fma";
/// A file beside this program.
const PLUGIN: &str = "libfarfork_caches_qemu.so";
/// Limit of QEMU's start, until its plugin connects.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of a call. The first call of the largest function takes half a minute.
const CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// An emulated process, and the plugin that follows its accesses.
#[derive(Debug)]
pub struct Emulated {
    name: String,
    _process: Process,
    function: LineConnection,
    plugin: LineConnection,
}

/// A connection on which each line is answered by a line.
#[derive(Debug)]
struct LineConnection {
    reader: BufReader<UnixStream>,
}

impl LineConnection {
    fn new(stream: UnixStream) -> std::io::Result<LineConnection> {
        stream.set_read_timeout(Some(CALL_TIMEOUT))?;
        Ok(LineConnection { reader: BufReader::new(stream) })
    }

    fn ask(&mut self, line: &str) -> std::io::Result<String> {
        self.reader.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        match self.reader.read_line(&mut answer)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer),
        }
    }
}

/// The path of the plugin.
pub fn plugin() -> Result<PathBuf, BenchError> {
    let program = std::env::current_exe().map_err(io("find", "this program"))?;
    let places = program.ancestors().skip(1).take(2).map(|folder| folder.join(PLUGIN));
    places.into_iter().find(|path| path.exists()).ok_or_else(|| BenchError::Lacking {
        doing: "follow what an emulated process accesses".to_owned(),
        reason: format!("{PLUGIN} is not beside {}", program.display()),
        remedy: "build it: cargo build --release --package farfork-caches-qemu",
    })
}

impl Emulated {
    /// Starts a command under QEMU, with last-level caches of these sizes. It answers lines by lines.
    pub fn start(
        name: &str,
        words: &[String],
        sizes: &[u64],
        socket: &Path,
    ) -> Result<Emulated, BenchError> {
        let listening = || io("listen at", socket);
        let listener = UnixListener::bind(socket).map_err(listening())?;
        listener.set_nonblocking(true).map_err(listening())?;
        let (ours, theirs) = UnixStream::pair().map_err(listening())?;
        let input = OwnedFd::from(theirs.try_clone().map_err(listening())?);
        let mut command = Command::new(QEMU);
        command.args(["-cpu", PROCESSOR, "-plugin"]);
        command.arg(format!("{},socket={}", plugin()?.display(), socket.display()));
        command.args(words).envs(computing_in(1)).env("ORT_DISABLE_TELEMETRY", "1");
        // They describe the real processor to OpenBLAS.
        command.env_remove("OPENBLAS_CORETYPE").env_remove("OPENBLAS_L2_SIZE");
        command.stdin(input).stdout(OwnedFd::from(theirs)).stderr(Stdio::inherit());
        let child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => BenchError::Lacking {
                doing: "emulate a processor".to_owned(),
                reason: format!("{QEMU} is not installed"),
                remedy: "apt-get install qemu-user",
            },
            _ => io("start", QEMU)(error),
        })?;
        // It holds the other end of the connection: without this, reads would not see the process exit.
        drop(command);
        let mut process = Process(child);
        let plugin = accepted(&listener, &mut process, name)?;
        let connection = |stream| LineConnection::new(stream).map_err(listening());
        let (function, plugin) = (connection(ours)?, connection(plugin)?);
        let name = name.to_owned();
        let mut emulated = Emulated { name, _process: process, function, plugin };
        emulated.order(&Order::Begin(sizes.to_vec()))?;
        let _ = std::fs::remove_file(socket);
        Ok(emulated)
    }

    /// Sends a line and returns the answer.
    pub fn ask(&mut self, line: &str) -> Result<String, BenchError> {
        self.function.ask(line).map_err(|error| wrong(&self.name, &error))
    }

    /// Makes call `number` of a subject, and checks the answer.
    pub fn call(&mut self, protocol: &dyn Protocol, number: u64) -> Result<(), BenchError> {
        let request = protocol.request(number, Answerer::Itself);
        let answer = self.ask(String::from_utf8_lossy(&request).trim_end())?;
        protocol.check(number, answer.as_bytes()).map(drop).map_err(|e| wrong(&self.name, &e))
    }

    /// Makes a call, and returns what it did to the caches.
    pub fn measure(&mut self, protocol: &dyn Protocol, number: u64) -> Result<Seen, BenchError> {
        self.call(protocol, number)?;
        let seen = self.order(&Order::Take)?;
        let seen = seen.ok_or_else(|| wrong(&self.name, &"the plugin sent no counts"))?;
        // Pages that the process unmaps between calls are not in its image. If most are missing, the
        // addresses of process and emulator differ, and the counts mean nothing.
        if 2 * seen.learned_in_image < seen.learned_pages {
            return Err(wrong(&self.name, &"its addresses differ from the emulator's"));
        }
        Ok(seen)
    }

    /// Declares its present memory the image, and empties the caches.
    pub fn checkpoint(&mut self) -> Result<(), BenchError> {
        for order in [Order::Enter(Phase::Ignored), Order::Checkpoint, Order::ClearCaches] {
            self.order(&order)?;
        }
        self.order(&Order::Enter(Phase::Measured)).map(drop)
    }

    /// Records from now on which pages are accessed.
    pub fn learn(&mut self) -> Result<(), BenchError> {
        self.order(&Order::Enter(Phase::Learning)).map(drop)
    }

    fn order(&mut self, order: &Order) -> Result<Option<Seen>, BenchError> {
        let line = serde_json::to_string(order).map_err(|error| wrong(&self.name, &error))?;
        let answer = self.plugin.ask(&line).map_err(|error| wrong(&self.name, &error))?;
        let answer: Answer =
            serde_json::from_str(&answer).map_err(|error| wrong(&self.name, &error))?;
        answer.map_err(|error| wrong(&self.name, &error))
    }
}

/// A child process. Dropped, it is killed.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn accepted(
    listener: &UnixListener,
    process: &mut Process,
    name: &str,
) -> Result<UnixStream, BenchError> {
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(io("listen at", name))?;
                return Ok(stream);
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(wrong(name, &error));
            }
            Err(_) => {}
        }
        if let Ok(Some(status)) = process.0.try_wait() {
            return Err(wrong(name, &format!("QEMU exited with {status}")));
        }
        if begun.elapsed() > START_TIMEOUT {
            return Err(wrong(name, &"timed out waiting for QEMU's plugin"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wrong(name: &str, reason: &dyn std::fmt::Display) -> BenchError {
    BenchError::Answer { case: format!("{name}/emulated"), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads 100 pages, and writes 7 others, for each line.
    const PROGRAM: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        enum { PAGE = 4096 };
        int main(void) {
            static char line[256];
            char *read = aligned_alloc(PAGE, 100 * PAGE), *written = aligned_alloc(PAGE, 7 * PAGE);
            memset(read, 1, 100 * PAGE);
            memset(written, 1, 7 * PAGE);
            while (fgets(line, sizeof line, stdin)) {
                long sum = 0;
                for (int at = 0; at < 100 * PAGE; at += 64) sum += ((volatile char *)read)[at];
                for (int page = 0; page < 7; page++) ((volatile char *)written)[page * PAGE] = 2;
                printf("%ld\n", sum);
                fflush(stdout);
            }
        }
    "#;

    #[test]
    fn reads_and_writes_of_an_emulated_process_are_counted_apart() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        crate::subject::compile(PROGRAM, &program, &[]).unwrap();
        let socket = directory.path().join("socket");
        let words = [program.display().to_string()];
        let mut emulated = Emulated::start("test", &words, &[64 << 20], &socket).unwrap();
        assert_eq!(emulated.ask("go").unwrap(), "6400\n");
        emulated.learn().unwrap();
        emulated.ask("go").unwrap();
        emulated.checkpoint().unwrap();
        emulated.ask("go").unwrap();
        let seen = emulated.order(&Order::Take).unwrap().unwrap();
        // The rest is the C library's.
        let (lines, touched, written) =
            (seen.levels[0].misses.accessed, seen.touched.accessed, seen.first_written.accessed);
        assert!((6400..7400).contains(&lines), "{seen:?}");
        assert!((107..200).contains(&touched), "{seen:?}");
        assert!((7..20).contains(&written), "{seen:?}");
        assert!(seen.learned_in_image >= touched, "{seen:?}");
        emulated.ask("go").unwrap();
        let seen = emulated.order(&Order::Take).unwrap().unwrap();
        assert!(seen.levels[0].misses.accessed < 50, "the caches hold them: {seen:?}");
    }
}
