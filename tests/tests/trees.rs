//! Trees of processes in the output of commands, and the fate of their processes.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::Duration;

use farfork_tests::driver::{self, Tests};
use farfork_tests::patience::Patience;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

/// A shell with two children. Dropped, all of them are killed.
struct Shell {
    child: Child,
    children: Vec<i64>,
}

impl Shell {
    /// Each of `redirections` is what one child is started with.
    fn start(redirections: [&str; 2]) -> Outcome<Shell> {
        let [first, second] = redirections;
        let script = format!("sleep 1000 {first} & sleep 1000 {second} & wait");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| Trouble::during("starting bash", error))?;
        let mut shell = Shell { child, children: Vec::new() };
        let mut patience = Patience::new(Duration::from_secs(120));
        while shell.children.len() < 2 || !shell.children.iter().all(|child| is_sleep(*child)) {
            if patience.is_over() {
                return Err(Trouble::Failed("bash did not start its children".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(5));
            shell.children = children(shell.pid());
        }
        Ok(shell)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn checkpoint(&self, image: &str, more: &[&str]) -> Outcome<Output> {
        farfork::run(farfork::checkpoint(testbed::pool()?, self.pid(), image, more)?)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn is_sleep(pid: i64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
}

fn children(pid: u32) -> Vec<i64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.unwrap_or_default();
    text.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn demand(holds: bool, what: &str, seen: &dyn std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(Trouble::Failed(format!("expected {what}, saw {seen:?}"))) }
}

fn json(output: &Output) -> Outcome<Value> {
    serde_json::from_slice(&output.stdout).map_err(|error| {
        Trouble::during("reading JSON", format!("{error}: {}", farfork::text(output)))
    })
}

/// Processes and objects of the refusals that a command has printed.
fn refusals(output: &Output) -> Outcome<Vec<(String, String)>> {
    let document = json(output)?;
    let list = document["refusals"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(list.iter().map(|one| (text(&one["process"]), text(&one["object"]))).collect())
}

/// Every member is asked, and each refusal names its own; nothing is written.
fn refusals_name_their_processes() -> Outcome {
    let shell = Shell::start(["9</proc/1/status", "8</proc/1/stat"])?;
    let expected: Vec<String> =
        shell.children.iter().map(|child| format!("process {child} (sleep)")).collect();
    for more in [&["--tree", "--dry-run"][..], &["--tree"]] {
        let output = shell.checkpoint("test/trees:refused", more)?;
        let found = refusals(&output)?;
        demand(output.status.code() == Some(1), "exit status 1", &output.status)?;
        let named: Vec<&String> = found.iter().map(|(process, _)| process).collect();
        demand(named == expected.iter().collect::<Vec<_>>(), "a refusal of each child", &found)?;
        demand(found[0].1.contains("fd 9 ("), "the first to be about fd 9", &found)?;
        demand(found[1].1.contains("fd 8 ("), "the second to be about fd 8", &found)?;
    }
    let images = farfork::images(testbed::pool()?)?;
    demand(!images.contains("test/trees:refused"), "nothing in the catalog", &images)?;
    demand(shell.children.iter().all(|child| is_sleep(*child)), "all to go on", &shell.children)
}

/// Without `--tree` the children are in the way, and the remedy names it.
fn a_process_with_children_is_refused() -> Outcome {
    let shell = Shell::start(["", ""])?;
    let output = shell.checkpoint("test/trees:alone", &["--dry-run"])?;
    let found = refusals(&output)?;
    let objects: Vec<String> =
        shell.children.iter().map(|child| format!("child process {child}")).collect();
    let named: Vec<&String> = found.iter().map(|(_, object)| object).collect();
    demand(named == objects.iter().collect::<Vec<_>>(), "both children to be named", &found)?;
    let text = farfork::text(&output);
    demand(text.contains("--tree"), "the way out", &text)
}

/// Images list their processes, and the parents of these go on, or are killed, all together.
fn images_tell_their_processes() -> Outcome {
    let pool = testbed::pool()?;
    let (shell, image) = (Shell::start(["", ""])?, "test/trees:whole");
    let made = json(&shell.checkpoint(image, &["--tree"])?)?;
    demand(made["processes"] == 3, "three processes", &made)?;
    check_image(pool, image, &shell)?;
    demand(shell.children.iter().all(|child| is_sleep(*child)), "all to go on", &shell.children)?;
    let killed = json(&shell.checkpoint(image, &["--tree", "--kill"])?)?;
    demand(killed["processes"] == 3, "three processes", &killed)?;
    // Not even as zombies, although nothing here reaps orphans.
    let left: Vec<&i64> = shell.children.iter().filter(|child| exists(**child)).collect();
    demand(left.is_empty(), "no child to be left", &left)?;
    farfork::forget(pool, image)
}

fn check_image(pool: &Path, image: &str, shell: &Shell) -> Outcome {
    let mut show = farfork::command(&["images", "show", "--json", "--pool"])?;
    show.arg(pool).arg(image);
    let shown = json(&farfork::must_run(show)?)?;
    let processes = shown["processes"].as_array().cloned().unwrap_or_default();
    let pids: Vec<i64> = processes.iter().filter_map(|process| process["pid"].as_i64()).collect();
    let root = i64::from(shell.pid());
    demand(pids == [&[root], &shell.children[..]].concat(), "root and children", &pids)?;
    let is_child = |process: &Value| process["parent"] == root && process["threads"] == 1;
    demand(processes[1..].iter().all(is_child), "children of the root", &processes)?;
    demand(shown["threads"] == 3 && shown["pid"] == root, "three threads in all", &shown)
}

/// One id is taken: the message names its process, and what was made of the others ends. When it is
/// free, all start, and end with the first.
fn a_tree_starts_whole_or_not_at_all() -> Outcome {
    let pool = testbed::pool()?;
    let (shell, image) = (Shell::start(["", ""])?, "test/trees:same");
    let [root, first, second] = [i64::from(shell.pid()), shell.children[0], shell.children[1]];
    let made = shell.checkpoint(image, &["--tree"])?;
    demand(made.status.success(), "a checkpoint", &farfork::text(&made))?;
    drop(shell);
    await_end(&[root, first, second])?;
    let mut other = start_as(second)?;
    let same = ["--detach", "--pid-mode", "same"];
    let output = farfork::run(farfork::restore(pool, image, &same)?)?;
    let text = farfork::text(&output);
    let _ = other.kill().and_then(|()| other.wait());
    demand(output.status.code() == Some(1), "exit status 1", &output.status)?;
    demand(text.contains(&format!("process {second}: File exists")), "whose id is taken", &text)?;
    await_end(&[root, first])?;
    farfork::must_run(farfork::restore(pool, image, &same)?)?;
    let children = children(root as u32);
    let killed = farfork::must_run({
        let mut kill = farfork::command(&["kill"])?;
        kill.arg(root.to_string());
        kill
    });
    demand(children == [first, second], "both children", &children)?;
    killed?;
    await_end(&[root, first, second])?;
    farfork::forget(pool, image)
}

/// A process with this id. Others may have it now, and some of these live as long as another test.
fn start_as(pid: i64) -> Outcome<Child> {
    let mut patience = Patience::new(Duration::from_secs(60));
    while !patience.is_over() {
        if exists(pid) {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let before = (pid - 1).to_string();
        std::fs::write("/proc/sys/kernel/ns_last_pid", before)
            .map_err(|error| Trouble::during("choosing the next id", error))?;
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = sleep.spawn().map_err(|error| Trouble::during("starting sleep", error))?;
        if i64::from(child.id()) == pid {
            return Ok(child);
        }
        let _ = child.kill().and_then(|()| child.wait());
    }
    Err(Trouble::Failed(format!("no process got id {pid}")))
}

fn exists(pid: i64) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Waits until no process has one of these ids, which come to this process as orphans.
fn await_end(pids: &[i64]) -> Outcome {
    let mut patience = Patience::new(Duration::from_secs(120));
    let lives = |pid: &&i64| {
        let _ = waitpid(Pid::from_raw(**pid as i32), Some(WaitPidFlag::WNOHANG));
        exists(**pid)
    };
    while let Some(pid) = pids.iter().find(lives) {
        if patience.is_over() {
            return Err(Trouble::Failed(format!("expected process {pid} to end")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A name, and what to do.
type Test = (&'static str, fn() -> Outcome);

fn main() -> ExitCode {
    // As a pid 1 that never reaps.
    prctl::set_child_subreaper(true).expect("orphans come here");
    let mut tests = Tests::begin();
    let cases: [Test; 4] = [
        ("refusals_name_their_processes", refusals_name_their_processes),
        ("a_process_with_children_is_refused", a_process_with_children_is_refused),
        ("images_tell_their_processes", images_tell_their_processes),
        ("a_tree_starts_whole_or_not_at_all", a_tree_starts_whole_or_not_at_all),
    ];
    for (name, run) in cases {
        tests.add(name, driver::without_clones(), run);
    }
    tests.run()
}
