//! Calls of which 95 % are warm.

use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::KeepAlive;
use farfork_sim::fast::{Call, Function, StartKind, Watch};
use farfork_sim::profile::Behaviour;
use farfork_sim::series::Totals;
use farfork_sim::{Record, Settings};

/// Calls of one session: the first one finds no instance.
const CALLS: u64 = 20;
/// Between calls of a session.
const SPACING_US: u64 = 150_000;
/// Between the first calls of sessions of one function.
const PERIOD_US: u64 = 21_000_000;
const RUN_US: u64 = 10_000;
/// How long an instance is idle before it ends.
const WINDOW_MS: u64 = 10_000;

/// Nodes, functions and calls.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub nodes: u32,
    pub functions: u64,
    pub node_bytes: u64,
    pub requests: u64,
    pub ghosts: bool,
}

impl Workload {
    pub fn settings(&self) -> Settings {
        let window =
            ByPressure { long_ms: WINDOW_MS, short_ms: WINDOW_MS, ..ByPressure::default() };
        let policies = farfork_policy::Settings {
            keep_alive: KeepAlive::ByPressure(window),
            ..farfork_policy::Settings::default()
        };
        let Workload { nodes, node_bytes, ghosts, .. } = *self;
        let pool_bytes = 1 << 44;
        Settings { nodes, node_bytes, pool_bytes, policies, ghosts, ..Settings::default() }
    }

    /// The functions, ten of each owner.
    pub fn functions(&self) -> Vec<Function> {
        let function = |index: u64| Function {
            owner: (index / 10) as u32,
            behaviour: Behaviour::typical(None),
        };
        (0..self.functions).map(function).collect()
    }

    /// The calls in the order of their arrival. One period is kept, and repeated.
    pub fn calls(&self) -> impl Iterator<Item = Call> + use<> {
        let functions = self.functions;
        let arrival = move |function: u64, call: u64| {
            let phase_us = u128::from(PERIOD_US) * u128::from(function) / u128::from(functions);
            let at_us = phase_us as u64 + call * SPACING_US;
            // What begins late in a period ends in the next one.
            (at_us % PERIOD_US, function as u32)
        };
        let all = (0..functions)
            .flat_map(move |function| (0..CALLS).map(move |call| arrival(function, call)));
        let mut period: Vec<(u64, u32)> = all.collect();
        period.sort_unstable();
        let count = period.len() as u64;
        (0..self.requests).map(move |request| {
            let (at_us, function) = period[(request % count) as usize];
            Call {
                request: request as usize,
                arrival_us: request / count * PERIOD_US + at_us,
                function,
                duration_us: RUN_US,
                payload_bytes: 0,
            }
        })
    }

    /// Arguments of the SimPy model, for so many requests.
    pub fn for_simpy(&self, requests: u64) -> Vec<String> {
        let s = |us: u64| us as f64 / 1e6;
        let figures = [
            requests as f64,
            self.functions as f64,
            f64::from(self.nodes),
            CALLS as f64,
            s(SPACING_US),
            s(PERIOD_US),
            s(RUN_US),
            WINDOW_MS as f64 / 1000.0,
        ];
        figures.iter().map(f64::to_string).collect()
    }
}

/// Counts, and keeps nothing else.
#[derive(Debug, Default)]
pub struct Counted {
    ended: u64,
    warm: u64,
    latency_us: u64,
}

impl Watch for Counted {
    fn ended(&mut self, record: Record) {
        self.ended += 1;
        self.warm += u64::from(record.start == Some(StartKind::Warm));
        self.latency_us += record.latency_us;
    }

    fn changed(&mut self, _: u64, _: Totals) {}
}

impl Counted {
    /// Whether every call has ended, and 95 % were warm.
    pub fn check(&self, workload: &Workload) -> Result<(), String> {
        let Counted { ended, warm, latency_us } = *self;
        if ended != workload.requests {
            return Err(format!("{ended} of {} calls have ended", workload.requests));
        }
        let share = warm as f64 / ended as f64;
        if !(0.94..=0.955).contains(&share) {
            return Err(format!("a share of {share} of the calls is warm"));
        }
        if latency_us < ended * RUN_US {
            return Err("calls were faster than they run".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_sim::fast::{self, FINEST_US};

    #[test]
    fn nineteen_of_twenty_calls_are_warm() {
        for ghosts in [false, true] {
            let (nodes, functions, node_bytes, requests) = (2, 50, 8 << 30, 3000);
            let workload = Workload { nodes, functions, node_bytes, requests, ghosts };
            let calls: Vec<Call> = workload.calls().collect();
            assert!(calls.is_sorted_by_key(|call| call.arrival_us) && calls.len() == 3000);
            let mut counted = Counted::default();
            let (functions, settings) = (workload.functions(), workload.settings());
            fast::simulate(functions, calls.into_iter(), &settings, FINEST_US, None, &mut counted)
                .unwrap();
            counted.check(&workload).unwrap();
            counted.warm -= 100;
            assert!(counted.check(&workload).is_err());
        }
    }
}
