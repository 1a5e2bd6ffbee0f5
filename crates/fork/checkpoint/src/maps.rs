//! `/proc/PID/smaps`, as far as it matters here. The procfs crate leaves out flags that it does
//! not know, and `dp` (droppable) is one that must not be missed.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use farfork_plan::window;

use crate::error::CheckpointError;

/// A line end in a name.
const ESCAPED_LINE_END: &str = "\\012";

/// One line of the address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// `PROT_*` bits.
    pub prot: u32,
    /// Whether writes reach the object under it.
    pub is_shared: bool,
    /// Offset in the mapped file.
    pub offset: u64,
    /// Device and inode of the mapped file; inode 0 for none.
    pub file: (u64, u64),
    /// Path, or a name in brackets, or nothing.
    pub name: String,
    /// Whether the name is not UTF-8, so that `name` only shows it.
    pub is_misnamed: bool,
    /// Whether the name is one although it looks like one that was lost.
    pub is_named: bool,
    /// Protection key.
    pub protection_key: u8,
    /// Bytes of a page of the kernel's, of huge pages that were set aside more than of others.
    pub page_bytes: u64,
    /// Two-letter flags, as the kernel prints them.
    pub flags: Vec<String>,
}

impl Mapping {
    /// Whether the kernel prints this flag.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    /// Path of the mapped file, if there is one.
    pub fn path(&self) -> Option<PathBuf> {
        self.name.starts_with('/').then(|| PathBuf::from(&self.name))
    }

    /// Whether it is private anonymous memory in huge pages that were set aside (`MAP_HUGETLB`).
    pub fn is_huge_anonymous(&self) -> bool {
        self.has("ht") && !self.is_shared && self.name == "/anon_hugepage (deleted)"
    }

    /// Whether the kernel made it for a Linux AIO context.
    pub fn is_aio_ring(&self) -> bool {
        self.name.starts_with("/[aio]")
    }

    /// Whether it shows a queue of a ring of io_uring.
    pub fn is_ring(&self) -> bool {
        self.name == "anon_inode:[io_uring]"
    }

    /// Whether any of it lies where farfork keeps its own code in a clone.
    pub fn reaches_restorer_window(&self) -> bool {
        self.end > window::BASE && self.start < window::END
    }

    /// Opens what is mapped, for reading, as a mapping of the process `pid`. Without
    /// CAP_CHECKPOINT_RESTORE, that is what has its name, if it is the same file.
    pub fn open(&self, pid: i32) -> io::Result<File> {
        let mapped = File::open(format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end));
        mapped.or_else(|refused| self.open_named().ok_or(refused))
    }

    fn open_named(&self) -> Option<File> {
        let path = self.path().filter(|_| !self.is_deleted())?;
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK; // a pipe would wait for its other end
        let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
        let found = file.metadata().ok()?;
        (shown(found.dev(), found.ino()) == self.file).then_some(file)
    }

    /// Whether the file has lost its name.
    pub fn is_deleted(&self) -> bool {
        self.name.ends_with(" (deleted)") && !self.is_named
    }

    /// The kernel prints a line end in a name as an escape, and a name that looks like one as it is.
    fn unescape(&mut self, pid: i32) {
        let link = format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end);
        match fs::read_link(link).map(|path| path.into_os_string().into_string()) {
            Ok(Ok(name)) => self.name = name,
            Ok(Err(_)) => self.is_misnamed = true,
            Err(_) => self.name = self.name.replace(ESCAPED_LINE_END, "\n"),
        }
    }

    /// Whether a file is mapped that has its name, as the process `pid` sees names.
    fn has_its_name(&self, pid: i32) -> bool {
        let (start, end, name) = (self.start, self.end, &self.name);
        let identity = |found: Metadata| (found.dev(), found.ino());
        let mapped = fs::metadata(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
        let named = || fs::metadata(format!("/proc/{pid}/root{name}"));
        mapped.is_ok_and(|mapped| named().is_ok_and(|named| identity(named) == identity(mapped)))
    }
}

/// Device and inode as `/proc/PID/maps` shows them.
pub fn shown(device: u64, inode: u64) -> (u64, u64) {
    let (major, minor) = (libc::major(device), libc::minor(device));
    (u64::from(major) << 32 | u64::from(minor), inode)
}

/// Reads all mappings of a process, in address order.
pub fn read(pid: i32) -> Result<Vec<Mapping>, CheckpointError> {
    from(pid, "smaps")
}

/// Reads all mappings without their flags, protection keys and sizes of pages. The kernel looks at each
/// page to show those, which takes longer than a fork.
pub fn outline(pid: i32) -> Result<Vec<Mapping>, CheckpointError> {
    from(pid, "maps")
}

fn from(pid: i32, file: &str) -> Result<Vec<Mapping>, CheckpointError> {
    let text = fs::read(format!("/proc/{pid}/{file}"))
        .map_err(|_| CheckpointError::Proc { pid, what: "the memory mappings" })?;
    let mut mappings = parse(&text);
    for mapping in mappings.iter_mut().filter(|own| own.name.contains(ESCAPED_LINE_END)) {
        mapping.unescape(pid);
    }
    for mapping in mappings.iter_mut().filter(|own| own.path().is_some() && own.is_deleted()) {
        mapping.is_named = mapping.has_its_name(pid);
    }
    Ok(mappings)
}

/// The page in the middle of the widest gap between mappings: the kernel, which fills gaps from
/// their ends, does not put anything there unasked.
pub fn hole(mappings: &[Mapping]) -> u64 {
    const PAGE: u64 = 4096;
    let gaps = mappings.windows(2).map(|pair| (pair[0].end, pair[1].start));
    let widest =
        gaps.filter(|(from, to)| from < to && *to < 1 << 47).max_by_key(|(from, to)| to - from);
    widest.map_or(0, |(from, to)| (from + (to - from) / 2) / PAGE * PAGE)
}

fn parse(text: &[u8]) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let is_misnamed = std::str::from_utf8(line).is_err();
        let line = &*String::from_utf8_lossy(line);
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(last) = mappings.last_mut() {
                last.flags = flags.split_whitespace().map(str::to_owned).collect();
            }
        } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
            if let Some(last) = mappings.last_mut() {
                last.protection_key = key.trim().parse().unwrap_or(0);
            }
        } else if let Some(size) = line.strip_prefix("KernelPageSize:") {
            if let Some(last) = mappings.last_mut() {
                let kilobytes = size.trim().trim_end_matches(" kB").parse().unwrap_or(0);
                last.page_bytes = kilobytes << 10;
            }
        } else if let Some(mapping) = header(line) {
            mappings.push(Mapping { is_misnamed, ..mapping });
        }
    }
    mappings
}

/// `start-end perms offset major:minor inode   name`.
pub fn header(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let mut fields = rest.splitn(4, ' ');
    let (perms, offset, device) = (fields.next()?, fields.next()?, fields.next()?);
    let (inode, name) = fields.next()?.split_once(' ').unwrap_or((rest.rsplit(' ').next()?, ""));
    let (major, minor) = device.split_once(':')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let bit = |letter, bit| if perms.contains(letter) { bit } else { 0 };
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        prot: bit('r', libc::PROT_READ as u32)
            | bit('w', libc::PROT_WRITE as u32)
            | bit('x', libc::PROT_EXEC as u32),
        is_shared: perms.ends_with('s'),
        offset: hex(offset)?,
        file: (hex(major)? << 32 | hex(minor)?, inode.parse().ok()?),
        name: name.trim_start().to_owned(),
        ..Mapping::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 \n\
Size:                132 kB\n\
KernelPageSize:     2048 kB\n\
ProtectionKey:         5\n\
VmFlags: rd wr mr mw me nr sd \n\
7ffd00000000-7ffd00002000 r-xp 00001000 fe:01 1234                       /usr/lib/a b.so (deleted)\n\
VmFlags: rd ex mr mw me \n\
7ffd10000000-7ffd10001000 r--s 00000000 00:05 7                          [vvar]\n";

    #[test]
    fn lines_become_mappings() {
        let mappings = parse(TEXT.as_bytes());
        assert_eq!(mappings.len(), 3);
        assert_eq!((mappings[0].start, mappings[0].file.1), (0x7f00_0000_0000, 0));
        assert_eq!((mappings[0].prot, mappings[0].protection_key), (3, 5));
        assert_eq!((mappings[0].page_bytes, mappings[1].page_bytes), (2 << 20, 0));
        assert!(mappings[0].has("nr") && !mappings[0].has("ex"));
        assert_eq!(mappings[1].name, "/usr/lib/a b.so (deleted)");
        assert!(mappings[1].is_deleted());
        assert_eq!((mappings[1].offset, mappings[1].file), (0x1000, (0xfe << 32 | 1, 1234)));
        assert!(mappings[2].is_shared);
        assert_eq!(mappings[2].name, "[vvar]");
        assert!(mappings.iter().all(|mapping| !mapping.is_misnamed));
    }

    #[test]
    fn the_widest_hole_is_between_two_mappings() {
        let at = |start, end| Mapping { start, end, ..Mapping::default() };
        let mut all = vec![at(0x1000, 0x2000), at(0x8000, 0x9000), at(0x1_9000, 0x2_0000)];
        assert_eq!(hole(&all), 0x1_1000);
        all.push(at(u64::MAX - 4095, u64::MAX)); // vsyscall
        assert_eq!(hole(&all), 0x1_1000);
        assert_eq!(hole(&[]), 0);
    }

    #[test]
    fn a_name_that_is_not_utf_8_hides_no_mappings() {
        let line = b"7f0000000000-7f0000021000 r--p 00000000 fe:01 77 /tmp/caf\xe9.bin\n";
        let mappings = parse(&[TEXT.as_bytes(), line].concat());
        assert_eq!(mappings.len(), 4);
        let last = &mappings[3];
        assert_eq!((last.name.as_str(), last.is_misnamed), ("/tmp/caf\u{fffd}.bin", true));
    }
}
