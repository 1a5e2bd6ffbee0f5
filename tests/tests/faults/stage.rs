//! A scene with a parent and its image, where clones are started again and again, and a process is killed at
//! some step.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_tests::stalls::Stalls;
use farfork_tests::subject::Subject;
use farfork_tests::way::{POLICIES, Place, Way};
use farfork_tests::{Outcome, farfork};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::scene::{PATIENCE, Scene, await_until, children, demand, during, fail, users};
use crate::tracer::{Blow, Role, after};

/// How a clone is asked for.
pub const NEW: &[&str] = &[];
pub const SAME: &[&str] = &["--pid-mode", "same"];
pub const DETACHED: &[&str] = &["--detach"];
/// Where and how clones start by default.
pub const PLAIN: Way = Way { tiering: POLICIES[0], place: Place::Scratch };

/// A container that waits: its name, its init, and its clone.
pub struct Ghost {
    pub id: String,
    pub init: u32,
    pub clone: Option<u32>,
}

impl Ghost {
    /// Parses the output of `ghost start --json`.
    pub fn read(text: &str) -> Outcome<Ghost> {
        let reported: serde_json::Value = serde_json::from_str(text).map_err(during("reading"))?;
        let pid = |key: &str| reported[key].as_u64().map(|pid| pid as u32);
        let (Some(id), Some(init)) = (reported["id"].as_str(), pid("init_pid")) else {
            return fail(format!("no ghost: {text}"));
        };
        Ok(Ghost { id: id.to_owned(), init, clone: pid("pid") })
    }
}

/// A scene whose image's clones are killed on their way.
pub struct Stage {
    pub scene: Scene,
    pub agent: u32,
    /// Goes on, unless clones take its pid.
    parent: Option<Subject>,
    pub more: &'static [&'static str],
    pub way: Way,
    /// Children of the agent when nothing goes on: its template, and an init in advance if it has one.
    pub at_rest: usize,
    free: u64,
    pub descriptors: usize,
}

/// Half of what a start may take that hangs, and much for a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// The time from the blow, or from the beginning without one, until the client got its answer, minus the time
/// in which a processor stood still.
pub fn took(since: Instant, known: Instant, stalls: &Stalls) -> Duration {
    let took = known.saturating_duration_since(since);
    if took >= SOON { took.saturating_sub(stalls.since()) } else { took }
}

impl Stage {
    /// Clones from scratch, asked for with `more`.
    pub fn set(more: &'static [&'static str]) -> Outcome<Stage> {
        let mut scene = Scene::set(32)?;
        let agent = if more == SAME { scene.agent_apart() } else { scene.agent() }?;
        Stage::build(scene, agent, (more, PLAIN), 1)
    }

    /// Clones that begin like this.
    pub fn set_by(way: Way) -> Outcome<Stage> {
        if way.place != Place::Scratch {
            farfork::ghosts_possible()?;
        }
        let mut scene = Scene::set(32)?;
        let agent = scene.agent()?;
        Stage::build(scene, agent, (NEW, way), 1)
    }

    /// Clones from scratch, of an agent with an init in advance.
    pub fn set_with_spare() -> Outcome<Stage> {
        let mut scene = Scene::set(32)?;
        let agent = scene.agent_with_spare()?;
        Stage::build(scene, agent, (NEW, PLAIN), 2)
    }

    fn build(
        scene: Scene,
        agent: u32,
        (more, way): (&'static [&'static str], Way),
        at_rest: usize,
    ) -> Outcome<Stage> {
        let is_same = more == SAME;
        let mut parent = scene.subject("steady")?;
        let pid = parent.pid().to_string();
        let kill: &[&str] = if is_same { &["--kill"] } else { &[] };
        scene.works(&[&["checkpoint", "--name", "a/b", "--pid", &pid], kill].concat())?;
        if is_same {
            parent.finish()?;
        }
        let parent = (!is_same).then_some(parent);
        let free = scene.free_bytes()?;
        let mut stage = Stage { scene, agent, parent, more, way, at_rest, free, descriptors: 0 };
        let first = stage.restore_alone()?;
        stage.passes(first)?;
        stage.rests()?;
        stage.descriptors = descriptors(agent);
        Ok(stage)
    }

    /// Makes the ghost for the next clone, if it is to be in one.
    pub fn ghost(&self) -> Outcome<Option<Ghost>> {
        let Some(options) = self.way.ghost("a/b") else { return Ok(None) };
        let text = self.scene.works(&[&["ghost", "start", "--json"], &options[..]].concat())?;
        Ghost::read(&text).map(Some)
    }

    /// Asks for a clone, in this ghost if there is one.
    pub fn command(&self, ghost: Option<&Ghost>) -> Outcome<Command> {
        let options = self.way.options(ghost.map(|ghost| ghost.id.as_str()));
        self.scene.command(&[&["restore", "a/b", "--json"], self.more, &options].concat())
    }

    /// A clone in a ghost of its own, if it is to be in one.
    pub fn restore_alone(&self) -> Outcome<Subject> {
        let ghost = self.ghost()?;
        let mut client = Subject::start("clone", &mut self.command(ghost.as_ref())?, PATIENCE)?;
        if is_running(&mut client) { Ok(client) } else { client.fail("expected a clone") }
    }

    /// Demands that a clone is right, and ends well.
    pub fn passes(&self, mut clone: Subject) -> Outcome {
        clone.send(b"v");
        clone.await_line("OK")?;
        clone.must_pass()
    }

    /// Waits until the agent is: an init that has just ended may not have been waited for yet.
    pub fn rests(&self) -> Outcome {
        await_until("the agent is at rest", || children(self.agent).len() == self.at_rest)
            .or_else(|_| fail(format!("children of the agent: {:?}", children(self.agent))))
    }

    /// The agent's template, or the init that it has in advance, which has a PID namespace.
    pub fn child(&self, is_spare: bool) -> Outcome<u32> {
        let own = namespaces(self.agent as i32);
        let is_it = |pid: &i32| (namespaces(*pid) > own) == is_spare;
        let found = children(self.agent).into_iter().find(is_it);
        found.map_or_else(|| fail("no such child of the agent"), |pid| Ok(pid as u32))
    }

    /// Demands that nothing is left of any clone.
    pub fn is_clean(&mut self) -> Outcome {
        let (agent, scene) = (self.agent, &self.scene);
        let trace = format!("{}/", scene.directory().display());
        let others = || -> Vec<i32> {
            let is_other = |pid: &i32| *pid != agent as i32;
            users(&trace).into_iter().filter(is_other).collect()
        };
        await_until("no other process uses the pool", || others().is_empty())
            .or_else(|_| fail(format!("processes stay behind: {:?}", others())))?;
        self.rests()?;
        let pins = || scene.pins().unwrap_or_default();
        await_until("no image is pinned", || pins().is_empty())?;
        demand(scene.works(&["ps", "--json"])? == "[]", "a clone is listed")?;
        // Room and what lies beside the images are not read at one moment, and the agent may write in between.
        await_until("no chunks are lost", || {
            scene.free_bytes().is_ok_and(|free| free == self.free)
        })
        .or_else(|_| {
            fail(format!(
                "{} bytes are free, not {}: {}",
                scene.free_bytes()?,
                self.free,
                scene.takes()
            ))
        })?;
        await_until("the agent closes its descriptors", || descriptors(agent) <= self.descriptors)
            .or_else(|_| fail(format!("{} descriptors", descriptors(agent))))?;
        if let Some(parent) = &mut self.parent {
            parent.send(b"v");
            parent.await_line("OK")?;
        }
        Ok(())
    }

    /// Has another agent in the place of one that was killed. What that one has pinned is free when its
    /// clones have gone, without another.
    pub fn replace_agent(&mut self) -> Outcome {
        self.scene.kill_agent();
        let scene = &self.scene;
        await_until("pool check clears the pins of the agent", || {
            scene.works(&["pool", "check"]).is_ok_and(|said| said.ends_with("the pool is sound"))
                && scene.pins().is_ok_and(|pins| pins.is_empty())
        })?;
        self.agent = self.scene.agent()?;
        self.descriptors = usize::MAX; // a fresh agent opens more with its first clone
        Ok(())
    }

    /// Starts `farfork` with `arguments`, which stands still before it does anything; its pid. `aside` is
    /// where the shell is to have it print.
    pub fn held(&self, arguments: &[&str], aside: &str) -> Outcome<(Subject, u32)> {
        let set = self.scene.command(arguments)?;
        let set = set.get_envs().filter_map(|(key, value)| Some((key, value?)));
        // Not a child of this process, which would take the news of its end from itself.
        let mut command = Command::new("timeout");
        let script = format!("kill -STOP $$; exec \"$@\" {aside}");
        command.args(["3600", "sh", "-c", &script, "sh"]).envs(set);
        command.arg(farfork::binary()?).args(arguments);
        let client = Subject::start("client", &mut command, PATIENCE)?;
        let mut pid = 0;
        await_until("the client stands still", || {
            pid = children(client.pid()).first().copied().unwrap_or(0);
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|text| text.contains(") T "))
        })?;
        Ok((client, pid as u32))
    }

    /// Demands that another clone works, and that nothing is left of anything.
    pub fn strike(mut self) -> Outcome {
        let next = self.restore_alone()?;
        self.passes(next)?;
        self.is_clean()?;
        if let Some(parent) = &mut self.parent {
            parent.must_pass()?;
        }
        self.scene.works(&["images", "rm", "a/b"])?;
        self.scene.check()?;
        self.scene.strike()
    }
}

pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// How many PID namespaces a process has a pid in, from here on.
fn namespaces(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or("");
    pids.split_whitespace().count()
}

/// The failure of a test that has killed no process.
const NO_STEP: &str = "no step was seen";

/// Every step in the long run, else one of twice as many: what is killed there takes a second each.
pub fn stride(of: u64) -> usize {
    if farfork_tests::is_long() { 1 } else { 2 * of as usize }
}

/// The steps of a stride, from one of the first four on: runs have different ones.
pub fn steps(stride: usize) -> impl Iterator<Item = u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (u64::from(now.subsec_micros()) % stride.min(4) as u64..).step_by(stride)
}

/// Kills at every step, or at one of `stride`, until there is no process to kill any more.
pub fn everywhere(
    (at, to): (Role, Role),
    is_late: bool,
    stride: usize,
    mut strike: impl FnMut(Blow) -> Outcome<bool>,
) -> Outcome {
    let mut is_struck = false;
    for step in steps(stride) {
        let blow = Blow { at, to, step, is_late };
        if !strike(blow).map_err(after(blow))? {
            println!("{at:?}, {to:?}: {step} steps");
            return demand(is_struck && step > 1, NO_STEP);
        }
        is_struck = true;
    }
    Ok(())
}

/// Has a process go on that stands still.
pub fn go_on(pid: u32) -> Outcome {
    match kill(Pid::from_raw(pid as i32), Signal::SIGCONT) {
        // Its tracer has let it go on already, and it has ended.
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(during("continuing")(errno)),
    }
}

/// Waits for the end of restore's JSON.
pub fn is_running(client: &mut Subject) -> bool {
    client.await_line("]").is_ok()
}
