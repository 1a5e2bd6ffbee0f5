//! Simulated instances of the functions of a trace.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfork_platform::scheduler::nodes::{BoxFuture, Start, StartTimes};
use farfork_platform::simulated::{Instance, Program, Totals};
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
        Model { functions, meter: Mutex::default() }
    }

    fn meter(&self) -> MutexGuard<'_, Option<Meter>> {
        // Every step leaves it valid.
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to record what the nodes hold.
    pub fn begin(&self, begun: Instant) {
        *self.meter() = Some(Meter { begun, series: Series::default() });
    }

    /// Ends that, and returns the record.
    pub fn end(&self) -> Series {
        self.meter().take().map(|meter| meter.series).unwrap_or_default()
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
}

impl Program for Model {
    fn start(&self, start: &Start, was_attached: bool) -> (Duration, StartTimes) {
        let clone = start.image.as_ref().and_then(|image| self.of(image));
        let us = match clone {
            None => BASE_US,
            Some(function) if was_attached => function.ghost_us,
            Some(function) => function.clone_us,
        };
        let whole = Duration::from_micros(us);
        (whole, StartTimes { whole, container: Duration::ZERO, restore: whole })
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
        let us = match path.as_str() {
            "/init" => {
                let name = body["value"]["name"].as_str().unwrap_or_default();
                instance.load(name);
                let Some(function) = self.of(name) else {
                    return Box::pin(async { (502, json!({"error": "unknown function"})) });
                };
                instance.weigh(function.footprint);
                function.cold_us.saturating_sub(BASE_US)
            }
            "/run" => body["value"]["us"].as_u64().unwrap_or(0),
            "/prepare" => 0,
            _ => return Box::pin(async { (404, json!({})) }),
        };
        Box::pin(async move {
            instance.work(Duration::from_micros(us)).await;
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
