//! Versions of actions.

use std::fmt;
use std::str::FromStr;

use super::text::as_text;

/// `MAJOR.MINOR.PATCH`; an update raises the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

/// The text is not a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid version: use three numbers with dots between them, as in 0.0.1")]
pub struct VersionError;

impl Version {
    /// The version of a new action.
    pub const FIRST: Version = Version { major: 0, minor: 0, patch: 1 };

    /// The version after an update.
    #[must_use]
    pub fn next(self) -> Version {
        Version { patch: self.patch.saturating_add(1), ..self }
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Version, VersionError> {
        let numbers: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
        match numbers.as_deref() {
            Ok([major, minor, patch]) => {
                Ok(Version { major: *major, minor: *minor, patch: *patch })
            }
            _ => Err(VersionError),
        }
    }
}

as_text!(Version);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_written() {
        assert_eq!(Version::FIRST.to_string(), "0.0.1");
        assert_eq!(Version::FIRST.next().to_string(), "0.0.2");
        assert_eq!("1.2.30".parse::<Version>().unwrap().to_string(), "1.2.30");
        assert!("0.0.9".parse::<Version>().unwrap() < "0.0.10".parse().unwrap());
        for bad in ["", "1", "1.2", "1.2.3.4", "a.b.c", "1.-2.3"] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
    }
}
