//! A user without root checkpoints and clones processes of their own.

mod messages;
mod user;

use std::path::Path;
use std::process::{Command, ExitCode};

use farfork_tests::driver::Tests;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use serde_json::Value;
use user::{Background, User};

/// Programs whose clones are cloned: threads, time, signals, descriptors, memory that is discarded.
const PROGRAMS: &[&str] = &[
    "threads_regs",
    "tls",
    "steady",
    "timers",
    "signals",
    "creds",
    "umask_cwd",
    "auxv_exe",
    "fd_epoll",
    "fd_memfd",
    "fd_pipes",
    "dontneed",
    "mremap_grow",
    "wipeonfork",
    "rt_glibc_malloc",
    "fork_exec_after",
];
/// Programs that nothing can be cloned of beside its parent.
const ALONE: &[&str] = &["tcp_listening", "udp", "unix_sockets", "fd_locks"];

/// Two clones, a clone of the first, and the parent pass.
fn is_cloned(name: &str) -> Outcome {
    let user = User::new()?;
    let image = format!("test/{name}");
    let mut parent = user.start(name)?;
    user.checkpoint(parent.pid(), &image, &[])?;
    let (mut first, mut second) = (user.clone(&image)?, user.clone(&image)?);
    // Both are there before the image goes with its name.
    let pid = pid_of(&mut first)?;
    pid_of(&mut second)?;
    user.checkpoint(pid, &image, &[])?;
    let mut third = user.clone(&image)?;
    for subject in [&mut third, &mut second, &mut first, &mut parent] {
        subject.must_pass()?;
    }
    farfork::must_run(user.farfork(&["images", "rm", &image])).map(drop)
}

/// A clone has its parent's pid in a PID namespace of its own, its locks and its addresses.
fn takes_over(name: &str) -> Outcome {
    let user = User::new()?;
    let image = format!("test/{name}");
    let mut parent = user.start(name)?;
    user.checkpoint(parent.pid(), &image, &["--kill"])?;
    parent.finish()?;
    user.clone(&image)?.must_pass()?;
    farfork::must_run(user.farfork(&["images", "rm", &image])).map(drop)
}

/// The clone's pid in the output of `restore`.
fn pid_of(clone: &mut Subject) -> Outcome<u32> {
    clone.await_line("]")?; // the end of restore's JSON
    let reported = clone.after("    \"pid\": ").pop().unwrap_or_default();
    let pid = reported.trim_end_matches(',').parse();
    pid.map_err(|_| Trouble::Failed(format!("restore printed no pid: {reported}")))
}

/// A function is warmed, prepared and cloned; its clones are listed, answer, and are ended.
fn function() -> Outcome {
    let user = User::new()?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let package = user.take(&repository.join("python"))?;
    let hello = user.take(&repository.join("functions/hello"))?;
    let python = || {
        let mut command = user.command(Path::new("/usr/bin/python3"));
        command.env("PYTHONPATH", &package).arg("-m");
        command
    };
    let socket = user.directory().join("hello.sock");
    let mut command = python();
    command.arg("farfork.runtime").arg(hello).arg("--socket").arg(&socket);
    command.args(["--warm", "{}"]);
    let parent = Background::start(&mut command)?;
    let ask = |socket: &Path, call: &[&str]| {
        let mut command = python();
        command.arg("farfork.client").arg(socket).args(call);
        farfork::must_run(command).and_then(|output| json(&output.stdout))
    };
    let greet = |socket: &Path, name: &str| -> Outcome {
        let answer = ask(socket, &["run", &format!("{{\"name\": \"{name}\"}}")])?;
        if answer.to_string().contains(name) {
            return Ok(());
        }
        Err(Trouble::Failed(format!("{}: no {name} in {answer}", socket.display())))
    };
    testbed::eventually("the function", || Ok(socket.exists()))?;
    let fd = ask(&socket, &["prepare"])?["listen_fd"].to_string();
    user.checkpoint(parent.pid(), "test/hello", &[])?;
    let inherit = format!("{fd}=listen:{}/clone-%i.sock", user.directory().display());
    let arguments = ["--json", "--detach", "--count", "2", "--inherit-fd", &inherit];
    let output = farfork::must_run({
        let mut restore = user.farfork(&["restore", "test/hello"]);
        restore.args(arguments);
        restore
    })?;
    greet(&user.directory().join("clone-0.sock"), "Ada")?;
    greet(&user.directory().join("clone-1.sock"), "Grace")?;
    greet(&socket, "Edsger")?;
    end(&user, &json(&output.stdout)?)
}

/// Lists the clones, ends each, and sees how it ended.
fn end(user: &User, clones: &Value) -> Outcome {
    let listed = || {
        let output = farfork::must_run(user.farfork(&["ps", "--json"]))?;
        // Other tests have clones of their own.
        let all = json(&output.stdout)?;
        let of_hello =
            all.as_array().into_iter().flatten().filter(|one| one["image"] == "test/hello");
        Ok(of_hello.count())
    };
    if listed()? != 2 {
        return Err(Trouble::Failed(format!("expected two clones, saw {}", listed()?)));
    }
    for clone in clones.as_array().into_iter().flatten() {
        let pid = clone["pid"].to_string();
        farfork::must_run(user.farfork(&["kill", &pid]))?;
        let waited = farfork::run(user.farfork(&["wait", &pid]))?.status.code();
        if waited != Some(143) {
            return Err(Trouble::Failed(format!("expected the end by SIGTERM, saw {waited:?}")));
        }
    }
    testbed::eventually("the end of the clones", || Ok(listed()? == 0))
}

fn json(text: &[u8]) -> Outcome<Value> {
    serde_json::from_slice(text).map_err(|error| {
        Trouble::during("reading JSON", format!("{error}: {}", String::from_utf8_lossy(text)))
    })
}

/// Why users without root cannot clone here.
fn missing() -> Option<String> {
    if let Err(Trouble::Skipped(reason)) = testbed::possible() {
        return Some(reason);
    }
    let namespace = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(["unshare", "--user", "--map-current-user", "true"])
        .output();
    let is_possible = namespace.is_ok_and(|output| output.status.success());
    (!is_possible).then(|| "no user namespaces for users without root".to_owned())
}

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    let missing = missing();
    for name in PROGRAMS {
        tests.add(format!("users::is_cloned::{name}"), missing.clone(), move || is_cloned(name));
    }
    for name in ALONE {
        tests.add(format!("users::takes_over::{name}"), missing.clone(), move || takes_over(name));
    }
    tests.add("users::function", missing.clone(), function);
    for (name, run) in messages::CASES {
        tests.add(format!("users::messages::{name}"), missing.clone(), run);
    }
    tests.run_and(user::tear_down)
}
