//! Programs that check themselves, and the driver that clones them in every flavour.
//!
//! One feature, one small program (`programs/`); one [`table`] says which program is expected to
//! do what; one [`Flavour`] is one way to treat it between its `READY` and its `PASS`. The
//! contract of the programs stands in `programs/check.h`.
//!
//! Reading order: [`program`], [`table`], [`flavour`], [`way`], `stage`, [`trial`], then [`subject`] and [`testbed`].

pub mod certificates;
pub mod compile;
pub mod driver;
pub mod farfork;
pub mod flavour;
pub mod known;
pub mod nodes;
pub mod patience;
mod places;
pub mod program;
mod stage;
pub mod stalls;
mod start;
pub mod subject;
pub mod table;
pub mod testbed;
pub mod trial;
pub mod way;

pub use flavour::Flavour;
pub use program::Program;

/// What a test ends with when it does not end well.
#[derive(Debug)]
pub enum Trouble {
    /// The test could not be made here, and why.
    Skipped(String),
    /// What was expected, what was seen, and what the processes printed.
    Failed(String),
}

impl Trouble {
    /// A failure while doing `what`.
    pub fn during(what: &str, error: impl std::fmt::Display) -> Self {
        Trouble::Failed(format!("{what}: {error}"))
    }
}

/// The result of every step of a test.
pub type Outcome<T = ()> = Result<T, Trouble>;

/// Whether there is time for all tests, and all that a test can try.
pub fn is_long() -> bool {
    std::env::var_os("FARFORK_TEST_LONG").is_some()
}
