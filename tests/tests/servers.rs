//! A server that nobody here wrote, with its threads, its data and its clients: clones of it in
//! network namespaces of their own serve at its address, others where their caller says.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_tests::{Outcome, Trouble, farfork, testbed};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

/// Debian's `redis-tools` holds the server under this name, and starts no service.
const SERVER: &str = "/usr/bin/redis-check-rdb";
const IMAGE: &str = "test/redis";
const KEYS: usize = 1000;

/// A running server. Dropped, it is killed.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start() -> Outcome<Redis> {
        let port = free_port()?;
        let mut command = Command::new(SERVER);
        command.arg0("redis-server").args(["--save", "", "--port", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir(testbed::work_dir("redis")?);
        let child = command.spawn().map_err(|error| Trouble::during("starting redis", error))?;
        let redis = Redis { child, port };
        let deadline = Instant::now() + Duration::from_secs(20);
        while redis.ask(None, &["ping"])? != "PONG" {
            if Instant::now() > deadline {
                return Err(Trouble::Failed("redis did not start in time".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
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

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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

fn free_port() -> Outcome<u16> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| Trouble::during("looking for a port", error))
}

fn json(output: &[u8]) -> Outcome<Value> {
    serde_json::from_slice(output).map_err(|error| Trouble::during("reading JSON", error))
}

/// The clone's pid.
fn restored(more: &[&str]) -> Outcome<i64> {
    let arguments = [&["--detach"], more].concat();
    let output = farfork::must_run(farfork::restore(testbed::pool()?, IMAGE, &arguments)?)?;
    let clones = json(&output.stdout)?;
    clones[0]["pid"].as_i64().ok_or_else(|| Trouble::Failed(format!("no pid in {clones}")))
}

/// Descriptors that may be replaced, as `images show` tells them.
fn addresses() -> Outcome<Vec<u64>> {
    let mut show = farfork::command(&["images", "show", "--json", IMAGE, "--pool"])?;
    show.arg(testbed::pool()?);
    let shown = json(&farfork::must_run(show)?.stdout)?;
    let all = shown["addresses"].as_array().into_iter().flatten();
    Ok(all.filter_map(|address| address["fd"].as_u64()).collect())
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

fn redis() -> Outcome {
    let parent = Redis::start()?;
    let fill = format!("for i = 1, {KEYS} do redis.call('set', 'k' .. i, 'v' .. i) end");
    parent.expect(None, &["eval", &fill, "0"], "")?;
    let mut client = TcpStream::connect(("127.0.0.1", parent.port))
        .map_err(|error| Trouble::during("connecting", error))?;
    is_served(&mut client)?;
    let pool = testbed::pool()?;
    farfork::must_run(farfork::checkpoint(pool, parent.child.id(), IMAGE, &[])?)?;
    let nodes = [testbed::other_node(pool, 0)?, testbed::other_node(pool, 1)?];
    let blue = restored(&["--node", nodes[0]])?;
    let red = restored(&["--node", nodes[1]])?;
    for (place, name) in [(Some(blue), "blue"), (Some(red), "red"), (None, "parent")] {
        parent.expect(place, &["set", "who", name], "OK")?;
    }
    for (place, name) in [(Some(blue), "blue"), (Some(red), "red"), (None, "parent")] {
        parent.expect(place, &["get", "who"], name)?;
        parent.expect(place, &["get", "k1000"], "v1000")?;
        parent.expect(place, &["dbsize"], &(KEYS + 1).to_string())?;
    }
    is_served(&mut client)?;
    beside_parent(&parent)?;
    for place in [blue, red] {
        parent.ask(Some(place), &["shutdown", "nosave"])?;
    }
    is_served(&mut client)?;
    farfork::forget(pool, IMAGE)
}

/// In the parent's own namespace the port is taken, and the restore says what to do about it.
fn beside_parent(parent: &Redis) -> Outcome {
    let refused = farfork::run(farfork::restore(testbed::pool()?, IMAGE, &["--detach"])?)?;
    let text = farfork::text(&refused);
    for words in ["in use", &format!(":{}", parent.port), "--inherit-fd"] {
        if refused.status.code() != Some(1) || !text.contains(words) {
            return Err(Trouble::Failed(format!("expected a failure with '{words}', saw {text}")));
        }
    }
    let port = free_port()?;
    // Of its sockets for both families the second gets an address that nobody asks.
    let places = [format!("127.0.0.1:{port}"), "127.0.0.1:0".to_owned()];
    let supplied = addresses()?.into_iter().zip(&places);
    let inherit: Vec<String> = supplied.map(|(fd, at)| format!("{fd}=tcp:{at}")).collect();
    let arguments: Vec<&str> = inherit.iter().flat_map(|text| ["--inherit-fd", text]).collect();
    restored(&arguments)?;
    expect(None, port, &["get", "who"], "")?;
    expect(None, port, &["get", "k7"], "v7")?;
    parent.expect(None, &["get", "who"], "parent")?;
    ask(None, port, &["shutdown", "nosave"]).map(drop)
}

fn main() {
    // What this program inherited must not become an external descriptor of the subjects.
    farfork_sys::inherited::close_on_exec_from(3).expect("Linux 5.11");
    let missing = match testbed::possible() {
        Err(Trouble::Skipped(reason)) => Some(reason),
        _ if !std::path::Path::new(SERVER).exists() => Some("no redis-tools".to_owned()),
        _ => None,
    };
    if let Some(reason) = &missing {
        eprintln!("SKIPPED all tests: {reason}");
    }
    let run = || match redis() {
        Err(Trouble::Failed(report) | Trouble::Skipped(report)) => Err(Failed::from(report)),
        Ok(()) => Ok(()),
    };
    let trial = Trial::test("servers::redis", run).with_ignored_flag(missing.is_some());
    let conclusion = libtest_mimic::run(&Arguments::from_args(), vec![trial]);
    testbed::tear_down();
    conclusion.exit();
}
