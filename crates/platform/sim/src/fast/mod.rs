//! The fast simulator: events in the order of time, decided by the platform's scheduler.
//!
//! ```text
//!  trace ── calls ──► Machine ── what has happened ──► farfork_scheduler: Function, Ledger, Fleet, …
//!                       ▲ agenda: what ends when  ◄── what is to be done ──┘        │ facts
//!                       └── Watch: records, memory                                policies
//! ```
//! The platform's tasks become entries of one agenda; every decision is made by the crates that the platform
//! asks itself. Calls are taken from their source one by one, and nothing is kept of those that have ended. So
//! memory does not grow with the trace.
//!
//! Invariants:
//! - Every call ends once.
//! - Equal calls, settings and durations give equal runs.

mod advice;
mod agenda;
mod calls;
mod function;
mod links;
mod machine;
pub(crate) mod paper;
mod pauses;
mod task;
mod transfers;
mod world;

use std::io::Write;
use std::time::Instant;

pub use farfork_platform::api::StartKind;
use farfork_platform::simulated::Totals;

use crate::error::SimError;
use crate::profile::{Behaviour, Profiles, behaviours};
use crate::run::{Ended, Record, duration_us};
use crate::series::Series;
use crate::settings::{Scheduling, Settings, fits, processors, supported};
use crate::trace::{Request, Trace};
pub use calls::Call;
use machine::Machine;
use paper::Paper;

/// Resolution of the simulated clock: a microsecond.
pub const FINEST_US: u64 = 1;
/// Resolution of the platform's timers, for comparison with a run of the platform itself.
pub const PLATFORM_US: u64 = 1000;

/// Observes a run.
pub trait Watch {
    /// A call has ended.
    fn ended(&mut self, record: Record);
    /// The nodes hold this from now on.
    fn changed(&mut self, at_us: u64, totals: Totals);
}

/// A function, as it is simulated.
#[derive(Clone, Debug)]
pub struct Function {
    /// Whose it is: an owner's concurrent calls are limited.
    pub owner: u32,
    /// What it takes.
    pub behaviour: Behaviour,
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// When the last call ended, in microseconds since the first arrival.
    pub end_us: u64,
    /// Number of events: arrivals, ends of starts, calls and checkpoints, timers.
    pub events: u64,
}

/// Simulates calls in the order of their arrival, with a clock of this resolution in microseconds. Decisions
/// are written to the journal, if there is one.
pub fn simulate<'a, W: Watch>(
    functions: Vec<Function>,
    calls: impl Iterator<Item = Call>,
    settings: &Settings,
    tick_us: u64,
    journal: Option<&'a mut dyn Write>,
    watch: &'a mut W,
) -> Result<Finish, SimError> {
    supported(settings)?;
    let finish = match settings.scheduling {
        Scheduling::Platform => {
            Machine::new(functions, settings, tick_us, journal, watch).run(calls)
        }
        Scheduling::Paper => Paper::new(functions, settings, journal, watch).run(calls),
    };
    finish.map_err(SimError::io("write the decision journal"))
}

/// Simulates a trace, and keeps every record.
pub fn run(
    trace: &Trace,
    profiles: &Profiles,
    settings: &Settings,
    tick_us: u64,
    journal: Option<&mut dyn Write>,
) -> Result<Ended, SimError> {
    let begun = Instant::now();
    let behaviours = behaviours(&trace.functions, profiles);
    fits(trace, &behaviours, settings)?;
    // Before anything runs, so that a missing duration fails the whole.
    let durations = trace.requests.iter().map(|request| duration_us(trace, &behaviours, request));
    let durations: Vec<u64> = durations.collect::<Result<_, _>>()?;
    let calls = trace.requests.iter().zip(&durations).enumerate().map(|(request, (one, us))| {
        let Request { arrival_us, function, payload_bytes, .. } = *one;
        Call { request, arrival_us, function, duration_us: *us, payload_bytes }
    });
    let processors = processors(behaviours.iter(), settings);
    let mut kept = Kept::default();
    let journal = journal.map(|to| to as &mut dyn Write);
    let functions = functions(trace, &behaviours);
    let finish = simulate(functions, calls, settings, tick_us, journal, &mut kept)?;
    let Kept { records, series } = kept;
    Ok(Ended { records, series, end_us: finish.end_us, processors, wall: begun.elapsed() })
}

/// The functions of a trace. Owners are numbered.
pub(crate) fn functions(trace: &Trace, behaviours: &[Behaviour]) -> Vec<Function> {
    let owners = trace.owners();
    let function = |(one, behaviour): (&crate::trace::Function, &Behaviour)| Function {
        owner: owners.binary_search(&one.owner.as_str()).map_or(0, |owner| owner as u32),
        behaviour: behaviour.clone(),
    };
    trace.functions.iter().zip(behaviours).map(function).collect()
}

/// Keeps everything.
#[derive(Debug, Default)]
struct Kept {
    records: Vec<Record>,
    series: Series,
}

impl Watch for Kept {
    fn ended(&mut self, record: Record) {
        self.records.push(record);
    }

    fn changed(&mut self, at_us: u64, totals: Totals) {
        self.series.add(at_us, totals);
    }
}
