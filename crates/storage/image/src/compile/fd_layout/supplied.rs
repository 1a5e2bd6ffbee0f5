//! Descriptors that the caller of restore supplies.

use std::collections::BTreeSet;

use farfork_plan::protocol::MAX_REQUEST_FDS;

use crate::model::{Model, OpenFile, Socket, SocketRole};

/// Descriptors that every request has besides these.
const OWN: usize = 3;
/// Numbers up to this one are standard streams.
pub const LAST_STREAM: u32 = 2;

/// A descriptor from outside: the first of the members that has it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Supplied {
    /// Index of the member.
    pub member: u32,
    /// Number.
    pub fd: u32,
    /// The file that it stands for, to all members.
    pub file: u32,
}

/// What the caller of restore supplies, by member and number: of each external file the first
/// number, and each standard stream for itself, since a caller's may be three files where the
/// parent's were one.
pub fn externals(model: &Model) -> Vec<Supplied> {
    let mut found = all(model, |file| matches!(file, OpenFile::External { .. }));
    let is_stream = |own: &Supplied| own.fd <= LAST_STREAM;
    // A file that is a standard stream of some process is supplied as that.
    let streams: BTreeSet<u32> =
        found.iter().filter(|own| is_stream(own)).map(|own| own.file).collect();
    let mut seen = BTreeSet::new();
    found.retain(|own| match (is_stream(own), streams.contains(&own.file)) {
        (true, _) => seen.insert((own.file, own.fd)),
        (false, true) => false,
        (false, false) => seen.insert((own.file, u32::MAX)),
    });
    found
}

/// What comes with a request, in its order: what the caller of restore has to supply, what it may, and what
/// the agent makes.
pub fn supplied(model: &Model) -> Vec<Supplied> {
    [externals(model), replaceables(model), rings(model)].concat()
}

/// Rings of io_uring, by member and number. The agent makes them, since clones may not.
pub fn rings(model: &Model) -> Vec<Supplied> {
    let mut found = all(model, |file| matches!(file, OpenFile::Ring { .. }));
    let mut seen = BTreeSet::new();
    found.retain(|own| seen.insert(own.file));
    found
}

/// What the caller of restore may supply, by member and number: sockets that others find by their
/// addresses, as many as a request has room for. Not what sockets of the image itself send to: they would
/// go on sending to the parent's.
pub fn replaceables(model: &Model) -> Vec<Supplied> {
    let is_replaceable = |file: &OpenFile| {
        matches!(file, OpenFile::Socket(socket)
            if socket.is_replaceable() && !is_sent_to(model, socket))
    };
    let mut found = all(model, is_replaceable);
    let mut seen = BTreeSet::new();
    found.retain(|own| seen.insert(own.file));
    let others = externals(model).len() + rings(model).len();
    found.truncate((MAX_REQUEST_FDS - OWN).saturating_sub(others));
    found
}

fn is_sent_to(model: &Model, socket: &Socket) -> bool {
    let sockets = model.files.iter().filter_map(|file| match file {
        OpenFile::Socket(socket) => Some(socket),
        _ => None,
    });
    let mut within = sockets.filter(|other| matches!(other.role, SocketRole::Within { .. }));
    within.any(|other| other.sends_to(socket))
}

/// The descriptors of all members that stand for a file of a kind.
fn all(model: &Model, is_wanted: impl Fn(&OpenFile) -> bool) -> Vec<Supplied> {
    let members = (0u32..).zip(&model.members);
    let descriptors = members.flat_map(|(member, own)| {
        own.descriptors.iter().map(move |own| Supplied { member, fd: own.fd, file: own.file })
    });
    descriptors.filter(|own| is_wanted(&model.files[own.file as usize])).collect()
}
