//! Everybody who takes part in a restore, killed at every step of it. Whoever asked is told in
//! words and soon, the parent goes on, nothing half-made lives, nothing is lost, and the next
//! restore works.

use std::process::Command;
use std::time::{Duration, Instant};

use farfork_tests::stalls::Stalls;
use farfork_tests::subject::Subject;
use farfork_tests::way::{POLICIES, Place, Way};
use farfork_tests::{Outcome, farfork};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, children, demand, during, fail, users};
use crate::tracer::{Blow, Role, Tracer, after};
use crate::ways::{self, Crossed};

pub const CASES: &[Case] = &[
    ("of_the_template", of_the_template),
    ("of_the_init", of_the_init),
    ("of_the_init_of_the_same_pid", of_the_init_of_the_same_pid),
    ("of_the_clone", of_the_clone),
    ("of_the_clone_of_the_same_pid", of_the_clone_of_the_same_pid),
    ("of_the_clone_whose_init_is_killed", of_the_clone_whose_init_is_killed),
    ("of_the_clone_of_the_same_pid_whose_init_is_killed", same_pid_without_init),
    ("of_the_spare", of_the_spare),
    ("of_a_ghost", of_a_ghost),
    ("of_a_ghost_with_its_image", of_a_ghost_with_its_image),
    ("without_the_spare", without_the_spare),
    ("of_the_agent", of_the_agent),
    ("of_the_client", of_the_client),
    ("of_the_client_that_detaches", of_the_client_that_detaches),
];

/// By every policy, wherever clones begin.
pub const CROSSED: &[Crossed] = &[ways::everywhere("by_its_policy", by_its_policy, |way| {
    way.is("hybrid", Place::AttachedGhost)
})];

/// How a clone is asked for.
const NEW: &[&str] = &[];
const SAME: &[&str] = &["--pid-mode", "same"];
const DETACHED: &[&str] = &["--detach"];
/// Where and how clones begin if nobody says anything.
const PLAIN: Way = Way { tiering: POLICIES[0], place: Place::Scratch };

/// A container that waits: its name, its init, and its clone.
struct Ghost {
    id: String,
    init: u32,
    clone: Option<u32>,
}

/// A scene whose image's clones are killed on their way.
struct Stage {
    scene: Scene,
    agent: u32,
    /// Goes on, unless clones take its pid.
    parent: Option<Subject>,
    more: &'static [&'static str],
    way: Way,
    /// Children of the agent when nothing goes on: its template, and an init in advance if it has one.
    at_rest: usize,
    free: u64,
    descriptors: usize,
}

/// Half of what a start may take that hangs, and much for a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// What became of one restore.
struct Fate {
    /// What it was started in.
    ghost: Option<Ghost>,
    is_running: bool,
    is_struck: bool,
    /// From the blow until whoever asked knew; from the beginning if there was none. Less what a processor
    /// stood still.
    took: Duration,
}

impl Stage {
    fn set(more: &'static [&'static str]) -> Outcome<Stage> {
        let mut scene = Scene::set(32)?;
        let agent = if more == SAME { scene.agent_apart() } else { scene.agent() }?;
        Stage::build(scene, agent, (more, PLAIN), 1)
    }

    fn set_by(way: Way) -> Outcome<Stage> {
        if way.place != Place::Scratch {
            farfork::ghosts_possible()?;
        }
        let mut scene = Scene::set(32)?;
        let agent = scene.agent()?;
        Stage::build(scene, agent, (NEW, way), 1)
    }

    fn set_with_spare() -> Outcome<Stage> {
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
        await_until("the agent is at rest", || children(agent).len() == at_rest)?;
        stage.descriptors = descriptors(agent);
        Ok(stage)
    }

    fn ghost(&self) -> Outcome<Option<Ghost>> {
        let Some(options) = self.way.ghost("a/b") else { return Ok(None) };
        let text = self.scene.works(&[&["ghost", "start", "--json"], &options[..]].concat())?;
        let told: serde_json::Value = serde_json::from_str(&text).map_err(during("reading"))?;
        let pid = |key: &str| told[key].as_u64().map(|pid| pid as u32);
        let (Some(id), Some(init)) = (told["id"].as_str(), pid("init_pid")) else {
            return fail(format!("no ghost: {text}"));
        };
        Ok(Some(Ghost { id: id.to_owned(), init, clone: pid("pid") }))
    }

    fn command(&self, ghost: Option<&Ghost>) -> Outcome<Command> {
        let options = self.way.options(ghost.map(|ghost| ghost.id.as_str()));
        self.scene.command(&[&["restore", "a/b", "--json"], self.more, &options].concat())
    }

    fn restore_alone(&self) -> Outcome<Subject> {
        let ghost = self.ghost()?;
        let mut client = Subject::start("clone", &mut self.command(ghost.as_ref())?, PATIENCE)?;
        if is_running(&mut client) { Ok(client) } else { client.fail("expected a clone") }
    }

    fn passes(&self, mut clone: Subject) -> Outcome {
        clone.send(b"v");
        clone.await_line("OK")?;
        clone.must_pass()
    }

    /// A restore in which `blow` is struck.
    fn restore(&self, blow: Blow) -> Outcome<(Subject, Fate)> {
        // An init that has just ended may not have been waited for yet.
        await_until("the agent is at rest", || children(self.agent).len() == self.at_rest)?;
        let ghost = self.ghost()?;
        let root = match (blow.at, &ghost) {
            (Role::Agent, _) => (self.agent, Role::Agent),
            (_, Some(Ghost { clone: Some(clone), .. })) => (*clone, Role::Clone),
            (_, Some(ghost)) => (ghost.init, Role::Init),
            _ if self.at_rest == 2 => (self.child(true)?, Role::Init),
            _ => (self.child(false)?, Role::Template),
        };
        let (begun, stalls) = (Instant::now(), Stalls::now());
        let init = ghost.as_ref().filter(|ghost| ghost.clone.is_some()).map(|ghost| ghost.init);
        let tracer = Tracer::follow_beside(init, root, blow)?;
        let mut client = Subject::start("clone", &mut self.command(ghost.as_ref())?, PATIENCE)?;
        let is_running = is_running(&mut client);
        if blow.at == Role::Agent && is_running {
            client.send_byte();
            client.finish()?;
        }
        let known = Instant::now();
        let struck = tracer.finish()?;
        let mut took = known.saturating_duration_since(struck.unwrap_or(begun));
        if took >= SOON {
            took = took.saturating_sub(stalls.since());
        }
        Ok((client, Fate { ghost, is_running, is_struck: struck.is_some(), took }))
    }

    /// The agent's template, or the init that it has in advance, which has a PID namespace.
    fn child(&self, is_spare: bool) -> Outcome<u32> {
        let own = namespaces(self.agent as i32);
        let is_it = |pid: &i32| (namespaces(*pid) > own) == is_spare;
        let found = children(self.agent).into_iter().find(is_it);
        found.map_or_else(|| fail("no such child of the agent"), |pid| Ok(pid as u32))
    }

    /// Nothing is left of any restore.
    fn is_clean(&mut self) -> Outcome {
        let (agent, scene) = (self.agent, &self.scene);
        let trace = format!("{}/", scene.directory().display());
        let others = || -> Vec<i32> {
            let is_other = |pid: &i32| *pid != agent as i32;
            users(&trace).into_iter().filter(is_other).collect()
        };
        await_until("nobody else uses the pool", || others().is_empty())
            .or_else(|_| fail(format!("processes stay behind: {:?}", others())))?;
        await_until("the agent is at rest", || children(agent).len() == self.at_rest)
            .or_else(|_| fail(format!("children of the agent: {:?}", children(agent))))?;
        let pins = || scene.pins().unwrap_or_default();
        await_until("no image is pinned", || pins().is_empty())?;
        demand(scene.works(&["ps", "--json"])? == "[]", "a clone is listed")?;
        demand(scene.free_bytes()? == self.free, "chunks are lost")?;
        await_until("the agent closes its descriptors", || descriptors(agent) <= self.descriptors)
            .or_else(|_| fail(format!("{} descriptors", descriptors(agent))))?;
        if let Some(parent) = &mut self.parent {
            parent.send(b"v");
            parent.await_line("OK")?;
        }
        Ok(())
    }

    fn strike(mut self) -> Outcome {
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

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// How many PID namespaces a process has a pid in, from here on.
fn namespaces(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or("");
    pids.split_whitespace().count()
}

/// What a test has not shown that has struck nobody.
const NO_STEP: &str = "no step was seen";

/// Whether every step is taken, or one of several, in an order that leaves none out for ever.
fn stride(of: u64) -> usize {
    if std::env::var_os("FARFORK_TEST_LONG").is_some() { 1 } else { of as usize }
}

/// Strikes at every step until a restore passes through.
fn everywhere(
    stage: &mut Stage,
    (at, to): (Role, Role),
    is_late: bool,
    stride: usize,
    judge: impl Fn(&mut Stage, Subject, Fate) -> Outcome,
) -> Outcome {
    let mut slowest = Duration::ZERO;
    for step in (0..).step_by(stride) {
        let blow = Blow { at, to, step, is_late };
        let (client, fate) = stage.restore(blow).map_err(after(blow))?;
        slowest = slowest.max(fate.took);
        if !fate.is_struck {
            // A clone whose agent was to be struck has been asked to end.
            if at != Role::Agent {
                stage.passes(client).map_err(after(blow))?;
            }
            println!("{at:?}, {to:?}: {step} steps, the slowest {slowest:?}");
            return demand(step > 1, NO_STEP);
        }
        let is_soon = fate.took < SOON;
        let said = || format!("took {:?}\n{}", fate.took, client.transcript());
        demand(is_soon, said()).map_err(after(blow))?;
        let ghost = fate.ghost.as_ref().map(|ghost| ghost.id.clone());
        judge(stage, client, fate).map_err(after(blow))?;
        stage.is_clean().map_err(after(blow))?;
        ghost.map_or(Ok(()), |id| stage.scene.has_no_ghost(&id)).map_err(after(blow))?;
    }
    Ok(())
}

/// The clone has to be whole all the same. The next one finds the template gone.
fn goes_on(stage: &mut Stage, mut client: Subject, fate: Fate) -> Outcome {
    if !fate.is_running {
        return client.fail("expected a clone");
    }
    stage.passes(client)?;
    let next = stage.restore_alone()?;
    stage.passes(next)
}

/// There is no clone, or it has ended as if it had been killed.
fn is_told(_: &mut Stage, mut client: Subject, fate: Fate) -> Outcome {
    let status = client.finish()?;
    let said = client.transcript();
    let is_right = match fate.is_running {
        true => status.code() == Some(137),
        false => status.code() == Some(1) && said.contains("(stderr) farfork: "),
    };
    let is_readable =
        !["os error", "panicked", "Some(", " { "].iter().any(|dump| said.contains(dump));
    demand(is_right && is_readable, format!("saw {status}\n{said}"))
}

fn of_the_template() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    everywhere(&mut stage, (Role::Template, Role::Template), false, 1, goes_on)?;
    everywhere(&mut stage, (Role::Template, Role::Template), true, 1, goes_on)?;
    everywhere(&mut stage, (Role::Init, Role::Template), false, stride(3), goes_on)?;
    stage.strike()
}

fn of_the_init() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    everywhere(&mut stage, (Role::Init, Role::Init), false, 1, is_told)?;
    stage.strike()
}

fn of_the_init_of_the_same_pid() -> Outcome {
    let mut stage = Stage::set(SAME)?;
    everywhere(&mut stage, (Role::Init, Role::Init), false, 1, is_told)?;
    stage.strike()
}

fn of_the_clone() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, 1, is_told)?;
    stage.strike()
}

fn of_the_clone_of_the_same_pid() -> Outcome {
    let mut stage = Stage::set(SAME)?;
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, stride(3), is_told)?;
    stage.strike()
}

fn of_the_clone_whose_init_is_killed() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(3), is_told)?;
    stage.strike()
}

fn same_pid_without_init() -> Outcome {
    let mut stage = Stage::set(SAME)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(2), is_told)?;
    stage.strike()
}

fn of_the_spare() -> Outcome {
    let mut stage = Stage::set_with_spare()?;
    everywhere(&mut stage, (Role::Init, Role::Init), false, 1, is_told)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(7), is_told)?;
    stage.strike()
}

fn of_a_ghost() -> Outcome {
    let mut stage = Stage::set_by(Way { place: Place::EmptyGhost, ..PLAIN })?;
    everywhere(&mut stage, (Role::Init, Role::Init), false, 1, is_told)?;
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, stride(3), is_told)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(5), is_told)?;
    stage.strike()
}

/// From when it is woken.
fn of_a_ghost_with_its_image() -> Outcome {
    let mut stage = Stage::set_by(Way { place: Place::AttachedGhost, ..PLAIN })?;
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, 1, is_told)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(3), is_told)?;
    stage.strike()
}

fn by_its_policy(way: Way) -> Outcome {
    let mut stage = Stage::set_by(way)?;
    // One that waits with its image has its init behind it.
    if way.place != Place::AttachedGhost {
        everywhere(&mut stage, (Role::Init, Role::Init), false, stride(5), is_told)?;
    }
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, stride(5), is_told)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(7), is_told)?;
    stage.strike()
}

/// Whether a process has ended, waited for or not.
fn has_died(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Whether a process is under a seccomp filter.
fn has_filter(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| text.contains("Seccomp:\t2"))
}

fn without_the_spare() -> Outcome {
    let mut stage = Stage::set_with_spare()?;
    stage.is_clean()?;
    let spare = stage.child(true)?;
    await_until("the init made in advance has its filter", || has_filter(spare))?;
    let clone = stage.restore_alone()?;
    demand(children(spare).len() == 1, "the clone is not a child of the init made in advance")?;
    stage.passes(clone)?;
    stage.is_clean()?;
    let next = stage.child(true)?;
    demand(next != spare, "the same init again")?;
    kill(Pid::from_raw(next as i32), Signal::SIGKILL).map_err(during("killing the init"))?;
    // On a busy machine it lives on for a moment, and dies with the clone that it is asked for.
    await_until("the init has died", || has_died(next))?;
    let clone = stage.restore_alone()?;
    stage.passes(clone)?;
    stage.is_clean()?;
    let last = stage.child(true)?;
    stage.scene.kill_agent();
    let is_gone = || !std::path::Path::new(&format!("/proc/{last}")).exists();
    await_until("the init ends with the agent", is_gone)?;
    stage.agent = stage.scene.agent_with_spare()?;
    stage.descriptors = usize::MAX;
    stage.strike()
}

/// A clone whose caller was told of it goes on without the agent; any other does not.
fn of_the_agent() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    let strides = stride(3);
    everywhere(&mut stage, (Role::Agent, Role::Agent), false, strides, agent_is_gone)?;
    stage.strike()
}

fn agent_is_gone(stage: &mut Stage, mut client: Subject, fate: Fate) -> Outcome {
    let status = client.finish()?;
    let said = client.transcript();
    let is_told = status.code() == Some(1) && said.contains("node agent went away");
    let is_right = is_told || fate.is_running && client.said("PASS");
    demand(is_right, format!("saw {status}\n{said}"))?;
    stage.scene.kill_agent();
    // What the agent has pinned is free when its clones have gone, without another agent.
    let scene = &stage.scene;
    await_until("pool check clears the pins of the agent", || {
        scene.works(&["pool", "check"]).is_ok_and(|said| said.ends_with("the pool is sound"))
            && scene.pins().is_ok_and(|pins| pins.is_empty())
    })?;
    stage.agent = stage.scene.agent()?;
    stage.descriptors = usize::MAX; // a fresh agent opens more with its first clone
    Ok(())
}

/// Starts a client that stands still before it does anything.
fn of_a_client(more: &'static [&'static str]) -> Outcome {
    let mut stage = Stage::set(more)?;
    for step in 0.. {
        let blow = Blow { at: Role::Client, to: Role::Client, step, is_late: false };
        if !client_is_struck(&stage, blow).map_err(after(blow))? {
            println!("{step} steps of the client");
            demand(step > 1, NO_STEP)?;
            break;
        }
        end_told_clones(&stage)?;
        stage.is_clean().map_err(after(blow))?;
    }
    end_told_clones(&stage)?;
    stage.more = NEW;
    stage.strike()
}

fn client_is_struck(stage: &Stage, blow: Blow) -> Outcome<bool> {
    let set = stage.command(None)?;
    let set = set.get_envs().filter_map(|(key, value)| Some((key, value?)));
    // Not a child of this process, which would take the news of its end from itself.
    let mut command = Command::new("timeout");
    // A detached clone would keep this test's pipes open.
    let aside = if stage.more == DETACHED { ">/dev/null 2>&1" } else { "" };
    let script = format!("kill -STOP $$; exec \"$@\" {aside}");
    command.args(["300", "sh", "-c", &script, "sh"]).envs(set);
    command.arg(farfork::binary()?).args(["restore", "a/b", "--json"]).args(stage.more);
    let mut client = Subject::start("client", &mut command, PATIENCE)?;
    let mut pid = 0;
    await_until("the client stands still", || {
        pid = children(client.pid()).first().copied().unwrap_or(0);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|text| text.contains(") T "))
    })?;
    let tracer = Tracer::follow((pid as u32, Role::Client), blow)?;
    match kill(Pid::from_raw(pid), Signal::SIGCONT) {
        // Its tracer has let it go on already, and it has ended.
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(errno) => return Err(during("continuing")(errno)),
    }
    is_running(&mut client);
    client.send_byte();
    client.finish()?;
    Ok(tracer.finish()?.is_some())
}

/// Waits for the end of what restore tells of a clone.
fn is_running(client: &mut Subject) -> bool {
    client.await_line("]").is_ok()
}

/// Whoever detaches a clone, and knows of it, leaves it behind.
fn end_told_clones(stage: &Stage) -> Outcome {
    let text = stage.scene.works(&["ps", "--json"])?;
    let list: serde_json::Value = serde_json::from_str(&text).map_err(during("reading"))?;
    for clone in list.as_array().into_iter().flatten() {
        let pid = clone["pid"].to_string();
        let _ = stage.scene.works(&["kill", &pid]);
    }
    Ok(())
}

fn of_the_client() -> Outcome {
    of_a_client(NEW)
}

fn of_the_client_that_detaches() -> Outcome {
    of_a_client(DETACHED)
}
