//! The kernel's refusals in words.

use std::io;

/// What the error number `errno` means, without the number.
pub fn words(errno: i32) -> &'static str {
    nix::errno::Errno::from_raw(errno).desc()
}

/// What `error` means: the words of its number, which its own text would show, or that text where
/// it is none of the kernel's.
pub fn of(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |errno| words(errno).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_without_its_number() {
        assert_eq!(words(libc::EPERM), "Operation not permitted");
        assert_eq!(of(&io::Error::from_raw_os_error(libc::EPERM)), "Operation not permitted");
        assert_eq!(of(&io::Error::other("cut off")), "cut off");
    }
}
