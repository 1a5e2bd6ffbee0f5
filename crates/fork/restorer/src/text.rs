//! Short texts for the kernel, and numbers in its answers, without a library to write and read them.

/// A text of less than `BYTES` bytes, followed by a NUL. Bytes that do not fit are left out: the code
/// that makes a text chooses `BYTES` large enough.
pub struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    length: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    /// The text `start`.
    pub fn new(start: &[u8]) -> Text<BYTES> {
        Text { bytes: [0; BYTES], length: 0 }.then(start)
    }

    /// The same with `more` appended.
    pub fn then(mut self, more: &[u8]) -> Text<BYTES> {
        for byte in more.iter().take(BYTES - 1 - self.length) {
            self.bytes[self.length] = *byte;
            self.length += 1;
        }
        self
    }

    /// The same with a decimal number appended.
    pub fn number(self, value: i64) -> Text<BYTES> {
        let mut digits = [0u8; 20];
        let (mut rest, mut first) = (value.unsigned_abs(), digits.len());
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                let sign: &[u8] = if value < 0 { b"-" } else { b"" };
                return self.then(sign).then(&digits[first..]);
            }
        }
    }

    /// The text without its NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

/// A number of lower-case hexadecimal digits.
pub fn hexadecimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(digit))
    })
}
