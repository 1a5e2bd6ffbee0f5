//! What holds of every model that a checkpoint makes. A model that was read is looked at before
//! anything is compiled from it, so that damage shows as damage.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_plan::protocol::MAX_REQUEST_FDS;
use farfork_plan::window;
use farfork_sys::peek::MOST_DESCRIPTORS;
use farfork_sys::ptrace::REGISTER_WORDS;
use farfork_sys::socket::{ADDRESS_BYTES, FILTER_INSTRUCTIONS};
use farfork_sys::xstate;
use farfork_types::{CHUNK_BYTES, PAGE_BYTES, align_down};

use crate::compile::tree;
use crate::model::{
    Backing, FileStamp, MOST_RINGS, Member, Memory, Message, Model, ObjectExtent, ObjectKind,
    OpenFile, RING_POSITIONS, Region, RingQueue, SETTINGS_BYTES, SeccompFilter, Segment,
    SharedObject, Socket, SocketOption, SocketRole, Stored, Thread, UnnamedFile,
};

/// Addresses of user space, also with five levels of page tables.
const ADDRESSES: u64 = 1 << 56;
/// `TASK_COMM_LEN` without its NUL.
const COMM_BYTES: usize = 15;
/// Bytes of a `siginfo_t`.
const SIGINFO_BYTES: usize = 128;
/// No processor has a larger XSAVE area.
const XSTATE_BYTES: usize = 32 << 10;
/// vvar and vdso are a few pages.
const VDSO_BYTES: u64 = 1 << 20;
/// Most descriptors of a process, `fs.nr_open` in most systems.
const MAX_FDS: u32 = 1 << 20;
/// Beyond the size of any object that fits into the address space.
const OBJECT_BYTES: u64 = 1 << 48;
/// Most completions that a ring has room for (`IORING_MAX_CQ_ENTRIES`).
const RING_ENTRIES: u32 = 65_536;
/// What `memfd_create` takes at most.
const MEMFD_NAME_BYTES: usize = 249;
/// Words of an auxiliary vector; the kernel has some 50.
const AUXV_WORDS: usize = 512;

/// Most semaphores of a set that a count of theirs has room for.
const SEMAPHORES: usize = 1 << 16;
/// No socket option is longer; extension headers come close.
const OPTION_BYTES: usize = 2048;

/// What does not hold, in a few words.
type Check = Result<(), &'static str>;

fn demand(holds: bool, otherwise: &'static str) -> Check {
    if holds { Ok(()) } else { Err(otherwise) }
}

impl Model {
    /// Whether all invariants hold; if not, the first that does not.
    pub fn validate(&self) -> Result<(), &'static str> {
        demand(!self.members.is_empty(), "no process")?;
        self.validate_stored()?;
        self.objects.iter().try_for_each(|object| object.validate(&self.content))?;
        self.validate_system_v()?;
        for mount in &self.mounts {
            path(&mount.point)?;
            mount.bound_from.iter().try_for_each(|from| path(from))?;
        }
        self.validate_files()?;
        for (index, member) in self.members.iter().enumerate() {
            let parent = member.kinship.parent.map(|parent| parent as usize);
            let comes_after = if index == 0 { parent.is_none() } else { parent < Some(index) };
            demand(
                comes_after && (index == 0 || parent.is_some()),
                "a process whose parent is missing or listed after it",
            )?;
        }
        demand(self.root().kinship.ended.is_none(), "a root process that has ended")?;
        let has_places = tree::check(&self.members).is_ok();
        demand(has_places, "a process whose session or group cannot be restored")?;
        let copies =
            |(index, member): (usize, &Member)| member.memory.is_copied == self.must_copy(index);
        demand(
            self.members.iter().enumerate().all(copies),
            "a process that would map what it may not read",
        )?;
        self.members.iter().try_for_each(|member| self.validate_member(member))
    }

    fn validate_system_v(&self) -> Check {
        let segments = || self.objects.iter().filter(|object| object.is_system_v());
        let has_none = self.semaphores.is_empty() && self.queues.is_empty();
        let has_none = has_none && segments().next().is_none();
        demand(self.has_own_ipc || has_none, "objects of System V without an IPC namespace")?;
        let sets = self.semaphores.iter().map(|set| set.identity.id);
        let mut ids = sets.chain(self.queues.iter().map(|queue| queue.identity.id));
        demand(ids.all(|id| id <= i32::MAX as u32), "an object of System V with an invalid id")?;
        for set in &self.semaphores {
            let count = set.values.len();
            demand(
                (1..=SEMAPHORES).contains(&count),
                "a semaphore set with an invalid number of semaphores",
            )?;
        }
        let removed = segments().filter_map(SharedObject::removed).count();
        demand(removed <= window::MOST_REMOVED, "too many removed segments")
    }

    fn validate_member(&self, member: &Member) -> Check {
        if member.kinship.ended.is_some() {
            return member.validate_ended();
        }
        member.memory.validate()?;
        let indices = member.memory.regions.iter().filter_map(Region::object);
        indices.into_iter().try_for_each(|index| self.demand_object(index))?;
        demand(!member.threads.is_empty(), "a process without threads")?;
        member.threads.iter().try_for_each(Thread::validate)?;
        path(&member.process.exe)?;
        path(&member.process.cwd)?;
        for (signal, _) in &member.signals.actions {
            demand((1..=64).contains(signal), "an action for a signal that does not exist")?;
        }
        pending(&member.signals.pending)?;
        self.validate_descriptors(member)
    }

    /// What keeps a clone from seeing at one address what belongs to another.
    fn validate_stored(&self) -> Check {
        self.content.validate(content_window)?;
        let users = self.members.iter().map(|member| &member.memory.stored);
        users.into_iter().try_for_each(|stored| stored.validate(user_window))?;
        let windows: usize = self.stored().map(|stored| stored.windows.len()).sum();
        let segments = self.stored().flat_map(|stored| &stored.segments);
        let mut places: Vec<_> = segments.map(|s| (s.place, s.bytes)).collect();
        places.sort_unstable();
        let end = places.last().map_or(0, |last| last.0 + last.1);
        demand(end <= CHUNK_BYTES * windows as u64, "a segment beyond all chunks")?;
        let apart = places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0);
        demand(apart, "segments that overlap in a chunk")?;
        let bits =
            |pages: &[u64]| pages.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let windows = self.stored().flat_map(|stored| &stored.windows);
        let stored: u64 = windows.map(|window| bits(&window.pages)).sum();
        let placed: u64 = self.chunk_pages().iter().map(|pages| bits(pages)).sum();
        demand(stored == placed, "a stored page outside of all segments")
    }

    fn demand_object(&self, index: u32) -> Check {
        demand((index as usize) < self.objects.len(), "a reference to missing shared memory")
    }

    fn demand_member(&self, index: u32) -> Check {
        demand((index as usize) < self.members.len(), "a reference to a missing process")
    }

    fn validate_descriptors(&self, member: &Member) -> Check {
        let numbers = member.descriptors.windows(2).all(|pair| pair[0].fd < pair[1].fd);
        demand(numbers, "unsorted descriptors")?;
        for descriptor in &member.descriptors {
            demand(descriptor.fd < MAX_FDS, "a descriptor number that is too large")?;
            let has_file = (descriptor.file as usize) < self.files.len();
            demand(has_file, "a descriptor without a file")?;
        }
        let held = member.locks.iter().map(|lock| lock.file);
        for file in held.chain(member.notices.iter().map(|notice| notice.file)) {
            let is_ours = self.files.get(file as usize).is_some_and(|file| file.flags().is_some());
            demand(is_ours, "a lock on a file that the process has not open")?;
        }
        for lock in &member.locks {
            let end = lock.start.checked_add(lock.length);
            demand(end.is_some_and(|end| end < 1 << 63), "a lock beyond the largest file offset")?;
        }
        Ok(())
    }

    fn validate_files(&self) -> Check {
        let is_external = |file: &&OpenFile| matches!(file, OpenFile::External { .. });
        let externals = self.files.iter().filter(is_external).count();
        demand(externals + 3 <= MAX_REQUEST_FDS, "too many external descriptors")?;
        let is_ring = |file: &&OpenFile| matches!(file, OpenFile::Ring { .. });
        demand(self.files.iter().filter(is_ring).count() <= MOST_RINGS, "too many rings")?;
        self.unnamed.iter().try_for_each(UnnamedFile::validate)?;
        for terminal in &self.terminals {
            demand(terminal.settings.len() == SETTINGS_BYTES, "a terminal without settings")?;
        }
        self.files.iter().try_for_each(|file| match file {
            OpenFile::Path { path: at, stamp, .. } => {
                path(at)?;
                stamp.iter().try_for_each(FileStamp::validate)
            }
            OpenFile::Unnamed { file, .. } => demand(
                (*file as usize) < self.unnamed.len(),
                "a reference to a missing file without a name",
            ),
            OpenFile::TerminalMaster { terminal, path: at, .. } => {
                demand(
                    (*terminal as usize) < self.terminals.len(),
                    "a master of a missing terminal",
                )?;
                path(at)
            }
            OpenFile::TerminalSlave { terminal, .. } => {
                demand((*terminal as usize) < self.terminals.len(), "a slave of a missing terminal")
            }
            OpenFile::Inotify { watches, .. } => {
                let numbers = watches.windows(2).all(|pair| pair[0].number < pair[1].number);
                demand(numbers, "unsorted watches")?;
                watches.iter().try_for_each(|watch| path(&watch.path))
            }
            OpenFile::Fanotify { marks, .. } => marks.iter().try_for_each(|mark| path(&mark.path)),
            OpenFile::Pipe { content, capacity, .. } => demand(
                content.len() <= *capacity as usize,
                "a pipe with more bytes than its capacity",
            ),
            OpenFile::SocketPair { end, options, incoming, .. } => {
                demand(*end < 2, "a socket pair with more than two ends")?;
                incoming.iter().try_for_each(|message| self.validate_message(message))?;
                validate_options(options)
            }
            OpenFile::Socket(socket) => socket.validate(),
            OpenFile::Ring { entries, completions, position, queues, .. } => {
                let sizes = [*entries, *completions].map(u32::is_power_of_two);
                demand(sizes == [true; 2] && *completions <= RING_ENTRIES, "a ring of no size")?;
                demand(*position <= RING_POSITIONS, "a ring that has seen too many requests")?;
                queues.iter().try_for_each(RingQueue::validate)
            }
            OpenFile::Object { object, .. } => self.demand_object(*object),
            OpenFile::ProcessHandle { member, .. } => self.demand_member(*member),
            OpenFile::Epoll { watches, .. } => {
                watches.iter().try_for_each(|watch| self.demand_member(watch.member))
            }
            _ => Ok(()),
        })
    }
}

impl Member {
    fn validate_ended(&self) -> Check {
        let is_empty = self.memory == Memory::default()
            && self.threads.is_empty()
            && self.descriptors.is_empty()
            && self.locks.is_empty()
            && self.notices.is_empty();
        demand(is_empty, "an ended process that has memory, threads or descriptors")
    }
}

impl Model {
    fn validate_message(&self, message: &Message) -> Check {
        let known = message.files.iter().all(|file| (*file as usize) < self.files.len());
        demand(known, "a message with a descriptor of a missing file")?;
        demand(message.files.len() <= MOST_DESCRIPTORS, "a message with too many descriptors")
    }
}

impl Memory {
    fn validate(&self) -> Check {
        self.regions.iter().try_for_each(Region::validate)?;
        let apart = self.regions.windows(2).all(|pair| pair[0].end <= pair[1].start);
        demand(apart, "unsorted or overlapping mappings")?;
        for (start, end) in &self.guards {
            range(*start, *end)?;
        }
        demand(self.protection_keys < 1 << 16, "an invalid protection key")?;
        let (start, bytes) = self.vdso;
        demand(bytes <= VDSO_BYTES, "a vDSO that is too large")?;
        demand(
            bytes == 0 || range(start, start.saturating_add(bytes)).is_ok(),
            "a vDSO at an invalid address",
        )?;
        demand(self.auxv.len() <= AUXV_WORDS, "an auxiliary vector that is too long")
    }
}

impl Stored {
    /// `window` checks that a segment lies where such content may.
    fn validate(&self, window: fn(&Segment) -> Check) -> Check {
        let sorted = self.windows.windows(2).all(|pair| pair[0].address < pair[1].address);
        demand(sorted, "unsorted windows")?;
        for window in &self.windows {
            let ends = SharedObject::AREA + OBJECT_BYTES;
            let fits = window.address.is_multiple_of(CHUNK_BYTES) && window.address < ends;
            demand(fits, "a window at an invalid address")?;
        }
        for segment in &self.segments {
            window(segment)?;
            let end = segment.place.checked_add(segment.bytes);
            let end = end.ok_or("a segment beyond all chunks")?;
            let inside = |start: u64, end: u64| start / CHUNK_BYTES == (end - 1) / CHUNK_BYTES;
            let fits = segment.place.is_multiple_of(PAGE_BYTES)
                && inside(segment.place, end)
                && inside(segment.address, segment.end());
            demand(fits, "a segment that crosses a window or chunk")?;
        }
        let apart = self.segments.windows(2).all(|pair| pair[0].end() <= pair[1].address);
        demand(apart, "unsorted or overlapping segments")
    }
}

fn user_window(segment: &Segment) -> Check {
    range(segment.address, segment.end())
}

fn content_window(segment: &Segment) -> Check {
    let is_window = segment.address.is_multiple_of(CHUNK_BYTES);
    let is_whole =
        is_window && segment.bytes == CHUNK_BYTES && segment.address >= SharedObject::AREA;
    demand(is_whole, "shared memory whose content does not fill whole chunks")
}

fn validate_options(options: &[SocketOption]) -> Check {
    let fit = options.iter().all(|option| option.value.len() <= OPTION_BYTES);
    demand(fit, "a socket option that is too long")
}

impl Socket {
    fn validate(&self) -> Check {
        let peer = match &self.role {
            SocketRole::Connected { peer } | SocketRole::Within { peer } => Some(peer),
            SocketRole::Established(connection) => {
                demand(self.name.is_some(), "a connection without a local address")?;
                let all = connection.sent.1.len();
                demand(
                    connection.unsent as usize <= all,
                    "a connection with more unsent bytes than bytes to send",
                )?;
                demand(!connection.lock.contains('\0'), "a network lock with an invalid name")?;
                Some(&connection.peer)
            }
            _ => None,
        };
        let addresses = self.name.iter().chain(peer);
        let fit = |bytes: &Vec<u8>| (2..=ADDRESS_BYTES).contains(&bytes.len());
        demand(addresses.into_iter().all(fit), "a socket with an address that is too long")?;
        self.file.iter().try_for_each(|file| path(&file.place))?;
        demand(self.shutdown <= 3, "a socket that was shut down in no known way")?;
        validate_options(&self.options)?;
        validate_options(&self.last_options)?;
        demand(self.filter.len() <= FILTER_INSTRUCTIONS, "a socket filter that is too long")
    }
}

fn range(start: u64, end: u64) -> Check {
    let aligned = start.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES);
    demand(aligned && start < end && end <= ADDRESSES, "a mapping at an invalid address")
}

impl RingQueue {
    fn validate(&self) -> Check {
        let end = self.start.saturating_add(self.bytes);
        range(self.start, end)?;
        let is_apart = end <= window::BASE || self.start >= window::END;
        demand(is_apart, "a ring where the restorer lies")
    }
}

impl Region {
    fn validate(&self) -> Check {
        range(self.start, self.end)?;
        let is_ours = self.end > window::BASE && self.start < window::END;
        demand(!is_ours, "a mapping in the restorer window")?;
        let shift = self.traits.page_shift;
        let pages = 1u64.checked_shl(shift.into()).unwrap_or_default();
        let fits = self.start & pages.wrapping_sub(1) == 0 && self.end & pages.wrapping_sub(1) == 0;
        demand(shift < 64 && fits, "a mapping of huge pages that is not a multiple of their size")?;
        let is_anonymous = matches!(self.backing, Backing::Anonymous);
        demand(shift == 0 || is_anonymous, "a mapping of a file with huge pages")?;
        // A stack gets a page below it to grow into.
        demand(!self.traits.grows_down || self.start >= PAGE_BYTES, "a stack at address 0")?;
        match &self.backing {
            Backing::Anonymous => Ok(()),
            Backing::Object { offset, .. } => {
                let end = offset.checked_add(self.end - self.start);
                let fits = end.is_some_and(|end| end < OBJECT_BYTES);
                demand(
                    fits && offset.is_multiple_of(PAGE_BYTES),
                    "a mapping beyond the largest file offset",
                )
            }
            Backing::PrivateFile(file, offset) | Backing::SharedFile { file, offset, .. } => {
                file.validate()?;
                let end = offset.checked_add(self.end - self.start);
                let fits =
                    end.is_some_and(|end| end < 1 << 63) && offset.is_multiple_of(PAGE_BYTES);
                demand(fits, "a mapping beyond the largest file offset")
            }
        }
    }
}

impl SharedObject {
    fn validate(&self, content: &Stored) -> Check {
        demand(self.size < OBJECT_BYTES, "shared memory that is too large")?;
        let name = match &self.kind {
            ObjectKind::Anonymous { .. } => &[][..],
            ObjectKind::Memfd(name) | ObjectKind::Unlinked(name) => name,
            ObjectKind::SystemV(segment) => {
                demand(segment.id <= i32::MAX as u32, "a segment of System V with an invalid id")?;
                &[]
            }
        };
        demand(
            name.len() <= MEMFD_NAME_BYTES && !name.contains(&0),
            "a memfd with an invalid name",
        )?;
        let is_anonymous = matches!(self.kind, ObjectKind::Anonymous { .. });
        let may_be_empty = !is_anonymous && !self.is_system_v();
        demand(may_be_empty || self.size > 0, "shared anonymous memory without a size")?;
        self.extents.iter().try_for_each(|extent| extent.validate(self, content))
    }
}

impl ObjectExtent {
    /// Its content must be in windows that follow each other.
    fn validate(&self, object: &SharedObject, content: &Stored) -> Check {
        let parts = [self.offset, self.bytes, self.stored];
        let sound = parts.iter().all(|part| part.is_multiple_of(PAGE_BYTES))
            && self.offset < object.size
            && self.bytes > 0
            && self.bytes < OBJECT_BYTES
            && (SharedObject::AREA..SharedObject::AREA + OBJECT_BYTES).contains(&self.stored);
        demand(sound, "content outside of its shared memory")?;
        let windows = &content.windows;
        let start = align_down(self.stored, CHUNK_BYTES);
        let first = windows.partition_point(|window| window.address < start);
        let last = (self.stored + self.bytes - 1 - start) / CHUNK_BYTES;
        let held = windows.get(first).is_some_and(|window| window.address == start)
            && windows
                .get(first + last as usize)
                .is_some_and(|window| window.address == start + last * CHUNK_BYTES);
        demand(held, "content of shared memory that is not stored")
    }
}

impl UnnamedFile {
    fn validate(&self) -> Check {
        path(&self.directory)?;
        demand(self.size < 1 << 63, "a file that is too large")?;
        let mut end = 0;
        for (offset, bytes) in &self.extents {
            demand(*offset >= end, "unsorted content of a file")?;
            end = offset.saturating_add(bytes.len() as u64);
        }
        demand(end <= self.size, "content beyond the end of its file")?;
        let is_text = self.attributes.iter().all(|(name, _)| !name.contains('\0'));
        demand(is_text, "an extended attribute with an invalid name")
    }
}

impl FileStamp {
    fn validate(&self) -> Check {
        path(&self.path)
    }
}

impl Thread {
    fn validate(&self) -> Check {
        demand(self.registers.len() == REGISTER_WORDS, "a thread without all registers")?;
        let vectors = (xstate::MINIMUM_BYTES..=XSTATE_BYTES).contains(&self.xstate.len());
        demand(vectors, "a thread without its vector registers")?;
        let is_name = self.comm.len() <= COMM_BYTES && !self.comm.contains(&0);
        demand(is_name, "a thread with an invalid name")?;
        let most = SeccompFilter::MOST_INSTRUCTIONS;
        let fits = |filter: &SeccompFilter| (1..=most).contains(&filter.instructions.len());
        demand(self.filters.iter().all(fits), "an invalid seccomp filter")?;
        let path: usize = self.filters.iter().map(|filter| filter.instructions.len() + 4).sum();
        demand(path <= SeccompFilter::MOST_OF_A_THREAD, "too many seccomp filters")?;
        pending(&self.pending)
    }
}

fn pending(signals: &[Vec<u8>]) -> Check {
    let whole = signals.iter().all(|info| info.len() == SIGINFO_BYTES);
    demand(whole, "a truncated pending signal")
}

fn path(path: &Path) -> Check {
    let is_path = path.is_absolute() && !path.as_os_str().as_bytes().contains(&0);
    demand(is_path, "an invalid path")
}
