//! How much of the memory that functions are given their calls use (figure 2 of "Towards Elastic Memory Allocation of
//! Serverless Functions in Disaggregated Memory Systems").

use serde::Serialize;

use crate::distribution::Distribution;

/// Utilisations are kept as whole numbers.
const UNITS_PER_PERCENT: f64 = 1000.0;

/// What the calls of a trace use, and what their functions are given.
#[derive(Clone, Debug, Default)]
pub struct Provisioned {
    utilisations: Distribution,
    used_bytes: Distribution,
}

/// The figures. Those of traces that do not have both are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Utilisation {
    /// Calls of which both is known.
    pub calls: u64,
    /// Used memory in percent of the given: the mean over calls.
    pub percent_mean: Option<f64>,
    /// The median.
    pub percent_p50: Option<f64>,
    /// 90 of 100 are at most this.
    pub percent_p90: Option<f64>,
    /// Bytes that calls use: the median.
    pub used_bytes_p50: Option<u64>,
    /// 90 of 100 are at most this.
    pub used_bytes_p90: Option<u64>,
}

impl Provisioned {
    /// A call uses so many bytes of those that its function is given.
    pub fn add(&mut self, used_bytes: u64, given_bytes: u64) {
        if given_bytes > 0 {
            let percent = used_bytes as f64 * 100.0 / given_bytes as f64;
            self.utilisations.add((percent * UNITS_PER_PERCENT).round() as u64, 1);
            self.used_bytes.add(used_bytes, 1);
        }
    }

    /// Ends the adding.
    pub fn utilisation(mut self) -> Utilisation {
        let (seen, used) = (&mut self.utilisations, &mut self.used_bytes);
        let calls = u64::try_from(seen.weight()).unwrap_or(u64::MAX);
        if calls == 0 {
            return Utilisation::default();
        }
        seen.seal();
        used.seal();
        let percent = |units: f64| Some(units.round() / UNITS_PER_PERCENT);
        Utilisation {
            calls,
            percent_mean: percent(seen.mean()),
            percent_p50: percent(seen.at(500) as f64),
            percent_p90: percent(seen.at(900) as f64),
            used_bytes_p50: Some(used.at(500)),
            used_bytes_p90: Some(used.at(900)),
        }
    }
}
