//! The state file: the size of the memory, and of which parts it consists.
//!
//! ```text
//!  0   magic "minivmm1"      8      16  parts       8
//!  8   bytes of the memory   8      24  CRC-32C     4
//! ```

use crate::error::VmmError;

const MAGIC: &[u8; 8] = b"minivmm1";

/// What is not in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) memory_bytes: u64,
    /// Mappings that the memory is divided into.
    pub(crate) parts: u64,
}

impl State {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.memory_bytes.to_le_bytes());
        bytes.extend(self.parts.to_le_bytes());
        let sum = crc32c::crc32c(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<State, VmmError> {
        let (text, sum) = bytes.split_at_checked(24).ok_or(VmmError::State)?;
        if &text[..8] != MAGIC || sum != crc32c::crc32c(text).to_le_bytes() {
            return Err(VmmError::State);
        }
        let word = |at: usize| {
            text[at..at + 8].try_into().map(u64::from_le_bytes).map_err(|_| VmmError::State)
        };
        Ok(State { memory_bytes: word(8)?, parts: word(16)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_damaged_is_refused() {
        let state = State { memory_bytes: 64 << 20, parts: 2 };
        let bytes = state.encode();
        assert_eq!(State::parse(&bytes).unwrap(), state);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(State::parse(&changed).is_err() && State::parse(&bytes[..at]).is_err());
        }
    }
}
