//! Files of `/proc`. Names of programs, threads and files stand in them, which are bytes: of
//! another encoding than UTF-8, or cut off in the middle of a letter.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;

/// The text of a file; what is not UTF-8 in it is shown by the replacement character.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(match String::from_utf8_lossy(&bytes) {
        Cow::Borrowed(_) => String::from_utf8(bytes).unwrap_or_default(),
        Cow::Owned(text) => text,
    })
}

/// Bytes of this machine's memory that can be had without swapping, as the kernel estimates it.
pub fn available_bytes() -> Option<u64> {
    let text = text("/proc/meminfo").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// The processes that are there now.
pub fn processes() -> impl Iterator<Item = i32> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The state of a process as a letter of proc(5); nothing if the process does not exist.
pub fn state(pid: i32) -> Option<char> {
    let stat = text(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Identifies a process beyond its pid, which is reused: its start time, and the id of the
/// machine's boot.
pub fn identity(pid: i32) -> io::Result<String> {
    let boot = text("/proc/sys/kernel/random/boot_id")?;
    let started = started(pid).ok_or(io::ErrorKind::NotFound)?;
    Ok(format!("{} {started}", boot.trim()))
}

/// When a process was started, in clock ticks since the machine was; nothing if it has ended.
pub fn started(pid: i32) -> Option<u64> {
    let stat = text(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    // Fields 3 and 22 of proc(5).
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    if ["Z", "X"].contains(&state) { None } else { fields.nth(22 - 4)?.parse().ok() }
}

/// Children of all threads of a process, also those that have ended and were not waited for.
pub fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| text(task.path().join("children")).ok());
    let numbers = |text: String| {
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()
    };
    texts.flat_map(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_memory_is_available() {
        let bytes = available_bytes().unwrap();
        assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
    }

    #[test]
    fn text_of_another_encoding_is_read_all_the_same() {
        let file = std::env::temp_dir().join(format!("farfork-proc-{}", std::process::id()));
        fs::write(&file, b"Name:\tr\xe9serveur\nState:\tS\n").unwrap();
        assert_eq!(text(&file).unwrap(), "Name:\tr\u{fffd}serveur\nState:\tS\n");
        fs::write(&file, "Name:\tcafé\n").unwrap();
        assert_eq!(text(&file).unwrap(), "Name:\tcafé\n");
        fs::remove_file(&file).unwrap();
        assert!(text(&file).is_err());
    }

    #[test]
    fn a_child_is_seen_until_it_is_waited_for() {
        let own = std::process::id() as i32;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(children(own).contains(&pid) && processes().any(|other| other == pid));
        assert!(['S', 'R', 'D'].contains(&state(pid).unwrap()));
        assert_eq!(identity(pid).unwrap(), identity(pid).unwrap());
        assert_ne!(identity(pid).unwrap(), identity(1).unwrap());
        child.kill().unwrap();
        while state(pid) != Some('Z') {
            std::thread::yield_now();
        }
        assert!(started(own).is_some() && started(pid).is_none());
        assert!(children(own).contains(&pid));
        child.wait().unwrap();
        assert!(!children(own).contains(&pid) && identity(pid).is_err());
    }
}
