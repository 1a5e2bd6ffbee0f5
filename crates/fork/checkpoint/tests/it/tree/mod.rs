//! Trees of real processes: what an image of them would hold, and what is refused.

mod descriptors;
mod members;
mod refused;

use farfork_checkpoint::refuse::Refusal;
use farfork_checkpoint::{CheckpointOptions, Target, dry_run};
use farfork_image::model::{Member, Model, OpenFile};

use crate::subject::Subject;

/// `child(run)` forks a child that calls `run` and waits; it is in place when `child` returns.
const PRELUDE: &str = "
import time
def child(run=lambda: None):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, 9); signal.alarm(60); os.close(r)
        run(); os.write(w, b'x'); os.close(w)
        while True: signal.pause()
    os.close(w); assert os.read(r, 1) == b'x'; os.close(r)
    return pid
def ended(pid):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
";

/// A tree whose root runs `script` and calls `stop()`.
fn start(script: &str) -> Subject {
    Subject::start(&format!("{PRELUDE}\n{script}"))
}

/// What an image of the tree would hold, and what is refused.
fn look(subject: &Subject) -> (Option<Model>, Vec<Refusal>) {
    dry_run(Target::Tree(subject.pid()), CheckpointOptions::default())
        .expect("a tree of ours can be looked at")
}

/// The image of a tree all of which can be carried.
fn carried(subject: &Subject) -> Model {
    let (model, refusals) = look(subject);
    assert_eq!(refusals, []);
    let model = model.expect("a process without refusals has a model");
    assert_eq!(model.validate(), Ok(()));
    model
}

/// The file behind number `fd` of a process.
fn file(model: &Model, member: usize, fd: u32) -> u32 {
    let found = model.members[member].descriptors.iter().find(|descriptor| descriptor.fd == fd);
    found.expect("the number is open").file
}

fn open_file(model: &Model, member: usize, fd: u32) -> &OpenFile {
    &model.files[file(model, member, fd) as usize]
}

fn pids(members: &[Member]) -> Vec<u32> {
    members.iter().map(|member| member.process.pid).collect()
}
