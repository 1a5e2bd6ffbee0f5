//! A function under QEMU's user mode, whose accesses go through a model of caches.

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
/// All that QEMU knows, but for what its version 7.2 computes wrongly: with fused multiply-adds `cnn`
/// recognises other things.
const PROCESSOR: &str = "max,-fma";
/// Beside this program.
const PLUGIN: &str = "libfarfork_caches_qemu.so";
/// How long QEMU may take until its plugin is there.
const START: Duration = Duration::from_secs(30);
/// The largest function takes half a minute for its first call.
const PATIENCE: Duration = Duration::from_secs(600);

/// An emulated process, and who follows its accesses.
#[derive(Debug)]
pub struct Emulated {
    name: String,
    _process: Process,
    function: Lines,
    plugin: Lines,
}

/// Two who speak in lines.
#[derive(Debug)]
struct Lines {
    reader: BufReader<UnixStream>,
}

impl Lines {
    fn of(stream: UnixStream) -> std::io::Result<Lines> {
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Lines { reader: BufReader::new(stream) })
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

/// Where the plugin is.
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
    /// Starts a command, whose words are given, with last-level caches of these sizes. It answers lines
    /// with lines.
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
        // It names the machine's processor to OpenBLAS, which is another's here.
        command.env_remove("OPENBLAS_CORETYPE").env_remove("OPENBLAS_L2_SIZE");
        command.stdin(input).stdout(OwnedFd::from(theirs)).stderr(Stdio::inherit());
        let child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => BenchError::Lacking {
                doing: "emulate a processor".to_owned(),
                reason: format!("{QEMU} is not there"),
                remedy: "apt-get install qemu-user",
            },
            _ => io("start", QEMU)(error),
        })?;
        // What waits for the emulated process has to see when it ends.
        drop(command);
        let mut process = Process(child);
        let plugin = accepted(&listener, &mut process, name)?;
        let lines = |stream| Lines::of(stream).map_err(listening());
        let (function, plugin) = (lines(ours)?, lines(plugin)?);
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

    /// Makes a subject's call of this number, whose answer is checked.
    pub fn call(&mut self, protocol: &dyn Protocol, number: u64) -> Result<(), BenchError> {
        let request = protocol.request(number, Answerer::Itself);
        let answer = self.ask(String::from_utf8_lossy(&request).trim_end())?;
        protocol.check(number, answer.as_bytes()).map(drop).map_err(|e| wrong(&self.name, &e))
    }

    /// What a call does, by the caches.
    pub fn measured(&mut self, protocol: &dyn Protocol, number: u64) -> Result<Seen, BenchError> {
        self.call(protocol, number)?;
        let seen = self.order(&Order::Take)?;
        let seen = seen.ok_or_else(|| wrong(&self.name, &"the plugin told nothing"))?;
        // What a process gives back between calls is not in its image; most of it has to be.
        if 2 * seen.learned_in_image < seen.learned_pages {
            return Err(wrong(&self.name, &"its memory is not where the emulator has it"));
        }
        Ok(seen)
    }

    /// Its memory is its image now, and it goes on on a processor whose caches hold nothing.
    pub fn checkpoint(&mut self) -> Result<(), BenchError> {
        for order in [Order::Enter(Phase::Ignored), Order::Checkpoint, Order::ClearCaches] {
            self.order(&order)?;
        }
        self.order(&Order::Enter(Phase::Measured)).map(drop)
    }

    /// Which pages are accessed is learned from now on.
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

/// Ends with this.
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
            return Err(wrong(name, &format!("QEMU ended with {status}")));
        }
        if begun.elapsed() > START {
            return Err(wrong(name, &"QEMU's plugin did not come"));
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
    fn reads_and_writes_of_an_emulated_process_are_told_apart() {
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
