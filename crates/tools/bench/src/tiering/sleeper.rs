//! The bare wake-up: the least time until a process that sleeps on a socket runs again.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};

use crate::cases::warm::IDLE;
use crate::error::{BenchError, io};
use crate::exchange::now_ns;
use crate::subject::compile;

const SOURCE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bench/programs/sleeper.c"));
const TIMEOUT: Duration = Duration::from_secs(20);
const ITS_FD: i32 = 3;

/// A process that sleeps on a socket. Dropped, it is killed.
#[derive(Debug)]
pub struct Sleeper {
    child: Child,
    socket: UnixDatagram,
}

/// Compiles its program.
pub fn compile_to(program: &Path) -> Result<(), BenchError> {
    compile(SOURCE, program, &[])
}

impl Sleeper {
    /// Starts a process that has touched `megabytes`.
    pub fn start(program: &Path, megabytes: u64) -> Result<Sleeper, BenchError> {
        let failed = |error| io("start", program)(error);
        let (socket, theirs) = UnixDatagram::pair().map_err(failed)?;
        socket.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        let mut command = Command::new(program);
        command.args([ITS_FD.to_string(), megabytes.to_string()]).stdin(Stdio::null());
        command
            .fd_mappings(vec![FdMapping { parent_fd: theirs.into(), child_fd: ITS_FD }])
            .map_err(|error| failed(io::Error::other(error)))?;
        let child = command.spawn().map_err(failed)?;
        let sleeper = Sleeper { child, socket };
        sleeper.answer().map_err(failed)?;
        Ok(sleeper)
    }

    /// Microseconds from the message to its first instruction: after idle time, and right after that.
    pub fn wake(&self) -> io::Result<[f64; 2]> {
        self.wake_at_once()?; // uncounted: it has slept for a whole round
        std::thread::sleep(IDLE);
        Ok([self.wake_at_once()?, self.wake_at_once()?])
    }

    fn wake_at_once(&self) -> io::Result<f64> {
        let sent = now_ns();
        self.socket.send(&[0])?;
        let awake = self.answer()?;
        Ok(awake.saturating_sub(sent) as f64 / 1000.0)
    }

    fn answer(&self) -> io::Result<u64> {
        let mut answer = [0; 8];
        match self.socket.recv(&mut answer)? {
            8 => Ok(u64::from_le_bytes(answer)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_wakes_again_and_again() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("sleeper");
        compile_to(&program).unwrap();
        let sleeper = Sleeper::start(&program, 1).unwrap();
        for _ in 0..3 {
            let both = sleeper.wake().unwrap();
            assert!(both.iter().all(|us| (0.1..1e6).contains(us)), "{both:?}");
        }
    }
}
