//! Resource limits of processes.
#![allow(unsafe_code)] // reason: prlimit takes pointers

use std::io;

/// Soft and hard limit of `resource` (an `RLIMIT_*` number) of a process.
pub fn get(pid: i32, resource: u32) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    let result = unsafe { libc::prlimit(pid, resource, std::ptr::null(), &raw mut limit) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Raises the soft limit of open descriptors to the hard one, of a process or, for 0, of this one and of
/// those that it starts from then on: what it is now. The soft one is for programs that call `select`.
pub fn raise_open_files(pid: i32) -> io::Result<u64> {
    let (_, most) = get(pid, libc::RLIMIT_NOFILE)?;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the kernel reads one rlimit.
    let result =
        unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn the_soft_limit_of_open_files_is_raised_as_far_as_it_may() {
        // Says that its limits are so, and ends with its input.
        let low = "ulimit -Sn 100 && ulimit -Hn 200 && echo so && read end";
        let mut command = Command::new("sh");
        command.args(["-c", low]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "so\n");
        let pid = child.id() as i32;
        assert_eq!(get(pid, libc::RLIMIT_NOFILE).unwrap(), (100, 200));
        assert_eq!(raise_open_files(pid).unwrap(), 200);
        assert_eq!(get(pid, libc::RLIMIT_NOFILE).unwrap(), (200, 200));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
