//! Linux AIO contexts. A program knows its context by the address of a ring, which the kernel maps
//! and fills with completed requests. The kernel does not show how many requests are in progress.
//! To wait for them would consume their results, so the caller of the checkpoint declares a context
//! idle.

use farfork_sys::memory;
use farfork_types::PAGE_BYTES;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::error::{CheckpointError, doing};
use crate::inject::Injector;
use crate::maps::Mapping;
use crate::refuse::{Cause, Refusals, causes};
use crate::runs::Run;

/// The beginning of a ring (`struct aio_ring` of the kernel, which programs read).
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    id: u32,
    events: u32,
    head: u32,
    tail: u32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header_bytes: u32,
}

const MAGIC: u32 = 0xa10a_10a1;
const HEAD_BYTES: u64 = size_of::<Head>() as u64;
/// Bytes of a `struct io_event`.
const EVENT_BYTES: u64 = 32;
const READ_WRITE: u32 = (libc::PROT_READ | libc::PROT_WRITE) as u32;

/// The rings of a process that can be made again; the others are refused.
pub fn rings(
    injector: &Injector<'_>,
    mappings: &[Mapping],
    is_idle: bool,
    refusals: &mut Refusals,
) -> Result<Vec<Run>, CheckpointError> {
    let mut rings = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.is_aio_ring()) {
        match obstacle(injector, mapping, is_idle)? {
            None => rings.push((mapping.start, mapping.end)),
            Some(cause) => {
                let object = format!("mapping {:x}-{:x}", mapping.start, mapping.end);
                refusals.add(format!("{object} {}", mapping.name), cause);
            }
        }
    }
    Ok(rings)
}

fn obstacle(
    injector: &Injector<'_>,
    mapping: &Mapping,
    is_idle: bool,
) -> Result<Option<&'static Cause>, CheckpointError> {
    if !is_idle {
        return Ok(Some(causes::memory::AIO));
    }
    if mapping.reaches_restorer_window() {
        return Ok(Some(causes::memory::WINDOW));
    }
    let mut bytes = [0u8; HEAD_BYTES as usize];
    let read = memory::read(injector.pid(), mapping.start, &mut bytes)
        .map_err(doing(injector.pid(), "read a Linux AIO ring"))?;
    let ring = Head::read_from_bytes(&bytes).unwrap_or_default();
    let bytes = mapping.end - mapping.start;
    let is_whole = read == HEAD_BYTES as usize
        && ring.magic == MAGIC
        && u64::from(ring.events) == (bytes - HEAD_BYTES) / EVENT_BYTES
        && bytes.is_multiple_of(PAGE_BYTES)
        && mapping.prot == READ_WRITE;
    Ok(if !is_whole || !has_context(injector, mapping.start)? {
        Some(causes::memory::AIO_RING)
    } else if ring.head != ring.tail {
        Some(causes::memory::AIO_EVENTS)
    } else {
        None
    })
}

/// Whether the process has the context of the ring at `at`: after a fork the child has the ring
/// alone. It asks for zero events, so it takes none from the program.
fn has_context(injector: &Injector<'_>, at: u64) -> Result<bool, CheckpointError> {
    let answer =
        injector.thread(injector.pid())?.try_call(libc::SYS_io_getevents, [at, 0, 0, 0, 0, 0]);
    Ok(answer? == 0)
}
