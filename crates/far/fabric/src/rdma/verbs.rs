//! Memory that devices read and write, and queue pairs: all calls by which a device is given addresses.
//!
//! Invariant: a device gets no address whose memory ends before its registration, and no registration ends before the
//! queue pair that uses it.

#![allow(unsafe_code)] // reason: devices are given addresses of memory

use std::fs::File;
use std::io;
use std::sync::Arc;

use farfork_sys::stored;
use memmap2::{MmapOptions, MmapRaw};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{BasicCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, QueuePairType,
    SetScatterGatherEntry, WorkRequestFlags,
};

use super::device::{Address, Device, reason};
use super::error::RdmaError;
use super::wire::{End, Window};

/// The most reads that a queue pair holds.
pub const DEPTH: u32 = 256;
/// Time of a first retransmission: 4.096 µs · 2^14 = 67 ms. Seven follow.
const RETRY_TIME: u8 = 14;
const RETRIES: u8 = 7;

/// Memory that a device knows. Its registration ends when it is dropped.
pub struct Registered {
    // Dropped first: the device lets go of the pages before they are unmapped.
    region: Arc<MemoryRegion>,
    memory: MmapRaw,
}

impl Registered {
    /// The first bytes of a file, for peers to read. They are pinned, and holes of the file are not filled for that.
    pub fn file(domain: &Arc<ProtectionDomain>, file: &File, bytes: u64) -> io::Result<Registered> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        let memory = stored::map(file, length)?;
        Registered::new(domain, memory, AccessFlags::RemoteRead)
    }

    /// Bytes for peers to read.
    pub fn bytes(domain: &Arc<ProtectionDomain>, bytes: &[u8]) -> io::Result<Registered> {
        let mut memory = MmapOptions::new().len(bytes.len()).map_anon()?;
        memory.copy_from_slice(bytes);
        Registered::new(domain, memory.into(), AccessFlags::RemoteRead)
    }

    /// Memory for what is read.
    pub fn buffer(domain: &Arc<ProtectionDomain>, bytes: usize) -> io::Result<Registered> {
        let memory = MmapOptions::new().len(bytes).map_anon()?;
        Registered::new(domain, memory.into(), AccessFlags::LocalWrite)
    }

    fn new(
        domain: &Arc<ProtectionDomain>,
        memory: MmapRaw,
        access: AccessFlags,
    ) -> io::Result<Registered> {
        // SAFETY: the range is the mapping, which lives longer than the registration.
        let region = unsafe { domain.reg_mr(memory.as_ptr() as usize, memory.len(), access) };
        let region = region.map_err(|error| io::Error::other(reason(&error)))?;
        Ok(Registered { region, memory })
    }

    /// How peers name it.
    pub fn window(&self) -> Window {
        let (address, bytes) = (self.memory.as_ptr() as u64, self.memory.len() as u64);
        Window { key: self.region.rkey(), address, bytes }
    }

    /// A copy of what lies at a place; `None` if the place does not lie in it.
    pub fn copy(&self, place: u64, bytes: u32) -> Option<Vec<u8>> {
        let at = self.at(place, bytes)?;
        let mut copy = Vec::with_capacity(bytes as usize);
        // SAFETY: the range lies in the mapping. Should the device still write there, the bytes are any, but bytes:
        // the memory came as zeros. The vector has the capacity, and all of it is written.
        unsafe {
            std::ptr::copy_nonoverlapping(at, copy.as_mut_ptr(), bytes as usize);
            copy.set_len(bytes as usize);
        }
        Some(copy)
    }

    fn at(&self, place: u64, bytes: u32) -> Option<*const u8> {
        let end = place.checked_add(u64::from(bytes))?;
        (end <= self.memory.len() as u64).then(|| self.memory.as_ptr().wrapping_add(place as usize))
    }
}

/// An end of a reliable connection.
pub struct Queue {
    // Dropped first: afterwards the device writes to the buffer no more.
    pair: BasicQueuePair,
    buffer: Option<Arc<Registered>>,
    first: u32,
}

impl Queue {
    /// A new one; one that reads does so into `buffer`.
    pub fn new(
        device: &Device,
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<BasicCompletionQueue>,
        address: &Address,
        buffer: Option<Arc<Registered>>,
    ) -> Result<Queue, RdmaError> {
        let completions = GenericCompletionQueue::from(Arc::clone(completions));
        let mut builder = domain.create_qp_builder();
        builder
            .setup_qp_type(QueuePairType::ReliableConnection)
            .setup_send_cq(completions.clone())
            .setup_recv_cq(completions)
            .setup_max_send_wr(if buffer.is_some() { DEPTH } else { 1 })
            .setup_max_send_sge(1)
            .setup_max_recv_wr(1)
            .setup_max_recv_sge(1);
        let mut pair = builder.build().map_err(device.failed("make a queue pair"))?;
        let access = if buffer.is_some() { AccessFlags::none() } else { AccessFlags::RemoteRead };
        let mut to = QueuePairAttribute::new();
        to.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(address.port);
        to.setup_access_flags(access);
        pair.modify(&to).map_err(device.failed("begin a connection"))?;
        let mut first = [0; 4];
        let unknown = |error: getrandom::Error| io::Error::other(error);
        getrandom::fill(&mut first)
            .map_err(unknown)
            .map_err(device.failed("begin a connection"))?;
        Ok(Queue { pair, buffer, first: u32::from_le_bytes(first) >> 8 })
    }

    /// What the peer must know of it.
    pub fn end(&self, device: &Device, address: &Address) -> End {
        let Address { lid, mtu, gid, .. } = *address;
        let (queue, first, reads) = (self.pair.qp_number(), self.first, device.reads());
        End { queue, first, lid, mtu, reads, gid }
    }

    /// Connects it to its peer.
    pub fn connect(
        &mut self,
        device: &Device,
        address: &Address,
        peer: &End,
    ) -> Result<(), RdmaError> {
        let reads = device.reads().min(peer.reads);
        let mut way = AddressHandleAttribute::new();
        way.setup_dest_lid(peer.lid)
            .setup_port(address.port)
            .setup_service_level(0)
            .setup_grh_src_gid_index(address.index)
            .setup_grh_dest_gid(&Gid { raw: peer.gid })
            .setup_grh_hop_limit(64);
        let mut to = QueuePairAttribute::new();
        to.setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(Mtu::from(u32::from(address.mtu.min(peer.mtu))))
            .setup_dest_qp_num(peer.queue)
            .setup_rq_psn(peer.first)
            .setup_max_dest_read_atomic(reads)
            .setup_min_rnr_timer(12)
            .setup_address_vector(&way);
        self.pair.modify(&to).map_err(device.failed("reach the other node"))?;
        let mut to = QueuePairAttribute::new();
        to.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(self.first)
            .setup_timeout(RETRY_TIME)
            .setup_retry_cnt(RETRIES)
            .setup_rnr_retry(RETRIES)
            .setup_max_read_atomic(reads);
        self.pair.modify(&to).map_err(device.failed("reach the other node"))
    }

    /// Starts to read `bytes` from `address` into a place of the buffer.
    pub fn read(
        &mut self,
        number: u64,
        key: u32,
        address: u64,
        place: u64,
        bytes: u32,
    ) -> io::Result<()> {
        let buffer = self.buffer.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let at = buffer.at(place, bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let local = buffer.region.lkey();
        let mut post = self.pair.start_post_send();
        let request = post.construct_wr(number, WorkRequestFlags::Signaled);
        // SAFETY: the range lies in the registered buffer, which lives longer than the queue pair.
        unsafe { request.setup_read(key, address).setup_sge(local, at as u64, bytes) };
        post.post().map_err(|error| io::Error::other(reason(&error)))
    }
}
