//! One program, and what is done to it and its clones in each flavour.

mod audited;
mod helped;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use crate::program::Expect;
use crate::start::start;
use crate::subject::Subject;
use crate::way::{POLICIES, Place, Way};
use crate::{Flavour, Outcome, Program, Trouble, farfork, known, testbed};

/// Tiers that are not only a policy: all is declared hot, and by the default policy an init helps.
const HOT: &str = "hot";
const HELPED: &str = "helped";

/// Generations of a chain.
const CHAIN: [Way; 7] = [
    Way { tiering: "moa", place: Place::AttachedGhost },
    Way { tiering: "hybrid", place: Place::EmptyGhost },
    Way { tiering: "copy", place: Place::Scratch },
    Way { tiering: "hybrid", place: Place::AttachedGhost },
    Way { tiering: "moa", place: Place::EmptyGhost },
    Way { tiering: "hybrid", place: Place::Scratch },
    Way { tiering: "copy", place: Place::AttachedGhost },
];

/// A program that waits, and the pool it is going to be cloned through.
pub(crate) struct Stage<'a> {
    flavour: Flavour,
    program: &'a Program,
    pool: &'static Path,
    image: String,
    parent: Subject,
    on_other_nodes: bool,
    /// How many descriptors clones were given.
    given: Cell<u32>,
}

impl<'a> Stage<'a> {
    /// Starts the program that is to be treated like this.
    pub(crate) fn set(flavour: Flavour, program: &'a Program) -> Outcome<Self> {
        let pool = testbed::pool()?;
        let image = format!("test/{}:{}", program.name, flavour.name());
        let (parent, on_other_nodes) = (start(flavour, program)?, program.own_network);
        let given = Cell::new(0);
        Ok(Self { flavour, program, pool, image, parent, on_other_nodes, given })
    }

    /// Does what the flavour is.
    pub(crate) fn play(&mut self) -> Outcome {
        match self.flavour {
            Flavour::Plain | Flavour::Naive => Ok(()),
            Flavour::Refused => self.refused(),
            Flavour::CloneTwice => self.beside_parent(&["mow", "mow"]),
            Flavour::PidOne => self.beside_parent(&POLICIES),
            Flavour::Audited => self.audited(),
            Flavour::CloneOnOtherNode => {
                self.on_other_nodes = true;
                self.beside_parent(&["mow"])
            }
            Flavour::Tiers => self.tiers(),
            Flavour::Profiling if self.program.has_fresh_clones => self.profiled(),
            Flavour::Profiling => self.clone_of_clone(&["--profile"], &[]),
            Flavour::KillRestoreSamePid => self.kill_restore(&["mow"]),
            Flavour::InParentsPlace => self.kill_restore(&POLICIES[1..]),
            Flavour::InEmptyGhost => self.in_ghosts(&[Place::EmptyGhost]),
            Flavour::InAttachedGhost if self.program.is_tree => self.waits_nowhere(),
            Flavour::InAttachedGhost => self.in_ghosts(&[Place::AttachedGhost]),
            Flavour::PidOneInGhosts => self.in_ghosts(&Place::GHOSTS),
            Flavour::FromGhost => self.again_in_ghosts(),
            Flavour::CloneOfClone => self.clone_of_clone(&[], &[]),
            Flavour::Chain => self.chain(),
            Flavour::Excluded => self.excluded(),
            Flavour::Inherited => self.inherited(),
            Flavour::HandedOver => self.handed_over(),
        }
    }

    /// Removes the image, so that the pool does not fill. A failure of the flavour has priority.
    pub(crate) fn strike(&self, outcome: Outcome) -> Outcome {
        if matches!(self.program.expect, Expect::Refused(_)) {
            return outcome;
        }
        let forgotten = farfork::forget(self.pool, &self.image);
        outcome.and(forgotten)
    }

    fn checkpoint(&self, more: &[&str]) -> Outcome<Output> {
        farfork::run(self.checkpoint_of(self.subject_pid()?, more)?)
    }

    fn checkpoint_of(&self, pid: u32, more: &[&str]) -> Outcome<std::process::Command> {
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
        if !self.flavour.is_pid_one() {
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

    /// A clone, which is given what it needs.
    fn clone(&self, label: &str, more: &[&str]) -> Outcome<Subject> {
        let inherit = self.needed()?;
        let inherit = inherit.iter().flat_map(|what| ["--inherit-fd", what]);
        self.clone_alone(label, &inherit.chain(more.iter().copied()).collect::<Vec<_>>())
    }

    fn clone_alone(&self, label: &str, more: &[&str]) -> Outcome<Subject> {
        let mut command = farfork::restore(self.pool, &self.image, more)?;
        Subject::start(label, &mut command, self.program.timeout)
    }

    /// A clone on this node, or on one of its own where no two may share one.
    fn clone_under(&self, number: usize, more: &[&str]) -> Outcome<Subject> {
        let label = format!("clone {}", number + 1);
        if !self.on_other_nodes {
            return self.clone(&label, more);
        }
        let node = ["--node", testbed::other_node(self.pool, number)?];
        self.clone(&label, &[&node, more].concat())
    }

    /// Clones of a parent's second image. For one of them all of its memory is declared
    /// hot, so that pages become local together; another, under the default policy, is helped. Where a
    /// node has room for one, others start when the first have passed.
    fn tiers(&mut self) -> Outcome {
        self.must_checkpoint(&[])?;
        self.must_checkpoint(&[])?;
        let mut passed = Vec::new();
        let room = if self.on_other_nodes { testbed::OTHER_NODES.len() } else { usize::MAX };
        let tiers = ["moa", "hybrid", HOT, "copy", HELPED];
        for together in tiers.chunks(room.min(tiers.len())) {
            let clone = |(number, tier): (usize, &&str)| self.clone_in_tier(number, tier);
            let mut started =
                together.iter().enumerate().map(clone).collect::<Outcome<Vec<_>>>()?;
            self.must_all_pass(&mut started)?;
            passed.append(&mut started);
        }
        self.parent.must_pass()?;
        self.compare_values(&passed)
    }

    fn clone_in_tier(&self, number: usize, tier: &str) -> Outcome<Subject> {
        let tiering = match tier {
            HOT => {
                known::hot(self.pool, &self.image)?;
                "hybrid"
            }
            HELPED => {
                known::written(self.pool, &self.image, known::ALL)?;
                "mow"
            }
            other => other,
        };
        self.clone_under(number, &["--tiering", tiering])
    }

    fn must_all_pass(&self, clones: &mut [Subject]) -> Outcome {
        let pass = |clone: &mut Subject| clone.must_pass();
        clones.iter_mut().try_for_each(pass).map_err(|trouble| self.with_parent(trouble))
    }

    /// All clones wait before the first goes on; then one after the other, the parent last.
    fn beside_parent(&mut self, policies: &[&str]) -> Outcome {
        self.must_checkpoint(&[])?;
        let clone = |(number, by): (usize, &&str)| self.clone_under(number, &["--tiering", by]);
        let mut started = policies.iter().enumerate().map(clone).collect::<Outcome<Vec<_>>>()?;
        self.must_all_pass(&mut started)?;
        self.parent.must_pass()?;
        self.compare_values(&started)
    }

    /// Clones in ghosts of this node under several policies at the same time, which are gone with them.
    fn in_ghosts(&mut self, places: &[Place]) -> Outcome {
        self.must_checkpoint(&[])?;
        // So that clones are supplied with pages, ahead if they wait or while they run, and touch others.
        known::written(self.pool, &self.image, known::EVERY_OTHER_BLOCK)?;
        let ways: Vec<Way> = self.ways().filter(|way| self.is_tried(*way, places)).collect();
        let ghosts = ways.iter().map(|way| self.ghost(*way)).collect::<Outcome<Vec<_>>>()?;
        let clone = |(way, ghost): (&Way, &Option<String>)| {
            self.clone(&format!("clone {}", way.name()), &way.options(ghost.as_deref()))
        };
        let mut clones = ways.iter().zip(&ghosts).map(clone).collect::<Outcome<Vec<_>>>()?;
        self.must_all_pass(&mut clones)?;
        self.parent.must_pass()?;
        self.compare_values(&clones)?;
        ghosts.iter().flatten().try_for_each(|ghost| farfork::must_be_gone(ghost))
    }

    fn is_tried(&self, way: Way, places: &[Place]) -> bool {
        places.contains(&way.place) && (crate::is_long() || self.program.stands_for(way))
    }

    /// How clones can begin: no several processes wait together.
    fn ways(&self) -> impl Iterator<Item = Way> + use<> {
        let (waits, has_ghosts) = (!self.program.is_tree, !self.program.not_in_ghosts);
        Way::all().filter(move |way| match way.place {
            Place::Scratch => true,
            Place::EmptyGhost => has_ghosts,
            Place::AttachedGhost => has_ghosts && waits,
        })
    }

    /// The ghost that a clone begins in, if it does.
    fn ghost(&self, way: Way) -> Outcome<Option<String>> {
        let Some(mut options) = way.ghost(&self.image) else { return Ok(None) };
        let pool = self.pool.display().to_string();
        match way.place {
            Place::AttachedGhost => options.extend(["--pool", &pool]),
            _ => options.extend(["--user", "test"]),
        }
        farfork::start_ghost(&options).map(Some)
    }

    /// Every generation lives until the last one runs.
    fn chain(&mut self) -> Outcome {
        self.must_checkpoint(&[])?;
        let can_begin: Vec<Way> = self.ways().collect();
        let has_place = |way: &Way| {
            can_begin.contains(way) && !(self.program.own_network && way.place == Place::Scratch)
        };
        let (mut clones, mut ghosts) = (Vec::new(), Vec::new());
        for way in CHAIN.into_iter().filter(has_place) {
            let ghost = self.ghost(way)?;
            let options = way.options(ghost.as_deref());
            let mut clone = self.clone(&format!("clone {}", way.name()), &options)?;
            farfork::must_run(self.checkpoint_of(self.settled(&mut clone)?, &[])?)?;
            clones.push(clone);
            ghosts.extend(ghost);
        }
        clones.reverse();
        self.must_all_pass(&mut clones)?;
        self.parent.must_pass()?;
        self.compare_values(&clones)?;
        ghosts.iter().try_for_each(|ghost| farfork::must_be_gone(ghost))
    }

    /// The pid of a clone that can be checkpointed.
    fn settled(&self, clone: &mut Subject) -> Outcome<u32> {
        clone.await_line("]")?; // the end of restore's JSON
        let reported = clone.after("    \"pid\": ").pop().unwrap_or_default();
        let Ok(pid) = reported.trim_end_matches(',').parse() else {
            return clone.fail("expected restore to print the clone's pid");
        };
        if let Some(word) = self.program.settles.filter(|word| !clone.said(word)) {
            clone.await_line(word)?;
        }
        Ok(pid)
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

    /// Clones in the place of the parent, one after the other.
    fn kill_restore(&mut self, policies: &[&str]) -> Outcome {
        self.must_checkpoint(&["--kill"])?;
        self.must_be_killed()?;
        for tiering in policies {
            let options = ["--pid-mode", "same", "--tiering", tiering];
            self.clone(&format!("clone by {tiering}"), &options)?.must_pass()?;
        }
        Ok(())
    }

    fn must_be_killed(&mut self) -> Outcome {
        let status = self.parent.finish()?;
        if self.parent.said("PASS") || status.code().is_some() {
            return self.parent.fail(&format!("expected to be killed, saw {status}"));
        }
        Ok(())
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
        let pid = self.settled(&mut first)?;
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

    /// A clone's failure is reported with what the parent printed.
    fn with_parent(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Failed(text) => Trouble::Failed(format!("{text}{}", self.parent.transcript())),
            skipped => skipped,
        }
    }
}
