//! The first call of a process and the warm one after it, and more of them where they are wanted.

use super::metric;
use crate::error::BenchError;
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::samples::Samples;
use crate::stats::median;
use crate::subject::Subject;
use crate::usage::{self, Usage};

/// Numbers of requests.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Of the first call.
    pub first: u64,
    /// Of the one after it.
    pub second: u64,
    /// So many follow, with the numbers after that.
    pub later: u64,
}

/// What they came to.
pub struct Calls {
    response_us: f64,
    warm_us: f64,
    /// Of those after the second.
    later_us: Vec<f64>,
    faults: u64,
    /// After the first.
    pub used: Usage,
}

impl Calls {
    /// Waits for the answer to the first request, which has been sent on its way to a process asked for
    /// at `started` (see [`now_ns`]), and then makes the second call. `pid_of` tells the process's pid
    /// from the one that it sees itself.
    pub fn make(
        (subject, start): (&Subject, &str),
        connection: &mut Connection,
        numbers: Numbers,
        started: u64,
        pid_of: impl FnOnce(i32) -> Result<i32, BenchError>,
    ) -> Result<Calls, BenchError> {
        let wrong = |error: std::io::Error| subject.wrong(start, &error);
        connection.receive(&*subject.protocol).map_err(wrong)?;
        let response_us = us_since(started);
        let pid = pid_of(subject.check(connection, numbers.first, start)?)?;
        let used = usage::of(pid);
        let mut warm = |number| {
            let started = now_ns();
            connection.send(&*subject.protocol, number, Answerer::Itself).map_err(wrong)?;
            connection.receive(&*subject.protocol).map_err(wrong)?;
            let us = us_since(started);
            subject.check(connection, number, start)?;
            Ok(us)
        };
        let warm_us = warm(numbers.second)?;
        let faults = usage::of(pid).faults;
        let later = numbers.second + 1..numbers.second + 1 + numbers.later;
        let later_us = later.map(warm).collect::<Result<_, BenchError>>()?;
        Ok(Calls { response_us, warm_us, later_us, faults, used })
    }

    /// Leaves out so many page faults that the process had before it was asked for.
    pub fn without_faults(mut self, before: u64) -> Calls {
        self.faults -= before;
        self.used.faults -= before;
        self
    }

    /// Adds what was measured; local memory is what the caller says.
    pub fn record(&self, samples: &mut Samples, case: &str, local_bytes: Option<u64>) {
        samples.add(case, metric::RESPONSE, "us", self.response_us);
        samples.add(case, metric::WARM, "us", self.warm_us);
        samples.add(case, metric::EXCESS, "us", self.response_us - self.warm_us);
        if !self.later_us.is_empty() {
            samples.add(case, metric::LATER, "us", median(&self.later_us));
        }
        if let Some(bytes) = local_bytes {
            samples.add(case, metric::LOCAL, "bytes", bytes as f64);
        }
        samples.add(case, metric::FIRST_FAULTS, "count", self.used.faults as f64);
        samples.add(case, metric::FAULTS, "count", self.faults as f64);
    }

    /// Anonymous memory and page tables after the first call.
    pub fn local_bytes(&self) -> u64 {
        self.used.anonymous + self.used.page_tables
    }
}
