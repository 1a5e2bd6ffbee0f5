//! Ghosts that die, are used twice, belong to another user, or run out of memory, before, during and after
//! the request: there is a message, and nothing of a container is left.

use std::fs;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use farfork_plan::protocol::{VERSION, WakeKind};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, known};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    connect, recv, recvmsg, sendmsg, socket,
};
use nix::unistd::{Pid, close};

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("has_namespaces_and_a_cgroup_of_its_own", has_its_own),
    ("takes_little_memory", takes_little_memory),
    ("takes_one_clone", takes_one_clone),
    ("keeps_what_is_written_to_its_layer", keeps_what_is_written),
    ("is_its_users", is_its_users),
    ("is_unknown", is_unknown),
    ("is_killed_while_it_waits", is_killed_while_it_waits),
    ("is_killed_with_its_clone", is_killed_with_its_clone),
    ("ends_with_an_image_that_cannot_start", ends_with_an_image_that_cannot_start),
    ("kills_all_that_its_clone_has_begun", kills_all_that_its_clone_has_begun),
    ("is_stopped_with_its_clone", is_stopped_with_its_clone),
    ("is_stopped_with_all_others", is_stopped_with_all_others),
    ("runs_out_of_memory", runs_out_of_memory),
    ("runs_out_of_memory_by_its_policy", runs_out_of_memory_by_its_policy),
    ("loses_its_agent", loses_its_agent),
    ("loses_its_agent_when_half_made", loses_its_agent_when_half_made),
    ("comes_from_a_bundle", comes_from_a_bundle),
    ("comes_from_no_bad_bundle", comes_from_no_bad_bundle),
    ("waits_with_its_image_and_is_not_seen", waits_unseen),
    ("wakes_with_the_time_its_timers_had", wakes_with_its_timers),
    ("keeps_nothing_of_farforks_open", keeps_nothing_open),
    ("has_one_image", has_one_image),
    ("waits_with_no_tree", waits_with_no_tree),
    ("tells_pids_as_they_are_seen", tells_pids_as_they_are_seen),
    ("is_killed_while_its_clone_waits", is_killed_while_its_clone_waits),
    ("loses_its_agent_while_its_clone_waits", loses_its_agent_while_its_clone_waits),
    ("is_asked_by_one_that_goes", is_asked_by_one_that_goes),
    ("hears_garbage_before_it_is_woken", hears_garbage_before_it_is_woken),
    ("has_given_up_rights_when_it_is_woken", has_given_up_rights_when_it_is_woken),
    ("says_that_runc_is_missing", says_that_runc_is_missing),
];

/// A place, and in it `watcher` and its image `a/b`.
pub fn stage() -> Outcome<(Scene, Subject)> {
    farfork::ghosts_possible()?;
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    let subject = scene.subject("watcher")?;
    scene.checkpoint(&subject, "a/b")?;
    Ok((scene, subject))
}

/// Starts a ghost; its name.
pub fn start(scene: &Scene, more: &[&str]) -> Outcome<String> {
    scene.works(&[&["ghost", "start"], more].concat())
}

/// A clone of `a/b` in a ghost.
pub fn clone(scene: &Scene, ghost: &str) -> Outcome<Subject> {
    clone_with(scene, ghost, &[])
}

fn clone_with(scene: &Scene, ghost: &str, more: &[&str]) -> Outcome<Subject> {
    let mut command = scene.command(&[&["restore", "a/b", "--ghost", ghost], more].concat())?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.send(b"v");
    Ok(clone)
}

/// The entry of a ghost in `ghost list`.
fn reported(scene: &Scene, ghost: &str) -> Outcome<serde_json::Value> {
    let text = scene.works(&["ghost", "list", "--json"])?;
    let list: serde_json::Value = serde_json::from_str(&text).map_err(during("reading a list"))?;
    let found = list.as_array().and_then(|list| list.iter().find(|one| one["id"] == ghost));
    found.cloned().map_or_else(|| fail(format!("no ghost {ghost} in {text}")), Ok)
}

/// A number in the entry of a ghost in `ghost list`.
pub fn number(scene: &Scene, ghost: &str, key: &str) -> Outcome<i64> {
    let reported = reported(scene, ghost)?;
    reported[key].as_i64().map_or_else(|| fail(format!("no {key} in {reported}")), Ok)
}

/// Pid of the clone in a ghost, once there is one.
pub fn runs(scene: &Scene, ghost: &str) -> Outcome<i32> {
    let pid = || reported(scene, ghost).ok().and_then(|reported| reported["pid"].as_i64());
    await_until("a clone runs in the ghost", || pid().is_some())?;
    pid().map_or_else(|| fail("no clone"), |pid| Ok(pid as i32))
}

fn end(pid: i64) -> Outcome {
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).map_err(during("killing"))
}

fn has_its_own() -> Outcome {
    let (scene, _subject) = stage()?;
    for ghost in [start(&scene, &[])?, attach(&scene)?] {
        let mut clone = clone(&scene, &ghost)?;
        await_running(&scene, &ghost)?;
        let pid = runs(&scene, &ghost)?;
        for kind in ["pid", "mnt", "net", "ipc", "uts"] {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}"));
            let (theirs, own) = (of(&pid.to_string()), of("self"));
            let differ = matches!((&theirs, &own), (Ok(theirs), Ok(own)) if theirs != own);
            demand(differ, format!("namespace {kind}: {theirs:?}, and outside {own:?}"))?;
        }
        let read = |what: &str| {
            fs::read_to_string(format!("/proc/{pid}/{what}")).map_err(during("reading"))
        };
        let groups = read("cgroup")?;
        demand(groups.contains(&format!("farfork-{ghost}")), format!("its cgroups: {groups}"))?;
        let interfaces = read("net/dev")?;
        demand(interfaces.lines().count() == 3, format!("expected lo alone: {interfaces}"))?;
        end(pid.into())?;
        demand(clone.finish()?.code() == Some(137), "expected the exit status of SIGKILL")?;
        scene.has_no_ghost(&ghost)?;
    }
    scene.strike()
}

/// The goal is 512 KB: anonymous memory and page tables.
fn takes_little_memory() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghost = start(&scene, &[])?;
    let bytes = number(&scene, &ghost, "local_bytes")?;
    demand((1..=512 << 10).contains(&bytes), format!("an empty ghost has {bytes} bytes"))?;
    scene.works(&["ghost", "stop", &ghost])?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}

fn takes_one_clone() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghost = start(&scene, &[])?;
    let mut first = clone(&scene, &ghost)?;
    let pid = runs(&scene, &ghost)?;
    scene.fails(&["restore", "a/b", "--ghost", &ghost], 1, &[&ghost, "used", "a/b"])?;
    scene.fails(&["restore", "a/b", "--ghost", &ghost, "--count", "2"], 2, &["one clone"])?;
    scene.works(&["kill", &pid.to_string()])?;
    demand(first.finish()?.code() == Some(143), "expected the exit status of SIGTERM")?;
    scene.fails(&["restore", "a/b", "--ghost", &ghost], 1, &[&ghost, "used"])?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}

fn keeps_what_is_written() -> Outcome {
    let (scene, _subject) = stage()?;
    let place = scene.directory().join("layer: a,b");
    let file = |name: &str| place.join(name);
    fs::create_dir(&place)
        .and_then(|()| fs::write(file("own"), "old"))
        .map_err(during("making the directory under a layer"))?;
    let text = place.to_string_lossy();
    let ghost = start(&scene, &["--layer", &text, "--memory", "64M"])?;
    let mut clone = clone(&scene, &ghost)?;
    let pid = runs(&scene, &ghost)?;
    let seen = |name: &str| format!("/proc/{pid}/root{}", file(name).display());
    for name in ["own", "more"] {
        fs::write(seen(name), "new").map_err(during("writing to a layer"))?;
    }
    let full = fs::write(seen("large"), vec![1; 48 << 20]).err();
    let is_full = full.is_some_and(|error| error.kind() == ErrorKind::StorageFull);
    demand(is_full, "half of its memory can be written")?;
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    demand(read(Path::new(&seen("own"))) == "new", "the ghost sees what was written")?;
    demand(read(&file("own")) == "old" && !file("more").exists(), "the node does not")?;
    end(pid.into())?;
    clone.finish()?;
    scene.has_no_ghost(&ghost)?;
    for (wrong, words) in [("/nowhere", "no such directory"), ("layer", "must be absolute")] {
        scene.fails(&["ghost", "start", "--layer", wrong], 1, &[wrong, words])?;
    }
    scene.strike()
}

fn is_its_users() -> Outcome {
    let (scene, subject) = stage()?;
    let theirs = start(&scene, &["--user", "c"])?;
    let cid = scene.checkpoint(&subject, "b/b")?;
    for image in ["a/b", "b/b", &cid] {
        scene.fails(&["restore", image, "--ghost", &theirs], 1, &["images of c only", image])?;
    }
    // One image with two names is both users', each by their own.
    let own = start(&scene, &["--user", "a"])?;
    let mut clone = clone(&scene, &own)?;
    end(runs(&scene, &own)?.into())?;
    clone.finish()?;
    // A refusal leaves it as it was.
    demand(reported(&scene, &theirs)?["state"] == "empty", "expected it to wait")?;
    scene.fails(&["ghost", "start", "--user", "a/b"], 2, &["USER/FUNCTION"])?;
    scene.works(&["ghost", "stop", "--all"])?;
    scene.strike()
}

fn is_unknown() -> Outcome {
    let (scene, _subject) = stage()?;
    scene.fails(&["restore", "a/b", "--ghost", "nobody"], 1, &["no ghost", "nobody", "list"])?;
    scene.fails(&["ghost", "stop", "nobody"], 1, &["no ghost", "nobody"])?;
    scene.fails(&["ghost", "stop"], 2, &[])?;
    let same = ["restore", "a/b", "--ghost", "x", "--pid-mode", "same"];
    scene.fails(&same, 2, &["PID namespace"])?;
    scene.strike()
}

fn is_killed_while_it_waits() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghost = start(&scene, &[])?;
    end(number(&scene, &ghost, "init_pid")?)?;
    scene.has_no_ghost(&ghost)?;
    scene.fails(&["restore", "a/b", "--ghost", &ghost], 1, &[&ghost, "killed while it waited"])?;
    scene.strike()
}

fn is_killed_with_its_clone() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghost = start(&scene, &[])?;
    let mut clone = clone(&scene, &ghost)?;
    let pid = runs(&scene, &ghost)?;
    end(number(&scene, &ghost, "init_pid")?)?;
    demand(clone.finish()?.code() == Some(137), "expected the exit status of SIGKILL")?;
    demand(!fs::exists(format!("/proc/{pid}")).unwrap_or(true), "the clone is still there")?;
    scene.has_no_ghost(&ghost)?;
    demand(scene.pins()?.is_empty(), "the image is still pinned")?;
    scene.strike()
}

/// What fails in the ghost itself ends it.
fn ends_with_an_image_that_cannot_start() -> Outcome {
    let (scene, _subject) = stage()?;
    let locking = scene.subject("fd_locks")?;
    scene.checkpoint(&locking, "a/locking")?;
    let ghost = start(&scene, &[])?;
    scene.fails(&["restore", "a/locking", "--ghost", &ghost], 1, &["another process holds it"])?;
    scene.has_no_ghost(&ghost)?;
    demand(scene.pins()?.is_empty(), "the image is still pinned")?;
    scene.strike()
}

/// Not one after the other: on a busy machine a first process that has to end them gets its turn late.
fn kills_all_that_its_clone_has_begun() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghost = start(&scene, &[])?;
    let mut clone = clone(&scene, &ghost)?;
    let pid = runs(&scene, &ghost)?;
    let init = number(&scene, &ghost, "init_pid")?;
    let mut child =
        Command::new("sleep").arg("3600").spawn().map_err(during("starting a child"))?;
    for group in farfork::cgroups(&ghost) {
        fs::write(group.join("cgroup.procs"), child.id().to_string())
            .map_err(during("adding a process to the ghost's cgroup"))?;
    }
    let init = Pid::from_raw(init as i32);
    kill(init, Signal::SIGSTOP).map_err(during("stopping the first process"))?;
    scene.works(&["kill", "-9", &pid.to_string()])?;
    let killed = await_until("a process beside the clone is killed", || {
        matches!(child.try_wait(), Ok(Some(_)))
    });
    let _ = child.kill().and_then(|()| child.wait());
    kill(init, Signal::SIGCONT).map_err(during("letting the first process go on"))?;
    killed?;
    demand(clone.finish()?.code() == Some(137), "expected the exit status of SIGKILL")?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}

fn is_stopped_with_its_clone() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghost = start(&scene, &[])?;
    let mut clone = clone(&scene, &ghost)?;
    runs(&scene, &ghost)?;
    scene.works(&["ghost", "stop", &ghost])?;
    scene.has_no_ghost(&ghost)?;
    demand(clone.finish()?.code() == Some(137), "expected the exit status of SIGKILL")?;
    scene.strike()
}

fn is_stopped_with_all_others() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghosts = [start(&scene, &[])?, start(&scene, &[])?, start(&scene, &[])?];
    let mut clone = clone(&scene, &ghosts[1])?;
    runs(&scene, &ghosts[1])?;
    scene.works(&["ghost", "stop", "--all"])?;
    for ghost in &ghosts {
        scene.has_no_ghost(ghost)?;
    }
    clone.finish()?;
    demand(scene.works(&["ghost", "list", "--json"])? == "[]", "expected no ghost")?;
    scene.strike()
}

fn runs_out_of_memory() -> Outcome {
    let (scene, _subject) = stage()?;
    let mut command = Command::new("python3");
    command.args([
        "-c",
        "print('READY', flush=True); input(); b = [bytes(1 << 20) * 4 for _ in range(99)]",
    ]);
    let mut hungry = Subject::start("hungry", &mut command, PATIENCE)?;
    hungry.await_ready()?;
    scene.checkpoint(&hungry, "a/hungry")?;
    let ghost = start(&scene, &["--memory", "64M"])?;
    let mut command = scene.command(&["restore", "a/hungry", "--ghost", &ghost])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.send_byte();
    ends_for_want_of_memory(clone)?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}

/// Demands that it is OOM-killed at 64 MiB, and that this is reported.
pub fn ends_for_want_of_memory(mut clone: Subject) -> Outcome {
    let status = clone.finish()?;
    let words = clone.transcript();
    let is_reported = words.contains("out of memory") && words.contains("64 MiB");
    demand(status.code() == Some(137) && is_reported, format!("{status}: {words}"))
}

/// A clone reads more than it may take: where it is in the pool that takes nothing.
fn runs_out_of_memory_by_its_policy() -> Outcome {
    farfork::ghosts_possible()?;
    let mut scene = Scene::set(160)?;
    scene.agent()?;
    let mut command = Command::new("python3");
    command.args([
        "-c",
        "b = bytes(range(256)) * (128 << 12); print('READY', flush=True); input(); \
         print('PASS' if sum(b[5::4096]) == 5 * (128 << 8) else 'wrong')",
    ]);
    let mut large = Subject::start("large", &mut command, PATIENCE)?;
    large.await_ready()?;
    scene.checkpoint(&large, "a/large")?;
    for (tiering, is_hot, fits) in [
        ("mow", false, true),
        ("hybrid", false, true),
        ("moa", false, false),
        ("hybrid", true, false),
    ] {
        if is_hot {
            scene.declare_all_hot(&large, "a/large")?;
        }
        let ghost = start(&scene, &["--memory", "64M"])?;
        let more = ["restore", "a/large", "--ghost", &ghost, "--tiering", tiering];
        let mut clone = Subject::start(tiering, &mut scene.command(&more)?, PATIENCE)?;
        if fits {
            clone.must_pass()?;
        } else {
            clone.send_byte();
            ends_for_want_of_memory(clone)?;
        }
        scene.has_no_ghost(&ghost)?;
    }
    // What is all to be local before it runs does not fit, and is not begun without a word.
    let ghost = start(&scene, &["--memory", "64M"])?;
    let more = ["restore", "a/large", "--ghost", &ghost, "--tiering", "copy"];
    scene.fails(&more, 1, &["out of memory", "64 MiB"])?;
    scene.has_no_ghost(&ghost)?;
    // What may never be touched is not made local where there is no room for it.
    known::written(&scene.pool_path(), "a/large", known::ALL)?;
    for tiering in ["mow", "moa"] {
        let image = ["--image", "a/large", "--tiering", tiering, "--memory", "64M"];
        let ghost = start(&scene, &image)?;
        let mut command = scene.command(&["restore", "a/large", "--ghost", &ghost])?;
        let mut clone = Subject::start(tiering, &mut command, PATIENCE)?;
        if tiering == "mow" {
            clone.must_pass()?;
        } else {
            clone.send_byte();
            ends_for_want_of_memory(clone)?;
        }
        scene.has_no_ghost(&ghost)?;
    }
    large.must_pass()?;
    scene.strike()
}

/// Ghosts that wait end with the agent, a clone in a ghost does not; the next agent clears up.
fn loses_its_agent() -> Outcome {
    let (mut scene, _subject) = stage()?;
    let waits = start(&scene, &[])?;
    let ghost = start(&scene, &[])?;
    let mut detached = clone_with(&scene, &ghost, &["--detach"])?;
    let pid: i64 = runs(&scene, &ghost)?.into();
    demand(detached.leave()?.success(), "expected restore --detach to work")?;
    let init = number(&scene, &waits, "init_pid")?;
    scene.kill_agent();
    await_until("a ghost without an agent ends", || has_ended(init))?;
    scene.agent()?;
    scene.has_no_ghost(&waits)?;
    demand(fs::exists(format!("/proc/{pid}")).unwrap_or(false), "the clone has ended")?;
    end(pid)?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}

/// An agent is killed with the `runc` that it has called, before that knows anything of a container, and
/// when it has cgroups but has not written what it knows: the next agent takes all of that away.
fn loses_its_agent_when_half_made() -> Outcome {
    let (mut scene, _subject) = stage()?;
    let ghost = start(&scene, &[])?;
    let init = number(&scene, &ghost, "init_pid")?;
    let places = scene.directory().join("run/local.ghosts");
    scene.kill_agent();
    await_until("a ghost without an agent ends", || has_ended(init))?;
    fs::remove_file(places.join("runc").join(&ghost).join("state.json"))
        .map_err(during("having runc know nothing"))?;
    fs::create_dir(places.join("89abcdef")).map_err(during("making a part of a ghost"))?;
    demand(!farfork::cgroups(&ghost).is_empty(), "its cgroups have gone")?;
    scene.agent()?;
    scene.has_no_ghost(&ghost)?;
    scene.has_no_ghost("89abcdef")?;
    scene.strike()
}

fn has_ended(pid: i64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

fn comes_from_a_bundle() -> Outcome {
    let (scene, _subject) = stage()?;
    let bundle = scene.directory().join("bundle");
    fs::create_dir_all(bundle.join("rootfs")).map_err(during("making a bundle"))?;
    let config = serde_json::json!({
        "ociVersion": "1.0.2", "hostname": "spook", "root": { "path": "rootfs" },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"] },
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] },
            { "destination": "/lib", "type": "bind", "source": "/lib", "options": ["rbind", "ro"] },
            { "destination": "/lib64", "type": "bind", "source": "/lib64", "options": ["rbind", "ro"] },
            { "destination": "/tmp", "type": "bind", "source": "/tmp", "options": ["rbind"] },
            { "destination": std::env::temp_dir(), "type": "bind", "source": std::env::temp_dir(),
              "options": ["rbind"] },
        ],
        "linux": { "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "uts" }] },
    });
    fs::write(bundle.join("config.json"), config.to_string()).map_err(during("writing"))?;
    let path = bundle.display().to_string();
    let ghost = start(&scene, &["--bundle", &path])?;
    let init = number(&scene, &ghost, "init_pid")?;
    let mut command = Command::new("nsenter");
    command.args(["--uts", "--target", &init.to_string(), "hostname"]);
    let name = farfork::run(command)?;
    demand(name.stdout == b"spook\n", format!("host name: {}", farfork::text(&name)))?;
    scene.works(&["ghost", "stop", &ghost])?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}

fn comes_from_no_bad_bundle() -> Outcome {
    let (scene, _subject) = stage()?;
    let bundle = scene.directory().display().to_string();
    scene.fails(&["ghost", "start", "--bundle", &bundle], 1, &["config.json", &bundle])?;
    let config = serde_json::json!({
        "ociVersion": "1.0.2", "root": { "path": "run" },
        "linux": { "namespaces": [{ "type": "pid" }, { "type": "mount" }] },
    });
    let at = scene.directory().join("config.json");
    fs::write(at, config.to_string()).map_err(during("writing"))?;
    // Without a /proc, nothing in it can find the ghost's program.
    scene.fails(&["ghost", "start", "--bundle", &bundle], 1, &["runc failed"])?;
    demand(scene.works(&["ghost", "list", "--json"])? == "[]", "expected no ghost")?;
    scene.strike()
}

fn says_that_runc_is_missing() -> Outcome {
    let mut scene = Scene::set(8)?;
    scene.agent_without_programs()?;
    scene.fails(&["ghost", "start"], 1, &["runc", "not installed", "apt-get install"])?;
    scene.strike()
}

fn attach(scene: &Scene) -> Outcome<String> {
    start(scene, &["--image", "a/b"])
}

/// Others see nothing of a clone that waits: it listens nowhere, and has no lock.
fn waits_unseen() -> Outcome {
    let (scene, _subject) = stage()?;
    let mut listening = scene.subject("tcp_listening")?;
    scene.checkpoint(&listening, "a/listening")?;
    let mut locking = scene.subject("fd_locks")?;
    scene.checkpoint(&locking, "a/locking")?;
    let ghost = start(&scene, &["--image", "a/listening"])?;
    let sockets = |init: i64| fs::read_to_string(format!("/proc/{init}/net/tcp"));
    let seen = sockets(number(&scene, &ghost, "init_pid")?).map_err(during("reading"))?;
    demand(seen.lines().count() == 1, format!("it listens already: {seen}"))?;
    // Its parent has the lock: a clone that took it before the start could not be made.
    let locked = start(&scene, &["--image", "a/locking"])?;
    scene.fails(&["restore", "a/locking", "--ghost", &locked], 1, &["another process holds it"])?;
    scene.has_no_ghost(&locked)?;
    let mut command = scene.command(&["restore", "a/listening", "--ghost", &ghost])?;
    Subject::start("clone", &mut command, PATIENCE)?.must_pass()?;
    scene.has_no_ghost(&ghost)?;
    listening.must_pass()?;
    locking.must_pass()?;
    scene.strike()
}

/// What is left of a timer does not run out while the clone waits.
fn wakes_with_its_timers() -> Outcome {
    let (scene, _subject) = stage()?;
    let mut timers = scene.subject("timers")?;
    scene.checkpoint(&timers, "a/timers")?;
    let ghost = start(&scene, &["--image", "a/timers"])?;
    loses_nothing_while_it_waits(&scene)?;
    let mut command = scene.command(&["restore", "a/timers", "--ghost", &ghost])?;
    Subject::start("clone", &mut command, PATIENCE)?.must_pass()?;
    timers.must_pass()?;
    scene.strike()
}

/// A timer that runs for an hour has lost no more of it in the end than the time in which its process or
/// that one's clone could run.
fn loses_nothing_while_it_waits(scene: &Scene) -> Outcome {
    const WAITS: Duration = Duration::from_secs(3);
    let script = "import signal as s; s.setitimer(s.ITIMER_REAL, 3600); print('READY', flush=True); \
                 input(); print('LEFT', s.getitimer(s.ITIMER_REAL)[0]); print('PASS')";
    let begun = Instant::now();
    let mut command = Command::new("python3");
    let mut parent = Subject::start("parent", command.args(["-c", script]), PATIENCE)?;
    parent.await_ready()?;
    scene.checkpoint(&parent, "a/left")?;
    let made = Instant::now();
    let ghost = start(scene, &["--image", "a/left"])?;
    thread::sleep(WAITS);
    let waited = made.elapsed();
    let mut command = scene.command(&["restore", "a/left", "--ghost", &ghost])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.must_pass()?;
    let ran = begun.elapsed() - waited;
    let left = clone.after("LEFT").pop().unwrap_or_default();
    let left: f64 = left.parse().map_err(during("reading what is left"))?;
    // The kernel rounds to its ticks.
    let is_whole = left + ran.as_secs_f64() > 3599.9;
    demand(is_whole, format!("{left} s are left of 3600, of which {ran:?} could be lost"))
}

/// Neither the socket that it was woken by nor any other is the clone's.
fn keeps_nothing_open() -> Outcome {
    let (scene, subject) = stage()?;
    let ghost = attach(&scene)?;
    let numbers = |pid: i64| -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut all: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        all.sort();
        all
    };
    let mut clone = clone(&scene, &ghost)?;
    await_running(&scene, &ghost)?;
    let parents = numbers(subject.pid().into());
    let pid = runs(&scene, &ghost)?.into();
    // The run of farfork's own is closed as the clone leaves, just after it has said that it runs.
    await_until("the clone has its parent's descriptors", || numbers(pid) == parents).map_err(
        |_| Trouble::Failed(format!("open: {:?}, in its parent {parents:?}", numbers(pid))),
    )?;
    scene.works(&["ghost", "stop", &ghost])?;
    clone.finish()?;
    scene.strike()
}

fn is_running(scene: &Scene, ghost: &str) -> bool {
    reported(scene, ghost).is_ok_and(|reported| reported["state"] == "running")
}

/// Waits until the clone in a ghost has left it.
pub fn await_running(scene: &Scene, ghost: &str) -> Outcome {
    await_until("it runs", || is_running(scene, ghost))
}

fn has_one_image() -> Outcome {
    let (scene, subject) = stage()?;
    scene.checkpoint(&subject, "a/other")?;
    let ghost = attach(&scene)?;
    scene.fails(&["restore", "a/other", "--ghost", &ghost], 1, &["holds image a/b", "a/other"])?;
    scene.fails(&["ghost", "start", "--image", "a/nothing"], 1, &["no image", "a/nothing"])?;
    let theirs = ["ghost", "start", "--image", "a/b", "--user", "c"];
    scene.fails(&theirs, 1, &["images of c only"])?;
    // Once it has run, as any other.
    let mut clone = clone(&scene, &ghost)?;
    await_running(&scene, &ghost)?;
    scene.fails(&["restore", "a/b", "--ghost", &ghost], 1, &[&ghost, "used"])?;
    scene.works(&["ghost", "stop", "--all"])?;
    clone.finish()?;
    demand(scene.pins()?.is_empty(), "an image is still pinned")?;
    scene.strike()
}

fn waits_with_no_tree() -> Outcome {
    let (scene, _subject) = stage()?;
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 1000 & echo READY; read line"]);
    let mut tree = Subject::start("tree", &mut command, PATIENCE)?;
    tree.await_ready()?;
    let pid = tree.pid().to_string();
    scene.works(&["checkpoint", "--tree", "--pid", &pid, "--name", "a/tree"])?;
    scene.fails(
        &["ghost", "start", "--image", "a/tree"],
        1,
        &["several processes", "empty ghost"],
    )?;
    demand(scene.works(&["ghost", "list", "--json"])? == "[]", "expected no ghost")?;
    let children = crate::scene::children(tree.pid());
    children.into_iter().try_for_each(|child| end(child.into()))?;
    scene.strike()
}

/// The agent is in another PID namespace, where they have other numbers.
fn tells_pids_as_they_are_seen() -> Outcome {
    farfork::ghosts_possible()?;
    let mut scene = Scene::set(24)?;
    scene.agent_apart()?;
    let mut subject = scene.subject("steady")?;
    scene.checkpoint(&subject, "a/b")?;
    subject.must_pass()?;
    let empty = start(&scene, &[])?;
    is_in_container(number(&scene, &empty, "init_pid")?, true)?;
    let attached = attach(&scene)?;
    is_in_container(number(&scene, &attached, "init_pid")?, true)?;
    is_in_container(number(&scene, &attached, "pid")?, false)?;
    let mut clone = clone_with(&scene, &empty, &[])?;
    clone.await_line("OK")?;
    is_in_container(number(&scene, &empty, "init_pid")?, true)?;
    is_in_container(number(&scene, &empty, "pid")?, false)?;
    clone.must_pass()?;
    scene.works(&["ghost", "stop", &attached])?;
    scene.strike()
}

/// Demands that a process is in a container of an agent that has a PID namespace, and that it is the
/// container's first or not.
fn is_in_container(pid: i64, is_first: bool) -> Outcome {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let pids: Vec<&str> = pids.split_whitespace().collect();
    let is_it = pids.len() == NAMESPACES && (pids[NAMESPACES - 1] == "1") == is_first;
    demand(is_it, format!("{pid} is another process:\n{status}"))
}

/// Of the test, the agent, and the container.
const NAMESPACES: usize = 3;

fn is_killed_while_its_clone_waits() -> Outcome {
    let (scene, _subject) = stage()?;
    for key in ["init_pid", "pid"] {
        let ghost = attach(&scene)?;
        end(number(&scene, &ghost, key)?)?;
        scene.has_no_ghost(&ghost)?;
        scene.fails(&["restore", "a/b", "--ghost", &ghost], 1, &[&ghost, "has ended"])?;
    }
    demand(scene.pins()?.is_empty(), "the image is still pinned")?;
    scene.strike()
}

fn loses_its_agent_while_its_clone_waits() -> Outcome {
    let (mut scene, _subject) = stage()?;
    let ghost = attach(&scene)?;
    let pid = number(&scene, &ghost, "pid")?;
    scene.kill_agent();
    let ended = || !fs::exists(format!("/proc/{pid}/exe")).unwrap_or(false);
    await_until("its clone ends", ended)?;
    scene.agent()?;
    scene.has_no_ghost(&ghost)?;
    await_until("the image is let go of", || scene.pins().is_ok_and(|pins| pins.is_empty()))?;
    scene.strike()
}

/// Asks for the clone that waits in a ghost, with nothing but null devices for it, and hears that it
/// is ready; the connection, and what the clone is woken by.
fn ask(scene: &Scene, ghost: &str, name: &str) -> Outcome<(OwnedFd, RawFd)> {
    let cid = reported(scene, ghost)?["cid"].as_str().unwrap_or_default().to_owned();
    let call = serde_json::json!({ "restore": {
        "pool": scene.pool_path(), "cid": cid, "name": name, "detach": false, "same_pid": false,
        "inherit": [], "requested_ns": 0, "ghost": ghost,
    }});
    let kind = SockType::SeqPacket;
    let asking = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)
        .map_err(during("making a socket"))?;
    let address = scene.directory().join("run/local.sock");
    let address = UnixAddr::new(&address).map_err(during("naming a socket"))?;
    connect(asking.as_raw_fd(), &address).map_err(during("connecting"))?;
    let null = fs::File::open("/dev/null").map_err(during("opening"))?;
    let (text, fds) = (call.to_string(), [null.as_raw_fd(); 3]);
    let (bytes, rights) = ([IoSlice::new(text.as_bytes())], [ControlMessage::ScmRights(&fds)]);
    sendmsg::<()>(asking.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None)
        .map_err(during("sending"))?;
    let (mut reply, mut space) = (vec![0; 4096], nix::cmsg_space!(RawFd));
    let mut vectors = [IoSliceMut::new(&mut reply)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let heard = recvmsg::<()>(asking.as_raw_fd(), &mut vectors, Some(&mut space), flags)
        .map_err(during("hearing"))?;
    let got = heard.bytes;
    let mut controls = heard.cmsgs().map_err(during("being given a socket"))?;
    let waker = match controls.next() {
        Some(ControlMessageOwned::ScmRights(fds)) if fds.len() == 1 => fds[0],
        other => return fail(format!("expected a socket, saw {other:?}")),
    };
    let said = String::from_utf8_lossy(&reply[..got]).into_owned();
    demand(said == "\"ready\"", format!("expected it to be ready: {said}"))?;
    Ok((asking, waker))
}

fn leave((asking, waker): (OwnedFd, RawFd)) -> Outcome {
    drop(asking);
    close(waker).map_err(during("closing"))
}

/// A caller that requests a waiting clone, and exits without waking it, uses it up.
fn is_asked_by_one_that_goes() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghost = attach(&scene)?;
    leave(ask(&scene, &ghost, "a/b")?)?;
    scene.has_no_ghost(&ghost)?;
    demand(scene.pins()?.is_empty(), "the image is still pinned")?;
    scene.fails(&["restore", "a/b", "--ghost", &ghost], 1, &[&ghost, "used"])?;
    scene.strike()
}

/// What its clone does not understand is nothing to it.
fn hears_garbage_before_it_is_woken() -> Outcome {
    let (scene, _subject) = stage()?;
    let ghost = attach(&scene)?;
    let (asking, waker) = ask(&scene, &ghost, "a/b")?;
    let wake = |kind: WakeKind, version: u32| -> Vec<u8> {
        [(kind as u32).to_ne_bytes(), version.to_ne_bytes(), [0; 4], [0; 4]].concat()
    };
    let another_version = wake(WakeKind::Start, VERSION + 1);
    let a_second_time = wake(WakeKind::Supply, VERSION);
    let null = fs::File::open("/dev/null").map_err(during("opening"))?;
    let streams = [null.as_raw_fd(); 3];
    let say = |what: &[u8], rights: &[ControlMessage<'_>]| {
        let vectors = [IoSlice::new(what)];
        let sent = sendmsg::<()>(waker, &vectors, rights, MsgFlags::MSG_NOSIGNAL, None);
        sent.map_err(during("sending")).map(drop)
    };
    for garbage in [b"x", &[0xff; 16][..], &[0; 5000], &another_version] {
        say(garbage, &[])?;
    }
    say(&a_second_time, &[ControlMessage::ScmRights(&streams)])?;
    thread::sleep(Duration::from_millis(200));
    let mut reply = vec![0; 4096];
    let early = recv(asking.as_raw_fd(), &mut reply, MsgFlags::MSG_DONTWAIT);
    demand(early == Err(Errno::EAGAIN), format!("something has come of it: {early:?}"))?;
    say(&wake(WakeKind::Start, VERSION), &[])?;
    let bytes =
        recv(asking.as_raw_fd(), &mut reply, MsgFlags::empty()).map_err(during("hearing"))?;
    let said = String::from_utf8_lossy(&reply[..bytes]);
    demand(said.starts_with("{\"running\""), format!("expected it to run: {said}"))?;
    leave((asking, waker))?;
    scene.has_no_ghost(&ghost)?;
    await_until("the image is let go of", || scene.pins().is_ok_and(|pins| pins.is_empty()))?;
    scene.strike()
}

/// What the start needs no rights for is done before it; and a process of the same user that could
/// look into the clone would find descriptors of farfork's in it.
fn has_given_up_rights_when_it_is_woken() -> Outcome {
    let (scene, _subject) = stage()?;
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        "1000",
        "--regid",
        "1001",
        "--clear-groups",
        "--bounding-set",
        "-all",
    ]);
    command.args(["sh", "-c", "echo READY; read line"]).current_dir("/");
    let mut poor = Subject::start("poor", &mut command, PATIENCE)?;
    poor.await_ready()?;
    scene.checkpoint(&poor, "a/poor")?;
    let ghost = start(&scene, &["--image", "a/poor"])?;
    let pid = number(&scene, &ghost, "pid")?;
    let pool = scene.pool_path();
    let files = || fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let has_pool = || {
        files().any(|entry| fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(&pool)))
    };
    demand(!has_pool(), "a clone that waits has the pool open")?;
    let status = |pid: i64| -> String {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kept = ["Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Name"];
        text.lines().filter(|line| kept.iter().any(|key| line.starts_with(key))).collect()
    };
    let asked = ask(&scene, &ghost, "a/poor")?;
    let parents = status(poor.pid().into());
    await_until("the clone has its parent's rights", || status(pid) == parents)
        .map_err(|_| Trouble::Failed(format!("{}\n, its parent: {parents}", status(pid))))?;
    let owner = fs::metadata(format!("/proc/{pid}/fd")).map_err(during("looking"))?.uid();
    demand(owner == 0, format!("user {owner} may look into it"))?;
    leave(asked)?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}
