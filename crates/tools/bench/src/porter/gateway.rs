//! The cost of the gateway itself: `farfork bench gateway`.
//!
//! A warm call of the smallest function through the gateway, which checks its key and keeps its record,
//! is compared with the same call to the same action server without a platform. The memory of deployed
//! functions without calls is measured, too, and that of calls that wait with large arguments.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_policy::Settings;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::client::Client;
use super::platform::{Platform, PlatformConfig, open_directory};
use super::waiting;
use crate::error::{BenchError, io};
use crate::goals::Goal;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::needed_root;
use crate::testbed::TempPool;
use crate::{Options, progress};

const POOL_BYTES: u64 = 512 << 20;
const NODE_BYTES: u64 = 1 << 30;
/// Limit of the start of the server for direct calls.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Functions that are deployed concurrently.
const AT_ONCE: usize = 8;
/// How often platforms start. The first start is not measured.
const STARTS: usize = 7;
/// How long a platform that has started needs to become idle.
const REST: Duration = Duration::from_secs(2);

const CODE: &str = "def main(args):\n    return {\"name\": args.get(\"name\")}\n";

const OVERHEAD: &str = "through the gateway, less direct";
const EACH: &str = "memory of the gateway for each function without calls";
const MOST_OVERHEAD_US: f64 = 300.0;
const MOST_BYTES_EACH: f64 = 1024.0;

struct Scale {
    rounds: usize,
    functions: usize,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    options.check(&[])?;
    let root = needed_root()?;
    let scale = match options.quick {
        true => Scale { rounds: 200, functions: 500 },
        false => Scale { rounds: 2000, functions: 10_000 },
    };
    let pool = TempPool::new(POOL_BYTES)?;
    let place = open_directory()?;
    let mut samples = Samples::default();
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(io("start threads in", place.path()))?;
    let bed = PorterTestbed { root: &root, pool: &pool, place: &place };
    progress("calling through the gateway, and directly");
    {
        let platform = bed.start("calls")?;
        let server = Server::start(&root)?;
        runtime.block_on(calls(&platform.client, &server.client, scale.rounds, &mut samples))?;
    }
    progress("queueing calls with large arguments");
    for round in 0..waiting::ROUNDS {
        let platform = bed.start(&format!("waiting-{round}"))?;
        let each = runtime.block_on(waiting::bytes_each(&platform))?;
        samples.add("gateway", waiting::EACH, "bytes", each);
    }
    for start in 0..STARTS {
        progress(&format!("starting platforms with many functions and with none, {start}"));
        let none = bed.start("none")?.resting_bytes()?;
        let platform = bed.start("many")?;
        if start == 0 {
            progress(&format!("deploying {} functions", scale.functions));
            runtime.block_on(deploy(&platform.client, scale.functions))?;
            drop(platform);
            continue; // Its memory includes what deploying has left.
        }
        let many = platform.resting_bytes()?;
        let each = (many as f64 - none as f64) / scale.functions as f64;
        samples.add("gateway", EACH, "bytes", each);
    }
    samples.note("gateway", EACH, "bytes", "of a platform that has started with these functions");
    let goals = vec![
        Goal::median(
            format!("a warm call {OVERHEAD}, us"),
            MOST_OVERHEAD_US,
            samples.values("call", OVERHEAD),
        ),
        Goal::median(format!("{EACH}, bytes"), MOST_BYTES_EACH, samples.values("gateway", EACH)),
        Goal::median(
            format!("{}, bytes", waiting::EACH),
            waiting::MOST_BYTES_EACH,
            samples.values("gateway", waiting::EACH),
        ),
    ];
    Ok(Report {
        benchmark: "gateway",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        rows: samples.rows(),
        goals,
        notes: Vec::new(),
    })
}

struct PorterTestbed<'a> {
    root: &'a Path,
    pool: &'a TempPool,
    place: &'a TempDir,
}

impl PorterTestbed<'_> {
    fn start(&self, state: &str) -> Result<Platform, BenchError> {
        Platform::start(&PlatformConfig {
            python: &self.root.join(".venv/bin/python"),
            pool: self.pool.pool.path(),
            state: &self.place.path().join(state),
            run: &self.place.path().join("run"),
            node_bytes: NODE_BYTES,
            policies: &Settings::default(),
        })
    }
}

impl Platform {
    /// Anonymous memory of the gateway when it is idle.
    fn resting_bytes(&self) -> Result<u64, BenchError> {
        std::thread::sleep(REST);
        self.anonymous_bytes()
    }

    /// Anonymous memory of the gateway.
    pub fn anonymous_bytes(&self) -> Result<u64, BenchError> {
        let path = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(&path).map_err(io("read", &path))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let lacking = || io("read", &path)(std::io::Error::other("it has no RssAnon"));
        Ok(kibibytes.ok_or_else(lacking)? << 10)
    }
}

/// The action server alone, with the same code. Dropped, it is killed.
struct Server {
    child: Child,
    client: Client,
}

impl Server {
    fn start(root: &Path) -> Result<Server, BenchError> {
        let python = root.join(".venv/bin/python");
        let port = free_port()?;
        let child = Command::new(&python)
            .args(["-m", "farfork.runtime.action", "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io("start", python))?;
        Ok(Server { child, client: Client::new(&format!("127.0.0.1:{port}"), "none:none")? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that is free at this moment.
fn free_port() -> Result<u16, BenchError> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(io("find a port at", "127.0.0.1"))
}

/// Calls both alternately, in `rounds` rounds.
async fn calls(
    gateway: &Client,
    direct: &Client,
    rounds: usize,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let wrong = |case: &str, reason: String| BenchError::Answer { case: case.to_owned(), reason };
    let init = json!({"value": {"name": "f", "main": "main", "code": CODE, "binary": false}});
    let begun = Instant::now();
    while let Err(reason) = direct.post("/init", &init).await {
        if begun.elapsed() > START_TIMEOUT {
            return Err(wrong("direct", reason));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    gateway.deploy("f", &json!({"exec": {"kind": "python:default", "code": CODE}})).await?;
    for round in 0..=rounds {
        let args = json!({"name": round});
        let run = json!({"value": args, "activation_id": "a", "action_name": "/guest/f"});
        let started = Instant::now();
        let answered = direct.post("/run", &run).await.map_err(|reason| wrong("direct", reason))?;
        let direct_us = started.elapsed().as_secs_f64() * 1e6;
        if answered != args {
            return Err(wrong("direct", answered.to_string()));
        }
        let started = Instant::now();
        let path = "/api/v1/namespaces/_/actions/f?blocking=true&result=true";
        let answered =
            gateway.post(path, &args).await.map_err(|reason| wrong("gateway", reason))?;
        let gateway_us = started.elapsed().as_secs_f64() * 1e6;
        if answered != args {
            return Err(wrong("gateway", answered.to_string()));
        }
        // The first call is not warm.
        if round > 0 {
            samples.add("call", "direct", "us", direct_us);
            samples.add("call", "through the gateway", "us", gateway_us);
            samples.add("call", OVERHEAD, "us", gateway_us - direct_us);
        }
    }
    Ok(())
}

async fn deploy(client: &Client, count: usize) -> Result<(), BenchError> {
    let mut deploying = JoinSet::new();
    let failed = |_| super::task_failed("deploying");
    for number in 0..count {
        if deploying.len() == AT_ONCE
            && let Some(done) = deploying.join_next().await
        {
            done.map_err(failed)??;
        }
        let client = client.clone();
        deploying.spawn(async move {
            let action = json!({"exec": {"kind": "python:default", "code": CODE}});
            client.deploy(&format!("function-{number}"), &action).await
        });
    }
    while let Some(done) = deploying.join_next().await {
        done.map_err(failed)??;
    }
    Ok(())
}
