//! A machine from its start or its restore to its end.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use farfork_sys::userfault::Userfault;

use crate::error::VmmError;
use crate::hand_over::hand_over;
use crate::memory::{Mapping, PAGE_BYTES};
use crate::pattern::Pattern;
use crate::processor::{self, Job, Processor};
use crate::state::State;
use crate::walk::Walk;
use crate::workload::Workload;

const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Where the memory of a restored machine comes from.
#[derive(Clone, Copy, Debug)]
pub enum Backing<'a> {
    /// A page server at this socket: Firecracker's `Uffd`.
    Uffd(&'a Path),
    /// The same with huge pages that are set aside.
    HugeUffd(&'a Path),
    /// This memory file, mapped as pages are touched: Firecracker's `File`.
    File(&'a Path),
    /// The same, with all of it mapped before the machine runs.
    Resident(&'a Path),
    /// Anonymous memory, with these parts of the memory file, `(offset, bytes)` of whole pages, over it.
    Regions(&'a Path, &'a [(u64, u64)]),
}

/// A machine. Dropped, it ends.
pub struct Monitor {
    // Dropped in this order: the guest first, its memory last.
    processor: Processor,
    /// A copy that the monitor keeps, and the socket, which shows its end.
    handed_over: Option<(Userfault, UnixStream)>,
    memory: Vec<Mapping>,
}

impl Monitor {
    /// A machine whose memory, in `parts` mappings, holds a pattern.
    ///
    /// # Errors
    /// [`VmmError`].
    pub fn start(pattern: &Pattern, parts: u64) -> Result<Monitor, VmmError> {
        let state = State { memory_bytes: pattern.memory_bytes, parts };
        let is_zeros = |page| pattern.is_zeros(page);
        Monitor::with(state, is_zeros, |page, word| pattern.word(page, word))
    }

    /// The same with the memory of a workload.
    ///
    /// # Errors
    /// [`VmmError`].
    pub fn start_workload(workload: &Workload, parts: u64) -> Result<Monitor, VmmError> {
        let state = State { memory_bytes: workload.memory_bytes, parts };
        let is_zeros = |page| workload.is_zeros(page);
        Monitor::with(state, is_zeros, |page, word| workload.word(page, word))
    }

    fn with(
        state: State,
        is_zeros: impl Fn(u64) -> bool,
        word_of: impl Fn(u64, u64) -> u64,
    ) -> Result<Monitor, VmmError> {
        let memory = state.anonymous(false)?;
        let monitor = Monitor { processor: Processor::new(&memory)?, handed_over: None, memory };
        for page in (0..state.memory_bytes / PAGE_BYTES).filter(|page| !is_zeros(*page)) {
            for word in 0..PAGE_BYTES / 8 {
                monitor.store(page * PAGE_BYTES + word * 8, word_of(page, word));
            }
        }
        processor::install(|address, word| monitor.store(address, word));
        Ok(monitor)
    }

    /// Restores a machine from its state file and a memory.
    ///
    /// # Errors
    /// [`VmmError`].
    pub fn restore(state: &Path, backing: Backing<'_>) -> Result<Monitor, VmmError> {
        let bytes = fs::read(state).map_err(VmmError::io("read the state"))?;
        let state = State::parse(&bytes)?;
        let (memory, handed_over) = match backing {
            Backing::File(path) => (state.mapped(path, false)?, None),
            Backing::Resident(path) => (state.mapped(path, true)?, None),
            Backing::Regions(path, regions) => (state.regions(path, regions)?, None),
            Backing::Uffd(socket) => {
                let memory = state.anonymous(false)?;
                let handed_over = hand_over(socket, &memory, PAGE_BYTES)?;
                (memory, Some(handed_over))
            }
            Backing::HugeUffd(socket) => {
                let memory = state.anonymous(true)?;
                let handed_over = hand_over(socket, &memory, HUGE_PAGE_BYTES)?;
                (memory, Some(handed_over))
            }
        };
        Ok(Monitor { processor: Processor::new(&memory)?, handed_over, memory })
    }

    /// Whether a vCPU runs the guest, and not the host.
    pub fn has_kvm(&self) -> bool {
        matches!(self.processor, Processor::Kvm { .. })
    }

    /// Whether a page server fills its memory.
    pub fn is_served(&self) -> bool {
        self.handed_over.is_some()
    }

    /// Runs the guest; what it has mixed.
    ///
    /// # Errors
    /// [`VmmError`].
    pub fn walk(&mut self, walk: &Walk) -> Result<u64, VmmError> {
        self.processor.run(&self.memory, &Job::Walk(walk))
    }

    /// Has the guest go through the list of a workload, whose memory it has; what it has mixed.
    ///
    /// # Errors
    /// [`VmmError`].
    pub fn invoke(&mut self, workload: &Workload) -> Result<u64, VmmError> {
        let (at, count) = (workload.list_at(), workload.accesses().len() as u64);
        self.processor.run(&self.memory, &Job::List { at, count })
    }

    /// Writes state and memory, pages of zeros too.
    ///
    /// # Errors
    /// [`VmmError::Io`].
    pub fn snapshot(&self, state: &Path, memory: &Path) -> Result<(), VmmError> {
        let (parts, memory_bytes) = (self.memory.len() as u64, self.bytes());
        let bytes = State { memory_bytes, parts }.encode();
        fs::write(state, bytes).map_err(VmmError::io("write the state"))?;
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::with_capacity(1 << 20, File::create(memory)?);
            for address in (0..self.bytes()).step_by(8) {
                file.write_all(&self.load(address).to_le_bytes())?;
            }
            file.flush()
        };
        write().map_err(VmmError::io("write the memory"))
    }

    /// Bytes of the memory.
    pub fn bytes(&self) -> u64 {
        self.memory.iter().map(Mapping::bytes).sum()
    }

    /// The word at an address of the guest that is a multiple of eight.
    pub fn load(&self, address: u64) -> u64 {
        let (part, offset) = self.at(address);
        part.load(offset)
    }

    fn store(&self, address: u64, value: u64) {
        let (part, offset) = self.at(address);
        part.store(offset, value);
    }

    /// Gives pages back to the host, as a balloon does. The range lies in one part of the memory.
    ///
    /// # Errors
    /// [`VmmError::Io`].
    pub fn discard(&self, address: u64, bytes: u64) -> Result<(), VmmError> {
        let (part, offset) = self.at(address);
        part.discard(offset, bytes).map_err(VmmError::io("discard memory"))
    }

    fn at(&self, address: u64) -> (&Mapping, u64) {
        let part_bytes = self.memory[0].bytes();
        (&self.memory[(address / part_bytes) as usize], address % part_bytes)
    }
}

impl State {
    fn anonymous(&self, is_huge: bool) -> Result<Vec<Mapping>, VmmError> {
        let map = |_| Mapping::anonymous(self.part_bytes(), is_huge);
        let mapped = (0..self.parts).map(map).collect::<Result<_, _>>();
        mapped.map_err(VmmError::io("map memory"))
    }

    fn mapped(&self, path: &Path, is_resident: bool) -> Result<Vec<Mapping>, VmmError> {
        let map = || {
            let file = File::open(path)?;
            let bytes = self.part_bytes();
            let part = |part| Mapping::file(&file, part * bytes, bytes, is_resident);
            (0..self.parts).map(part).collect::<Result<_, _>>()
        };
        map().map_err(VmmError::io("map the memory file"))
    }

    fn regions(&self, path: &Path, regions: &[(u64, u64)]) -> Result<Vec<Mapping>, VmmError> {
        let map = || {
            let file = File::open(path)?;
            let bytes = self.part_bytes();
            let part = |part| Mapping::regions(&file, (part * bytes, bytes), regions);
            (0..self.parts).map(part).collect::<Result<_, _>>()
        };
        map().map_err(VmmError::io("map parts of the memory file"))
    }

    fn part_bytes(&self) -> u64 {
        self.memory_bytes / self.parts
    }
}
