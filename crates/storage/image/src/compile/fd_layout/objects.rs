//! Descriptor numbers of shared objects.

use std::collections::BTreeSet;

use crate::model::{Model, OpenFile};

/// The number of each object. Objects that nothing refers to by a descriptor share the first number,
/// which each has only while it is made.
#[derive(Debug)]
pub struct ObjectFds {
    /// By object: whether a descriptor or another process refers to it.
    is_kept: Vec<bool>,
    first: u32,
}

impl ObjectFds {
    /// Those of `model`; several processes refer to the objects `shared`.
    pub fn unnumbered(model: &Model, shared: &BTreeSet<u32>) -> ObjectFds {
        let open = model.files.iter().filter_map(|file| match file {
            OpenFile::Object { object, .. } => Some(*object),
            _ => None,
        });
        let mut is_kept = vec![false; model.objects.len()];
        for object in open.chain(shared.iter().copied()) {
            is_kept[object as usize] = true;
        }
        ObjectFds { is_kept, first: 0 }
    }

    /// Gives numbers from `first` on.
    pub fn number_from(&mut self, first: u32) {
        self.first = first;
    }

    /// How many numbers they take.
    pub fn count(&self) -> u32 {
        self.kept_before(self.is_kept.len()) + u32::from(!self.is_kept.is_empty())
    }

    /// The number of an object.
    pub fn number(&self, object: u32) -> u32 {
        let object = object as usize;
        if self.is_kept[object] { self.first + 1 + self.kept_before(object) } else { self.first }
    }

    /// Whether an object is open longer than it takes to make it.
    pub fn is_kept(&self, object: u32) -> bool {
        self.is_kept[object as usize]
    }

    fn kept_before(&self, object: usize) -> u32 {
        self.is_kept[..object].iter().filter(|is_kept| **is_kept).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::super::FdLayout;
    use super::*;
    use crate::model::{Descriptor, Member, ObjectKind, SharedObject};
    use farfork_plan::protocol::OWN_FDS;

    fn object() -> SharedObject {
        let kind = ObjectKind::Memfd(b"m".to_vec());
        SharedObject { kind, size: 1, mode: 0o777, owner: (0, 0), seals: 0, extents: Vec::new() }
    }

    #[test]
    fn objects_with_descriptors_have_a_number_of_their_own() {
        let open = |object| OpenFile::Object { object, flags: 2, offset: 0 };
        let model = Model {
            objects: vec![object(); 5],
            files: vec![open(3), open(1), open(3)],
            members: vec![Member {
                descriptors: (0..3).map(|fd| Descriptor { fd, file: fd, cloexec: false }).collect(),
                ..Member::default()
            }],
            ..Model::default()
        };
        let fds = FdLayout::compute(&model).objects;
        assert_eq!(fds.count(), 3);
        let first = 3 + OWN_FDS;
        let numbers: Vec<u32> = (0..5).map(|index| fds.number(index)).collect();
        assert_eq!(numbers, [first, first + 1, first, first + 2, first]);
        let empty = Model { members: vec![Member::default()], ..Model::default() };
        assert_eq!(FdLayout::compute(&empty).objects.count(), 0);
    }
}
