//! Programs that need something of their caller, or their parent's place, and those that nothing waits
//! with.

use super::Stage;
use crate::program::Expect;
use crate::start::start;
use crate::way::{POLICIES, Place, Way};
use crate::{Outcome, Trouble, farfork, testbed};

impl Stage<'_> {
    /// The `--inherit-fd` of a descriptor that each clone needs, another for each.
    pub(super) fn needed(&self) -> Outcome<Option<String>> {
        let (Expect::NeedsInherit(fd, path) | Expect::NeedsInheritBeside(fd, path)) =
            self.program.expect
        else {
            return Ok(None);
        };
        let number = self.given.replace(self.given.get() + 1);
        let name = format!("{path}-{}-{number}", self.flavour.name());
        let place = testbed::work_dir("inherited")?.join(name);
        Ok(Some(format!("{fd}=listen:{}", place.display())))
    }

    /// A clone that is given nothing is refused with this word.
    fn must_refuse(&self, label: &str, options: &[&str], word: &str) -> Outcome {
        let mut clone = self.clone_alone(label, options)?;
        clone.send_byte(); // one that starts all the same is not waited for
        let status = clone.finish()?;
        if status.code() == Some(1) && clone.transcript().contains(word) {
            return Ok(());
        }
        clone.fail(&format!("{options:?}: expected exit status 1 and '{word}', saw {status}"))
    }

    /// A clone passes, and its ghost is gone with it.
    fn must_pass_in(&self, (way, ghost): &(Way, Option<String>), is_given: bool) -> Outcome {
        let (label, options) = (format!("clone {}", way.name()), way.options(ghost.as_deref()));
        match is_given {
            true => self.clone(&label, &options)?.must_pass()?,
            false => self.clone_alone(&label, &options)?.must_pass()?,
        }
        ghost.as_deref().map_or(Ok(()), farfork::must_be_gone)
    }

    /// Each way, and its ghost.
    fn places(&self) -> Outcome<Vec<(Way, Option<String>)>> {
        self.ways().map(|way| Ok((way, self.ghost(way)?))).collect()
    }

    /// What fails in a ghost ends it. Another may have waited while the parent lived.
    pub(super) fn excluded(&mut self) -> Outcome {
        let Expect::Excludes(word) = self.program.expect else { return Ok(()) };
        self.must_checkpoint(&[])?;
        for (way, ghost) in self.places()? {
            self.must_refuse("clone beside the parent", &way.options(ghost.as_deref()), word)?;
            ghost.as_deref().map_or(Ok(()), farfork::must_be_gone)?;
        }
        let places = self.places()?;
        self.parent.must_pass()?;
        places.iter().try_for_each(|place| self.must_pass_in(place, false))
    }

    /// What every clone lacks is refused before a ghost is asked, which waits on; that a path is its
    /// parent's is found out in the ghost, which ends.
    pub(super) fn inherited(&mut self) -> Outcome {
        let (fd, only_beside) = match self.program.expect {
            Expect::NeedsInherit(fd, _) => (fd, false),
            Expect::NeedsInheritBeside(fd, _) => (fd, true),
            _ => return Ok(()),
        };
        self.must_checkpoint(&[])?;
        for place in self.places()? {
            let options = place.0.options(place.1.as_deref());
            self.must_refuse("clone without the fd", &options, &format!("fd {fd}"))?;
            if !only_beside {
                self.must_pass_in(&place, true)?;
                continue;
            }
            place.1.as_deref().map_or(Ok(()), farfork::must_be_gone)?;
            self.must_pass_in(&(place.0, self.ghost(place.0)?), true)?;
        }
        self.parent.must_pass()?;
        if !only_beside {
            return Ok(());
        }
        // What a dead parent has left there is no obstacle.
        self.places()?.iter().try_for_each(|place| self.must_pass_in(place, false))
    }

    /// Connections have one clone, so that each policy gets a parent of its own.
    pub(super) fn handed_over(&mut self) -> Outcome {
        for (number, tiering) in POLICIES.into_iter().enumerate() {
            if number > 0 {
                self.parent = start(self.flavour, self.program)?;
            }
            self.must_checkpoint(&["--kill", "--tcp-established"])?;
            self.must_be_killed()?;
            self.must_be_in_place(tiering)?;
            let options = ["--pid-mode", "same", "--tiering", tiering];
            self.clone(&format!("clone by {tiering}"), &options)?.must_pass()?;
        }
        Ok(())
    }

    /// No clone starts anywhere but in the parent's place, which no ghost is: one that was asked for it
    /// waits on.
    fn must_be_in_place(&self, tiering: &'static str) -> Outcome {
        let word = "--pid-mode same";
        for place in [Place::Scratch, Place::EmptyGhost] {
            let way = Way { tiering, place };
            let ghost = self.ghost(way)?;
            self.must_refuse("clone elsewhere", &way.options(ghost.as_deref()), word)?;
            let Some(ghost) = ghost else { continue };
            let mut stop = farfork::command(&["ghost", "stop"])?;
            stop.arg(&ghost);
            farfork::must_run(stop)?;
            farfork::must_be_gone(&ghost)?;
        }
        let word = if self.program.is_tree { SEVERAL } else { word };
        self.must_not_wait(tiering, word)
    }

    /// Of several processes each would have to wait.
    pub(super) fn waits_nowhere(&mut self) -> Outcome {
        self.must_checkpoint(&[])?;
        for tiering in POLICIES {
            self.must_not_wait(tiering, SEVERAL)?;
        }
        self.parent.must_pass()
    }

    /// No ghost waits with the image, for the reason that has this word in it.
    fn must_not_wait(&self, tiering: &'static str, word: &str) -> Outcome {
        let way = Way { tiering, place: Place::AttachedGhost };
        let options = way.ghost(&self.image).unwrap_or_default();
        let mut command = farfork::command(&["ghost", "start", "--pool"])?;
        command.arg(self.pool).args(options);
        let output = farfork::run(command)?;
        let text = farfork::text(&output);
        if output.status.code() == Some(1) && text.contains(word) {
            return Ok(());
        }
        let what = format!("a ghost with it by {tiering}");
        Err(Trouble::Failed(format!("{what}: expected exit status 1 and '{word}', saw {text}")))
    }
}

/// Why trees are refused.
const SEVERAL: &str = "several processes";
