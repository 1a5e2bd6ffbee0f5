//! The checkpoint id.

use core::fmt;
use core::str::FromStr;

/// Names one image for ever: 128 random bits, printed as 32 hexadecimal digits. The nil value
/// never names an image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C)]
pub struct Cid([u8; 16]);

/// The text is not a checkpoint id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseCidError;

impl Cid {
    /// The value that names no image.
    pub const NIL: Cid = Cid([0; 16]);

    /// Makes an id of 16 bytes that the caller has drawn at random.
    pub const fn from_bytes(bytes: [u8; 16]) -> Cid {
        Cid(bytes)
    }

    /// The id as it stands in shared memory.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for Cid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Cid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cid({self})")
    }
}

impl fmt::Display for ParseCidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid checkpoint id: expected 32 hexadecimal digits")
    }
}

impl core::error::Error for ParseCidError {}

impl FromStr for Cid {
    type Err = ParseCidError;

    fn from_str(text: &str) -> Result<Cid, ParseCidError> {
        let digits = text.as_bytes();
        if digits.len() != 32 {
            return Err(ParseCidError);
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Cid(bytes))
    }
}

fn nibble(digit: u8) -> Result<u8, ParseCidError> {
    char::from(digit).to_digit(16).map(|value| value as u8).ok_or(ParseCidError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_agree_both_ways() {
        let cid = Cid::from_bytes([
            0x00, 0x01, 0x7f, 0x80, 0xff, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xa0,
        ]);
        let text = format!("{cid}");
        assert_eq!(text, "00017f80ff05060708090a0b0c0d0ea0");
        assert_eq!(text.parse(), Ok(cid));
    }

    #[test]
    fn other_text_is_not_an_id() {
        for text in
            ["", "00", "0001f7f80ff05060708090a0b0c0d0ea0", "zz017f80ff05060708090a0b0c0d0ea0"]
        {
            assert_eq!(text.parse::<Cid>(), Err(ParseCidError), "{text}");
        }
    }
}
