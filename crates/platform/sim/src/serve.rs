//! A run of the fast simulator on a trace that is read while it is simulated.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::SimError;
use crate::fast::{self, Call, FINEST_US};
use crate::profile::{Profiles, behaviours};
use crate::run::duration_us;
use crate::settings::{Settings, fits, processors};
use crate::summary::Summary;
use crate::timeline::MOST;
use crate::trace::{Request, Stream};

/// Calls between two reports of progress.
const STEP: u64 = 4096;

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Figures, distributions and a timeline.
    pub summary: Summary,
    /// Processors of each node that calls shared, as set or as the profiles say; `None` if they shared none.
    pub processors: Option<u32>,
    /// How long the simulation took.
    pub wall: Duration,
}

/// Simulates a trace. Decisions are written to the journal, if there is one. `done` counts the calls that have
/// arrived, for who shows progress.
pub fn serve(
    stream: &Stream,
    profiles: &Profiles,
    settings: &Settings,
    journal: Option<&mut dyn Write>,
    done: &AtomicU64,
) -> Result<Outcome, SimError> {
    serve_within(stream, profiles, settings, journal, done, MOST)
}

/// The same with so many intervals of time.
pub fn serve_within(
    stream: &Stream,
    profiles: &Profiles,
    settings: &Settings,
    journal: Option<&mut dyn Write>,
    done: &AtomicU64,
    intervals: usize,
) -> Result<Outcome, SimError> {
    let begun = Instant::now();
    let trace = &stream.trace;
    let behaviours = behaviours(&trace.functions, profiles);
    fits(trace, &behaviours, settings)?;
    let processors = processors(behaviours.iter(), settings);
    let functions = fast::functions(trace, &behaviours);
    let mut failure = None;
    let mut requests = stream.requests().enumerate();
    let calls = std::iter::from_fn(|| {
        let (request, next) = requests.next()?;
        let next = next.map_err(|source| SimError::Spill { source });
        let call = next.and_then(|one| Ok((one, duration_us(trace, &behaviours, &one)?)));
        match call {
            Ok((one, duration_us)) => {
                if request as u64 % STEP == STEP - 1 {
                    done.fetch_add(STEP, Ordering::Relaxed);
                }
                let Request { arrival_us, function, payload_bytes, .. } = one;
                Some(Call { request, arrival_us, function, duration_us, payload_bytes })
            }
            // The calls end here, and what was simulated is not used.
            Err(error) => {
                failure = Some(error);
                None
            }
        }
    });
    let mut summary = Summary::within(intervals);
    let journal = journal.map(|to| to as &mut dyn Write);
    let finish = fast::simulate(functions, calls, settings, FINEST_US, journal, &mut summary)?;
    if let Some(error) = failure {
        return Err(error);
    }
    summary.finish(finish.end_us);
    Ok(Outcome { summary, processors, wall: begun.elapsed() })
}
