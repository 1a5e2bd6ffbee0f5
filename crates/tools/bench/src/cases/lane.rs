//! A subject that is being measured.

use std::rc::Rc;

use farfork_checkpoint::{CheckpointOptions, Target, checkpoint};

use super::RequestNumbers;
use crate::criu;
use crate::error::{BenchError, io};
use crate::machine::available_bytes;
use crate::subject::{Subject, Warm};
use crate::testbed::Testbed;

/// A subject that is being measured: its warm process, its images, and its requests.
pub struct Lane {
    /// The subject.
    pub subject: Subject,
    /// Its warm process, and its image.
    pub warm: Warm,
    /// Its CRIU images, or the reason why there are none.
    pub criu: Result<criu::Images, String>,
    /// Calls of each process after its second. Most benchmarks need none.
    pub later_calls: u64,
    /// Number of the last request. Each request has another number.
    next: u64,
}

impl Lane {
    /// Starts, warms and checkpoints a subject. The inner error is the reason of a refused checkpoint:
    /// the other subjects are measured without it.
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
            None,
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
            Err(reason) => Err(format!("CRIU 4 or later does not work here: {reason}")),
        };
        let warm = Warm { parent, forker, cid: made.cid };
        Ok(Ok(Lane { subject, warm, criu, later_calls: 0, next: FIRST }))
    }

    /// Begins a round. All its requests have the same input, and another than the last round's if the
    /// subject has different inputs.
    pub fn next_round(&mut self) {
        self.next = (self.next + 1).next_multiple_of(self.subject.protocol.same_input());
    }

    /// The number of the next request.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The numbers of the requests to one process.
    pub fn numbers(&mut self) -> RequestNumbers {
        let (first, second) = (self.number(), self.number());
        let numbers = RequestNumbers { first, second, later: self.later_calls };
        self.next += numbers.later;
        numbers
    }
}

/// Greater than the numbers of the calls that warm a subject.
const FIRST: u64 = 100;

/// Leaves out subjects that the memory is too small for: the process, its image, a cold start, a fork,
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
                "{} was not measured: it needs about {needed} MB of free memory.",
                subject.name
            ));
        }
        fits
    };
    subjects.into_iter().filter(|subject| fits(subject)).collect()
}
