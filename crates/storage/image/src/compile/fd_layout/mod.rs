//! Which descriptor numbers a clone uses besides those of its own files. Computed once for an image.
//!
//! ```text
//!  spare run   OWN_FDS │ what the caller supplied, twice │ objects │ in flight │ root's descriptors
//! ```
//! The run holds no number of any process of the parents. What the caller supplies is counted twice
//! because each descriptor of a request has two numbers while it is moved.

mod in_flight;
mod objects;
mod root_fds;
mod supplied;

use std::ops::Range;

use farfork_plan::protocol::OWN_FDS;

use crate::model::Model;
pub use in_flight::{InFlight, has_fds_in_flight};
pub use objects::ObjectFds;
pub use root_fds::{RootFds, users};
pub use supplied::{LAST_STREAM, Supplied, externals, replaceables, rings, supplied};

/// The descriptor numbers of an image's clones, outside of their own.
#[derive(Debug)]
pub struct FdLayout {
    /// What the caller supplies or may supply, in the order of the slots.
    pub supplied: Vec<Supplied>,
    /// The restorer's own run of numbers.
    pub spare: Range<u32>,
    /// Numbers of shared objects.
    pub objects: ObjectFds,
    /// Numbers of what only messages refer to.
    pub in_flight: InFlight,
    /// What the root of a tree makes for several processes.
    pub root: RootFds,
}

impl FdLayout {
    /// Computes the layout of `model`.
    pub fn compute(model: &Model) -> FdLayout {
        let supplied = supplied(model);
        let mut root = RootFds::unnumbered(model);
        let mut objects = ObjectFds::unnumbered(model, &root.objects);
        let makers = if model.is_tree() { &root.descriptors } else { &model.root().descriptors };
        let mut in_flight = InFlight::unnumbered(model, makers);
        let before = OWN_FDS + 2 * supplied.len() as u32;
        let count = before + objects.count() + in_flight.count() + root.count();
        let start = lowest_free_run(model, count);
        objects.number_from(start + before);
        in_flight.number_from(start + before + objects.count());
        root.number_from(start + before + objects.count() + in_flight.count());
        FdLayout { supplied, spare: start..start + count, objects, in_flight, root }
    }
}

/// The lowest run of `count` numbers from 3 on that the parents left free. It need not lie above all
/// of theirs: one may have used the highest number there is.
fn lowest_free_run(model: &Model, count: u32) -> u32 {
    let all = model.members.iter().flat_map(|member| &member.descriptors);
    let mut taken: Vec<u32> = all.map(|descriptor| descriptor.fd).collect();
    taken.sort_unstable();
    taken
        .into_iter()
        .fold(3, |start, fd| if fd < start + count { start.max(fd + 1) } else { start })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Descriptor, Member, Message, ObjectKind, OpenFile, SharedObject};

    fn end(end: u32, files: Vec<u32>) -> OpenFile {
        let incoming = vec![Message { files, ..Message::default() }];
        let (pair, kind, flags, shutdown, options) = (1, 1, 0, 0, Vec::new());
        let buffers = (4096, 4096);
        OpenFile::SocketPair { pair, end, kind, flags, incoming, shutdown, buffers, options }
    }

    #[test]
    fn each_number_of_the_run_has_one_purpose() {
        let kind = ObjectKind::Memfd(b"m".to_vec());
        let object =
            SharedObject { kind, size: 1, mode: 0o777, owner: (0, 0), seals: 0, extents: vec![] };
        let external = OpenFile::External { description: "outside".into() };
        let event = OpenFile::Event { count: 0, flags: 0, is_semaphore: false };
        let memfd = OpenFile::Object { object: 0, flags: 2, offset: 0 };
        // The event is in flight, through a pair of which one end was closed.
        let files = vec![external, end(0, vec![3]), memfd, event];
        let descriptors = [0, 1, 2].map(|file| Descriptor { fd: file + 4, file, cloexec: false });
        let member = Member { descriptors: descriptors.to_vec(), ..Member::default() };
        let members = vec![member.clone(), member];
        let model = Model { members, files, objects: vec![object], ..Model::default() };
        let fds = FdLayout::compute(&model);
        // Above the parents' numbers, since below is not room for all.
        assert_eq!(fds.spare.start, 7);
        let first = 7 + OWN_FDS + 2;
        assert_eq!(fds.objects.number(0), first + 1);
        assert_eq!(fds.in_flight.numbers(), first + 2..first + 4);
        let root: Vec<(u32, u32)> = fds.root.descriptors.iter().map(|d| (d.file, d.fd)).collect();
        assert_eq!(root, [(1, first + 4), (2, first + 5)]);
        assert_eq!(fds.spare.end, first + 6);
    }
}
