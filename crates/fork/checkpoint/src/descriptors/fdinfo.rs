//! `/proc/PID/fdinfo/FD`.

/// `O_PATH`: the descriptor names a place and cannot be read.
pub const O_PATH: u32 = libc::O_PATH as u32;
const CLOEXEC: u32 = libc::O_CLOEXEC as u32;

/// What the kernel shows of a descriptor: common lines parsed, those of its kind as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FdInfo {
    /// File position.
    pub position: u64,
    /// `open` flags, with `O_CLOEXEC` if the descriptor has it.
    pub flags: u32,
    /// All lines.
    text: String,
}

impl FdInfo {
    /// Takes the file's text.
    pub fn parse(text: String) -> Option<FdInfo> {
        let mut info = FdInfo { text, ..FdInfo::default() };
        info.position = info.value("pos")?.parse().ok()?;
        info.flags = u32::from_str_radix(info.value("flags")?, 8).ok()?;
        Some(info)
    }

    /// The value of the first line that starts with `key` and a colon.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.text.lines().find_map(|line| value(line, key))
    }

    /// The values of all lines that start with `key` and a colon.
    pub fn values<'s>(&'s self, key: &'s str) -> impl Iterator<Item = &'s str> {
        self.text.lines().filter_map(move |line| value(line, key))
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether `execve` closes the descriptor.
    pub fn is_cloexec(&self) -> bool {
        self.flags & CLOEXEC != 0
    }

    /// Flags of the open file description, which does not know `O_CLOEXEC`.
    pub fn status_flags(&self) -> u32 {
        self.flags & !CLOEXEC
    }
}

fn value<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    line.strip_prefix(key)?.strip_prefix(':').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "pos:\t126\nflags:\t02100001\nmnt_id:\t27\n\
        lock:\t1: FLOCK  ADVISORY  WRITE 853 fe:00:9977976 0 EOF\n";

    #[test]
    fn common_lines_are_parsed_and_the_others_found() {
        let info = FdInfo::parse(TEXT.to_owned()).unwrap();
        assert_eq!((info.position, info.flags), (126, 0o2100001));
        assert!(info.is_cloexec());
        assert_eq!(info.status_flags(), 0o100001);
        assert_eq!(info.value("mnt_id"), Some("27"));
        assert_eq!(info.values("lock").count(), 1);
    }
}
