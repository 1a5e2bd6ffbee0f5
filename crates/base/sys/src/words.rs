//! Descriptions of the kernel's errors.

use std::io;

/// What the error number `errno` means, without the number.
pub fn words(errno: i32) -> &'static str {
    nix::errno::Errno::from_raw(errno).desc()
}

/// What `error` means: the description of its number, without the number; its own text if it is not
/// an error of the kernel.
pub fn of(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |errno| words(errno).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_described_without_its_number() {
        assert_eq!(words(libc::EPERM), "Operation not permitted");
        assert_eq!(of(&io::Error::from_raw_os_error(libc::EPERM)), "Operation not permitted");
        assert_eq!(of(&io::Error::other("cut off")), "cut off");
    }
}
