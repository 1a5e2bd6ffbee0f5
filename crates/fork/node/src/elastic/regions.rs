//! What a process maps, with the attributes that only `smaps` shows.

use farfork_sys::procmap::Mapping;

/// One mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Place of the first byte in the file.
    pub offset: u64,
    /// The file's device: major << 32 | minor.
    pub device: u64,
    /// The file's inode.
    pub inode: u64,
    /// Whether writes stay with the process.
    pub is_private: bool,
    is_writable: bool,
    is_watched: bool,
}

impl Region {
    /// Whether pages of the file that it shows can be copied from outside, without a wait for a userfaultfd's handler.
    pub fn can_become_local(&self) -> bool {
        self.is_private && self.is_writable && !self.is_watched
    }
}

impl From<Mapping> for Region {
    /// The kernel's quick answer does not say whether it is watched.
    fn from(mapping: Mapping) -> Region {
        let Mapping { start, end, offset, device, inode, .. } = mapping;
        let is_writable = mapping.is_private_writable();
        let is_private = is_writable;
        Region { start, end, offset, device, inode, is_private, is_writable, is_watched: false }
    }
}

/// The regions in the text of `smaps`, by address.
pub fn of(smaps: &str) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            // Registered with a userfaultfd for missing pages, write protection or minor faults.
            let is_watched = flags.split(' ').any(|flag| matches!(flag, "um" | "uw" | "ui"));
            if let Some(last) = regions.last_mut() {
                last.is_watched = is_watched;
            }
        } else if let Some(region) = header(line) {
            regions.push(region);
        }
    }
    regions
}

/// `START-END PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`, which no other line looks like.
fn header(line: &str) -> Option<Region> {
    let mut words = line.split_ascii_whitespace();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?.as_bytes();
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    Some(Region {
        start: hex(start)?,
        end: hex(end)?,
        offset,
        device: hex(major)? << 32 | hex(minor)?,
        inode,
        is_private: permissions.get(3) == Some(&b'p'),
        is_writable: permissions.get(1) == Some(&b'w'),
        is_watched: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_shared_and_read_only_memory_is_left_alone() {
        let smaps = "1000-2000 rw-p 00003000 00:1f 9   /pool/images/0 1\nRss: 4 kB\nVmFlags: rd wr mr\n\
                     2000-4000 rw-p 00200000 fe:00 9   /pool\nVmFlags: rd wr ui ac\n\
                     4000-5000 rw-s 00003000 fe:00 7   /a file\nVmFlags: rd wr\n\
                     5000-6000 r--p 00004000 fe:00 7   /a file\nVmFlags: rd\n\
                     6000-7000 rw-p 00000000 00:00 0 \nVmFlags: rd wr um\n";
        let regions = of(smaps);
        let can: Vec<bool> = regions.iter().map(Region::can_become_local).collect();
        assert_eq!(can, [true, false, false, false, false]);
        let first = Region {
            start: 0x1000,
            end: 0x2000,
            offset: 0x3000,
            device: 0x1f,
            inode: 9,
            is_private: true,
            is_writable: true,
            is_watched: false,
        };
        assert_eq!(regions[0], first);
        assert_eq!(regions[1].device, 0xfe << 32);
    }
}
