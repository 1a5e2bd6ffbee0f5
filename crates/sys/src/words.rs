//! The kernel's refusals in words.

/// What the error number `errno` means, without the number.
pub fn words(errno: i32) -> &'static str {
    nix::errno::Errno::from_raw(errno).desc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_without_its_number() {
        assert_eq!(words(libc::EPERM), "Operation not permitted");
    }
}
