//! Agents, templates and inits that are killed, and callers that make no sense.

use std::fs;
use std::io::IoSlice;

use farfork_tests::Outcome;
use farfork_tests::subject::Subject;
use farfork_types::CHUNK_BYTES;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg, socket,
};
use nix::unistd::Pid;
use rustix::process::{Resource, Rlimit, prlimit};
use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, children, demand, during, fail};

pub const CASES: &[Case] = &[
    ("is_sent_garbage", is_sent_garbage),
    ("is_killed_with_live_clones", is_killed_with_live_clones),
    ("loses_its_template", loses_its_template),
    ("sees_a_killed_init", sees_a_killed_init),
    ("sees_a_killed_init_of_the_same_pid", sees_a_killed_init_of_the_same_pid),
    ("ends_what_descends_from_a_clone_of_the_same_pid", ends_what_descends_from_a_clone),
    ("lets_its_clones_be_by_one_of_its_name", lets_its_clones_be),
    ("raises_its_limit_of_files_and_not_that_of_clones", raises_its_limit),
    ("says_when_it_has_no_files_left", says_when_it_has_no_files_left),
    ("serves_no_clone_of_a_killed_caller", serves_no_clone_of_a_killed_caller),
];

fn end(pid: i32) -> Outcome {
    kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(during("killing"))
}

fn stage() -> Outcome<(Scene, Subject, u32)> {
    let mut scene = Scene::set(32)?;
    let agent = scene.agent()?;
    let subject = scene.subject("watcher")?;
    scene.checkpoint(&subject, "a/b")?;
    Ok((scene, subject, agent))
}

fn clone(scene: &Scene, more: &[&str]) -> Outcome<Subject> {
    let mut command = scene.command(&[&["restore", "a/b"], more].concat())?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.send(b"v");
    Ok(clone)
}

fn pids(scene: &Scene) -> Vec<i32> {
    let text = scene.works(&["ps", "--json"]).unwrap_or_default();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let list = list.as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|clone| Some(clone["pid"].as_i64()? as i32)).collect()
}

fn one_clone(scene: &Scene) -> Outcome<i32> {
    await_until("a clone runs", || pids(scene).len() == 1)?;
    pids(scene).first().copied().map_or_else(|| fail("no clone"), Ok)
}

fn parent_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit_once(") ").map_or(String::new(), |(_, rest)| rest.to_owned());
    rest.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn is_sent_garbage() -> Outcome {
    let (scene, mut subject, _) = stage()?;
    let path = scene.directory().join("run/local.sock");
    let huge = vec![b'['; 60_000];
    let packets: [&[u8]; 7] = [
        b"\0", b"hello", b"{}", b"{\"wait\":{\"pid\":\"x\"}}", b"{\"kill\":{\"pid\":1,\"signal\":9}}",
        b"{\"restore\":{\"pool\":\"/\",\"cid\":\"x\",\"name\":\"\",\"detach\":true,\"same_pid\":false,\"inherit\":[],\"requested_ns\":0}}",
        &huge,
    ];
    for packet in packets {
        let kind = SockType::SeqPacket;
        let to = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)
            .map_err(during("making a socket"))?;
        let address = UnixAddr::new(&path).map_err(during("naming a socket"))?;
        connect(to.as_raw_fd(), &address).map_err(during("connecting"))?;
        sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(packet)], &[], MsgFlags::empty(), None)
            .map_err(during("sending"))?;
        let mut reply = vec![0; 4096];
        let got =
            recv(to.as_raw_fd(), &mut reply, MsgFlags::empty()).map_err(during("receiving"))?;
        let reply = String::from_utf8_lossy(&reply[..got]).into_owned();
        demand(reply.starts_with("{\"failed\""), format!("expected a refusal, saw {reply:?}"))?;
    }
    clone(&scene, &[])?.must_pass()?;
    subject.must_pass()?;
    scene.strike()
}

fn is_killed_with_live_clones() -> Outcome {
    let (mut scene, mut subject, _) = stage()?;
    let mut attached = clone(&scene, &["--detach"])?;
    let status = attached.leave()?;
    demand(status.success(), format!("restore --detach: {status}"))?;
    let pid = one_clone(&scene)?;
    let held = scene.image_bytes_of(pid)?;
    scene.kill_agent();
    demand(fs::metadata(format!("/proc/{pid}")).is_ok(), "the clone has gone with its agent")?;
    scene.agent()?;
    demand(fs::metadata(format!("/proc/{pid}")).is_ok(), "the clone has gone with a new agent")?;
    scene.works(&["images", "rm", "a/b"])?;
    demand(scene.image_bytes_of(pid)? == held, "chunks of a running clone were given back")?;
    let free = scene.free_bytes()?;
    end(pid)?;
    await_until("the new agent lets go", || {
        scene.free_bytes().is_ok_and(|now| now > free && now + CHUNK_BYTES > free + held)
    })?;
    subject.must_pass()?;
    scene.check()?;
    scene.strike()
}

fn loses_its_template() -> Outcome {
    let (scene, mut subject, agent) = stage()?;
    clone(&scene, &[])?.must_pass()?;
    for _ in 0..3 {
        for template in children(agent) {
            end(template)?;
        }
        clone(&scene, &[])?.must_pass()?;
    }
    subject.must_pass()?;
    scene.strike()
}

fn sees_a_killed_init() -> Outcome {
    let (scene, mut subject, _) = stage()?;
    init_is_killed(&scene, &[])?;
    subject.must_pass()?;
    scene.strike()
}

fn sees_a_killed_init_of_the_same_pid() -> Outcome {
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    let mut subject = scene.subject("watcher")?;
    scene.works(&["checkpoint", "--kill", "--name", "a/b", "--pid", &subject.pid().to_string()])?;
    subject.finish()?;
    init_is_killed(&scene, &["--pid-mode", "same"])?;
    scene.strike()
}

fn init_is_killed(scene: &Scene, more: &[&str]) -> Outcome {
    let mut clone = clone(scene, more)?;
    let pid = one_clone(scene)?;
    end(parent_of(pid))?;
    let status = clone.finish()?;
    demand(status.code() == Some(137), format!("expected exit status 137, saw {status}"))?;
    await_until("the clone is gone", || fs::metadata(format!("/proc/{pid}")).is_err())?;
    demand(pids(scene).is_empty(), "the clone is still listed")
}

/// Two that a shell has forked once it was a clone: its child, and one that is so no more.
const FORKING: &str = "echo READY; read line; sleep 600 & echo CHILD $!; \
    (setsid sleep 600 & echo CHILD $!); echo UP; wait";

fn ends_what_descends_from_a_clone() -> Outcome {
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    let mut shell = std::process::Command::new("sh");
    let mut parent =
        Subject::start("shell", shell.args(["-c", FORKING]).current_dir("/"), PATIENCE)?;
    parent.await_ready()?;
    scene.works(&["checkpoint", "--kill", "--name", "a/b", "--pid", &parent.pid().to_string()])?;
    parent.finish()?;
    let mut command = scene.command(&["restore", "a/b", "--pid-mode", "same"])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.send_byte();
    clone.await_line("UP")?;
    let below: Vec<i32> = clone.after("CHILD").iter().filter_map(|pid| pid.parse().ok()).collect();
    let lives = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    demand(below.len() == 2 && below.iter().all(lives), format!("{below:?} do not live"))?;
    end(parent_of(one_clone(&scene)?))?;
    let status = clone.leave()?;
    demand(status.code() == Some(137), format!("expected exit status 137, saw {status}"))?;
    let left: Vec<i32> = below.into_iter().filter(lives).collect();
    left.iter().try_for_each(|pid| end(*pid))?;
    demand(left.is_empty(), format!("{left:?} lived on when their clone had ended"))?;
    scene.strike()
}

fn lets_its_clones_be() -> Outcome {
    let (mut scene, mut subject, _) = stage()?;
    let mut attached = clone(&scene, &[])?;
    let pid = one_clone(&scene)?;
    scene.works(&["images", "rm", "a/b"])?;
    let held = scene.image_bytes_of(pid)?;
    let beside = scene.agent_beside()?;
    let mut list = scene.command(&["ps", "--node", "local", "--json"])?;
    list.env("FARFORK_RUN", beside);
    let listed = farfork_tests::farfork::must_run(list)?;
    demand(listed.stdout.starts_with(b"[]"), "the other agent has a clone")?;
    demand(scene.image_bytes_of(pid)? == held, "chunks of a running clone were given back")?;
    let free = scene.free_bytes()?;
    scene.fails(&["pool", "forget-node", "local"], 1, &["node local", "are running"])?;
    attached.must_pass()?;
    subject.must_pass()?;
    await_until("the space is back", || {
        scene.free_bytes().is_ok_and(|now| now > free && now + CHUNK_BYTES > free + held)
    })?;
    scene.kill_agent();
    let said = scene.works(&["pool", "forget-node", "local"])?;
    let words = ["removed node local from the pool", "1 rows with", "kept 1 rows of that name"];
    demand(words.iter().all(|word| said.contains(word)), said)?;
    scene.check()?;
    scene.strike()
}

/// Soft and hard limit of open files.
fn file_limit(pid: i32) -> Outcome<[String; 2]> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).map_err(during("reading"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut words = line.unwrap_or_default().split_whitespace().map(str::to_owned);
    Ok([words.next().unwrap_or_default(), words.next().unwrap_or_default()])
}

fn raises_its_limit() -> Outcome {
    let mut scene = Scene::set(32)?;
    let agent = scene.agent_with_files("100:300")?;
    demand(file_limit(agent as i32)? == ["300", "300"], "the agent's limit is not raised")?;
    let mut subject = scene.subject("watcher")?;
    let lower = Rlimit { current: Some(70), maximum: Some(200) };
    prlimit(rustix::process::Pid::from_raw(subject.pid() as i32), Resource::Nofile, lower)
        .map_err(during("lowering a limit"))?;
    scene.checkpoint(&subject, "a/b")?;
    let mut clone = clone(&scene, &[])?;
    let found = file_limit(one_clone(&scene)?)?;
    demand(found == ["70", "200"], format!("the clone may have {found:?} files"))?;
    clone.must_pass()?;
    subject.must_pass()?;
    scene.strike()
}

/// Each clone takes descriptors of the agent: the one too many is refused in words and soon, and
/// when others have ended there is room again.
fn says_when_it_has_no_files_left() -> Outcome {
    let mut scene = Scene::set(32)?;
    scene.agent_with_files("48:48")?;
    let mut subject = scene.subject("watcher")?;
    scene.checkpoint(&subject, "a/b")?;
    let begun = Instant::now();
    let mut clones = Vec::new();
    for number in 0.. {
        let mut next =
            Subject::start("clone", &mut scene.command(&["restore", "a/b", "--json"])?, PATIENCE)?;
        next.send(b"v");
        if next.await_line("]").is_ok() {
            clones.push(next);
            demand(number < 48, "there is no limit")?;
            continue;
        }
        let status = next.finish()?;
        let said = next.transcript();
        let words = ["limit of open files", "Too many open files"];
        let is_reported = status.code() == Some(1) && words.iter().any(|word| said.contains(word));
        demand(is_reported, format!("clone {number}: {status}\n{said}"))?;
        if said.contains(words[0]) {
            break; // not even the connection found room
        }
        demand(number < 48, "there is always room for a connection")?;
        // Waiting callers take the remaining connections one by one.
        let mut command = scene.command(&["wait", &one_of(&clones)?])?;
        clones.push(Subject::start("waiter", &mut command, PATIENCE)?);
    }
    demand(begun.elapsed() < PATIENCE, "it took too long")?;
    drop(clones);
    await_until("there is room again", || {
        scene.works(&["ps", "--json"]).is_ok_and(|it| it == "[]")
    })?;
    clone(&scene, &[])?.must_pass()?;
    subject.must_pass()?;
    scene.strike()
}

fn one_of(clones: &[Subject]) -> Outcome<String> {
    let pid = clones.first().and_then(|clone| clone.after("    \"pid\": ").pop());
    pid.map_or_else(|| fail("no clone"), |pid| Ok(pid.trim_end_matches(',').to_owned()))
}

fn serves_no_clone_of_a_killed_caller() -> Outcome {
    let (scene, mut subject, _) = stage()?;
    let mut command = std::process::Command::new(farfork_tests::farfork::binary()?);
    command.args(["restore", "a/b", "--pool"]).arg(scene.pool_path());
    command.env("FARFORK_RUN", scene.directory().join("run"));
    let mut caller = Subject::start("caller", &mut command, PATIENCE)?;
    caller.send(b"v");
    let pid = one_clone(&scene)?;
    end(caller.pid() as i32)?;
    await_until("the clone is gone", || fs::metadata(format!("/proc/{pid}")).is_err())?;
    subject.must_pass()?;
    scene.strike()
}
