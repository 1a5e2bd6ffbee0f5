//! What the tests of all servers do.

use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use farfork_tests::way::{Place, Way};
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(120);

/// From which servers get their ports.
const PORTS: Range<u16> = 20_000..30_000;

/// A running server. Dropped, it and what it has started are ended.
pub struct Server(Child);

impl Server {
    /// Of a started process.
    pub fn new(child: Child) -> Server {
        Server(child)
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked first: servers end their workers.
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(3);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that is free now. The kernel gives others, from 32,768 on, to what asks for any, so that this one stays free until
/// a server has it.
pub fn free_port() -> Outcome<u16> {
    static DRAWN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id();
    let numbers = std::iter::repeat_with(|| first.wrapping_add(DRAWN.fetch_add(1, Relaxed)));
    let ports = numbers.map(|number| PORTS.start + (number % PORTS.len() as u32) as u16);
    ports
        .take(PORTS.len())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .ok_or_else(|| Trouble::Failed("all ports are taken".to_owned()))
}

/// A connection to `port` in the network namespace of process `pid`, or in this one.
pub fn connect(pid: Option<i64>, port: u16) -> Outcome<TcpStream> {
    let connect = move || -> std::io::Result<TcpStream> {
        if let Some(pid) = pid {
            let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
        }
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(stream)
    };
    // A thread of its own has a network namespace of its own.
    let joined = std::thread::spawn(connect).join();
    let connected = joined.map_err(|_| Trouble::Failed("connecting panicked".to_owned()))?;
    connected.map_err(|error| Trouble::during(&format!("connecting to {port} of {pid:?}"), error))
}

/// Checkpoints `pid` as `image`.
pub fn checkpoint(pid: u32, image: &str, more: &[&str]) -> Outcome {
    farfork::must_run(farfork::checkpoint(testbed::pool()?, pid, image, more)?).map(drop)
}

/// Starts a detached clone of `image`; its pid.
pub fn restored(image: &str, more: &[&str]) -> Outcome<i64> {
    let arguments = [&["--detach"], more].concat();
    let output = farfork::must_run(farfork::restore(testbed::pool()?, image, &arguments)?)?;
    let clones = json(&output.stdout)?;
    clones[0]["pid"].as_i64().ok_or_else(|| Trouble::Failed(format!("no pid in {clones}")))
}

/// A clone of `image` on each of the other nodes, each under a policy that is not the default.
pub fn on_other_nodes(image: &str) -> Outcome<[i64; 2]> {
    let on = |number, tiering| {
        let node = testbed::other_node(testbed::pool()?, number)?;
        restored(image, &["--node", node, "--tiering", tiering])
    };
    Ok([on(0, "moa")?, on(1, "hybrid")?])
}

/// A clone of `image` in a ghost of this node, and the ghost, by each policy.
pub fn in_ghosts(image: &str, place: Place) -> Outcome<Vec<(i64, String)>> {
    farfork::ghosts_possible()?;
    let ways = Way::all().filter(|way| way.place == place);
    ways.map(|way| in_ghost(way, image, &[])).collect()
}

/// A clone of `image` that begins like this, and its ghost; `node` are options that say where.
pub fn in_ghost(way: Way, image: &str, node: &[&str]) -> Outcome<(i64, String)> {
    let ghost = start_ghost(way, image, node)?;
    Ok((restored(image, &[node, &way.options(Some(&ghost))].concat())?, ghost))
}

/// The ghost in which a clone begins like this; `node` are options that say where.
pub fn start_ghost(way: Way, image: &str, node: &[&str]) -> Outcome<String> {
    let pool = testbed::pool()?.display().to_string();
    let mut options = [node, &way.ghost(image).unwrap_or_default()].concat();
    if way.place == Place::AttachedGhost {
        options.extend(["--pool", &pool]);
    }
    farfork::start_ghost(&options)
}

/// No clone of `image` starts, and each of `words` is said about it.
pub fn must_refuse_restore(image: &str, more: &[&str], words: &[&str]) -> Outcome {
    let arguments = [&["--detach"], more].concat();
    let output = farfork::run(farfork::restore(testbed::pool()?, image, &arguments)?)?;
    must_refuse(&output, words)
}

/// No checkpoint of `pid` is made, neither dry nor wet; each of `words` is said about it.
pub fn must_refuse_checkpoint(pid: u32, image: &str, words: &[&str]) -> Outcome {
    must_refuse_checkpoint_of(pid, image, &[], words)
}

/// The same, with `more` options.
pub fn must_refuse_checkpoint_of(pid: u32, image: &str, more: &[&str], words: &[&str]) -> Outcome {
    let pool = testbed::pool()?;
    for kind in [&["--dry-run"][..], &[]] {
        let arguments = [kind, more].concat();
        must_refuse(&farfork::run(farfork::checkpoint(pool, pid, image, &arguments)?)?, words)?;
    }
    if farfork::images(pool)?.contains(image) {
        return Err(Trouble::Failed(format!("{image} is in the catalog after a refusal")));
    }
    Ok(())
}

fn must_refuse(output: &std::process::Output, words: &[&str]) -> Outcome {
    let text = farfork::text(output);
    match words.iter().find(|word| output.status.code() != Some(1) || !text.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(Trouble::Failed(format!("expected a failure with '{word}', saw {text}"))),
    }
}

/// In the parent's own network namespace its port is taken, and the restore says what to do about
/// it. Doing that: a clone at another port; its pid, and the port.
pub fn beside_parent(image: &str, port: u16) -> Outcome<(i64, u16)> {
    must_refuse_restore(image, &[], &["in use", &format!(":{port}"), "--inherit-fd"])?;
    let port = free_port()?;
    // Of sockets for both families, the second gets an address without clients.
    let places = [format!("127.0.0.1:{port}"), "127.0.0.1:0".to_owned()];
    let supplied = addresses(image)?.into_iter().zip(&places);
    let inherit: Vec<String> = supplied.map(|(fd, at)| format!("{fd}=tcp:{at}")).collect();
    let arguments: Vec<&str> = inherit.iter().flat_map(|text| ["--inherit-fd", text]).collect();
    Ok((restored(image, &arguments)?, port))
}

/// Descriptors that may be replaced, as `images show` lists them.
fn addresses(image: &str) -> Outcome<Vec<u64>> {
    let mut show = farfork::command(&["images", "show", "--json", image, "--pool"])?;
    show.arg(testbed::pool()?);
    let shown = json(&farfork::must_run(show)?.stdout)?;
    let all = shown["addresses"].as_array().into_iter().flatten();
    Ok(all.filter_map(|address| address["fd"].as_u64()).collect())
}

fn json(output: &[u8]) -> Outcome<Value> {
    serde_json::from_slice(output).map_err(|error| Trouble::during("reading JSON", error))
}

/// Writes a file of a server's.
pub fn write(path: &Path, text: &str) -> Outcome {
    std::fs::write(path, text)
        .map_err(|error| Trouble::during(&format!("writing {}", path.display()), error))
}
