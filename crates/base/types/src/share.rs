//! How much of a clone's memory is near.

use core::fmt;
use core::str::FromStr;

/// The share of an image that a clone has in near memory (elastic memory), in thousandths. The rest stays
/// in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "std", serde(try_from = "u16", into = "u16"))]
pub struct LocalShare(u16);

impl LocalShare {
    /// All of it.
    pub const ALL_PERMILLE: u16 = 1000;

    /// The share as thousandths.
    ///
    /// # Errors
    /// More than 1000.
    pub const fn from_permille(permille: u16) -> Result<LocalShare, LocalShareError> {
        if permille <= LocalShare::ALL_PERMILLE {
            Ok(LocalShare(permille))
        } else {
            Err(LocalShareError)
        }
    }

    /// Thousandths.
    pub const fn permille(self) -> u16 {
        self.0
    }

    /// This share of so many pages, rounded to the nearest.
    pub const fn of(self, pages: u64) -> u64 {
        // Pages of an address space are less than 2^52: this does not overflow.
        (pages * self.0 as u64 + 500) / 1000
    }
}

impl fmt::Display for LocalShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The text or number is not a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalShareError;

impl fmt::Display for LocalShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid share: expected thousandths from 0 to 1000")
    }
}

impl core::error::Error for LocalShareError {}

impl FromStr for LocalShare {
    type Err = LocalShareError;

    fn from_str(text: &str) -> Result<LocalShare, LocalShareError> {
        text.parse().map_err(|_| LocalShareError).and_then(LocalShare::from_permille)
    }
}

impl TryFrom<u16> for LocalShare {
    type Error = LocalShareError;

    fn try_from(permille: u16) -> Result<LocalShare, LocalShareError> {
        LocalShare::from_permille(permille)
    }
}

impl From<LocalShare> for u16 {
    fn from(share: LocalShare) -> u16 {
        share.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_thousandths() {
        assert_eq!("300".parse(), LocalShare::from_permille(300));
        assert_eq!(
            "1000".parse::<LocalShare>().map(|share| share.of(u64::MAX >> 12)),
            Ok(u64::MAX >> 12)
        );
        for wrong in ["1001", "-1", "0.3", "", "30%", "99999"] {
            assert_eq!(wrong.parse::<LocalShare>(), Err(LocalShareError), "{wrong}");
        }
        let of = |permille, pages| LocalShare::from_permille(permille).unwrap().of(pages);
        assert_eq!([of(0, 7), of(500, 7), of(300, 10), of(1000, 7)], [0, 4, 3, 7]);
    }
}
