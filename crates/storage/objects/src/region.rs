//! An open region, and what it runs on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::ObjectsError;
use crate::forks::Replaced;
use crate::header::Header;
use crate::keys::Key;
use crate::layout::{ClientId, GENERATION_AT, Layout, NAME_BYTES, OPERATIONS};
use crate::liveness::{KernelLocks, Liveness};
use crate::words::{Mapped, Parts, Protected, Words};

/// What a region runs on.
pub trait Platform {
    /// Its memory.
    type Words: Words + From<Mapped> + Clone;
    /// What shows which clients are alive.
    type Liveness: Liveness + From<File> + Clone;
    /// A fault that its operations have.
    #[cfg(feature = "seeded-faults")]
    #[inline(always)]
    fn fault() -> Option<crate::seeded::Fault> {
        None
    }
    /// What tests do before each change of names of files.
    #[cfg(feature = "seeded-faults")]
    #[inline(always)]
    fn step() {}
}

/// One machine: coherent memory, and its kernel's locks.
#[derive(Debug)]
pub struct Node;

impl Platform for Node {
    type Words = Mapped;
    type Liveness = KernelLocks;
}

impl From<File> for KernelLocks {
    fn from(file: File) -> KernelLocks {
        KernelLocks::new(file)
    }
}

/// Whether operations of a platform have a fault. Without the feature, none has any.
macro_rules! has_fault {
    ($platform:ty, $fault:ident) => {{
        #[cfg(feature = "seeded-faults")]
        let has = matches!(<$platform>::fault(), Some(crate::seeded::Fault::$fault));
        #[cfg(not(feature = "seeded-faults"))]
        let has = false;
        has
    }};
}
pub(crate) use has_fault;

/// Before a change of names of files: tests end the process here.
macro_rules! step {
    ($platform:ty) => {
        #[cfg(feature = "seeded-faults")]
        <$platform>::step();
    };
}
pub(crate) use step;

/// Metadata of a region in this node's memory.
pub(crate) struct NodeLocal {
    pub(crate) file: File,
    pub(crate) generation: u64,
    pub(crate) path: PathBuf,
}

/// What holds a client's id.
pub(crate) type Claim<P> = <<P as Platform>::Liveness as Liveness>::Claim;

/// Completes the guarded operation that a dead client was in, and gives back what the client has. It holds the client's
/// claim. The layers above say what that means.
pub(crate) type Completion<P> = Arc<dyn Fn(&Region<P>, ClientId, Claim<P>) + Send + Sync>;

/// An open region.
pub struct Region<P: Platform = Node> {
    pub(crate) words: P::Words,
    /// Its owner bytes, by the granules that they belong to.
    pub(crate) owners: P::Words,
    pub(crate) liveness: P::Liveness,
    pub(crate) layout: Layout,
    pub(crate) header: Header,
    pub(crate) path: PathBuf,
    /// Generation of node-local metadata.
    pub(crate) generation: Option<u64>,
    /// Where that lies.
    pub(crate) metadata: Option<PathBuf>,
    /// The code of guarded operations that this process has.
    completions: Arc<[Replaced<Completion<P>>; OPERATIONS]>,
}

/// Where a reference has the generation of its object: in bits that no offset of a granule in a region of at most 64 GiB has.
pub(crate) fn generation_bits(generation: u16) -> u64 {
    let generation = u64::from(generation);
    generation & 15 | generation >> 4 << 36
}

impl<P: Platform> Region<P> {
    /// Maps an open region.
    pub(crate) fn map(
        file: File,
        header: Header,
        layout: Layout,
        path: &Path,
        node_local: Option<&NodeLocal>,
    ) -> Result<Region<P>, ObjectsError> {
        let ranges = layout.node_local_parts();
        let parts = node_local.map(|other| Parts { file: &other.file, ranges: &ranges });
        let key = Key::of_process()
            .map_err(|source| ObjectsError::NoProtectionKey { path: path.to_owned(), source })?;
        let metadata = layout.metadata_parts(header.bytes);
        let protected = key.map(|key| Protected { key, ranges: &metadata });
        let range = (header.address, header.bytes);
        let mapped =
            Mapped::map(&file, parts.as_ref(), protected.as_ref(), range).map_err(|error| {
                match error.raw_os_error() {
                    Some(libc::EEXIST) => ObjectsError::AddressTaken {
                        path: path.to_owned(),
                        address: header.address,
                        end: header.address.saturating_add(header.bytes),
                    },
                    Some(libc::ESTALE) => ObjectsError::MetadataReplaced { path: path.to_owned() },
                    _ => ObjectsError::io("map the region", path)(error),
                }
            })?;
        let words = P::Words::from(mapped);
        Ok(Region {
            owners: words.tail(layout.owner(0)),
            words,
            liveness: P::Liveness::from(file),
            layout,
            header,
            path: path.to_owned(),
            generation: node_local.map(|other| other.generation),
            metadata: node_local.map(|other| other.path.clone()),
            completions: Arc::default(),
        })
    }

    /// Memory that lies in no file.
    pub(crate) fn in_memory(
        words: P::Words,
        liveness: P::Liveness,
        layout: Layout,
        header: Header,
    ) -> Region<P> {
        Region {
            owners: words.tail(layout.owner(0)),
            words,
            liveness,
            layout,
            header,
            path: PathBuf::new(),
            generation: None,
            metadata: None,
            completions: Arc::default(),
        }
    }

    /// The same region once more.
    pub(crate) fn again(&self) -> Region<P> {
        Region {
            words: self.words.clone(),
            owners: self.owners.clone(),
            liveness: self.liveness.clone(),
            layout: self.layout,
            header: self.header.clone(),
            path: self.path.clone(),
            generation: self.generation,
            metadata: self.metadata.clone(),
            completions: Arc::clone(&self.completions),
        }
    }

    /// Takes over the code of operations that another handle of the region has.
    pub(crate) fn share_completions(&mut self, other: &Region<P>) {
        self.completions = Arc::clone(&other.completions);
    }

    /// The code that completes an operation, if this process has it.
    pub(crate) fn completion(&self, operation: usize) -> Option<Completion<P>> {
        self.completions.get(operation)?.get().cloned()
    }

    /// Makes that code known.
    pub(crate) fn set_completion(&self, operation: usize, completion: Completion<P>) {
        self.completions[operation].set(completion);
    }

    /// What its header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The granule that a reference means. `None` if it is not a reference of this region.
    pub(crate) fn granule_of(&self, reference: u64) -> Option<u32> {
        let generation = if self.header.is_checked { generation_bits(u16::MAX) } else { 0 };
        let offset = (reference ^ self.tag()) & !generation;
        let offset = Some(offset).filter(|offset| *offset < self.header.bytes)?;
        self.layout.granule_at(offset)
    }

    /// What all references to it have in common.
    pub(crate) fn tag(&self) -> u64 {
        let [low, high, ..] = self.header.uuid;
        u64::from(low) << 48 | u64::from(high) << 56
    }

    /// A granule that shared memory names, if it is one. 0 means none.
    pub(crate) fn granule_in_spans(&self, word: u64) -> Option<u32> {
        let granule = u32::try_from(word).ok()?;
        self.layout.spans().contains(&crate::layout::span_of(granule)).then_some(granule)
    }

    /// Name of a mailbox. `None` if there is none.
    pub(crate) fn mailbox_name(&self, index: usize) -> Option<String> {
        let at = self.layout.mailbox(index);
        if self.words.word(at.state()) != crate::layout::READY {
            return None;
        }
        Some(self.name(|word| at.name(word)))
    }

    /// The name whose words lie at these places.
    pub(crate) fn name(&self, at: impl Fn(usize) -> usize) -> String {
        let words = (0..NAME_BYTES / 8).map(|word| self.words.word(at(word)));
        let bytes: Vec<u8> =
            words.flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Stores it there.
    pub(crate) fn set_name(&self, at: impl Fn(usize) -> usize, name: &str) {
        for word in 0..NAME_BYTES / 8 {
            let bytes = name.bytes().skip(8 * word).take(8).enumerate();
            let value = bytes.fold(0, |value, (at, byte)| value | u64::from(byte) << (8 * at));
            self.words.set_word(at(word), value);
        }
    }

    /// Slots of a mailbox, as many as there can be if the number is damaged.
    pub(crate) fn slots(&self, index: usize) -> u64 {
        self.words.word(self.layout.mailbox(index).slots()).min(crate::layout::MOST_SLOTS)
    }

    /// Whether a client has the id, or died with it.
    pub(crate) fn is_in_use(&self, id: ClientId) -> bool {
        self.words.word(self.layout.client(id)) != 0
    }

    pub(crate) fn is_alive(&self, id: ClientId) -> Result<bool, ObjectsError> {
        let failed = ObjectsError::io("look for clients of the region", &self.path);
        self.liveness.is_alive(id).map_err(failed)
    }

    pub(crate) fn claim(&self, id: ClientId) -> Result<Option<Claim<P>>, ObjectsError> {
        let claimed = self.liveness.claim(id);
        let claim = claimed.map_err(ObjectsError::io("claim an id in the region", &self.path))?;
        // Metadata is rebuilt by a process that has all claims: with this one, it stays what it is.
        if claim.is_some() {
            self.check_generation()?;
        }
        Ok(claim)
    }

    /// An error if this process has mapped metadata that another one has rebuilt since then.
    pub(crate) fn check_generation(&self) -> Result<(), ObjectsError> {
        let is_it = |known| self.words.word(GENERATION_AT) == known;
        match self.generation.is_none_or(is_it) {
            true => Ok(()),
            false => Err(ObjectsError::MetadataReplaced { path: self.path.clone() }),
        }
    }

    pub(crate) fn damaged(&self, what: String) -> ObjectsError {
        ObjectsError::Damaged { path: self.path.clone(), what }
    }
}
