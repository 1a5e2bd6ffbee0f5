//! Agents, templates and inits that are killed, and callers that make no sense.

use std::fs;
use std::io::IoSlice;

use farfork_tests::Outcome;
use farfork_tests::subject::Subject;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg, socket,
};
use nix::unistd::Pid;
use std::os::fd::AsRawFd;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("is_sent_garbage", is_sent_garbage),
    ("is_killed_with_live_clones", is_killed_with_live_clones),
    ("loses_its_template", loses_its_template),
    ("sees_a_killed_init", sees_a_killed_init),
    ("sees_a_killed_init_of_the_same_pid", sees_a_killed_init_of_the_same_pid),
    ("serves_no_clone_of_a_killed_caller", serves_no_clone_of_a_killed_caller),
];

/// Children of a process.
pub fn children(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|word| word.parse().ok())
        .collect()
}

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
    let status = attached.finish()?;
    demand(status.success(), format!("restore --detach: {status}"))?;
    let pid = one_clone(&scene)?;
    let free = scene.free_bytes()?;
    scene.kill_agent();
    demand(fs::metadata(format!("/proc/{pid}")).is_ok(), "the clone has gone with its agent")?;
    scene.agent()?;
    demand(fs::metadata(format!("/proc/{pid}")).is_ok(), "the clone has gone with a new agent")?;
    scene.works(&["images", "rm", "a/b"])?;
    demand(scene.free_bytes()? == free, "chunks of a running clone were given back")?;
    end(pid)?;
    await_until("the new agent lets go", || scene.free_bytes().is_ok_and(|now| now > free))?;
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
