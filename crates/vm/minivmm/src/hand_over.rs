//! What Firecracker does at the restore of a snapshot with the memory backend `Uffd`.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use farfork_sys::userfault::{FEATURE_EVENT_REMOVE, Userfault};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::json;

use crate::error::VmmError;
use crate::memory::Mapping;

/// Registers the memory with a userfaultfd, and hands that over at a socket. Both stay with the machine: the
/// end of the socket is the end of the machine.
pub(crate) fn hand_over(
    path: &Path,
    memory: &[Mapping],
    page_bytes: u64,
) -> Result<(Userfault, UnixStream), VmmError> {
    let userfault = Userfault::create(FEATURE_EVENT_REMOVE);
    let userfault = userfault.map_err(VmmError::io("create a userfaultfd"))?;
    let mut offset = 0;
    let mut regions = Vec::new();
    for part in memory {
        let registered = userfault.register(part.address(), part.bytes());
        registered.map_err(VmmError::io("register memory with a userfaultfd"))?;
        regions.push(json!({
            "base_host_virt_addr": part.address(),
            "size": part.bytes(),
            "offset": offset,
            "page_size": page_bytes,
            "page_size_kib": page_bytes,
        }));
        offset += part.bytes();
    }
    let text = serde_json::Value::from(regions).to_string();
    let socket = UnixStream::connect(path).map_err(VmmError::io("connect to the page server"))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [userfault.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let parts = [IoSlice::new(text.as_bytes())];
    let sent = sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL);
    sent.map_err(VmmError::io("hand over the memory"))?;
    Ok((userfault, socket))
}
