//! Processes that cannot run: their cgroup is frozen before or during a checkpoint, or a signal has stopped
//! them. Whatever becomes of the checkpointer, they go on when they can as if nothing had been.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farfork_sys::freezer::Freezer;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Case;
use crate::killed::{TOO_FEW_STEPS, checkpointer, mapped_bytes, verify};
use crate::scene::{Scene, await_until, demand, during, fail};
use crate::stage::stride;

pub const CASES: &[Case] = &[
    ("before_in_cgroup_v2", || before("cgroup2")),
    ("before_in_cgroup_v1", || before("freezer")),
    ("before_a_child", before_a_child),
    ("unseen_in_cgroup_v2", || unseen("cgroup2")),
    ("unseen_in_cgroup_v1", || unseen("freezer")),
    ("meanwhile_in_cgroup_v2", || meanwhile("cgroup2")),
    ("meanwhile_in_cgroup_v1", || meanwhile("freezer")),
    ("meanwhile_and_killed_in_cgroup_v2", || meanwhile_and_killed("cgroup2")),
    ("meanwhile_and_killed_in_cgroup_v1", || meanwhile_and_killed("freezer")),
    ("interrupted_while_frozen", interrupted),
    ("stopped_and_killed_twice", stopped_and_killed),
    ("stopped_and_frozen_and_killed", stopped_and_frozen),
    ("in_a_handler_after_a_kill", in_a_handler),
    ("while_another_checkpoint_is_under_way", twice_at_once),
];

const PAGE: u64 = 4096;

/// A cgroup of this test's own.
struct Group {
    directory: PathBuf,
    is_unified: bool,
}

impl Group {
    /// In a hierarchy that freezes: that of `cgroup2`, or one of version 1 with `freezer`.
    fn new(kind: &str) -> Outcome<Group> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/mounts").map_err(during("looking for cgroups"))?;
        let is_unified = kind == "cgroup2";
        let at = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let is_it = fields[2] == kind
                || fields[2] == "cgroup" && fields[3].split(',').any(|option| option == kind);
            is_it.then(|| fields[1].to_owned())
        });
        let Some(at) = at else {
            return Err(Trouble::Skipped(format!("no hierarchy of cgroups with {kind}")));
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("frozen-{}-{number}", std::process::id());
        let directory = PathBuf::from(at).join(name);
        fs::create_dir_all(&directory).map_err(during("making a cgroup"))?;
        Ok(Group { directory, is_unified })
    }

    /// One in it.
    fn inner(&self, name: &str) -> Outcome<Group> {
        let directory = self.directory.join(name);
        fs::create_dir(&directory).map_err(during("making a cgroup"))?;
        Ok(Group { directory, is_unified: self.is_unified })
    }

    fn take(&self, pid: u32) -> Outcome {
        fs::write(self.directory.join("cgroup.procs"), pid.to_string())
            .map_err(during("entering a cgroup"))
    }

    fn freezer(&self) -> Outcome<Freezer> {
        let freezer = Freezer::among(std::slice::from_ref(&self.directory));
        freezer.map_or_else(|| fail("the group does not freeze"), Ok)
    }

    /// Returns when all in it stand still.
    fn freeze(&self) -> Outcome {
        self.freezer()?.freeze().map_err(during("freezing"))?;
        let (file, word) = match self.is_unified {
            true => ("cgroup.events", "frozen 1"),
            false => ("freezer.state", "FROZEN"),
        };
        let file = self.directory.join(file);
        await_until("the group is frozen", || {
            fs::read_to_string(&file).is_ok_and(|text| text.lines().any(|line| line == word))
        })
    }

    fn thaw(&self) -> Outcome {
        self.freezer()?.thaw().map_err(during("thawing"))
    }

    fn event(&self, step: u64) -> String {
        format!("{step}:freeze:{}", self.directory.display())
    }

    fn name(&self) -> String {
        self.directory.display().to_string()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.thaw();
        for _ in 0..1000 {
            // Those that were in it may not have ended yet.
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What a failed test leaves can run and be killed, and groups go after those that are in them.
struct Bed {
    _waking: Waking,
    subject: Subject,
    group: Group,
    scene: Scene,
    /// Bytes of the subject's address space.
    before: u64,
}

/// Has a process go on.
struct Waking(Freezer, Pid);

impl Drop for Waking {
    fn drop(&mut self) {
        let _ = self.0.thaw();
        let _ = kill(self.1, Signal::SIGCONT);
    }
}

impl Bed {
    fn make(kind: &str, program: &'static str) -> Outcome<Bed> {
        let group = Group::new(kind)?;
        let scene = Scene::set(32)?;
        let subject = scene.subject(program)?;
        group.take(subject.pid())?;
        let before = mapped_bytes(&subject);
        let _waking = Waking(group.freezer()?, Pid::from_raw(subject.pid() as i32));
        Ok(Bed { _waking, subject, group, scene, before })
    }

    /// How a checkpoint ends that is killed at `kill`, and during which `event` happens.
    fn checkpoint(&self, kill: Option<u64>, event: Option<&str>) -> Outcome<Output> {
        let mut child = checkpointer(&self.scene, &self.subject, kill, event)?;
        let ended = await_until("a checkpointer ends", || !matches!(child.try_wait(), Ok(None)));
        if ended.is_err() {
            let _ = child.kill();
        }
        ended?;
        child.wait_with_output().map_err(during("waiting for a checkpointer"))
    }

    /// Demands that the subject answers, with its own mask and at most one page more than it had.
    fn answers(&mut self, step: u64) -> Outcome {
        verify(&mut self.subject, step)?;
        let pages = (mapped_bytes(&self.subject) - self.before) / PAGE;
        demand(pages <= 1, format!("step {step}: {pages} pages are left behind"))?;
        // Images that had no name yet when their checkpointers were killed.
        self.scene.works(&["pool", "check"]).map(drop)
    }

    /// Demands the same, and that it has not one page more: no checkpointer was killed.
    fn is_as_before(&mut self, step: u64) -> Outcome {
        self.answers(step)?;
        let after = mapped_bytes(&self.subject);
        demand(after == self.before, format!("step {step}: {} bytes, {after} after", self.before))
    }

    /// Demands that it can be checkpointed, has not grown by all that, and that SIGTERM ends it.
    fn strike(mut self) -> Outcome {
        let output = self.checkpoint(None, None)?;
        demand(output.status.success(), String::from_utf8_lossy(&output.stderr))?;
        verify(&mut self.subject, 0)?;
        let after = mapped_bytes(&self.subject);
        demand(after == self.before, format!("{} bytes before, {after} after", self.before))?;
        send(&self.subject, Signal::SIGTERM)?;
        let status = self.subject.finish()?;
        demand(status.signal() == Some(15), format!("SIGTERM: {status}"))?;
        drop((self._waking, self.group));
        self.scene.works(&["pool", "check"])?;
        self.scene.strike()
    }
}

fn send(subject: &Subject, signal: Signal) -> Outcome {
    kill(Pid::from_raw(subject.pid() as i32), signal).map_err(during("sending a signal"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Frozen itself, or by a group above, in every way to ask.
fn before(kind: &str) -> Outcome {
    let mut bed = Bed::make(kind, "steady")?;
    let inner = bed.group.inner("a")?;
    let pid = bed.subject.pid().to_string();
    for (own, frozen) in [(&bed.group, &bed.group), (&inner, &inner), (&inner, &bed.group)] {
        own.take(bed.subject.pid())?;
        frozen.freeze()?;
        for more in [&["--name", "a/b"][..], &["--dry-run"], &["--name", "a/b", "--kill"]] {
            for tree in [&[][..], &["--tree"]] {
                let arguments = [&["checkpoint", "--pid", &pid], more, tree].concat();
                let words = ["cannot checkpoint", "is frozen", "thaw it", &frozen.name()];
                bed.scene.fails(&arguments, 1, &words)?;
            }
        }
        frozen.thaw()?;
        verify(&mut bed.subject, 0)?;
    }
    bed.group.take(bed.subject.pid())?;
    drop(inner);
    bed.strike()
}

/// A process of a tree, not the first.
fn before_a_child() -> Outcome {
    let group = Group::new("cgroup2")?;
    let scene = Scene::set(32)?;
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "sleep 300 & echo READY; read word; kill $!; echo PASS"]);
    let mut parent = Subject::start("shell", &mut command, crate::scene::PATIENCE)?;
    parent.await_ready()?;
    let child = crate::scene::children(parent.pid()).first().copied().unwrap_or(0);
    group.take(child as u32)?;
    group.freeze()?;
    let pid = parent.pid().to_string();
    let words = ["is frozen", &group.name(), &format!("process {child}")];
    scene.fails(&["checkpoint", "--tree", "--dry-run", "--pid", &pid], 1, &words)?;
    group.thaw()?;
    parent.must_pass()?;
    drop(group);
    scene.strike()
}

/// Where no file system of cgroups is mounted.
fn unseen(kind: &str) -> Outcome {
    let mut bed = Bed::make(kind, "handler_lasts")?;
    bed.group.freeze()?;
    let hidden = "umount -l /sys/fs/cgroup; exec \"$@\"";
    let pid = bed.subject.pid().to_string();
    let asked = bed.scene.command(&["checkpoint", "--dry-run", "--pid", &pid])?;
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", hidden, "sh"]).arg(asked.get_program()).args(asked.get_args());
    bed.scene.set_place_of(&mut command);
    let output = command.output().map_err(during("asking for a checkpoint"))?;
    let said = said(&output);
    let name = bed.group.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    demand(said.contains("is frozen") && said.contains(&name), said)?;
    bed.group.thaw()?;
    bed.answers(0)?;
    bed.strike()
}

/// At every step the group is frozen, and the checkpointer goes on.
fn meanwhile(kind: &str) -> Outcome {
    let mut bed = Bed::make(kind, "steady")?;
    let mut frozen = 0;
    for step in (0..).step_by(stride(41)) {
        let output = bed.checkpoint(None, Some(&bed.group.event(step)))?;
        bed.group.thaw()?;
        bed.is_as_before(step)?;
        match output.status.code() {
            Some(0) => {}
            Some(1) => {
                let said = said(&output);
                demand(said.contains(&bed.group.name()), format!("step {step}: {said}"))?;
                frozen += 1;
            }
            Some(code) if code == i32::from(TOO_FEW_STEPS) => {
                println!("{step} steps, {frozen} failed");
                break;
            }
            _ => return fail(format!("step {step}: {}, {}", output.status, said(&output))),
        }
    }
    demand(frozen > 2, "nothing was seen")?;
    bed.strike()
}

/// A signal that comes as long as the group is frozen ends a call as if there had been no checkpoint. In
/// cgroup v1 the call may be made again.
fn interrupted() -> Outcome {
    let mut bed = Bed::make("cgroup2", "handler_lasts")?;
    bed.answers(0)?; // and waits in another place from here on
    let mut frozen = 0;
    for step in (0..).step_by(stride(13)) {
        let output = bed.checkpoint(None, Some(&bed.group.event(step)))?;
        bed.group.freeze()?;
        send(&bed.subject, Signal::SIGUSR2)?;
        bed.group.thaw()?;
        bed.subject.await_line("EINTR").map_err(|trouble| match trouble {
            Trouble::Failed(why) => Trouble::Failed(format!("frozen at step {step}: {why}")),
            skipped => skipped,
        })?;
        bed.is_as_before(step)?;
        if output.status.code() == Some(i32::from(TOO_FEW_STEPS)) {
            println!("{step} steps, {frozen} failed");
            break;
        }
        frozen += u64::from(output.status.code() == Some(1));
    }
    demand(frozen > 2, "nothing was seen")?;
    bed.strike()
}

/// At every step the group is frozen, and the checkpointer is killed at once, or soon after.
fn meanwhile_and_killed(kind: &str) -> Outcome {
    let mut bed = Bed::make(kind, "steady")?;
    let mut killed = 0;
    for (round, step) in (0..).zip((0..).step_by(stride(29))) {
        let output = bed.checkpoint(Some(step + round % 4), Some(&bed.group.event(step)))?;
        bed.group.thaw()?;
        bed.answers(step)?;
        killed += u64::from(output.status.signal() == Some(9));
        if output.status.code() == Some(i32::from(TOO_FEW_STEPS)) {
            println!("{step} steps, {killed} killed");
            break;
        }
    }
    demand(killed > 2, "no checkpointer was killed")?;
    bed.strike()
}

fn stop(subject: &Subject) -> Outcome {
    send(subject, Signal::SIGSTOP)?;
    let status = format!("/proc/{}/status", subject.pid());
    await_until("the subject has stopped", || {
        fs::read_to_string(&status).is_ok_and(|text| text.contains("State:\tT"))
    })
}

/// Stopped by a signal, and killed twice before it goes on: the second checkpointer finds threads where the
/// first has left them.
fn stopped_and_killed() -> Outcome {
    let mut bed = Bed::make("cgroup2", "steady")?;
    for (round, step) in (0..).zip((0..).step_by(stride(29))) {
        stop(&bed.subject)?;
        let first = bed.checkpoint(Some(step), None)?;
        bed.checkpoint(Some(step + 1 + round % 7), None)?;
        if round % 2 == 1 {
            let output = bed.checkpoint(None, None)?;
            demand(output.status.success(), format!("step {step}: {}", said(&output)))?;
        }
        send(&bed.subject, Signal::SIGCONT)?;
        bed.answers(step)?;
        if first.status.success() {
            println!("{step} steps");
            break;
        }
    }
    bed.strike()
}

/// Stopped by a signal, frozen at a step and killed after it; thawed, but not continued, another one is
/// killed.
fn stopped_and_frozen() -> Outcome {
    for kind in ["cgroup2", "freezer"] {
        let mut bed = Bed::make(kind, "steady")?;
        for (round, step) in (0..).zip((0..).step_by(stride(67))) {
            stop(&bed.subject)?;
            let event = bed.group.event(step);
            let first = bed.checkpoint(Some(step + round % 5), Some(&event))?;
            bed.group.thaw()?;
            bed.checkpoint(Some(step), None)?;
            send(&bed.subject, Signal::SIGCONT)?;
            bed.answers(step)?;
            if first.status.code() == Some(i32::from(TOO_FEW_STEPS)) {
                break;
            }
        }
        bed.strike()?;
    }
    Ok(())
}

/// A signal comes as the checkpointer is killed, and its handler lasts: it returns when other checkpoints
/// have been made.
fn in_a_handler() -> Outcome {
    let mut bed = Bed::make("cgroup2", "handler_lasts")?;
    for step in (0..).step_by(stride(7)) {
        let event = format!("{step}:signal:{}", Signal::SIGUSR1 as i32);
        let killed = bed.checkpoint(Some(step), Some(&event))?;
        if killed.status.code() == Some(i32::from(TOO_FEW_STEPS)) {
            println!("{step} steps");
            break;
        }
        bed.subject.await_line("IN")?;
        for kill in [Some(step), Some(step + 3), None] {
            let output = bed.checkpoint(kill, None)?;
            let is_right = output.status.success() || output.status.signal() == Some(9);
            demand(is_right, format!("step {step}: {}", said(&output)))?;
        }
        bed.subject.send(b"g");
        bed.subject.await_line("OUT")?;
        bed.answers(step)?;
    }
    bed.strike()
}

/// Two checkpoints of one process: the second one names the first.
fn twice_at_once() -> Outcome {
    let mut bed = Bed::make("cgroup2", "steady")?;
    // In the middle: the process is stopped.
    let first = checkpointer(&bed.scene, &bed.subject, None, Some("300:stop:"))?;
    let status = format!("/proc/{}/status", first.id());
    await_until("the first checkpoint stands still", || {
        fs::read_to_string(&status).is_ok_and(|text| text.contains("State:\tT"))
    })?;
    let word = format!("another farfork checkpoint of it is under way (process {})", first.id());
    let second = bed.checkpoint(None, None)?;
    kill(Pid::from_raw(first.id() as i32), Signal::SIGCONT).map_err(during("continuing"))?;
    let output = first.wait_with_output().map_err(during("waiting for a checkpointer"))?;
    demand(output.status.success(), said(&output))?;
    demand(said(&second).contains(&word), said(&second))?;
    bed.answers(0)?;
    bed.strike()
}
