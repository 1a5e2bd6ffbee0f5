//! A run: the platform's scheduler serves a trace under a paused clock.
//!
//! Calls go where the gateway sends them: a slot of the namespace, then the call. Timers of Tokio end at
//! whole milliseconds, so events are on this grid; what a call's own run and start take longer for it is
//! taken off its latency again.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant as WallClock};

use farfork_platform::api::{
    Action, ActionPut, Activation, ActivationId, Arguments, Name, Outcome, Runtimes, StartKind,
};
use farfork_platform::confine::Folders;
use farfork_platform::memory::RequestMemory;
use farfork_platform::runtimes::OtherRuntimes;
use farfork_platform::scheduler::{Advisor, Call, Caller, JournalFile, Platform};
use farfork_platform::simulated::{Durations, SimulatedNodes};
use farfork_platform::store::{Embedded, Store};
use farfork_platform::trace::Trace as Span;
use farfork_sys::sync::locked;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::error::SimError;
use crate::model::{Model, action_name, slack_us};
use crate::profile::{Behaviour, CHECKPOINT_US, Profiles, behaviours};
use crate::series::Series;
use crate::settings::{Scheduling, Settings, fits, processors, supported};
use crate::trace::{Request, Trace};

/// Activations that are kept: nothing reads them.
const KEPT: usize = 4096;
/// The longest time limit of an action: longer runs are aborted, as on the live platform.
pub(crate) const TIMEOUT_MS: u64 = 300_000;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the trace.
    pub request: usize,
    /// When it arrived, in microseconds since the first one.
    pub arrival_us: u64,
    /// From its arrival to its answer.
    pub latency_us: u64,
    /// How long it was to run, with all memory near.
    pub duration_us: u64,
    /// How long it has run in its instance, if it was completed.
    pub run_us: u64,
    /// How it got its instance, if it was completed.
    pub start: Option<StartKind>,
}

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Every request once, in the order of their ends.
    pub records: Vec<Record>,
    /// What the nodes held over time.
    pub series: Series,
    /// When the last request ended, in microseconds since the first arrival.
    pub end_us: u64,
    /// Processors of each node that starts and calls shared; `None` if they shared none.
    pub processors: Option<u32>,
    /// How long the simulation took.
    pub wall: Duration,
}

/// Simulates a trace.
pub fn run(trace: &Trace, profiles: &Profiles, settings: &Settings) -> Result<Ended, SimError> {
    run_journalled(trace, profiles, settings, None)
}

/// Simulates a trace, and writes the decisions to a journal. Their times are milliseconds since the run
/// began.
pub fn run_journalled(
    trace: &Trace,
    profiles: &Profiles,
    settings: &Settings,
    journal: Option<JournalFile>,
) -> Result<Ended, SimError> {
    let begun = WallClock::now();
    supported(settings)?;
    if settings.scheduling != Scheduling::Platform {
        return Err(SimError::Setting {
            name: "the paper's policy with the platform's own code",
            reason: "the platform has a scheduler of its own",
            remedy: "leave out --oracle",
        });
    }
    if settings.policies.share.is_some() {
        return Err(SimError::Setting {
            name: "share",
            reason: "the simulated instances of the platform have no shares of near memory",
            remedy: "leave out --oracle, or the key 'share' of the policies",
        });
    }
    let behaviours = behaviours(&trace.functions, profiles);
    fits(trace, &behaviours, settings)?;
    let Settings { pool_bandwidth, far_bandwidth, far_bytes, .. } = settings;
    if pool_bandwidth.or(*far_bandwidth).or(*far_bytes).is_some() {
        return Err(SimError::Setting {
            name: "limits of bandwidth and far memory with the platform's own code",
            reason: "its simulated instances do not share them",
            remedy: "leave out --oracle, or --pool-bandwidth, --far-bandwidth and --far",
        });
    }
    let settings = Settings { processors: processors(behaviours.iter(), settings), ..*settings };
    let model = Arc::new(Model::new(behaviours));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(SimError::io("start the simulated clock"))?;
    let (records, end_us) = runtime.block_on(simulate(trace, &model, &settings, journal))?;
    // Before the instances end with the runtime, and with it the simulated time.
    let series = model.end();
    drop(runtime);
    Ok(Ended { records, series, end_us, processors: settings.processors, wall: begun.elapsed() })
}

/// The parts of a running simulation.
struct Bench {
    platform: Arc<Platform>,
    store: Arc<dyn Store>,
    actions: Vec<Action>,
    /// Of the platform, as long as it runs.
    _directory: tempfile::TempDir,
}

async fn simulate(
    trace: &Trace,
    model: &Arc<Model>,
    settings: &Settings,
    journal: Option<JournalFile>,
) -> Result<(Vec<Record>, u64), SimError> {
    let bench = bench(trace, model, settings, journal)?;
    let begun = Instant::now();
    model.begin(begun);
    let ends = Arc::new(Ends::default());
    for (index, request) in trace.requests.iter().enumerate() {
        sleep_until(begun + Duration::from_micros(request.arrival_us)).await;
        let duration_us = duration_us(trace, model.behaviours(), request)?;
        let action = &bench.actions[request.function as usize];
        let ticket = Ticket {
            ends: Arc::clone(&ends),
            record: Record {
                request: index,
                arrival_us: request.arrival_us,
                latency_us: 0,
                duration_us,
                run_us: duration_us,
                start: None,
            },
            since: Instant::now(),
            shares_processors: settings.processors.is_some(),
        };
        match bench.platform.admit(&action.namespace) {
            Ok(slot) => {
                let answer = bench.platform.call(call(index, action, duration_us)?, slot);
                let (model, function) = (Arc::clone(model), request.function as usize);
                tokio::spawn(async move {
                    let made = answer.await.ok();
                    let start = made.and_then(|made| completed(&made));
                    ticket.end(start, model.behaviour(function), model.run_us(index));
                });
            }
            // Too many calls of the namespace.
            Err(_) => ticket.end(None, None, None),
        }
        if index % KEPT == KEPT - 1 {
            bench.store.forget(u64::MAX)?;
        }
    }
    let records = ends.all(trace.requests.len()).await;
    let end_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok((records, end_us))
}

fn bench(
    trace: &Trace,
    model: &Arc<Model>,
    settings: &Settings,
    journal: Option<JournalFile>,
) -> Result<Bench, SimError> {
    let directory = tempfile::tempdir().map_err(SimError::io("make a temporary directory"))?;
    let failed = SimError::io("prepare a temporary directory");
    // Functions would have to traverse it.
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).map_err(failed)?;
    let folders = Folders::open(directory.path().join("code")).map_err(|error| {
        SimError::Function { function: "any".to_owned(), reason: error.to_string() }
    })?;
    let store: Arc<dyn Store> = Arc::new(Embedded::in_memory()?);
    let advisor = Advisor::simulated(settings.policies, journal)
        .map_err(SimError::io("write the decision journal"))?;
    let durations = Durations {
        checkpoint: Duration::from_micros(CHECKPOINT_US),
        freeze: Duration::ZERO,
        stop: Duration::ZERO,
    };
    let mut names: Vec<String> = (1..=settings.nodes).map(|node| format!("node{node}")).collect();
    // As the platform has them.
    names.sort_unstable();
    let budgets = names.into_iter().map(|name| (name, settings.node_bytes));
    let program = Arc::clone(model);
    let advisor = Arc::new(advisor);
    let nodes = SimulatedNodes::new(budgets, settings.pool_bytes, durations, program)
        .with_agents(settings.ghosts, Arc::clone(&advisor));
    let nodes = match settings.processors {
        Some(count) => nodes.with_processors(count),
        None => nodes,
    };
    let platform = Platform::begin(
        Arc::clone(&store),
        Arc::new(nodes),
        advisor,
        folders,
        OtherRuntimes::default(),
        RequestMemory::new(settings.policies.requests),
    )?;
    let actions = actions(trace, model, &*store)?;
    Ok(Bench { platform, store, actions, _directory: directory })
}

/// Deploys the functions. Owners become namespaces.
fn actions(trace: &Trace, model: &Model, store: &dyn Store) -> Result<Vec<Action>, SimError> {
    let owners = trace.owners();
    let runtimes = Runtimes { python: "3".to_owned(), nodejs: None, blackbox: false };
    let mut actions = Vec::with_capacity(trace.functions.len());
    for (index, function) in trace.functions.iter().enumerate() {
        let refused =
            |reason: String| SimError::Function { function: function.name.clone(), reason };
        let owner = owners.binary_search(&function.owner.as_str()).unwrap_or(0);
        let name = |text: String| text.parse::<Name>().map_err(|wrong| refused(wrong.to_string()));
        let (namespace, name) = (name(format!("u{owner}"))?, name(action_name(index))?);
        let memory = model.behaviour(index).map_or(0, |one| one.limit_mb);
        let (mean_ms, p99_ms) = model.behaviour(index).map_or((None, None), |one| one.slo_ms);
        let slo = [("slo-mean-ms", mean_ms), ("slo-p99-ms", p99_ms)];
        let slo = slo.into_iter().filter_map(|(key, ms)| Some(json!({"key": key, "value": ms?})));
        let put: ActionPut = serde_json::from_value(json!({
            "exec": {"kind": "python", "code": "simulated"},
            "annotations": slo.collect::<Vec<_>>(),
            "limits": {"memory": memory, "timeout": TIMEOUT_MS},
        }))
        .map_err(|wrong| refused(wrong.to_string()))?;
        let change = put.apply((&namespace, &name), None, &runtimes, 1);
        let change = change.map_err(|wrong| refused(format!("{wrong:?}")))?;
        store.put_action(&change, None)?;
        actions.push(change.action);
    }
    Ok(actions)
}

/// How long a request runs.
pub(crate) fn duration_us(
    trace: &Trace,
    behaviours: &[Behaviour],
    request: &Request,
) -> Result<u64, SimError> {
    let function = request.function as usize;
    let profiled = || behaviours.get(function)?.run_us(request.payload_bytes);
    request.duration_us.or_else(profiled).ok_or_else(|| SimError::Function {
        function: trace.functions[function].name.clone(),
        reason: "the trace does not say how long its calls run, and it has no profile".to_owned(),
    })
}

fn call(index: usize, action: &Action, duration_us: u64) -> Result<Call, SimError> {
    let args =
        Arguments::from_body(json!({"us": duration_us, "request": index}).to_string().into_bytes());
    Ok(Call {
        id: ActivationId(index as u128 + 1),
        action: action.clone(),
        args: args.map_err(|wrong| SimError::Function {
            function: action.name.to_string(),
            reason: wrong.to_string(),
        })?,
        asked_ms: 0,
        trace: Span::default(),
    })
}

/// How a call got its instance, if it succeeded.
fn completed(made: &Activation) -> Option<StartKind> {
    let kind = made.annotations.get("startKind")?;
    let is_well = made.response.status == Outcome::Success;
    StartKind::ALL.into_iter().find(|one| is_well && json!(one) == kind)
}

/// A request that has not ended.
struct Ticket {
    ends: Arc<Ends>,
    record: Record,
    since: Instant,
    /// Whether starts and calls share processors, so that no timer is that of a start or a run alone.
    shares_processors: bool,
}

impl Ticket {
    /// Ends the request, whose call has run for so long.
    fn end(mut self, start: Option<StartKind>, function: Option<&Behaviour>, run_us: Option<u64>) {
        let record = &mut self.record;
        let run_us = run_us.filter(|_| self.shares_processors);
        record.run_us = run_us.unwrap_or(record.duration_us);
        let waited = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let of_start = start.zip(function).map_or(0, |(start, one)| one.slack_us(start, slack_us));
        let slack =
            if self.shares_processors { 0 } else { slack_us(record.duration_us) + of_start };
        // A call may have waited less than a start takes: the start had begun for another one.
        record.latency_us = match start {
            Some(_) => waited.saturating_sub(slack).max(record.run_us),
            None => waited,
        };
        record.start = start;
        self.ends.add(self.record);
    }
}

/// Requests that have ended.
#[derive(Debug, Default)]
struct Ends {
    records: Mutex<Vec<Record>>,
    more: Notify,
}

impl Ends {
    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        // Every step leaves the list valid.
        locked(&self.records)
    }

    fn add(&self, record: Record) {
        self.records().push(record);
        self.more.notify_one();
    }

    /// Waits until so many have ended.
    async fn all(&self, count: usize) -> Vec<Record> {
        while self.records().len() < count {
            self.more.notified().await;
        }
        std::mem::take(&mut *self.records())
    }
}
