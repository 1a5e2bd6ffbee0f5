//! How pages of an image become a clone's own.

use core::fmt;
use core::str::FromStr;

/// A tiering policy (CXLfork §4.3): which pages of an image become local memory of a clone, and
/// when. Written pages are local in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "std", serde(rename_all = "kebab-case"))]
pub enum Tiering {
    /// Migrate on write: what is only read stays in the pool.
    #[default]
    Mow,
    /// Migrate on access: every page that is touched becomes local.
    Moa,
    /// Pages that clones were seen to access, or that are declared hot, become local when they are
    /// touched; the others stay in the pool.
    Hybrid,
    /// Every page becomes local before the clone runs: what restoring from a file does. Nothing of
    /// the pool is needed after that.
    Copy,
}

impl Tiering {
    /// All of them.
    pub const ALL: [Tiering; 4] = [Tiering::Mow, Tiering::Moa, Tiering::Hybrid, Tiering::Copy];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Tiering::Mow => "mow",
            Tiering::Moa => "moa",
            Tiering::Hybrid => "hybrid",
            Tiering::Copy => "copy",
        }
    }
}

impl fmt::Display for Tiering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text does not name a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseTieringError;

impl fmt::Display for ParseTieringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid tiering policy: expected mow, moa, hybrid or copy")
    }
}

impl core::error::Error for ParseTieringError {}

impl FromStr for Tiering {
    type Err = ParseTieringError;

    fn from_str(text: &str) -> Result<Tiering, ParseTieringError> {
        Tiering::ALL.into_iter().find(|known| known.name() == text).ok_or(ParseTieringError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for tiering in Tiering::ALL {
            assert_eq!(tiering.to_string().parse(), Ok(tiering));
        }
        assert_eq!("MOW".parse::<Tiering>(), Err(ParseTieringError));
    }
}
