//! Each process that takes part in the creation of a ghost, killed at every step of it: until the ghost waits
//! empty, or attached. The client gets an error soon, the parent goes on, nothing half-made is left, nothing
//! leaks, and the next ghost works.
//!
//! The steps of `runc` differ from run to run: it is a Go program, whose threads wait for each other. They are
//! counted, although the number does not always determine the step.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::Output;
use std::time::Instant;

use farfork_tests::stalls::Stalls;
use farfork_tests::subject::Subject;
use farfork_tests::way::{POLICIES, Place, Way};
use farfork_tests::{Outcome, Trouble, farfork};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use crate::Case;
use crate::scene::{PATIENCE, await_until, demand, during, failed_in_words};
use crate::stage::{self, Ghost, SOON, Stage, descriptors, go_on, is_running, stride, took};
use crate::tracer::{Blow, Role, Tracer};
use crate::ways::Crossed;

pub const CASES: &[Case] = &[
    ("of_an_empty_ghost", of_an_empty_ghost),
    ("by_runc", by_runc),
    ("without_the_agent", without_the_agent),
    ("without_the_agent_of_an_empty_ghost", without_the_agent_of_an_empty_ghost),
    ("without_the_client", without_the_client),
];

/// By every policy: an empty ghost knows of none.
pub const CROSSED: &[Crossed] = &[Crossed {
    what: "by_its_policy",
    run: by_its_policy,
    only: |way| way.place == Place::AttachedGhost,
    always: |way| way.is("hybrid", Place::AttachedGhost),
}];

const EMPTY: Way = Way { tiering: POLICIES[0], place: Place::EmptyGhost };
const ATTACHED: Way = Way { tiering: POLICIES[0], place: Place::AttachedGhost };

/// A stage on which ghosts are made, and their names.
struct Making {
    stage: Stage,
    names: Names,
}

/// What became of one ghost.
struct Fate {
    output: Output,
    is_struck: bool,
}

impl Making {
    fn set(way: Way) -> Outcome<Making> {
        let stage = Stage::set_by(way)?;
        let names = Names::watch(&stage)?;
        Ok(Making { stage, names })
    }

    fn arguments(&self) -> Vec<&'static str> {
        let options = self.stage.way.ghost("a/b").unwrap_or_default();
        [&["ghost", "start", "--json"], &options[..]].concat()
    }

    /// A ghost in whose making `blow` is struck.
    fn make(&self, blow: Blow) -> Outcome<Fate> {
        self.stage.rests()?;
        let (begun, stalls) = (Instant::now(), Stalls::now());
        let tracer = Tracer::follow((self.stage.agent, Role::Agent), blow)?;
        let output = farfork::run(self.stage.scene.command(&self.arguments())?)?;
        let known = Instant::now();
        let struck = tracer.finish()?;
        let took = took(struck.unwrap_or(begun), known, &stalls);
        demand(took < SOON, format!("took {took:?}\n{}", farfork::text(&output)))?;
        Ok(Fate { output, is_struck: struck.is_some() })
    }

    /// Strikes at every step until a ghost is made, which works.
    fn everywhere(
        &mut self,
        who: (Role, Role),
        stride: usize,
        judge: impl Fn(&mut Making, &Output) -> Outcome,
    ) -> Outcome {
        stage::everywhere(who, false, stride, |blow| {
            let Fate { output, is_struck } = self.make(blow)?;
            let judged = match is_struck {
                true => judge(self, &output),
                false => reported(&output).and_then(|ghost| self.works(&ghost)),
            };
            judged.and_then(|()| self.is_clean()).map_err(|trouble| match trouble {
                Trouble::Failed(why) => {
                    let said = farfork::text(&output);
                    Trouble::Failed(format!("{why}\nghost start: {}, {said}", output.status))
                }
                skipped => skipped,
            })?;
            Ok(is_struck)
        })
    }

    /// Demands that a clone in this ghost is right, and ends well.
    fn works(&self, ghost: &Ghost) -> Outcome {
        let mut command = self.stage.command(Some(ghost))?;
        let mut client = Subject::start("clone", &mut command, PATIENCE)?;
        if !is_running(&mut client) {
            return client.fail("expected a clone");
        }
        self.stage.passes(client)
    }

    fn listed(&self) -> Outcome<Vec<Ghost>> {
        let text = self.stage.scene.works(&["ghost", "list", "--json"])?;
        let list: Vec<serde_json::Value> =
            serde_json::from_str(&text).map_err(during("reading a list"))?;
        list.iter().map(|one| Ghost::read(&one.to_string())).collect()
    }

    /// Nothing is left of any ghost.
    fn is_clean(&mut self) -> Outcome {
        for name in self.names.so_far()? {
            self.stage.scene.has_no_ghost(&name)?;
        }
        self.stage.is_clean()?;
        demand(self.listed()?.is_empty(), "a ghost is listed")
    }

    fn strike(self) -> Outcome {
        self.stage.strike()
    }
}

fn reported(output: &Output) -> Outcome<Ghost> {
    Ghost::read(&String::from_utf8_lossy(&output.stdout))
}

/// The names of all ghosts: of each there is a bundle first, as long as there is anything of it.
struct Names {
    watch: OwnedFd,
    new: BTreeSet<String>,
}

impl Names {
    /// From now on; there has been a ghost.
    fn watch(stage: &Stage) -> Outcome<Names> {
        let bundles = stage.scene.directory().join("run/local.ghosts");
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let watch = watch.map_err(during("watching bundles"))?;
        inotify::add_watch(&watch, &bundles, WatchFlags::CREATE)
            .map_err(during("watching bundles"))?;
        Ok(Names { watch, new: BTreeSet::new() })
    }

    /// Those that are new since this was asked for.
    fn so_far(&mut self) -> Outcome<BTreeSet<String>> {
        self.look();
        Ok(std::mem::take(&mut self.new))
    }

    fn look(&mut self) {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.watch, &mut space);
        while let Ok(event) = events.next() {
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            self.new.extend(name.filter(|name| name.len() == 8));
        }
    }
}

/// There is no ghost; or there was one, which has ended since.
fn is_reported(making: &mut Making, output: &Output) -> Outcome {
    if !output.status.success() {
        return is_refused(output);
    }
    let Ghost { id, .. } = reported(output)?;
    await_until("the ghost has ended", || making.listed().is_ok_and(|list| list.is_empty()))?;
    let options = making.stage.way.options(Some(&id));
    let words = [&*id, "has ended"];
    making.stage.scene.fails(&[&["restore", "a/b"], &options[..]].concat(), 1, &words)
}

/// There is no ghost, or it works: the killed process had done its part.
fn is_refused_or_works(making: &mut Making, output: &Output) -> Outcome {
    if output.status.success() { making.works(&reported(output)?) } else { is_refused(output) }
}

fn is_refused(output: &Output) -> Outcome {
    failed_in_words("ghost start", output, 1, &[])?;
    let is_answer = !farfork::text(output).contains("lost the connection to the node agent");
    demand(is_answer, format!("the agent said nothing: {}", farfork::text(output)))
}

/// Whatever waited has ended with the agent, and another one has cleared up.
fn agent_is_gone(making: &mut Making, output: &Output) -> Outcome {
    if !output.status.success() {
        failed_in_words("ghost start", output, 1, &["lost the connection to the node agent"])?;
    }
    making.stage.replace_agent()
}

/// Kills at every step of what the agent calls, and of the ghost.
fn by_its_policy(way: Way) -> Outcome {
    let mut making = Making::set(way)?;
    making.everywhere((Role::Init, Role::Init), stride(31), is_reported)?;
    making.everywhere((Role::Clone, Role::Clone), stride(17), is_reported)?;
    making.everywhere((Role::Clone, Role::Init), stride(23), is_reported)?;
    making.everywhere((Role::Init, Role::Clone), stride(3), is_reported)?;
    making.strike()
}

fn of_an_empty_ghost() -> Outcome {
    let mut making = Making::set(EMPTY)?;
    making.everywhere((Role::Init, Role::Init), stride(29), is_reported)?;
    making.strike()
}

fn by_runc() -> Outcome {
    let mut making = Making::set(ATTACHED)?;
    making.everywhere((Role::Runc, Role::Runc), 3 * stride(61), is_refused_or_works)?;
    making.everywhere((Role::Stage, Role::Stage), 3 * stride(61), is_refused_or_works)?;
    making.everywhere((Role::Stage, Role::Runc), 3 * stride(97), is_refused_or_works)?;
    making.strike()
}

fn without_the_agent() -> Outcome {
    without_an_agent(ATTACHED)
}

fn without_the_agent_of_an_empty_ghost() -> Outcome {
    without_an_agent(EMPTY)
}

fn without_an_agent(way: Way) -> Outcome {
    let mut making = Making::set(way)?;
    making.everywhere((Role::Agent, Role::Agent), 3 * stride(17), agent_is_gone)?;
    making.strike()
}

/// Then there is no ghost, or one that others can find and use.
fn without_the_client() -> Outcome {
    let mut making = Making::set(ATTACHED)?;
    stage::everywhere((Role::Client, Role::Client), false, stride(5), |blow| {
        let arguments = making.arguments();
        let (mut client, pid) = making.stage.held(&arguments, "")?;
        let tracer = Tracer::follow((pid, Role::Client), blow)?;
        go_on(pid)?;
        client.finish()?;
        let struck = tracer.finish()?;
        making.comes_to_rest()?;
        making.is_clean()?;
        Ok(struck.is_some())
    })?;
    making.strike()
}

impl Making {
    /// Waits until the agent is idle, and uses the ghost if there is one.
    fn comes_to_rest(&mut self) -> Outcome {
        let most = self.stage.descriptors;
        let mut found = None;
        await_until("the agent has nothing to do", || {
            // In this order: when the agent has answered, it has accepted all earlier connections.
            let listed = self.listed().unwrap_or_default();
            found = listed.into_iter().next();
            found.is_some() || descriptors(self.stage.agent) <= most
        })?;
        let Some(ghost) = found else { return Ok(()) };
        let mut command = self.stage.command(Some(&ghost))?;
        let mut client = Subject::start("clone", &mut command, PATIENCE)?;
        if is_running(&mut client) {
            return self.stage.passes(client);
        }
        // It was listed before the agent noticed that its client was dead.
        let is_reported =
            client.transcript().contains(&format!("ghost {} has been stopped", ghost.id));
        if is_reported { Ok(()) } else { client.fail("expected a clone") }
    }
}
