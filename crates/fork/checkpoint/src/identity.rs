//! Whether a process has the same ids in its own user namespace as here.
//!
//! Clones of an agent without root live in a user namespace that has their own ids under their own
//! numbers: to be cloned again changes nothing of them. In any other namespace than this one, ids
//! and capabilities mean something else.

use std::fs;

use farfork_sys::status::Status;

const PERMITTED: usize = 1;

/// Whether ids and capabilities of the process mean the same here and to itself.
pub fn holds_here(pid: i32, status: &Status) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    let (theirs, own) = (namespace(&pid.to_string()), namespace("self"));
    if theirs.is_some() && theirs == own {
        return true;
    }
    let map = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    status.capabilities[PERMITTED] == 0
        && are_equal_in(&map("uid_map"), &status.uids)
        && are_equal_in(&map("gid_map"), &status.gids)
}

/// Whether a map, lines of `inside outside count`, leaves each of `ids` as it is.
fn are_equal_in(map: &str, ids: &[u32]) -> bool {
    let fields = |line: &str| -> Option<[u64; 3]> {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        numbers.try_into().ok()
    };
    let ranges: Vec<[u64; 3]> = map.lines().filter_map(fields).collect();
    ids.iter().map(|id| u64::from(*id)).all(|id| {
        let holds = |[inside, outside, count]: &[u64; 3]| {
            inside == outside && (*outside..outside + count).contains(&id)
        };
        ranges.iter().any(holds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_numbers_are_the_same_ids() {
        assert!(are_equal_in("         0          0 4294967295\n", &[0, 1000]));
        assert!(are_equal_in("1000 1000 1\n", &[1000; 4]));
        assert!(!are_equal_in("0 1000 1\n", &[1000]));
        assert!(!are_equal_in("1000 1000 1\n", &[1000, 1001]));
        assert!(!are_equal_in("", &[0]));
    }

    #[test]
    fn this_process_has_the_same_ids_in_its_own_namespace() {
        let own = std::process::id() as i32;
        assert!(holds_here(own, &Status::read(own, own).unwrap()));
    }
}
