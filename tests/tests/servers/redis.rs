//! redis: clones in network namespaces of their own serve at its address, others where their
//! caller says.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use farfork_tests::way::Place;
use farfork_tests::{Outcome, Trouble, farfork, testbed};

use crate::serving::{self, Server};

/// Debian's `redis-tools` holds the server under this name, and starts no service.
pub const SERVER: &str = "redis-check-rdb";
const IMAGE: &str = "test/redis";
const KEYS: usize = 1000;

struct Redis {
    server: Server,
    port: u16,
}

impl Redis {
    fn start(name: &str) -> Outcome<Redis> {
        let port = serving::free_port()?;
        let mut command = Command::new(SERVER);
        command.arg0("redis-server").args(["--save", "", "--port", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir(testbed::work_dir(name)?);
        let child = command.spawn().map_err(|error| Trouble::during("starting redis", error))?;
        let redis = Redis { server: Server::new(child), port };
        testbed::eventually("redis", || Ok(redis.ask(None, &["ping"])? == "PONG"))?;
        Ok(redis)
    }

    /// What the server answers that has the parent's port in the network namespace of process
    /// `pid`, or in this one.
    fn ask(&self, pid: Option<i64>, command: &[&str]) -> Outcome<String> {
        ask(pid, self.port, command)
    }

    fn expect(&self, pid: Option<i64>, command: &[&str], expected: &str) -> Outcome {
        expect(pid, self.port, command, expected)
    }
}

fn ask(pid: Option<i64>, port: u16, command: &[&str]) -> Outcome<String> {
    let mut client = match pid {
        None => Command::new("redis-cli"),
        Some(pid) => {
            let mut enter = Command::new("nsenter");
            enter.args(["-t", &pid.to_string(), "-n", "redis-cli"]);
            enter
        }
    };
    let output = farfork::run({
        client.args(["-p", &port.to_string()]).args(command);
        client
    })?;
    Ok(farfork::text(&output).trim().to_owned())
}

fn expect(pid: Option<i64>, port: u16, command: &[&str], expected: &str) -> Outcome {
    let answer = ask(pid, port, command)?;
    if answer == expected {
        return Ok(());
    }
    let what = format!("{command:?} at port {port}, namespace of {pid:?}");
    Err(Trouble::Failed(format!("{what}: expected '{expected}', saw '{answer}'")))
}

/// A connection of the parent's that lives through everything.
fn is_served(client: &mut TcpStream) -> Outcome {
    let mut answer = [0u8; 7];
    client
        .write_all(b"PING\r\n")
        .and_then(|()| client.read_exact(&mut answer))
        .map_err(|error| Trouble::during("asking the parent on an old connection", error))?;
    if &answer == b"+PONG\r\n" { Ok(()) } else { Err(Trouble::Failed(format!("{answer:?}"))) }
}

/// In both kinds of ghost, by every policy, clones serve at the parent's address, each its own data.
pub fn is_cloned_in_ghosts() -> Outcome {
    let (parent, image) = (Redis::start("redis-ghosts")?, "test/redis-ghosts");
    parent.expect(None, &["set", "k", "v"], "OK")?;
    serving::checkpoint(parent.server.pid(), image, &[])?;
    for place in Place::GHOSTS {
        let clones = serving::in_ghosts(image, place)?;
        for (pid, ghost) in &clones {
            parent.expect(Some(*pid), &["get", "k"], "v")?;
            parent.expect(Some(*pid), &["set", "k", ghost], "OK")?;
        }
        for (pid, ghost) in &clones {
            parent.expect(Some(*pid), &["get", "k"], ghost)?;
            parent.ask(Some(*pid), &["shutdown", "nosave"])?;
            testbed::eventually("a ghost", || Ok(farfork::remains(ghost).is_empty()))?;
        }
    }
    parent.expect(None, &["get", "k"], "v")?;
    farfork::forget(testbed::pool()?, image)
}

/// Parent and two clones serve their own data; a third clone does beside the parent.
pub fn is_cloned() -> Outcome {
    let parent = Redis::start("redis")?;
    let fill = format!("for i = 1, {KEYS} do redis.call('set', 'k' .. i, 'v' .. i) end");
    parent.expect(None, &["eval", &fill, "0"], "")?;
    let mut client = serving::connect(None, parent.port)?;
    is_served(&mut client)?;
    let pool = testbed::pool()?;
    serving::checkpoint(parent.server.pid(), IMAGE, &[])?;
    let [blue, red] = serving::on_other_nodes(IMAGE)?;
    for (place, name) in [(Some(blue), "blue"), (Some(red), "red"), (None, "parent")] {
        parent.expect(place, &["set", "who", name], "OK")?;
    }
    for (place, name) in [(Some(blue), "blue"), (Some(red), "red"), (None, "parent")] {
        parent.expect(place, &["get", "who"], name)?;
        parent.expect(place, &["get", "k1000"], "v1000")?;
        parent.expect(place, &["dbsize"], &(KEYS + 1).to_string())?;
    }
    is_served(&mut client)?;
    let (_, port) = serving::beside_parent(IMAGE, parent.port)?;
    expect(None, port, &["get", "who"], "")?;
    expect(None, port, &["get", "k7"], "v7")?;
    parent.expect(None, &["get", "who"], "parent")?;
    ask(None, port, &["shutdown", "nosave"])?;
    for place in [blue, red] {
        parent.ask(Some(place), &["shutdown", "nosave"])?;
    }
    is_served(&mut client)?;
    farfork::forget(pool, IMAGE)
}
