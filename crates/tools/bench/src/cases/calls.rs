//! The first call of a process, the warm call after it, and further warm calls where a benchmark wants
//! them.

use super::metric;
use crate::error::BenchError;
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::samples::Samples;
use crate::stats::median;
use crate::subject::Subject;
use crate::usage::{self, Usage};

/// Numbers of the requests to one process.
#[derive(Clone, Copy, Debug)]
pub struct RequestNumbers {
    /// Number of the first request.
    pub first: u64,
    /// Number of the second request.
    pub second: u64,
    /// How many requests follow. Their numbers follow the second's.
    pub later: u64,
}

/// A process that was requested, with its first call on the way.
#[derive(Clone, Copy)]
pub struct Started<'a> {
    /// Its subject.
    pub subject: &'a Subject,
    /// How it was started, as in reports.
    pub start: &'a str,
    /// Its requests. The first one has been sent.
    pub numbers: RequestNumbers,
    /// When it was requested (see [`now_ns`]).
    pub requested_ns: u64,
}

/// Times and memory of the calls.
pub struct Calls {
    response_us: f64,
    warm_us: f64,
    /// Times of the calls after the second.
    later_us: Vec<f64>,
    faults: u64,
    /// Usage after the first call.
    pub used: Usage,
}

impl Calls {
    /// Waits for the answer to the first request, and makes the other calls. `pid_of` maps the pid
    /// that the process reports, in its own namespace, to the one here.
    pub fn measure(
        started: Started<'_>,
        connection: &mut Connection,
        pid_of: impl FnOnce(i32) -> Result<i32, BenchError>,
    ) -> Result<Calls, BenchError> {
        let Started { subject, start, numbers, requested_ns } = started;
        let wrong = |error: std::io::Error| subject.wrong(start, &error);
        connection.receive(&*subject.protocol).map_err(wrong)?;
        let response_us = us_since(requested_ns);
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

    /// Subtracts the page faults that the process had before it was requested.
    pub fn without_faults(mut self, before: u64) -> Calls {
        self.faults -= before;
        self.used.faults -= before;
        self
    }

    /// Adds the values to the samples. The caller determines local memory.
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
