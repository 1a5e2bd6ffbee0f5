//! Each process that takes part in a restore, killed at every step of it. The client gets an error soon, the
//! parent goes on, nothing half-made is left, nothing leaks, and the next restore works.

use std::time::{Duration, Instant};

use farfork_tests::Outcome;
use farfork_tests::stalls::Stalls;
use farfork_tests::subject::Subject;
use farfork_tests::way::{Place, Way};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Case;
use crate::scene::{PATIENCE, await_until, children, demand, during};
use crate::stage::{
    self, DETACHED, Ghost, NEW, PLAIN, SAME, SOON, Stage, go_on, is_running, stride, took,
};
use crate::tracer::{Blow, Role, Tracer};
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

/// What became of one restore.
struct Fate {
    /// What it was started in.
    ghost: Option<Ghost>,
    is_running: bool,
    is_struck: bool,
    took: Duration,
}

/// A restore in which `blow` is struck.
fn restore(stage: &Stage, blow: Blow) -> Outcome<(Subject, Fate)> {
    stage.rests()?;
    let ghost = stage.ghost()?;
    let root = match (blow.at, &ghost) {
        (Role::Agent, _) => (stage.agent, Role::Agent),
        (_, Some(Ghost { clone: Some(clone), .. })) => (*clone, Role::Clone),
        (_, Some(ghost)) => (ghost.init, Role::Init),
        _ if stage.at_rest == 2 => (stage.child(true)?, Role::Init),
        _ => (stage.child(false)?, Role::Template),
    };
    let (begun, stalls) = (Instant::now(), Stalls::now());
    let init = ghost.as_ref().filter(|ghost| ghost.clone.is_some()).map(|ghost| ghost.init);
    let tracer = Tracer::follow_beside(init, root, blow)?;
    let mut client = Subject::start("clone", &mut stage.command(ghost.as_ref())?, PATIENCE)?;
    let is_running = is_running(&mut client);
    if blow.at == Role::Agent && is_running {
        client.send_byte();
        client.finish()?;
    }
    let known = Instant::now();
    let struck = tracer.finish()?;
    let took = took(struck.unwrap_or(begun), known, &stalls);
    Ok((client, Fate { ghost, is_running, is_struck: struck.is_some(), took }))
}

/// Strikes at every step until a restore passes through.
fn everywhere(
    stage: &mut Stage,
    who: (Role, Role),
    is_late: bool,
    stride: usize,
    judge: impl Fn(&mut Stage, Subject, Fate) -> Outcome,
) -> Outcome {
    stage::everywhere(who, is_late, stride, |blow| {
        let (client, fate) = restore(stage, blow)?;
        if !fate.is_struck {
            // A clone whose agent was to be struck has been asked to end.
            if blow.at != Role::Agent {
                stage.passes(client)?;
            }
            return Ok(false);
        }
        let said = || format!("took {:?}\n{}", fate.took, client.transcript());
        demand(fate.took < SOON, said())?;
        let ghost = fate.ghost.as_ref().map(|ghost| ghost.id.clone());
        judge(stage, client, fate)?;
        stage.is_clean()?;
        ghost.map_or(Ok(()), |id| stage.scene.has_no_ghost(&id))?;
        Ok(true)
    })
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
fn is_reported(_: &mut Stage, mut client: Subject, fate: Fate) -> Outcome {
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
    everywhere(&mut stage, (Role::Init, Role::Template), false, stride(11), goes_on)?;
    stage.strike()
}

fn of_the_init() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    everywhere(&mut stage, (Role::Init, Role::Init), false, 1, is_reported)?;
    stage.strike()
}

fn of_the_init_of_the_same_pid() -> Outcome {
    let mut stage = Stage::set(SAME)?;
    everywhere(&mut stage, (Role::Init, Role::Init), false, 1, is_reported)?;
    stage.strike()
}

fn of_the_clone() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, stride(3), is_reported)?;
    stage.strike()
}

fn of_the_clone_of_the_same_pid() -> Outcome {
    let mut stage = Stage::set(SAME)?;
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, stride(11), is_reported)?;
    stage.strike()
}

fn of_the_clone_whose_init_is_killed() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(11), is_reported)?;
    stage.strike()
}

fn same_pid_without_init() -> Outcome {
    let mut stage = Stage::set(SAME)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(7), is_reported)?;
    stage.strike()
}

fn of_the_spare() -> Outcome {
    let mut stage = Stage::set_with_spare()?;
    everywhere(&mut stage, (Role::Init, Role::Init), false, 1, is_reported)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(17), is_reported)?;
    stage.strike()
}

fn of_a_ghost() -> Outcome {
    let mut stage = Stage::set_by(Way { place: Place::EmptyGhost, ..PLAIN })?;
    everywhere(&mut stage, (Role::Init, Role::Init), false, stride(3), is_reported)?;
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, stride(11), is_reported)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(13), is_reported)?;
    stage.strike()
}

/// From when it is woken.
fn of_a_ghost_with_its_image() -> Outcome {
    let mut stage = Stage::set_by(Way { place: Place::AttachedGhost, ..PLAIN })?;
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, stride(3), is_reported)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(11), is_reported)?;
    stage.strike()
}

fn by_its_policy(way: Way) -> Outcome {
    let mut stage = Stage::set_by(way)?;
    // One that waits with its image has its init behind it.
    if way.place != Place::AttachedGhost {
        everywhere(&mut stage, (Role::Init, Role::Init), false, stride(13), is_reported)?;
    }
    everywhere(&mut stage, (Role::Clone, Role::Clone), false, stride(13), is_reported)?;
    everywhere(&mut stage, (Role::Clone, Role::Init), false, stride(17), is_reported)?;
    stage.strike()
}

/// Whether a process has ended, waited for or not.
fn has_died(pid: u32) -> bool {
    farfork_sys::proc::state(pid as i32).is_none_or(|state| state == 'Z')
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

/// A clone whose caller has its pid goes on without the agent. Any other clone is killed.
fn of_the_agent() -> Outcome {
    let mut stage = Stage::set(NEW)?;
    let strides = stride(11);
    everywhere(&mut stage, (Role::Agent, Role::Agent), false, strides, agent_is_gone)?;
    stage.strike()
}

fn agent_is_gone(stage: &mut Stage, mut client: Subject, fate: Fate) -> Outcome {
    let status = client.finish()?;
    let said = client.transcript();
    let is_reported =
        status.code() == Some(1) && said.contains("lost the connection to the node agent");
    let is_right = is_reported || fate.is_running && client.said("PASS");
    demand(is_right, format!("saw {status}\n{said}"))?;
    stage.replace_agent()
}

/// Starts a client that stands still before it does anything.
fn of_a_client(more: &'static [&'static str]) -> Outcome {
    let mut stage = Stage::set(more)?;
    stage::everywhere((Role::Client, Role::Client), false, stride(3), |blow| {
        let is_struck = client_is_struck(&stage, blow)?;
        kill_reported_clones(&stage)?;
        if is_struck {
            stage.is_clean()?;
        }
        Ok(is_struck)
    })?;
    stage.more = NEW;
    stage.strike()
}

fn client_is_struck(stage: &Stage, blow: Blow) -> Outcome<bool> {
    // A detached clone would keep this test's pipes open.
    let aside = if stage.more == DETACHED { ">/dev/null 2>&1" } else { "" };
    let arguments = [&["restore", "a/b", "--json"], stage.more].concat();
    let (mut client, pid) = stage.held(&arguments, aside)?;
    let tracer = Tracer::follow((pid, Role::Client), blow)?;
    go_on(pid)?;
    is_running(&mut client);
    client.send_byte();
    client.finish()?;
    Ok(tracer.finish()?.is_some())
}

/// A caller that detached a clone, and has its pid, leaves it running.
fn kill_reported_clones(stage: &Stage) -> Outcome {
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
