//! Synthetic traces from published statistics.
//!
//! ```text
//!  Model ─► functions: rate, durations, memory ─► calls per minute ─► a file of a format
//! ```
//! Names of owners, or of functions without one, begin with `synthetic`, and reports of their runs say so. Memory
//! does not grow with the number of calls.

mod azure;
mod draw;
mod poisson;
mod write;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::SimError;
use crate::trace::Format;

/// Minutes of a day.
pub(crate) const DAY: u64 = 1440;

/// What is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Statistics of Azure Functions in 2019 (Shahrad et al., Serverless in the Wild, ATC '20).
    Azure2019,
    /// Poisson arrivals; popularity by Zipf's law, durations log-normal.
    Poisson,
}

impl Model {
    /// All models.
    pub const ALL: [Model; 2] = [Model::Azure2019, Model::Poisson];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Model::Azure2019 => "azure2019",
            Model::Poisson => "poisson",
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Model, String> {
        let known = Model::ALL.map(Model::name).join(", ");
        let found = Model::ALL.into_iter().find(|model| model.name() == text);
        found.ok_or_else(|| format!("unknown model '{text}' (supported: {known})"))
    }
}

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The statistics.
    pub model: Model,
    /// Number of functions.
    pub functions: u64,
    /// Length in minutes.
    pub minutes: u64,
    /// Expected number of calls.
    pub calls: u64,
    /// Seed of everything random.
    pub seed: u64,
}

/// A function of a synthetic trace.
#[derive(Clone, Debug, PartialEq)]
struct Function {
    owner: String,
    app: String,
    name: String,
    trigger: &'static str,
    /// Calls per minute, on average.
    rate: f64,
    /// Whether its calls come at equal distances.
    is_timer: bool,
    /// Logarithm of the median duration in seconds, and the deviation of logarithms.
    duration: (f64, f64),
    memory_mb: f64,
}

/// What was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Number of calls.
    pub calls: u64,
    /// The files.
    pub files: Vec<PathBuf>,
}

/// Writes a trace: one file for formats of single calls, and a directory with tables for `azure2019` and `invitro`.
pub fn generate(
    wanted: &Wanted,
    format: Format,
    out: &std::path::Path,
) -> Result<Generated, SimError> {
    let functions = match wanted.model {
        Model::Azure2019 => azure::functions(wanted),
        Model::Poisson => poisson::functions(wanted),
    };
    write::write(wanted, &functions, format, out)
}
