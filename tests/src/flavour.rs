//! The ways to treat a program between its `READY` and its `PASS`.

use crate::program::Expect;
use crate::subject::Subject;
use crate::{Outcome, Program, Trouble, compile, farfork, known, testbed};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

/// All policies of tiering.
const POLICIES: [&str; 4] = ["mow", "moa", "hybrid", "copy"];

/// One way to treat a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// No checkpoint at all: the program has to pass by itself.
    Plain,
    /// The program turns its own memory into a file mapping: it must not pass.
    Naive,
    /// Two clones while the parent lives; they and the parent pass, one after the other.
    CloneTwice,
    /// The parent is killed by the checkpoint; the clone takes its pids here.
    KillRestoreSamePid,
    /// The clone runs on a node that shares only the pool with the parent's.
    CloneOnOtherNode,
    /// A clone under each of the tiering policies that are not the default, by which pages are
    /// supplied one by one.
    Tiers,
    /// A clone that tells which pages it touches, and a clone of it.
    Profiling,
    /// The parent is pid 1 of a PID namespace, and so are two clones, each of one of its own.
    PidOne,
    /// Clones under every policy run in empty ghosts, each with a network of its own.
    InEmptyGhost,
    /// The clone in an empty ghost is checkpointed too, and its clone runs in another.
    FromGhost,
    /// Clones wait in ghosts before their last steps, under every policy, until they are woken.
    InAttachedGhost,
    /// The clone is checkpointed too, under the same name: the parent's image goes while a clone
    /// of it lives. Then a clone of the clone passes, the clone, and the parent.
    CloneOfClone,
    /// The checkpoint is refused in words, leaves nothing behind, and the program goes on.
    Refused,
    /// No clone starts beside the parent, which goes on; one does when the parent has ended.
    Excluded,
    /// The clone needs a descriptor from its caller, some only as long as the parent lives: refused
    /// without, passing with it.
    Inherited,
}

impl Flavour {
    /// The flavours of a program that can be cloned.
    pub const CLONING: [Flavour; 9] = [
        Flavour::CloneTwice,
        Flavour::KillRestoreSamePid,
        Flavour::CloneOnOtherNode,
        Flavour::InEmptyGhost,
        Flavour::FromGhost,
        Flavour::InAttachedGhost,
        Flavour::CloneOfClone,
        Flavour::Tiers,
        Flavour::Profiling,
    ];

    /// The first part of a test's name.
    pub const fn name(self) -> &'static str {
        match self {
            Flavour::Plain => "plain",
            Flavour::Naive => "naive",
            Flavour::CloneTwice => "clone_twice",
            Flavour::KillRestoreSamePid => "kill_restore_same_pid",
            Flavour::CloneOnOtherNode => "clone_on_other_node",
            Flavour::Tiers => "tiers",
            Flavour::Profiling => "profiling",
            Flavour::PidOne => "pid_one",
            Flavour::InEmptyGhost => "in_empty_ghost",
            Flavour::FromGhost => "from_ghost",
            Flavour::InAttachedGhost => "in_attached_ghost",
            Flavour::CloneOfClone => "clone_of_clone",
            Flavour::Refused => "refused",
            Flavour::Excluded => "excluded",
            Flavour::Inherited => "inherited",
        }
    }

    /// Why `program` cannot be run like this here, if it cannot.
    pub fn missing(self, program: &Program) -> Option<String> {
        let cloned = !matches!(self, Flavour::Plain | Flavour::Naive);
        let pool = if cloned { testbed::possible() } else { Ok(()) };
        let ghosts = if self.is_in_ghost() { farfork::ghosts_possible() } else { Ok(()) };
        match pool.and(ghosts).and_then(|()| compile::possible(program)) {
            Err(Trouble::Skipped(reason)) => Some(reason),
            _ => None,
        }
    }

    /// Whether a clone is checkpointed in it.
    pub fn clones_again(self) -> bool {
        matches!(self, Flavour::CloneOfClone | Flavour::FromGhost)
    }

    /// Whether it needs containers.
    pub fn is_in_ghost(self) -> bool {
        matches!(self, Flavour::InEmptyGhost | Flavour::FromGhost | Flavour::InAttachedGhost)
    }

    /// Runs `program` in this flavour.
    pub fn run(self, program: &Program) -> Outcome {
        match self {
            Flavour::Plain => start(self, program)?.must_pass(),
            Flavour::Naive => naive(program),
            _ => {
                let mut stage = Stage::set(self, program)?;
                let outcome = stage.play(self);
                stage.strike(outcome)
            }
        }
    }
}

fn start(flavour: Flavour, program: &Program) -> Outcome<Subject> {
    let mut command = compile::command(program)?;
    if flavour == Flavour::PidOne {
        command = in_new_pid_namespace(&command);
    }
    command.current_dir(testbed::work_dir(&format!("{}-{}", flavour.name(), program.name))?);
    if flavour == Flavour::Naive {
        command.env("FARFORK_NAIVE", "1");
    }
    let mut subject = Subject::start("parent", &mut command, program.timeout)?;
    subject.await_ready()?;
    match subject.after("NOTE UNAVAILABLE").pop() {
        Some(reason) => Err(Trouble::Skipped(reason)),
        None => Ok(subject),
    }
}

/// The same command as pid 1; the started process is its parent, outside.
fn in_new_pid_namespace(command: &Command) -> Command {
    let mut outer = Command::new("unshare");
    outer.args(["--kill-child", "-pf", "--mount-proc", "--"]);
    outer.arg(command.get_program()).args(command.get_args());
    outer.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    outer
}

fn naive(program: &Program) -> Outcome {
    let mut subject = start(Flavour::Naive, program)?;
    subject.send_byte();
    let status = subject.finish()?;
    if subject.said("PASS") {
        return subject
            .fail(&format!("expected anything but PASS on file-backed memory, {status}"));
    }
    Ok(())
}

/// A program that waits, and the pool it is going to be cloned through.
struct Stage<'a> {
    program: &'a Program,
    pool: &'static Path,
    image: String,
    parent: Subject,
    on_other_nodes: bool,
}

impl<'a> Stage<'a> {
    fn set(flavour: Flavour, program: &'a Program) -> Outcome<Self> {
        let pool = testbed::pool()?;
        let image = format!("test/{}:{}", program.name, flavour.name());
        let (parent, on_other_nodes) = (start(flavour, program)?, program.own_network);
        Ok(Self { program, pool, image, parent, on_other_nodes })
    }

    fn play(&mut self, flavour: Flavour) -> Outcome {
        match flavour {
            Flavour::Plain | Flavour::Naive => Ok(()),
            Flavour::Refused => self.refused(),
            Flavour::CloneTwice | Flavour::PidOne => self.beside_parent(2),
            Flavour::CloneOnOtherNode => {
                self.on_other_nodes = true;
                self.beside_parent(1)
            }
            Flavour::Tiers => self.tiers(),
            Flavour::Profiling if self.program.has_fresh_clones => self.profiled(),
            Flavour::Profiling => self.clone_of_clone(&["--profile"], &[]),
            Flavour::KillRestoreSamePid => self.kill_restore(),
            Flavour::InEmptyGhost => self.in_empty_ghosts(),
            Flavour::InAttachedGhost => self.in_attached_ghosts(),
            Flavour::FromGhost => self.again_in_ghosts(),
            Flavour::CloneOfClone => self.clone_of_clone(&[], &[]),
            Flavour::Excluded => self.excluded(),
            Flavour::Inherited => self.inherited(),
        }
    }

    /// Removes the image so that the pool lasts; the play's own failure is the one to tell.
    fn strike(&self, outcome: Outcome) -> Outcome {
        if matches!(self.program.expect, Expect::Refused(_)) {
            return outcome;
        }
        let forgotten = farfork::forget(self.pool, &self.image);
        outcome.and(forgotten)
    }

    fn checkpoint(&self, more: &[&str]) -> Outcome<Output> {
        farfork::run(self.checkpoint_of(self.subject_pid()?, more)?)
    }

    fn checkpoint_of(&self, pid: u32, more: &[&str]) -> Outcome<Command> {
        let whole: &[&str] = if self.program.is_tree { &["--tree"] } else { &[] };
        farfork::checkpoint(
            self.pool,
            pid,
            &self.image,
            &[whole, self.program.options, more].concat(),
        )
    }

    /// The program's pid, which is that of the started process or of its only child.
    fn subject_pid(&self) -> Outcome<u32> {
        let started = self.parent.pid();
        if !self.image.ends_with(Flavour::PidOne.name()) {
            return Ok(started);
        }
        let children = format!("/proc/{started}/task/{started}/children");
        let text = std::fs::read_to_string(children)
            .map_err(|error| Trouble::during("looking for pid 1", error))?;
        text.trim().parse().map_err(|_| Trouble::Failed(format!("no pid 1 among '{text}'")))
    }

    fn must_checkpoint(&mut self, more: &[&str]) -> Outcome {
        let output = self.checkpoint(more)?;
        if output.status.success() {
            return Ok(());
        }
        self.parent.fail(&format!("checkpoint: {}\n{}", output.status, farfork::text(&output)))
    }

    fn clone(&self, label: &str, more: &[&str]) -> Outcome<Subject> {
        let mut command = farfork::restore(self.pool, &self.image, more)?;
        Subject::start(label, &mut command, self.program.timeout)
    }

    /// A clone on this node, or on one of its own where no two may share one.
    fn clone_number(&self, number: usize) -> Outcome<Subject> {
        self.clone_under(number, &[])
    }

    fn clone_under(&self, number: usize, more: &[&str]) -> Outcome<Subject> {
        let label = format!("clone {}", number + 1);
        if !self.on_other_nodes {
            return self.clone(&label, more);
        }
        let node = ["--node", testbed::other_node(self.pool, number)?];
        self.clone(&label, &[&node, more].concat())
    }

    /// Clones of a parent's second image. For one of them all memory of its first process is declared
    /// hot, so that pages become local together; another, under the default policy, is helped.
    fn tiers(&mut self) -> Outcome {
        self.must_checkpoint(&[])?;
        self.must_checkpoint(&[])?;
        let mut started = Vec::new();
        let most = if self.on_other_nodes { testbed::OTHER_NODES.len() } else { usize::MAX };
        let tiers = [("moa", false), ("hybrid", false), ("hybrid", true), ("copy", false)];
        for (number, (tiering, is_hot)) in tiers.into_iter().take(most).enumerate() {
            if is_hot {
                self.declare_all_hot()?;
            }
            started.push(self.clone_under(number, &["--tiering", tiering])?);
        }
        if started.len() < most {
            known::written(self.pool, &self.image, known::ALL)?;
            started.push(self.clone_under(started.len(), &[])?);
        }
        for clone in &mut started {
            clone.must_pass().map_err(|trouble| self.with_parent(trouble))?;
        }
        self.parent.must_pass()?;
        self.compare_values(&started)
    }

    /// Declares hot what clones of the first process map from the pool, mapping by mapping, as far as there is
    /// any of it in the image.
    fn declare_all_hot(&mut self) -> Outcome {
        let path = format!("/proc/{}/maps", self.parent.pid());
        let maps = std::fs::read_to_string(&path).unwrap_or_default();
        let mut declared = 0;
        for range in maps.lines().filter_map(|line| line.split(' ').next()) {
            let mut command = farfork::command(&["hot", "set", "--pool"])?;
            command.arg(self.pool).args([&*self.image, range]);
            declared += u32::from(farfork::run(command)?.status.success());
        }
        if declared == 0 {
            return self.parent.fail("none of its memory could be declared hot");
        }
        Ok(())
    }

    /// All clones wait before the first goes on; then one after the other, the parent last.
    fn beside_parent(&mut self, clones: usize) -> Outcome {
        self.must_checkpoint(&[])?;
        let mut started = Vec::new();
        for number in 0..clones {
            started.push(self.clone_number(number)?);
        }
        for clone in &mut started {
            clone.must_pass().map_err(|trouble| self.with_parent(trouble))?;
        }
        self.parent.must_pass()?;
        self.compare_values(&started)
    }

    /// Clones under each policy at the same time.
    fn in_empty_ghosts(&mut self) -> Outcome {
        let under = |tiering| (["--user", "test"], ["--tiering", tiering]);
        let ghosts = POLICIES.map(under);
        self.in_ghosts(&ghosts.each_ref().map(|(ghost, clone)| (&ghost[..], &clone[..])))
    }

    /// Clones that wait under each policy at the same time.
    fn in_attached_ghosts(&mut self) -> Outcome {
        let (image, pool) = (self.image.clone(), self.pool.display().to_string());
        let under = |tiering| ["--image", &image, "--pool", &pool, "--tiering", tiering];
        let ghosts = POLICIES.map(under);
        self.in_ghosts(&ghosts.each_ref().map(|ghost| (&ghost[..], &[][..])))
    }

    /// Clones in ghosts of this node that are started like this, and are gone with them: how the ghost is
    /// started, and how its clone.
    fn in_ghosts(&mut self, how: &[(&[&str], &[&str])]) -> Outcome {
        self.must_checkpoint(&[])?;
        // So that clones are supplied with pages, ahead if they wait or while they run, and touch others.
        known::written(self.pool, &self.image, known::EVERY_OTHER_BLOCK)?;
        let mut ghosts = Vec::new();
        for (ghost, _) in how {
            ghosts.push(farfork::start_ghost(ghost)?);
        }
        let clone = |(ghost, (_, more)): (&String, &(&[&str], &[&str]))| {
            self.clone("clone in a ghost", &[&["--ghost", ghost], *more].concat())
        };
        let mut clones: Vec<Subject> = ghosts.iter().zip(how).map(clone).collect::<Outcome<_>>()?;
        for clone in &mut clones {
            clone.must_pass().map_err(|trouble| self.with_parent(trouble))?;
        }
        self.parent.must_pass()?;
        self.compare_values(&clones)?;
        ghosts.iter().try_for_each(|ghost| farfork::must_be_gone(ghost))
    }

    fn compare_values(&self, clones: &[Subject]) -> Outcome {
        if !self.program.values_differ {
            return Ok(());
        }
        let everyone = clones.iter().chain([&self.parent]);
        let values: Vec<String> = everyone.flat_map(|subject| subject.after("VALUE ")).collect();
        let distinct: BTreeSet<&String> = values.iter().collect();
        if distinct.len() == values.len() && values.len() > clones.len() {
            return Ok(());
        }
        Err(Trouble::Failed(format!("expected distinct values of all, saw {values:#?}")))
    }

    fn kill_restore(&mut self) -> Outcome {
        let hands_over = matches!(self.program.expect, Expect::HandsOver);
        let kept = if hands_over { &["--tcp-established"][..] } else { &[] };
        self.must_checkpoint(&[&["--kill"], kept].concat())?;
        let status = self.parent.finish()?;
        if self.parent.said("PASS") || status.code().is_some() {
            return self.parent.fail(&format!("expected to be killed, saw {status}"));
        }
        if hands_over {
            self.must_be_in_place()?;
        }
        self.clone("clone", &["--pid-mode", "same"])?.must_pass()
    }

    /// No clone starts anywhere but in the parent's place.
    fn must_be_in_place(&self) -> Outcome {
        let mut elsewhere = self.clone("clone in another place", &[])?;
        let status = elsewhere.finish()?;
        if status.code() == Some(1) && elsewhere.transcript().contains("--pid-mode same") {
            return Ok(());
        }
        elsewhere.fail(&format!("expected exit status 1 and '--pid-mode same', saw {status}"))
    }

    fn profiled(&mut self) -> Outcome {
        self.must_checkpoint(&[])?;
        let mut clone = self.clone_under(0, &["--profile"])?;
        clone.must_pass().map_err(|trouble| self.with_parent(trouble))?;
        self.parent.must_pass()?;
        self.compare_values(&[clone])
    }

    fn again_in_ghosts(&mut self) -> Outcome {
        let ghosts = [farfork::start_ghost(&[])?, farfork::start_ghost(&[])?];
        let [first, second] = ghosts.each_ref().map(|ghost| ["--ghost", ghost]);
        self.on_other_nodes = false; // a ghost has a network of its own
        self.clone_of_clone(&first, &second)?;
        ghosts.iter().try_for_each(|ghost| farfork::must_be_gone(ghost))
    }

    /// How the first clone is started, and its own.
    fn clone_of_clone(&mut self, first: &[&str], second: &[&str]) -> Outcome {
        self.must_checkpoint(&[])?;
        let mut first = self.clone_under(0, first)?;
        first.await_line("]")?; // the end of what restore tells of the clone
        let told = first.after("    \"pid\": ").pop().unwrap_or_default();
        let Ok(pid) = told.trim_end_matches(',').parse() else {
            return first.fail("expected restore to tell the clone's pid");
        };
        if let Some(word) = self.program.settles.filter(|word| !first.said(word)) {
            first.await_line(word)?;
        }
        farfork::must_run(self.checkpoint_of(pid, &[])?)?;
        let mut second = self.clone_under(1, second)?;
        for clone in [&mut second, &mut first] {
            clone.must_pass().map_err(|trouble| self.with_parent(trouble))?;
        }
        self.parent.must_pass()?;
        self.compare_values(&[first, second])
    }

    fn refused(&mut self) -> Outcome {
        let Expect::Refused(words) = self.program.expect else { return Ok(()) };
        for more in [&["--dry-run"][..], &[]] {
            let output = self.checkpoint(more)?;
            self.check_refusal(&output, words)?;
        }
        if farfork::images(self.pool)?.contains(self.program.name) {
            return self.parent.fail("expected nothing in the catalog after a refusal");
        }
        self.parent.must_pass()
    }

    fn check_refusal(&mut self, output: &Output, words: &[&str]) -> Outcome {
        let text = farfork::text(output);
        let lower = text.to_lowercase();
        if output.status.code() == Some(1) && words.iter().any(|word| lower.contains(word)) {
            return Ok(());
        }
        self.parent.fail(&format!(
            "expected exit status 1 and a message with one of {words:?}, saw {}\n{text}",
            output.status
        ))
    }

    fn excluded(&mut self) -> Outcome {
        let Expect::Excludes(word) = self.program.expect else { return Ok(()) };
        self.must_checkpoint(&[])?;
        let mut beside = self.clone("clone beside the parent", &[])?;
        let status = beside.finish()?;
        if status.code() != Some(1) || !beside.transcript().contains(word) {
            return beside.fail(&format!("expected exit status 1 and '{word}', saw {status}"));
        }
        self.parent.must_pass()?;
        self.clone("clone after the parent", &[])?.must_pass()
    }

    fn inherited(&mut self) -> Outcome {
        let (fd, path, only_beside) = match self.program.expect {
            Expect::NeedsInherit(fd, path) => (fd, path, false),
            Expect::NeedsInheritBeside(fd, path) => (fd, path, true),
            _ => return Ok(()),
        };
        self.must_checkpoint(&[])?;
        let mut without = self.clone("clone without the fd", &[])?;
        let status = without.finish()?;
        if status.code() != Some(1) || !without.transcript().contains(&format!("fd {fd}")) {
            return without
                .fail(&format!("expected exit status 1 and fd {fd} named, saw {status}"));
        }
        let place = testbed::work_dir("inherited")?.join(path);
        let inherit = format!("{fd}=listen:{}", place.display());
        self.clone("clone", &["--inherit-fd", &inherit])?.must_pass()?;
        self.parent.must_pass()?;
        if !only_beside {
            return Ok(());
        }
        // What a dead parent has left there is no obstacle.
        self.clone("clone in the parent's place", &[])?.must_pass()
    }

    /// A clone's failure is reported with what the parent printed.
    fn with_parent(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Failed(text) => Trouble::Failed(format!("{text}{}", self.parent.transcript())),
            skipped => skipped,
        }
    }
}
