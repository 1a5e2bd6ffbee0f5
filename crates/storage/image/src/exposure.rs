//! Which processes of a tree map the image, and which get copies of their memory.
//!
//! The kernel lets a process that maps one page of a file reach all of it: a clone may grow its mapping into
//! what the image has of the tree's other processes. So only a process that may read these anyway, by the
//! rules for `ptrace` (`ptrace(2)`, "Ptrace access mode checking", without security modules), maps it.

use crate::model::{Member, Model, Thread};

/// `CAP_SYS_PTRACE`.
const TRACE: u64 = 1 << 19;
/// `SUID_DUMP_USER`.
const DUMPABLE: u32 = 1;

impl Model {
    /// Whether the process with this index may not read all others, so that its clones map nothing of the image.
    pub fn must_copy(&self, index: usize) -> bool {
        let reader = &self.members[index];
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != index);
        !others.into_iter().all(|(_, other)| may_read(reader, other))
    }

    /// Decides it for every process.
    pub fn decide_copies(&mut self) {
        for index in 0..self.members.len() {
            self.members[index].memory.is_copied = self.must_copy(index);
        }
    }
}

/// Whether every thread of `reader` may attach to every thread of `other`.
fn may_read(reader: &Member, other: &Member) -> bool {
    let is_dumpable = other.process.dumpable == DUMPABLE;
    reader.threads.iter().all(|reader| {
        other.threads.iter().all(|other| {
            let may_trace = reader.credentials.capabilities[2] & TRACE != 0
                || is_dumpable && is_same_user(reader, other);
            may_trace && other.filters.starts_with(&reader.filters)
        })
    })
}

/// The same ids, and no capability that `reader` lacks.
fn is_same_user(reader: &Thread, other: &Thread) -> bool {
    let (own, theirs) = (&reader.credentials, &other.credentials);
    let matches = |own: [u32; 4], theirs: [u32; 4]| {
        let [real, effective, saved, _] = theirs;
        [own[0], own[3]].iter().all(|id| [real, effective, saved] == [*id; 3])
    };
    matches(own.uids, theirs.uids)
        && matches(own.gids, theirs.gids)
        && theirs.capabilities[1] & !own.capabilities[2] == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Credentials, SeccompFilter};

    /// A process with one thread.
    fn member(uid: u32, capabilities: u64) -> Member {
        let credentials = Credentials {
            uids: [uid; 4],
            gids: [uid; 4],
            capabilities: [0, capabilities, capabilities, 0, 0],
            ..Credentials::default()
        };
        let mut member = Member::default();
        member.process.dumpable = DUMPABLE;
        member.threads.push(Thread { credentials, ..Thread::default() });
        member
    }

    fn copies(members: &[Member]) -> Vec<bool> {
        let mut model = Model { members: members.to_vec(), ..Model::default() };
        model.decide_copies();
        model.members.iter().map(|member| member.memory.is_copied).collect()
    }

    fn filter(instruction: u64) -> SeccompFilter {
        SeccompFilter { instructions: vec![instruction], logs: false, by_prctl: false }
    }

    #[test]
    fn one_process_and_processes_of_one_user_map_it() {
        assert_eq!(copies(&[member(7, 0)]), [false]);
        assert_eq!(copies(&[member(7, 0), member(7, 0)]), [false, false]);
    }

    #[test]
    fn a_process_that_may_trace_all_maps_it_and_others_do_not() {
        assert_eq!(copies(&[member(0, TRACE), member(7, 0)]), [false, true]);
        assert_eq!(copies(&[member(7, 0), member(8, 0)]), [true, true]);
        // Root by its number, without the right.
        assert_eq!(copies(&[member(0, 0), member(7, 0)]), [true, true]);
    }

    #[test]
    fn more_capabilities_other_ids_and_undumpable_memory_are_out_of_reach() {
        assert_eq!(copies(&[member(7, 1), member(7, 0)]), [false, true]);
        let mut hidden = member(7, 0);
        hidden.process.dumpable = 0;
        assert_eq!(copies(&[hidden, member(7, 0)]), [false, true]);
        for id in 0..4 {
            let mut changed = member(7, 0);
            changed.threads[0].credentials.gids[id] = 8;
            assert!(copies(&[member(7, 0), changed])[usize::from(id == 3)], "gid {id}");
        }
    }

    #[test]
    fn a_filter_that_others_lack_confines() {
        let (mut confined, mut more) = (member(7, TRACE), member(7, TRACE));
        confined.threads[0].filters.push(filter(1));
        assert_eq!(copies(&[member(7, TRACE), confined.clone()]), [false, true]);
        more.threads[0].filters = vec![filter(1), filter(2)];
        assert_eq!(copies(&[confined.clone(), more]), [false, true]);
        assert_eq!(copies(&[confined.clone(), confined]), [false, false]);
    }

    #[test]
    fn a_thread_with_fewer_rights_decides_and_the_dead_have_nothing() {
        let mut mixed = member(0, TRACE);
        mixed.threads.push(member(7, 0).threads.remove(0));
        assert_eq!(copies(&[mixed, member(0, TRACE)]), [true, false]);
        let mut ended = member(8, 0);
        ended.threads.clear();
        ended.kinship.ended = Some(0);
        assert!(!copies(&[member(7, 0), ended])[0]);
    }
}
