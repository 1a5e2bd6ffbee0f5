//! The snapshot on another node: a server of far memory, and a pool for each way to use it.
//!
//! Both nodes are on this machine: TCP on the loopback device with every frame sealed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Signal, kill_process};

use super::serve::Serve;
use super::{NAME, failed};
use crate::error::{BenchError, io};
use crate::program;

/// The other node. Dropped, it is stopped.
pub struct OtherNode {
    server: Child,
    address: String,
    key: PathBuf,
    directory: PathBuf,
}

/// A node whose pool has not all of the snapshot.
pub struct NearNode {
    directory: PathBuf,
    address: String,
    tag: String,
}

fn command(directory: &Path, words: &[&str]) -> Result<Command, BenchError> {
    let mut command = Command::new(program::farfork()?);
    command.args(words).env("FARFORK_RUN", directory.join("run"));
    command.env("FARFORK_POOL", directory.join("pool")).stderr(Stdio::null());
    Ok(command)
}

fn done(mut command: Command) -> Result<(), BenchError> {
    let words: Vec<_> = command.get_args().map(OsStr::to_os_string).collect();
    let output = command.stderr(Stdio::piped()).output().map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(failed(format!("farfork {words:?}: {}", String::from_utf8_lossy(&output.stderr))))
        }
    }
}

impl OtherNode {
    /// Serves the pool in `directory` from a place of its own.
    pub fn start(directory: &Path) -> Result<OtherNode, BenchError> {
        let key = directory.join("key");
        let key_text = key.display().to_string();
        let words =
            ["far", "serve", "--listen", "127.0.0.1:0", "--tcp-only", "--key", key_text.as_str()];
        let mut server = command(directory, &words)?;
        let mut server = server.stdout(Stdio::piped()).spawn().map_err(failed)?;
        let mut address = String::new();
        let stdout =
            server.stdout.take().ok_or_else(|| failed("farfork far serve has no stdout"))?;
        BufReader::new(stdout).read_line(&mut address).map_err(failed)?;
        let address = address.trim().to_owned();
        Ok(OtherNode { server, address, key, directory: directory.to_owned() })
    }

    /// A node that has pulled an image with its record, and has moved its cold parts away, or all.
    pub fn near(&self, tag: &str, name: &str, moves_all: bool) -> Result<NearNode, BenchError> {
        let directory = self.directory.join(name);
        std::fs::create_dir(&directory).map_err(io("make", &directory))?;
        let pool = directory.join("pool").display().to_string();
        done(command(&directory, &["pool", "create", &pool, "--size", "512M"])?)?;
        let (image, key) = (format!("{NAME}:{tag}"), self.key.display().to_string());
        let node = [image.as_str(), "--far", &self.address, "--far-key", &key];
        done(command(&directory, &[&["images", "pull"][..], &node].concat())?)?;
        let all: &[&str] = if moves_all { &["--all"] } else { &[] };
        done(command(&directory, &[&["images", "tier"][..], &node, all].concat())?)?;
        Ok(NearNode { directory, address: self.address.clone(), tag: tag.to_owned() })
    }
}

impl Drop for OtherNode {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.server), Signal::TERM);
        let _ = self.server.wait();
    }
}

impl NearNode {
    /// A page server that starts with nothing of the other node cached, neither by the kernel nor by itself.
    pub fn serve(&self) -> Result<Serve, BenchError> {
        let serve = Serve::start(&self.directory, &self.tag, &["--no-record"])?;
        self.drop_cached()?;
        Ok(serve)
    }

    fn drop_cached(&self) -> Result<(), BenchError> {
        let far = self.directory.join("run/far");
        for place in std::fs::read_dir(far).into_iter().flatten().flatten() {
            let images = place.path().join("pool/images");
            for image in std::fs::read_dir(images).into_iter().flatten().flatten() {
                let Ok(file) = File::open(image.path()) else { continue };
                let dropped = fadvise(&file, 0, None, Advice::DontNeed);
                dropped
                    .map_err(|errno| io("drop from the page cache", image.path())(errno.into()))?;
            }
        }
        Ok(())
    }
}

impl Drop for NearNode {
    fn drop(&mut self) {
        let unmount = command(&self.directory, &["far", "unmount", &self.address]);
        let _ = unmount.and_then(done);
        // It is a file system of its own.
        let pool = self.directory.join("pool").display().to_string();
        let destroy = command(&self.directory, &["pool", "destroy", "--force", &pool]);
        let _ = destroy.and_then(done);
    }
}
