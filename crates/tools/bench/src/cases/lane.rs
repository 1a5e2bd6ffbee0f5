//! One subject under way.

use std::rc::Rc;

use farfork_checkpoint::{CheckpointOptions, Target, checkpoint};

use super::{Numbers, criu};
use crate::error::{BenchError, io};
use crate::machine::available_bytes;
use crate::subject::{Subject, Warm};
use crate::testbed::Testbed;

/// One subject under way.
pub struct Lane {
    /// What it is.
    pub subject: Subject,
    /// Its warm process, and its image.
    pub warm: Warm,
    /// What CRIU restores, or why it does not.
    pub criu: Result<criu::Images, String>,
    /// Calls of each process after its second, of which most benchmarks need none.
    pub later_calls: u64,
    /// Number of the next request, so that no two are equal.
    next: u64,
}

impl Lane {
    /// Starts a subject, warms and checkpoints it, or says why that cannot be: a checkpoint that is
    /// refused spoils nothing else.
    pub fn start(
        subject: Subject,
        testbed: &Testbed,
        criu: &Result<Rc<criu::Program>, String>,
    ) -> Result<Result<Lane, String>, BenchError> {
        let directory = testbed.path(&subject.name);
        std::fs::create_dir(&directory).map_err(io("make", &directory))?;
        let (parent, forker) = subject.warm(&directory)?;
        subject.settle(&parent)?;
        let made = checkpoint(
            testbed.pool(),
            Target::Process(parent.pid()),
            CheckpointOptions::default(),
            &mut |_, _| {},
        );
        let made = match made {
            Ok(made) => made,
            Err(error) => return Ok(Err(format!("{} was not measured: {error}", subject.name))),
        };
        let criu = match criu {
            Ok(program) => criu::Images::make(program, &subject.name, &parent),
            Err(reason) => Err(format!("no CRIU from version 4 on works here: {reason}")),
        };
        let warm = Warm { parent, forker, cid: made.cid };
        Ok(Ok(Lane { subject, warm, criu, later_calls: 0, next: FIRST }))
    }

    /// The next round's requests take the same work, another than the last round's where the subject
    /// knows different inputs.
    pub fn next_round(&mut self) {
        self.next = (self.next + 1).next_multiple_of(self.subject.protocol.same_input());
    }

    /// The number of a request.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Those of a first call and of the ones after it.
    pub fn numbers(&mut self) -> Numbers {
        let numbers =
            Numbers { first: self.number(), second: self.number(), later: self.later_calls };
        self.next += numbers.later;
        numbers
    }
}

/// Later than what it was warmed by.
const FIRST: u64 = 100;

/// Leaves out what the machine has no room for: the process, its image, a cold start and a fork,
/// and images of CRIU.
pub fn fitting(subjects: Vec<Subject>, has_criu: bool, notes: &mut Vec<String>) -> Vec<Subject> {
    let images = u64::from(has_criu);
    let mut room = (available_bytes() >> 20).saturating_sub(1024);
    let mut fits = |subject: &Subject| {
        let needed = subject.megabytes * (4 + images);
        let fits = needed <= room;
        room = room.saturating_sub(subject.megabytes * (2 + images));
        if !fits {
            notes.push(format!(
                "{} was not measured: it needs about {needed} MB of memory that is free.",
                subject.name
            ));
        }
        fits
    };
    subjects.into_iter().filter(|subject| fits(subject)).collect()
}
