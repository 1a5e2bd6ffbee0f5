//! Packet sockets, which take what comes by a device and send by one. Without a ring they keep
//! nothing but what was set on them.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use farfork_image::model::{OpenFile, SocketOption};
use farfork_sys::packet_diag::Membership;
use farfork_sys::socket::{integer_option, local_address};

use super::error::{CaptureResult, kernel_error, refuse_detail};
use super::inet;
use super::network::SocketKind;
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;

/// Where a `PACKET_FANOUT` has its type; those that ask a program, which cannot be read.
const FANOUT_TYPE_SHIFT: u32 = 16;
const BY_PROGRAM: [u32; 2] = [6, 7];
/// Bytes of a `struct sockaddr_ll`. Of its members, protocol and interface say where it is bound to.
const ADDRESS_BYTES: usize = 20;
const PROTOCOL_AND_INTERFACE: std::ops::Range<usize> = 2..8;
/// Bytes of a `struct packet_mreq` with the longest address.
const REQUEST_BYTES: usize = 40;

/// A packet socket.
pub fn capture(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    SocketKind { family, kind, .. }: SocketKind,
    words: String,
) -> CaptureResult {
    // Its protocol is part of its address. One that is made without receives nothing as yet.
    let kind = SocketKind { family, kind, protocol: 0 };
    let failed = || kernel_error(subject.pid, format!("the state of socket fd {}", entry.fd));
    let new = subject.network.new_socket(kind)?;
    if !inet::is_at_home(socket, &new).map_err(failed())? {
        return Err(refuse_detail(words, causes::sockets::OTHER_NAMESPACE));
    }
    let all = subject.network.packet_sockets();
    let Some(seen) = all.and_then(|all| all.get(&(entry.inode.ino() as u32)).cloned()) else {
        return Err(refuse_detail(words, causes::sockets::PACKET_UNSEEN));
    };
    let fanout = integer_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT)
        .map_err(failed())?
        .cast_unsigned();
    let is_by_program = BY_PROGRAM.contains(&(fanout >> FANOUT_TYPE_SHIFT & 0xff));
    let obstacles = [
        (seen.has_ring, causes::sockets::PACKET_RING),
        (is_by_program, causes::sockets::PACKET_FANOUT),
    ];
    if let Some((_, cause)) = obstacles.into_iter().find(|(applies, _)| *applies) {
        return Err(refuse_detail(words, cause));
    }
    let mut made = inet::made(entry, subject, socket, kind, words)?;
    made.options.extend(seen.memberships.iter().flat_map(joins));
    made.name = Some(bound_to(&local_address(socket.as_fd()).map_err(failed())?));
    if fanout != 0 {
        made.last_options.push(option(libc::PACKET_FANOUT, &fanout.to_ne_bytes()));
    }
    made.name = made.name.filter(|name| name[PROTOCOL_AND_INTERFACE].iter().any(|byte| *byte != 0));
    Ok(OpenFile::Socket(Box::new(made)))
}

fn option(name: i32, value: &[u8]) -> SocketOption {
    SocketOption { level: libc::SOL_PACKET, name, value: value.to_vec() }
}

/// The address without that of the device, which may be cut off.
fn bound_to(address: &[u8]) -> Vec<u8> {
    let mut name = vec![0; ADDRESS_BYTES];
    let end = PROTOCOL_AND_INTERFACE.end.min(address.len());
    name[..end].copy_from_slice(&address[..end]);
    name
}

/// What asks for a membership as often as the socket has: interface, type, length, address.
fn joins(membership: &Membership) -> Vec<SocketOption> {
    let bytes = membership.address.len() as u16;
    let mut value = vec![0; REQUEST_BYTES];
    value[0..4].copy_from_slice(&membership.interface.to_ne_bytes());
    value[4..6].copy_from_slice(&membership.kind.to_ne_bytes());
    value[6..8].copy_from_slice(&bytes.to_ne_bytes());
    let end = REQUEST_BYTES.min(8 + membership.address.len());
    value[8..end].copy_from_slice(&membership.address[..end - 8]);
    vec![option(libc::PACKET_ADD_MEMBERSHIP, &value); membership.count as usize]
}
