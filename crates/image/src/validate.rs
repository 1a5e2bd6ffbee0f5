//! What holds of every model that a checkpoint makes. A model that was read is looked at before
//! anything is compiled from it, so that damage shows as damage.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_plan::protocol::MAX_REQUEST_FDS;
use farfork_plan::window;
use farfork_sys::ptrace::REGISTER_WORDS;
use farfork_sys::socket::{ADDRESS_BYTES, FILTER_INSTRUCTIONS};
use farfork_sys::xstate;
use farfork_types::{CHUNK_BYTES, PAGE_BYTES};

use crate::model::{
    Backing, FileStamp, Memory, Model, OpenFile, Region, SETTINGS_BYTES, Socket, SocketOption,
    SocketRole, Thread, UnnamedFile,
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
/// Words of an auxiliary vector; the kernel has some 50.
const AUXV_WORDS: usize = 512;

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
        self.memory.validate()?;
        demand(!self.threads.is_empty(), "a process without threads")?;
        self.threads.iter().try_for_each(Thread::validate)?;
        path(&self.process.exe)?;
        path(&self.process.cwd)?;
        for (signal, _) in &self.signals.actions {
            demand((1..=64).contains(signal), "an action for a signal that does not exist")?;
        }
        pending(&self.signals.pending)?;
        self.validate_descriptors()
    }

    fn validate_descriptors(&self) -> Check {
        let numbers = self.descriptors.windows(2).all(|pair| pair[0].fd < pair[1].fd);
        demand(numbers, "descriptors that are not in order")?;
        for descriptor in &self.descriptors {
            demand(descriptor.fd < MAX_FDS, "a descriptor number beyond every limit")?;
            let has_file = (descriptor.file as usize) < self.files.len();
            demand(has_file, "a descriptor without a file")?;
        }
        let is_external = |file: &&OpenFile| matches!(file, OpenFile::External { .. });
        let externals = self.files.iter().filter(is_external).count();
        demand(externals + 3 <= MAX_REQUEST_FDS, "too many files from outside")?;
        self.unnamed.iter().try_for_each(UnnamedFile::validate)?;
        for terminal in &self.terminals {
            demand(terminal.settings.len() == SETTINGS_BYTES, "a terminal without settings")?;
        }
        let held = self.locks.iter().map(|lock| lock.file);
        for file in held.chain(self.notices.iter().map(|notice| notice.file)) {
            let is_ours = self.files.get(file as usize).is_some_and(|file| file.flags().is_some());
            demand(is_ours, "a lock on no file")?;
        }
        for lock in &self.locks {
            let end = lock.start.checked_add(lock.length);
            demand(end.is_some_and(|end| end < 1 << 63), "a lock beyond every file")?;
        }
        self.files.iter().try_for_each(|file| match file {
            OpenFile::Path { path: at, stamp, .. } => {
                path(at)?;
                stamp.iter().try_for_each(FileStamp::validate)
            }
            OpenFile::Unnamed { file, .. } => {
                demand((*file as usize) < self.unnamed.len(), "a file without content")
            }
            OpenFile::TerminalMaster { terminal, path: at, .. } => {
                demand((*terminal as usize) < self.terminals.len(), "a master of no terminal")?;
                path(at)
            }
            OpenFile::TerminalSlave { terminal, .. } => {
                demand((*terminal as usize) < self.terminals.len(), "a slave of no terminal")
            }
            OpenFile::Inotify { watches, .. } => {
                let numbers = watches.windows(2).all(|pair| pair[0].number < pair[1].number);
                demand(numbers, "watches that are not in order")?;
                watches.iter().try_for_each(|watch| path(&watch.path))
            }
            OpenFile::Pipe { content, capacity, .. } => {
                demand(content.len() <= *capacity as usize, "a pipe that holds too much")
            }
            OpenFile::SocketPair { end, options, .. } => {
                demand(*end < 2, "a socket pair of three")?;
                validate_options(options)
            }
            OpenFile::Socket(socket) => socket.validate(),
            _ => Ok(()),
        })
    }
}

impl Memory {
    fn validate(&self) -> Check {
        self.regions.iter().try_for_each(Region::validate)?;
        let apart = self.regions.windows(2).all(|pair| pair[0].end <= pair[1].start);
        demand(apart, "mappings that overlap or are not in order")?;
        let sorted = self.windows.windows(2).all(|pair| pair[0].address < pair[1].address);
        demand(sorted, "windows that are not in order")?;
        for window in &self.windows {
            let fits = window.address.is_multiple_of(CHUNK_BYTES) && window.address < ADDRESSES;
            demand(fits, "a window at no address of one")?;
        }
        for (start, end) in &self.guards {
            range(*start, *end)?;
        }
        let (start, bytes) = self.vdso;
        demand(bytes <= VDSO_BYTES, "a vDSO of more than a few pages")?;
        demand(
            bytes == 0 || range(start, start.saturating_add(bytes)).is_ok(),
            "a vDSO at no address",
        )?;
        demand(self.auxv.len() <= AUXV_WORDS, "an auxiliary vector without end")
    }
}

fn validate_options(options: &[SocketOption]) -> Check {
    let fit = options.iter().all(|option| option.value.len() <= OPTION_BYTES);
    demand(fit, "a socket option without end")
}

impl Socket {
    fn validate(&self) -> Check {
        let peer = match &self.role {
            SocketRole::Connected { peer } => Some(peer),
            _ => None,
        };
        let addresses = self.name.iter().chain(peer);
        let fit = |bytes: &Vec<u8>| (2..=ADDRESS_BYTES).contains(&bytes.len());
        demand(addresses.into_iter().all(fit), "a socket at no address")?;
        validate_options(&self.options)?;
        demand(self.filter.len() <= FILTER_INSTRUCTIONS, "a socket filter without end")
    }
}

fn range(start: u64, end: u64) -> Check {
    let aligned = start.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES);
    demand(aligned && start < end && end <= ADDRESSES, "a mapping at no address of one")
}

impl Region {
    fn validate(&self) -> Check {
        range(self.start, self.end)?;
        let is_ours = self.end > window::BASE && self.start < window::END;
        demand(!is_ours, "a mapping where farfork keeps its own code")?;
        // A stack gets a page below it to grow into.
        demand(!self.traits.grows_down || self.start >= PAGE_BYTES, "a stack at address 0")?;
        match &self.backing {
            Backing::Anonymous => Ok(()),
            Backing::PrivateFile(file, offset) | Backing::SharedFile { file, offset, .. } => {
                file.validate()?;
                let end = offset.checked_add(self.end - self.start);
                let fits =
                    end.is_some_and(|end| end < 1 << 63) && offset.is_multiple_of(PAGE_BYTES);
                demand(fits, "a mapping beyond every file")
            }
        }
    }
}

impl UnnamedFile {
    fn validate(&self) -> Check {
        path(&self.directory)?;
        demand(self.size < 1 << 63, "a file larger than every file")?;
        let mut end = 0;
        for (offset, bytes) in &self.extents {
            demand(*offset >= end, "content of a file that is not in order")?;
            end = offset.saturating_add(bytes.len() as u64);
        }
        demand(end <= self.size, "content beyond the end of its file")?;
        let is_text = self.attributes.iter().all(|(name, _)| !name.contains('\0'));
        demand(is_text, "an attribute with a name that is none")
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
        demand(is_name, "a thread with a name that is none")?;
        pending(&self.pending)
    }
}

fn pending(signals: &[Vec<u8>]) -> Check {
    let whole = signals.iter().all(|info| info.len() == SIGINFO_BYTES);
    demand(whole, "a signal that is cut off")
}

fn path(path: &Path) -> Check {
    let is_path = path.is_absolute() && !path.as_os_str().as_bytes().contains(&0);
    demand(is_path, "a path that is none")
}
