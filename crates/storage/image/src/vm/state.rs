//! The state file of a monitor. It is kept byte for byte; what of it can be recognised at no cost is.
//!
//! Firecracker's begins with a magic number and a version, and ends in a CRC-64 of all before. How these two
//! are encoded has changed (bincode, then bitcode), but both put the number near the start as eight bytes and
//! the version after it as text.

use std::path::Path;

use crc::{CRC_64_REDIS, Crc};
use serde::Serialize;

use super::error::VmError;

const X86_64: u64 = 0x0710_1984_8664_0000;
const AARCH64: u64 = 0x0710_1984_aaaa_0000;
/// The number lies at the start, or after a byte that says how numbers are packed.
const MAGIC_OFFSETS: [usize; 2] = [0, 1];
/// Between number and text lies the text's length, in one byte or eight.
const LENGTH_BYTES: [usize; 2] = [1, 8];
const MAX_VERSION_BYTES: usize = 32;

/// Adding its own CRC-64 to a file makes the CRC-64 of the whole zero.
const CHECKSUM: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);

/// Which monitor wrote a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "monitor")]
pub enum Monitor {
    /// Firecracker: the state has its magic number, and its checksum matches.
    Firecracker {
        /// Version of the state's format, such as `11.0.0`.
        version: Option<String>,
    },
    /// Another, or a Firecracker whose state looks different: whether it is whole is not known.
    Unknown,
}

impl Monitor {
    /// Recognises a state.
    pub fn of(state: &[u8]) -> Monitor {
        match found(state) {
            Some((X86_64, at)) if is_whole(state) => {
                Monitor::Firecracker { version: version(&state[at..]) }
            }
            _ => Monitor::Unknown,
        }
    }

    /// Recognises the state in the file at `path`.
    ///
    /// # Errors
    /// [`VmError::OtherArchitecture`]; [`VmError::DamagedState`] if it is Firecracker's, and not whole.
    pub(super) fn demand(state: &[u8], path: &Path) -> Result<Monitor, VmError> {
        let path = || path.to_owned();
        match found(state) {
            Some((AARCH64, _)) => {
                Err(VmError::OtherArchitecture { path: path(), architecture: "aarch64" })
            }
            Some(_) if !is_whole(state) => Err(VmError::DamagedState { path: path() }),
            _ => Ok(Monitor::of(state)),
        }
    }
}

fn is_whole(state: &[u8]) -> bool {
    CHECKSUM.checksum(state) == 0
}

/// The magic number, and where what follows it begins.
fn found(state: &[u8]) -> Option<(u64, usize)> {
    MAGIC_OFFSETS.into_iter().find_map(|at| {
        let magic = u64::from_le_bytes(state.get(at..at + 8)?.try_into().ok()?);
        [X86_64, AARCH64].contains(&magic).then_some((magic, at + 8))
    })
}

fn version(rest: &[u8]) -> Option<String> {
    LENGTH_BYTES.into_iter().find_map(|skipped| {
        let text = rest.get(skipped..)?;
        let text = &text[..text.len().min(MAX_VERSION_BYTES)];
        let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
        let text = &text[..text.iter().position(|byte| !is_part(byte)).unwrap_or(text.len())];
        let text = std::str::from_utf8(text).ok()?;
        let numbers = text.split('.').filter(|number| !number.is_empty()).count();
        (numbers == 3).then(|| text.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state as Firecracker would begin and end it.
    fn state(before: &[u8], magic: u64, length: &[u8], version: &str) -> Vec<u8> {
        let mut bytes = before.to_vec();
        bytes.extend(magic.to_le_bytes());
        bytes.extend(length);
        bytes.extend(version.as_bytes());
        bytes.extend([6, 5, 0, 0x22]);
        let sum = CHECKSUM.checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    #[test]
    fn both_encodings_are_recognised() {
        let firecracker =
            |version: &str| Monitor::Firecracker { version: Some(version.to_owned()) };
        let bitcode = state(&[0], X86_64, &[6], "11.0.0");
        assert_eq!(Monitor::of(&bitcode), firecracker("11.0.0"));
        let bincode = state(&[], X86_64, &5u64.to_le_bytes(), "1.2.3");
        assert_eq!(Monitor::of(&bincode), firecracker("1.2.3"));
        assert_eq!(Monitor::of(b"{\"cpus\":1}"), Monitor::Unknown);
        assert_eq!(Monitor::of(&[]), Monitor::Unknown);
    }

    #[test]
    fn a_state_of_firecracker_that_is_not_whole_is_refused() {
        let path = Path::new("/s");
        let whole = state(&[0], X86_64, &[6], "11.0.0");
        for length in 9..whole.len() {
            let refused = Monitor::demand(&whole[..length], path).unwrap_err().to_string();
            assert!(refused.contains("truncated or damaged"), "{refused}");
        }
        for at in 9..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x40;
            assert!(matches!(Monitor::demand(&changed, path), Err(VmError::DamagedState { .. })));
        }
        assert!(Monitor::demand(&whole, path).is_ok());
        let other = state(&[0], AARCH64, &[6], "11.0.0");
        assert!(Monitor::demand(&other, path).unwrap_err().to_string().contains("aarch64"));
    }
}
