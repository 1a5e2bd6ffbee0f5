//! What a monitor hands over: one JSON array of regions, and a userfaultfd beside it.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use farfork_types::PAGE_BYTES;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A message of this length has more regions than [`MAX_REGIONS`].
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Regions of one machine.
const MAX_REGIONS: usize = 512;
/// Descriptors that are taken in one message; the kernel closes the others.
const MAX_DESCRIPTORS: usize = 16;
/// Userfaultfds of one machine.
const MAX_USERFAULTS: usize = 4;

/// Memory of a guest in the monitor's address space, as Firecracker describes it. Fields that are not known
/// here are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its first address.
    pub base_host_virt_addr: u64,
    /// Bytes.
    pub size: u64,
    /// Where its contents begin in the memory file.
    pub offset: u64,
    /// Bytes of its pages.
    #[serde(default)]
    pub page_size: u64,
    /// The same; the name is wrong. Older monitors have only this.
    #[serde(default)]
    pub page_size_kib: u64,
}

/// Why a hand-over is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// It is not what Firecracker sends.
    #[error("the message is not a JSON array of memory regions: {0}")]
    Garbage(String),
    /// It is too long.
    #[error("the message has more than {MAX_MESSAGE_BYTES} bytes")]
    TooLong,
    /// The other end was closed before all was there.
    #[error("the connection was closed before the regions and a userfaultfd were there")]
    Closed,
    /// Not all came in time.
    #[error("the {0} did not come in time")]
    TimedOut(&'static str),
    /// There are none, or too many.
    #[error("it has {0} memory regions; 1 to {MAX_REGIONS} are possible")]
    Count(usize),
    /// There are too many userfaultfds.
    #[error("it has {0} userfaultfds; at most {MAX_USERFAULTS} are possible")]
    Userfaults(usize),
    /// A region has pages of a size that no machine here has.
    #[error("region {index} has pages of {bytes} bytes; 4096 and 2097152 are possible")]
    PageSize {
        /// Number of the region.
        index: usize,
        /// The size.
        bytes: u64,
    },
    /// A region does not have whole pages.
    #[error("region {index} is empty, or does not consist of whole pages at whole pages")]
    Unaligned {
        /// Number of the region.
        index: usize,
    },
    /// A region is not in the snapshot.
    #[error(
        "region {index} ends at byte {end} of the memory, and the snapshot has {memory_bytes}: the monitor \
         restores another snapshot"
    )]
    Outside {
        /// Number of the region.
        index: usize,
        /// Where it ends.
        end: u64,
        /// Bytes of the snapshot's memory.
        memory_bytes: u64,
    },
    /// A part of the snapshot is in no region. Firecracker hands over all of a guest's memory.
    #[error(
        "byte {at} of the snapshot's {memory_bytes} bytes is in none of its memory regions: the monitor restores another \
         snapshot"
    )]
    LeftOut {
        /// The first byte that is in none.
        at: u64,
        /// Bytes of the snapshot's memory.
        memory_bytes: u64,
    },
    /// Two regions have an address in common.
    #[error("two of its memory regions overlap")]
    Overlap,
    /// The kernel refused.
    #[error("the connection failed: {0}")]
    Socket(&'static str),
}

/// Regions that were checked against a snapshot, in the order of their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions(Vec<Region>);

/// A place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Address of the page.
    pub address: u64,
    /// Its offset in the memory file.
    pub offset: u64,
    /// Bytes of the page.
    pub page_bytes: u64,
    /// Bytes from the page to the end of its region.
    pub rest: u64,
}

impl Regions {
    /// Checks what was handed over for a snapshot with so many bytes of memory.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn checked(given: &[Region], memory_bytes: u64) -> Result<Regions, HandOverError> {
        if given.is_empty() || given.len() > MAX_REGIONS {
            return Err(HandOverError::Count(given.len()));
        }
        let mut regions = Vec::with_capacity(given.len());
        for (index, region) in given.iter().enumerate() {
            regions.push(checked(index, *region, memory_bytes)?);
        }
        regions.sort_unstable_by_key(|region| region.base_host_virt_addr);
        let overlap = |pair: &[Region]| {
            pair[0].base_host_virt_addr + pair[0].size > pair[1].base_host_virt_addr
        };
        match regions.windows(2).any(overlap) {
            true => Err(HandOverError::Overlap),
            false => Ok(Regions(regions)),
        }
    }

    /// Demands that the regions have all of a memory of so many bytes: those of a smaller machine lie in it, too, and its
    /// guest would get bytes of another.
    ///
    /// # Errors
    /// [`HandOverError::LeftOut`].
    pub fn demand_whole(&self, memory_bytes: u64) -> Result<(), HandOverError> {
        let mut parts: Vec<_> = self.0.iter().map(|region| (region.offset, region.size)).collect();
        parts.sort_unstable();
        let covered = |at: u64, (offset, size): (u64, u64)| match offset <= at {
            true => at.max(offset + size),
            false => at,
        };
        match parts.into_iter().fold(0, covered) {
            at if at < memory_bytes => Err(HandOverError::LeftOut { at, memory_bytes }),
            _ => Ok(()),
        }
    }

    /// The regions.
    pub fn all(&self) -> &[Region] {
        &self.0
    }

    /// The page at an address.
    pub fn find(&self, address: u64) -> Option<Found> {
        let after = self.0.partition_point(|region| region.base_host_virt_addr <= address);
        let region = self.0[..after].last()?;
        let into = address - region.base_host_virt_addr;
        let into = into - into % region.page_size;
        (into < region.size).then(|| Found {
            address: region.base_host_virt_addr + into,
            offset: region.offset + into,
            page_bytes: region.page_size,
            rest: region.size - into,
        })
    }

    /// The page at an offset of the memory file.
    pub fn at_offset(&self, offset: u64) -> Option<Found> {
        let has_it =
            |region: &&Region| (region.offset..region.offset + region.size).contains(&offset);
        let region = self.0.iter().find(has_it)?;
        self.find(region.base_host_virt_addr + (offset - region.offset))
    }

    /// Parts of the memory file that lie at the addresses from `start` to `end`.
    pub fn offsets(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().filter_map(move |region| {
            let base = region.base_host_virt_addr;
            let (from, to) = (start.max(base), end.min(base + region.size));
            (from < to).then(|| (region.offset + (from - base), region.offset + (to - base)))
        })
    }
}

fn checked(index: usize, region: Region, memory_bytes: u64) -> Result<Region, HandOverError> {
    let bytes = [region.page_size, region.page_size_kib, PAGE_BYTES];
    let bytes = bytes.into_iter().find(|bytes| *bytes != 0).unwrap_or(PAGE_BYTES);
    if ![PAGE_BYTES, HUGE_PAGE_BYTES].contains(&bytes) {
        return Err(HandOverError::PageSize { index, bytes });
    }
    let is_whole = region.size > 0
        && (region.base_host_virt_addr | region.size).is_multiple_of(bytes)
        && region.offset.is_multiple_of(PAGE_BYTES)
        && region.base_host_virt_addr.checked_add(region.size).is_some();
    if !is_whole {
        return Err(HandOverError::Unaligned { index });
    }
    let end = region.offset.saturating_add(region.size);
    if end > memory_bytes {
        return Err(HandOverError::Outside { index, end, memory_bytes });
    }
    Ok(Region { page_size: bytes, ..region })
}

/// What has come so far.
#[derive(Debug, Default)]
pub struct HandOver {
    text: Vec<u8>,
    regions: Option<Vec<Region>>,
    /// Userfaultfds; other descriptors, which newer monitors send as well, are closed.
    pub userfaults: Vec<OwnedFd>,
}

impl HandOver {
    /// Takes what has come on a socket that does not block; whether all is there. A descriptor may come
    /// later than the text.
    ///
    /// # Errors
    /// Why the hand-over is refused.
    pub fn receive(&mut self, socket: impl AsFd) -> Result<bool, HandOverError> {
        loop {
            let mut part = [0; 16 << 10];
            let (count, userfaults) = match receive(&socket, &mut part) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    return Err(HandOverError::Socket(farfork_sys::words::words(
                        errno.raw_os_error(),
                    )));
                }
            };
            self.userfaults.extend(userfaults);
            if self.userfaults.len() > MAX_USERFAULTS {
                return Err(HandOverError::Userfaults(self.userfaults.len()));
            }
            if count == 0 {
                return Err(HandOverError::Closed);
            }
            self.add(&part[..count])?;
            if self.is_complete() {
                return Ok(true);
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.regions.is_some() && !self.userfaults.is_empty()
    }

    /// What has not come yet.
    pub fn missing(&self) -> &'static str {
        if self.regions.is_some() { "userfaultfd" } else { "memory regions" }
    }

    /// The regions, as they were given.
    pub fn regions(&self) -> &[Region] {
        self.regions.as_deref().unwrap_or_default()
    }

    fn add(&mut self, part: &[u8]) -> Result<(), HandOverError> {
        // Whatever comes beside a descriptor that came late means nothing.
        if self.regions.is_some() {
            return Ok(());
        }
        self.text.extend_from_slice(part);
        if self.text.len() > MAX_MESSAGE_BYTES {
            return Err(HandOverError::TooLong);
        }
        match serde_json::from_slice::<Vec<Region>>(&self.text) {
            Ok(regions) => self.regions = Some(regions),
            Err(error) if error.is_eof() => {}
            Err(error) => return Err(HandOverError::Garbage(error.to_string())),
        }
        Ok(())
    }
}

/// Bytes and userfaultfds of one message.
fn receive(socket: impl AsFd, to: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(to)], &mut control, flags)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let userfaults = rights.flatten().filter(is_userfault).collect();
    Ok((received.bytes, userfaults))
}

fn is_userfault(descriptor: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|what| what.as_os_str() == "anon_inode:[userfaultfd]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 64 << 20;

    fn region(base: u64, size: u64, offset: u64) -> Region {
        Region { base_host_virt_addr: base, size, offset, page_size: 4096, page_size_kib: 0 }
    }

    #[test]
    fn an_address_leads_to_its_offset() {
        let given = [region(0x70_0000, 0x10_0000, 0x1000), region(0x10_0000, 0x2000, 0)];
        let regions = Regions::checked(&given, MEMORY).unwrap();
        let found = regions.find(0x70_3456).unwrap();
        assert_eq!((found.address, found.offset, found.rest), (0x70_3000, 0x4000, 0xf_d000));
        assert_eq!([0xf_ffff, 0x10_2000, 0x80_0000].map(|at| regions.find(at)), [None; 3]);
        let parts: Vec<_> = regions.offsets(0, u64::MAX).collect();
        assert_eq!(parts, [(0, 0x2000), (0x1000, 0x10_1000)]);
        assert_eq!(regions.offsets(0x10_1000, 0x10_2000).next(), Some((0x1000, 0x2000)));
        assert_eq!(regions.offsets(0x10_2000, 0x70_0000).next(), None);
        assert_eq!(regions.at_offset(0).unwrap().address, 0x10_0000);
        assert_eq!(regions.at_offset(0x2000).unwrap().address, 0x70_1000);
        assert_eq!(regions.at_offset(0x10_1000), None);
    }

    #[test]
    fn the_size_of_pages_may_have_the_older_name() {
        let mut old = region(0x4000_0000, 4 << 20, 0);
        (old.page_size, old.page_size_kib) = (0, HUGE_PAGE_BYTES);
        let regions = Regions::checked(&[old], MEMORY).unwrap();
        assert_eq!(regions.find(0x4000_1000).unwrap().page_bytes, HUGE_PAGE_BYTES);
        (old.page_size, old.page_size_kib) = (0, 0);
        assert_eq!(Regions::checked(&[old], MEMORY).unwrap().all()[0].page_size, 4096);
    }

    #[test]
    fn wrong_regions_are_refused() {
        use HandOverError::*;
        let refused = |given: &[Region]| Regions::checked(given, MEMORY).unwrap_err();
        assert_eq!(refused(&[]), Count(0));
        assert_eq!(refused(&vec![region(0, 4096, 0); 513]), Count(513));
        assert_eq!(refused(&[region(4096, 0, 0)]), Unaligned { index: 0 });
        assert_eq!(refused(&[region(4097, 4096, 0)]), Unaligned { index: 0 });
        assert_eq!(refused(&[region(4096, 4095, 0)]), Unaligned { index: 0 });
        assert_eq!(refused(&[region(4096, 4096, 5)]), Unaligned { index: 0 });
        assert_eq!(refused(&[region(!4095, 4096, 0)]), Unaligned { index: 0 });
        let end = MEMORY + 4096;
        let outside = Outside { index: 1, end, memory_bytes: MEMORY };
        assert_eq!(
            refused(&[region(4096, 4096, 0), region(1 << 30, 8192, MEMORY - 4096)]),
            outside
        );
        assert!(matches!(refused(&[region(0, 4096, !4095)]), Outside { .. }));
        assert_eq!(refused(&[region(4096, 8192, 0), region(8192, 4096, 0)]), Overlap);
        let odd = Region { page_size: 8192, ..region(8192, 8192, 0) };
        assert_eq!(refused(&[odd]), PageSize { index: 0, bytes: 8192 });
    }

    #[test]
    fn regions_that_leave_out_memory_are_refused() {
        let left_out = |given: &[Region]| {
            let regions = Regions::checked(given, MEMORY).unwrap();
            match regions.demand_whole(MEMORY) {
                Err(HandOverError::LeftOut { at, memory_bytes: MEMORY }) => Some(at),
                other => {
                    assert_eq!(other, Ok(()));
                    None
                }
            }
        };
        let (half, gib) = (MEMORY / 2, 1 << 30);
        assert_eq!(left_out(&[region(gib, MEMORY, 0)]), None);
        // Addresses may have another order than offsets, and memory may be there twice.
        assert_eq!(left_out(&[region(gib, half, half), region(2 * gib, half, 0)]), None);
        assert_eq!(left_out(&[region(gib, MEMORY, 0), region(2 * gib, MEMORY, 0)]), None);
        assert_eq!(left_out(&[region(gib, half, 0)]), Some(half));
        assert_eq!(left_out(&[region(gib, half, half)]), Some(0));
        let gap = [region(gib, 4096, 0), region(2 * gib, half, half)];
        assert_eq!(left_out(&gap), Some(4096));
    }

    #[test]
    fn a_message_may_come_in_parts_and_have_unknown_fields() {
        let text = br#"[{"base_host_virt_addr":4096,"size":4096,"offset":0,"page_size":4096,"page_size_kib":4096,"new":{"a":[1]}}]"#;
        for cut in 0..text.len() {
            let mut hand_over = HandOver::default();
            hand_over.add(&text[..cut]).unwrap();
            assert_eq!(hand_over.missing(), "memory regions");
            hand_over.add(&text[cut..]).unwrap();
            assert_eq!(hand_over.missing(), "userfaultfd");
            assert_eq!(hand_over.regions()[0].size, 4096);
        }
        for garbage in ["GET / HTTP/1.1", "{}", "[1]", "[{\"size\":-1}]"] {
            let refused = HandOver::default().add(garbage.as_bytes()).unwrap_err();
            assert!(matches!(refused, HandOverError::Garbage(_)), "{refused}");
        }
        assert_eq!(
            HandOver::default().add(&vec![b'['; 2 << 20]).unwrap_err(),
            HandOverError::TooLong
        );
    }
}
