//! Simulated instances of the functions of a trace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_platform::api::StartKind;
use farfork_platform::scheduler::nodes::{BoxFuture, Start, StartTimes};
use farfork_platform::simulated::{Instance, Program, Totals};
use farfork_sys::sync::locked;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::profile::{BASE_US, Behaviour};
use crate::series::Series;

/// What stands before the index of a function in the name of its action.
const PREFIX: &str = "f";

/// The name of the action of a function.
pub fn action_name(function: usize) -> String {
    format!("{PREFIX}{function}")
}

/// The function of an action, or of an image (`OWNER/ACTION:VERSION-…`).
pub fn function_of(name: &str) -> Option<usize> {
    let action = name.rsplit('/').next()?.split(':').next()?;
    action.strip_prefix(PREFIX)?.parse().ok()
}

/// How much longer a timer takes than asked for: timers end at whole milliseconds.
pub fn slack_us(us: u64) -> u64 {
    us.next_multiple_of(1000) - us
}

/// The program of all instances.
#[derive(Debug)]
pub struct Model {
    functions: Vec<Behaviour>,
    /// How long calls have run that have ended and were not asked for.
    runs: Arc<Mutex<BTreeMap<u64, u64>>>,
    /// Until the end of the run.
    meter: Mutex<Option<Meter>>,
}

#[derive(Debug)]
struct Meter {
    begun: Instant,
    series: Series,
}

impl Model {
    /// Instances of these functions.
    pub fn new(functions: Vec<Behaviour>) -> Model {
        Model { functions, runs: Arc::default(), meter: Mutex::default() }
    }

    fn meter(&self) -> MutexGuard<'_, Option<Meter>> {
        // Every step leaves it valid.
        locked(&self.meter)
    }

    /// Begins to record what the nodes hold.
    pub fn begin(&self, begun: Instant) {
        *self.meter() = Some(Meter { begun, series: Series::default() });
    }

    /// Ends that, and returns the record.
    pub fn end(&self) -> Series {
        self.meter().take().map(|meter| meter.series).unwrap_or_default()
    }

    /// How long the call of a request has run, if it was answered; once.
    pub fn run_us(&self, request: usize) -> Option<u64> {
        // Every step leaves it valid.
        locked(&self.runs).remove(&(request as u64))
    }

    /// What the functions take.
    pub fn behaviours(&self) -> &[Behaviour] {
        &self.functions
    }

    /// What a function takes.
    pub fn behaviour(&self, function: usize) -> Option<&Behaviour> {
        self.functions.get(function)
    }

    fn of(&self, name: &str) -> Option<&Behaviour> {
        function_of(name).and_then(|function| self.behaviour(function))
    }

    /// The function that a clone is started of.
    fn cloned(&self, start: &Start) -> Option<&Behaviour> {
        start.image.as_ref().and_then(|image| self.of(image))
    }
}

impl Program for Model {
    fn start(&self, start: &Start, was_attached: bool) -> (Duration, StartTimes) {
        let us = match self.cloned(start) {
            None => BASE_US,
            Some(function) if was_attached => function.ghost_us,
            Some(function) => function.clone_us,
        };
        let whole = Duration::from_micros(us);
        (whole, StartTimes { whole, container: Duration::ZERO, restore: whole })
    }

    fn start_busy(&self, start: &Start, was_attached: bool) -> Duration {
        let (whole, _) = self.start(start, was_attached);
        let us = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX);
        let kind = if was_attached { StartKind::Ghost } else { StartKind::Clone };
        let busy_us = self.cloned(start).map(|function| function.start_busy_us(kind, us));
        Duration::from_micros(busy_us.unwrap_or(0))
    }

    fn checkpoint(&self, image: &str) -> Option<Duration> {
        self.of(image).map(|function| Duration::from_micros(function.checkpoint_us))
    }

    fn answer(
        &self,
        instance: Arc<Instance>,
        path: String,
        body: Value,
    ) -> BoxFuture<(u16, Value)> {
        let (busy_us, us) = match path.as_str() {
            "/init" => {
                let name = body["value"]["name"].as_str().unwrap_or_default();
                instance.load(name);
                let Some(function) = self.of(name) else {
                    return Box::pin(async { (502, json!({"error": "unknown function"})) });
                };
                instance.weigh(function.footprint);
                let us = function.cold_us.saturating_sub(BASE_US);
                (function.load_busy_us(us), us)
            }
            "/run" => {
                let us = body["value"]["us"].as_u64().unwrap_or(0);
                (us, us)
            }
            "/prepare" => (0, 0),
            _ => return Box::pin(async { (404, json!({})) }),
        };
        let request = body["value"]["request"].as_u64().filter(|_| path == "/run");
        let runs = Arc::clone(&self.runs);
        Box::pin(async move {
            let [busy, rest] = [busy_us, us - busy_us].map(Duration::from_micros);
            let begun = Instant::now();
            instance.compute(busy, rest).await;
            if let Some(request) = request {
                let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                // Every step leaves it valid.
                locked(&runs).insert(request, us);
            }
            (200, json!({"ok": true}))
        })
    }

    fn changed(&self, totals: Totals) {
        if let Some(meter) = &mut *self.meter() {
            let at_us = meter.begun.elapsed().as_micros();
            meter.series.add(u64::try_from(at_us).unwrap_or(u64::MAX), totals);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_action_and_by_image() {
        for name in [action_name(12), format!("u7/{}:0.0.1-00ff", action_name(12))] {
            assert_eq!(function_of(&name), Some(12), "{name}");
        }
        assert_eq!(function_of("farfork/python"), None);
    }

    #[test]
    fn timers_end_at_whole_milliseconds() {
        assert_eq!([0, 1, 999, 1000, 1001].map(slack_us), [0, 999, 1, 0, 999]);
    }
}
