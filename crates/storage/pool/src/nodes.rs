//! Nodes and their pins: which images clones of a node map.
//!
//! ```text
//!  nodes/NODE      one file per node; NODE is a number drawn from its name and its pin file
//!
//!  0      header   magic, version, checksum, whose it is, name
//!  256    pins     one id of 16 bytes each; 0 where there is none
//! ```
//! 1. A file belongs to a name and to the pin file that shows what lives of the node: two agents of one
//!    name and of different run directories have a file each.
//! 2. Its one writer, the agent, holds its lock. Any process reads it.
//! 3. A pin is written first and the image looked for afterwards; a removal does it the other way round.
//!    Pins decide only where several kernels map the same medium ([`crate::Medium`]); elsewhere they
//!    show what is in use.
//! 4. A file is taken from its owner only by the process that has its pin file, or after the machine was
//!    started again.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::str::FromStr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::boot::Boot;
use farfork_sys::sync::locked;
use farfork_types::Cid;
use rustix::fs::OFlags;
use serde::Serialize;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::PoolError;
use crate::failpoint::step;
use crate::layout::{self, MAX_NODE_NAME_BYTES, NODES};
use crate::lock::{HeldLock, LockByte};
use crate::pinfile::{Holder, PinFile};
use crate::pool::Pool;

/// How long the file of an agent may still be locked that is about to have ended.
const PATIENCE: Duration = Duration::from_secs(5);

const MAGIC: u64 = u64::from_le_bytes(*b"farforkN");
const VERSION: u32 = 1;
const PINS_AT: u64 = 256;
const PIN_BYTES: usize = 16;
const FREE: [u8; PIN_BYTES] = [0; PIN_BYTES];

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    /// crc32c of the header with 0 in this place.
    checksum: u32,
    /// Whose it is: a [`Holder`].
    holder: [u64; 4],
    name_bytes: u64,
    name: [u8; MAX_NODE_NAME_BYTES],
    reserved: [u64; 14],
}

const _: () = assert!(size_of::<Header>() == PINS_AT as usize);

/// The number of a node in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct NodeId(u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for NodeId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<NodeId, std::num::ParseIntError> {
        u64::from_str_radix(text, 16).map(NodeId)
    }
}

impl NodeId {
    fn of(name: &str, holder: Holder) -> NodeId {
        let mut bytes = holder.to_words().as_bytes().to_vec();
        bytes.extend(name.as_bytes());
        // Two sums, since one of 32 bits could be the same for two nodes.
        let (low, high) = (crc32c::crc32c(&bytes), crc32c::crc32c_append(0x5eed, &bytes));
        bytes.reverse();
        let back = crc32c::crc32c(&bytes);
        NodeId(u64::from(high ^ back) << 32 | u64::from(low))
    }
}

/// A node's file, which no other process writes as long as this is there.
#[derive(Debug)]
pub struct NodeRow {
    id: NodeId,
    file: File,
    /// As they stand in the file.
    pins: Mutex<Vec<Option<Cid>>>,
    _lock: HeldLock,
}

impl NodeRow {
    /// Which node.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Writes the pin of `cid`; whether it is new.
    fn add(&self, cid: Cid) -> io::Result<bool> {
        let mut pins = locked(&self.pins);
        if pins.contains(&Some(cid)) {
            return Ok(false);
        }
        let free = pins.iter().position(Option::is_none).unwrap_or(pins.len());
        self.file.write_all_at(&cid.to_bytes(), at(free))?;
        step();
        match pins.get_mut(free) {
            Some(pin) => *pin = Some(cid),
            None => pins.push(Some(cid)),
        }
        Ok(true)
    }

    fn clear(&self, cid: Cid) -> io::Result<()> {
        let mut pins = locked(&self.pins);
        if let Some(place) = pins.iter().position(|pin| *pin == Some(cid)) {
            self.file.write_all_at(&FREE, at(place))?;
            step();
            pins[place] = None;
        }
        Ok(())
    }

    fn pinned(&self) -> Vec<Cid> {
        let pins = locked(&self.pins);
        pins.iter().flatten().copied().collect()
    }
}

fn at(place: usize) -> u64 {
    PINS_AT + (place * PIN_BYTES) as u64
}

/// What became of what the pool knew of a node that was to be forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Files that were dropped.
    pub rows: usize,
    /// Images that were pinned in them.
    pub pins: usize,
    /// Files that stay: an agent or clones of theirs live.
    pub living: usize,
}

/// A node's file, as it was read.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    holder: Holder,
    pub(crate) pins: Vec<Option<Cid>>,
}

impl Node {
    /// `None` if the bytes are not those of a node.
    fn parse(id: NodeId, bytes: &[u8]) -> Option<Node> {
        let (header, rest) = Header::read_from_prefix(bytes).ok()?;
        let without = Header { checksum: 0, ..header };
        let name = header.name.get(..usize::try_from(header.name_bytes).ok()?)?;
        let is_sound = (header.magic, header.version) == (MAGIC, VERSION)
            && crc32c::crc32c(without.as_bytes()) == header.checksum;
        let pins = rest.as_chunks::<PIN_BYTES>().0.iter();
        let pin = |pin: &[u8; PIN_BYTES]| (*pin != FREE).then(|| Cid::from_bytes(*pin));
        is_sound.then_some(Node {
            id,
            name: String::from_utf8(name.to_vec()).ok()?,
            holder: Holder::from_words(header.holder),
            pins: pins.map(pin).collect(),
        })
    }

    fn header(name: &str, holder: Holder) -> Header {
        let mut header = Header {
            magic: MAGIC,
            version: VERSION,
            checksum: 0,
            holder: holder.to_words(),
            name_bytes: name.len() as u64,
            name: [0; MAX_NODE_NAME_BYTES],
            reserved: [0; 14],
        };
        header.name[..name.len()].copy_from_slice(name.as_bytes());
        Header { checksum: crc32c::crc32c(header.as_bytes()), ..header }
    }
}

impl Pool {
    /// The file of the node `name` whose clones hold locks in `holders`, which is made if there is none.
    /// Another node may have the same name. What a former life of the machine has left is removed.
    ///
    /// # Errors
    /// [`PoolError::NodeLives`] if another process has it; [`PoolError::BadNodeName`],
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn register_node(&self, name: &str, holders: &PinFile) -> Result<NodeRow, PoolError> {
        if name.is_empty() || name.len() > MAX_NODE_NAME_BYTES {
            return Err(PoolError::BadNodeName { name: name.to_owned() });
        }
        self.intact()?;
        let holder = holders.holder();
        let id = NodeId::of(name, holder);
        let begun = Instant::now();
        let failed = || self.directory.failed("register a node in", "");
        loop {
            let lock = self.lock()?;
            self.drop_former(name)?;
            let known = self.node(id).map_err(failed())?;
            if !known.is_some_and(|node| node.is_some_and(|node| node.holder == holder)) {
                let header = Node::header(name, holder);
                self.directory.put(&path_of(id), header.as_bytes()).map_err(failed())?;
            }
            if let Some(row) = self.take(id).map_err(failed())? {
                return Ok(row);
            }
            if begun.elapsed() > PATIENCE {
                return Err(self.node_lives(name));
            }
            drop(lock);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The file that `name` has with `holders`, if there is one and no agent has it now.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn row_of(&self, name: &str, holders: &PinFile) -> Result<Option<NodeRow>, PoolError> {
        self.intact()?;
        let _lock = self.lock()?;
        let taken = self.take(NodeId::of(name, holders.holder()));
        taken.map_err(self.directory.failed("look at a node of", ""))
    }

    /// Drops what the pool knows of a node that never comes back, with all its pins. A file stays whose
    /// agent has it, or of which clones are seen to live: by their locks, in `holders` or in any other
    /// file of this kernel. That of no other machine is seen, and the caller knows.
    ///
    /// # Errors
    /// [`PoolError::NoNode`]; [`PoolError::NodeLives`] if nothing could be dropped;
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn forget_node(
        &self,
        name: &str,
        holders: Option<&PinFile>,
    ) -> Result<Forgotten, PoolError> {
        self.intact()?;
        let _lock = self.lock()?;
        let mut done = Forgotten::default();
        let failed = || self.directory.failed("forget a node of", "");
        for node in self.nodes()?.into_iter().filter(|node| node.name == name) {
            match self.take(node.id).map_err(failed())? {
                Some(_row) if !has_clones(node.holder, holders)? => {
                    let pins: Vec<Cid> = node.pins.into_iter().flatten().collect();
                    self.directory.remove(&path_of(node.id)).map_err(failed())?;
                    pins.iter().try_for_each(|cid| self.settle(*cid).map(drop))?;
                    done.pins += pins.len();
                    done.rows += 1;
                }
                _ => done.living += 1,
            }
        }
        match done {
            Forgotten { rows: 0, living: 0, .. } => {
                Err(PoolError::NoNode { path: self.path().to_owned(), name: name.to_owned() })
            }
            Forgotten { rows: 0, .. } => Err(self.node_lives(name)),
            done => Ok(done),
        }
    }

    /// Lets the pool show that clones of `node` map `cid`; where other kernels map the same medium, it
    /// stays until [`unpin`](Pool::unpin). Pins do not count: a second one changes nothing.
    ///
    /// # Errors
    /// [`PoolError::NoImage`] if the image is not published, [`PoolError::Gone`], [`PoolError::Io`].
    pub fn pin(&self, node: &NodeRow, cid: Cid) -> Result<(), PoolError> {
        self.intact()?;
        let is_new = node.add(cid).map_err(self.directory.failed("pin an image in", NODES))?;
        if !is_new {
            return Ok(());
        }
        let found = self.directory.look(&layout::image(cid));
        match found.map_err(self.directory.failed("look for an image in", ""))? {
            Some(_) => Ok(()),
            None => {
                self.unpin(node, cid)?;
                Err(self.no_image(cid))
            }
        }
    }

    /// Lets go of `cid`; where pins decide, a removed image goes with the last.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn unpin(&self, node: &NodeRow, cid: Cid) -> Result<(), PoolError> {
        self.intact()?;
        node.clear(cid).map_err(self.directory.failed("unpin an image in", NODES))?;
        match self.is_shared {
            true => self.settle(cid).map(drop),
            false => Ok(()),
        }
    }

    /// Clears the pins of `node` that no living holder in `holders` backs, and returns them. For an agent
    /// that starts, before it starts clones.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn reconcile(&self, node: &NodeRow, holders: &PinFile) -> Result<Vec<Cid>, PoolError> {
        let mut cleared = Vec::new();
        for cid in node.pinned() {
            if !holders.is_held(cid)? {
                self.unpin(node, cid)?;
                cleared.push(cid);
            }
        }
        Ok(cleared)
    }

    /// The nodes that pin an image.
    pub(crate) fn pinned_by(&self, cid: Cid) -> Result<Vec<String>, PoolError> {
        let pins = |node: &Node| node.pins.contains(&Some(cid));
        Ok(self.nodes()?.into_iter().filter(pins).map(|node| node.name).collect())
    }

    /// The nodes that have registered, as far as their files can be read.
    pub(crate) fn nodes(&self) -> Result<Vec<Node>, PoolError> {
        let failed = || self.directory.failed("read the nodes of", "");
        let mut nodes = Vec::new();
        for name in self.directory.list(NODES).map_err(failed())? {
            let Ok(id) = name.parse() else { continue };
            nodes.extend(self.node(id).map_err(failed())?.flatten());
        }
        Ok(nodes)
    }

    /// A node's file: none, one that is damaged, or what it says.
    pub(crate) fn node(&self, id: NodeId) -> io::Result<Option<Option<Node>>> {
        let Some(mut file) = self.directory.open_file(&path_of(id), OFlags::RDONLY)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes)?;
        Ok(Some(Node::parse(id, &bytes)))
    }

    /// The names of the nodes that have registered.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn node_names(&self) -> Result<std::collections::HashMap<NodeId, String>, PoolError> {
        self.intact()?;
        Ok(self.nodes()?.into_iter().map(|node| (node.id, node.name)).collect())
    }

    /// Removes files of a node of this name that a former life of this machine has left.
    fn drop_former(&self, name: &str) -> Result<(), PoolError> {
        let now = Boot::now();
        for node in self.nodes()? {
            if node.name == name && node.holder.boot.is_over(now) {
                let path = path_of(node.id);
                let removed = self.directory.remove(&path);
                removed.map_err(self.directory.failed("remove", &path))?;
                node.pins.iter().flatten().try_for_each(|cid| self.settle(*cid).map(drop))?;
            }
        }
        Ok(())
    }

    /// Takes a node's file, if it is there and no other process has it.
    fn take(&self, id: NodeId) -> io::Result<Option<NodeRow>> {
        let Some(file) = self.directory.open_file(&path_of(id), OFlags::RDWR)? else {
            return Ok(None);
        };
        let Some(lock) = HeldLock::try_take(&file, LockByte::NODE)? else { return Ok(None) };
        let pins = self.node(id)?.flatten().map(|node| node.pins).unwrap_or_default();
        Ok(Some(NodeRow { id, file, pins: Mutex::new(pins), _lock: lock }))
    }

    fn node_lives(&self, name: &str) -> PoolError {
        PoolError::NodeLives { path: self.path().to_owned(), name: name.to_owned() }
    }
}

fn path_of(id: NodeId) -> String {
    format!("{NODES}/{id}")
}

/// Whether clones of the owner of `holder` are seen to live.
fn has_clones(holder: Holder, here: Option<&PinFile>) -> Result<bool, PoolError> {
    match here.filter(|here| here.holder() == holder) {
        Some(here) => here.is_any_held(),
        None if holder.boot.boot == Boot::now().boot => holder.is_listed(),
        None => Ok(false),
    }
}
