//! Page maps and page faults.

use super::raw::{self, Mapping, PAGE_BYTES};
use super::{Finding, Probe, setting, while_doing};
use crate::Group;
use farfork_sys::memory;
use farfork_sys::procmap::{self, Which};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

const NEWER: &str = "use a newer kernel";

// Bits of uffdio_api.features, from linux/userfaultfd.h.
const EVENT_REMOVE: u64 = 1 << 3;
const MINOR_SHMEM: u64 = 1 << 10;
const POISON: u64 = 1 << 14;
const WP_ASYNC: u64 = 1 << 15;
const MOVE: u64 = 1 << 16;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "pagemap_scan",
        group: Group::Required,
        needed_for: "finding the pages that a process has touched",
        advice: "use Linux 6.11 or later",
        look: pagemap_scan,
    },
    Probe {
        id: "procmap_query",
        group: Group::Required,
        needed_for: "zeros after MADV_DONTNEED in clones, and promotion of their pages",
        advice: "use Linux 6.11 or later",
        look: procmap_query,
    },
    Probe {
        id: "process_madvise",
        group: Group::Better,
        needed_for: "supplying pages of a clone in one call, before they are touched",
        advice: "use Linux 6.13 or later",
        look: process_madvise,
    },
    Probe {
        id: "userfaultfd",
        group: Group::Better,
        needed_for: "serving pages on demand: hybrid tiering, far memory, microVMs",
        advice: "use a kernel with CONFIG_USERFAULTFD and run as root",
        look: || userfaultfd(0, "kernel faults"),
    },
    Probe {
        id: "userfaultfd_minor_shmem",
        group: Group::Better,
        needed_for: "mapping a page of the pool on its first touch (hybrid tiering)",
        advice: NEWER,
        look: || userfaultfd(MINOR_SHMEM, "MINOR faults on shared memory"),
    },
    Probe {
        id: "userfaultfd_wp_async",
        group: Group::Better,
        needed_for: "sampling which pages a clone reads and writes",
        advice: NEWER,
        look: || userfaultfd(WP_ASYNC, "asynchronous write protection"),
    },
    Probe {
        id: "userfaultfd_event_remove",
        group: Group::Better,
        needed_for: "zeros after MADV_DONTNEED on served memory",
        advice: NEWER,
        look: || userfaultfd(EVENT_REMOVE, "REMOVE events"),
    },
    Probe {
        id: "userfaultfd_move",
        group: Group::Later,
        needed_for: "placing far pages without copying them",
        advice: NEWER,
        look: || userfaultfd(MOVE, "UFFDIO_MOVE"),
    },
    Probe {
        id: "userfaultfd_poison",
        group: Group::Later,
        needed_for: "signalling to a clone that a far page is lost",
        advice: NEWER,
        look: || userfaultfd(POISON, "UFFDIO_POISON"),
    },
    Probe {
        id: "transparent_huge_pages",
        group: Group::Better,
        needed_for: "fewer faults in the anonymous memory of clones",
        advice: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        look: transparent_huge_pages,
    },
];

fn pagemap_scan() -> Finding {
    const TOUCHED: usize = 3;
    let mapping = Mapping::anonymous(8 * PAGE_BYTES).map_err(while_doing("mapping memory"))?;
    mapping.write_page(TOUCHED);
    let pagemap = File::open("/proc/self/pagemap").map_err(while_doing("opening the page map"))?;
    let Range { start, end } = mapping.addresses();
    let found = memory::pages_with_content(&pagemap, start, end)
        .map_err(while_doing("asking PAGEMAP_SCAN for touched pages"))?;
    let start = start + (TOUCHED * PAGE_BYTES) as u64;
    let expected = start..start + PAGE_BYTES as u64;
    // With huge pages enabled for all memory, one touch may bring in the neighbours.
    if found.iter().any(|range| range.start <= expected.start && expected.end <= range.end) {
        Ok("found the page that was touched".into())
    } else {
        Err(format!("touched {expected:x?}, but PAGEMAP_SCAN found {found:x?}"))
    }
}

fn procmap_query() -> Finding {
    let mapping = Mapping::anonymous(2 * PAGE_BYTES).map_err(while_doing("mapping memory"))?;
    let maps =
        File::open("/proc/self/maps").map_err(while_doing("opening the list of mappings"))?;
    let Range { start, end } = mapping.addresses();
    let found = procmap::query(maps.as_raw_fd(), start, Which::Covering)
        .map_err(|errno| io::Error::from_raw_os_error(errno.0))
        .map_err(while_doing("asking PROCMAP_QUERY for a mapping"))?;
    match found {
        Some(found) if found.start <= start && end <= found.end => Ok("found a mapping".into()),
        found => Err(format!("mapped {start:#x}..{end:#x}, but PROCMAP_QUERY found {found:x?}")),
    }
}

fn process_madvise() -> Finding {
    const PAGES: usize = 2;
    let mapping = Mapping::anonymous(PAGES * PAGE_BYTES).map_err(while_doing("mapping memory"))?;
    let populated = mapping
        .populate_write_as_a_process()
        .map_err(while_doing("asking for pages of this process by process_madvise"))?;
    match populated == PAGES * PAGE_BYTES {
        true => Ok("populated pages of the calling process".into()),
        false => Err(format!("populated {populated} of {} bytes", PAGES * PAGE_BYTES)),
    }
}

fn userfaultfd(feature: u64, name: &str) -> Finding {
    let features = raw::userfaultfd_features().map_err(while_doing("creating a userfaultfd"))?;
    if features & feature == feature {
        Ok(format!("offers {name}"))
    } else {
        Err(format!("this kernel's userfaultfd does not offer {name}"))
    }
}

fn transparent_huge_pages() -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = setting(path).ok_or("this kernel has no transparent huge pages")?;
    match chosen(&text) {
        Some("never") | None => Err(format!("{path} says {text}")),
        Some(mode) => Ok(format!("enabled: {mode}")),
    }
}

/// The word in brackets: the kernel's mark of the current choice.
fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_madvise_is_available_from_linux_6_13_on() {
        let release = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
        let mut numbers = release.split('.').map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next(), numbers.next());
        assert!(version.1.is_some(), "{release}");
        assert_eq!(process_madvise().is_ok(), version >= (Some(6), Some(13)), "{release}");
    }

    #[test]
    fn the_choice_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("always madvise"), None);
    }

    #[test]
    fn an_unknown_feature_is_not_available() {
        if userfaultfd(0, "").is_ok() {
            assert!(userfaultfd(1 << 63, "time travel").unwrap_err().contains("time travel"));
        }
    }
}
