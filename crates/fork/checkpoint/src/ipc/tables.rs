//! The tables of System V objects in `/proc/sysvipc`, which any process may read.

use std::str::FromStr;

/// What all objects have: a line of any table, split at its blanks.
struct Line<'t>(Vec<&'t str>);

impl Line<'_> {
    fn number<T: FromStr>(&self, index: usize) -> Option<T> {
        self.0.get(index)?.parse().ok()
    }

    fn mode(&self) -> Option<u32> {
        u32::from_str_radix(self.0.get(2)?, 8).ok()
    }

    /// Two ids of a user and of a group.
    fn pair(&self, index: usize) -> Option<(u32, u32)> {
        Some((self.number(index)?, self.number(index + 1)?))
    }
}

/// The objects in the text of a table, without its heading.
pub fn parse<T: Row>(text: &str) -> Vec<T> {
    text.lines().filter_map(|line| T::parse(&Line(line.split_whitespace().collect()))).collect()
}

/// An object, as its table has it.
#[allow(private_interfaces)] // reason: lines are made here alone
pub trait Row: Sized + Send + 'static {
    /// The table's name.
    const TABLE: &'static str;

    /// The object in a line.
    fn parse(line: &Line<'_>) -> Option<Self>;
}

/// A segment of shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Its id.
    pub id: u32,
    /// Its key, 0 for none.
    pub key: i32,
    /// Permissions, and what else the kernel keeps there.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Pids of its creator, and of the last process to attach or detach it.
    pub users: [i32; 2],
    /// How many mappings there are of it.
    pub attached: u64,
    /// User and group that own it.
    pub owner: (u32, u32),
    /// User and group that made it.
    pub creator: (u32, u32),
}

impl Segment {
    const REMOVED: u32 = 0o1000;
    const LOCKED: u32 = 0o2000;

    /// Whether it lasts only as long as it is attached.
    pub fn is_removed(&self) -> bool {
        self.mode & Segment::REMOVED != 0
    }

    /// `SHM_LOCK`.
    pub fn is_locked(&self) -> bool {
        self.mode & Segment::LOCKED != 0
    }
}

#[allow(private_interfaces)] // reason: as above
impl Row for Segment {
    const TABLE: &'static str = "shm";

    fn parse(line: &Line<'_>) -> Option<Segment> {
        Some(Segment {
            key: line.number(0)?,
            id: line.number(1)?,
            mode: line.mode()?,
            size: line.number(3)?,
            users: [line.number(4)?, line.number(5)?],
            attached: line.number(6)?,
            owner: line.pair(7)?,
            creator: line.pair(9)?,
        })
    }
}

/// A set of semaphores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Its id.
    pub id: u32,
    /// Its key, 0 for none.
    pub key: i32,
    /// Permissions.
    pub mode: u32,
    /// How many semaphores there are.
    pub count: usize,
    /// User and group that own it.
    pub owner: (u32, u32),
    /// User and group that made it.
    pub creator: (u32, u32),
    /// When it was used last, in seconds since the epoch; 0 for never.
    pub used_at: u64,
}

#[allow(private_interfaces)] // reason: as above
impl Row for Set {
    const TABLE: &'static str = "sem";

    fn parse(line: &Line<'_>) -> Option<Set> {
        Some(Set {
            key: line.number(0)?,
            id: line.number(1)?,
            mode: line.mode()?,
            count: line.number(3)?,
            owner: line.pair(4)?,
            creator: line.pair(6)?,
            used_at: line.number(8)?,
        })
    }
}

/// A message queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Its id.
    pub id: u32,
    /// Its key, 0 for none.
    pub key: i32,
    /// Permissions.
    pub mode: u32,
    /// How many bytes wait in it.
    pub bytes: usize,
    /// How many messages wait in it.
    pub count: usize,
    /// Pids of the last sender and the last receiver.
    pub users: [i32; 2],
    /// User and group that own it.
    pub owner: (u32, u32),
    /// User and group that made it.
    pub creator: (u32, u32),
}

#[allow(private_interfaces)] // reason: as above
impl Row for Queue {
    const TABLE: &'static str = "msg";

    fn parse(line: &Line<'_>) -> Option<Queue> {
        Some(Queue {
            key: line.number(0)?,
            id: line.number(1)?,
            mode: line.mode()?,
            bytes: line.number(3)?,
            count: line.number(4)?,
            users: [line.number(5)?, line.number(6)?],
            owner: line.pair(7)?,
            creator: line.pair(9)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_table_is_an_object() {
        let text = "  key  shmid perms  size  cpid  lpid nattch  uid  gid  cuid  cgid  atime\n\
            4660 98311 3600 20536 21422 21423 3 65534 7 0 5 1795260893 0 1795260893 4096 0\n";
        let [segment] = parse::<Segment>(text)[..] else { panic!("{text}") };
        assert_eq!((segment.key, segment.id, segment.size), (0x1234, 98311, 20536));
        assert!(segment.is_removed() && segment.is_locked());
        assert_eq!((segment.attached, segment.owner, segment.creator), (3, (65534, 7), (0, 5)));
        assert_eq!(segment.users, [21422, 21423]);
        let text = " key semid perms nsems uid gid cuid cgid otime ctime\n-1 4 640 9 1 2 3 4 5 6\n";
        let [set] = parse::<Set>(text)[..] else { panic!("{text}") };
        assert_eq!((set.key, set.id, set.mode, set.count, set.used_at), (-1, 4, 0o640, 9, 5));
        let text = "key msqid perms cbytes qnum lspid lrpid uid gid cuid cgid\n\
            0 1 600 22 2 31 32 5 6 7 8 9 10 11\n";
        let [queue] = parse::<Queue>(text)[..] else { panic!("{text}") };
        assert_eq!((queue.bytes, queue.count, queue.users), (22, 2, [31, 32]));
        assert_eq!((queue.owner, queue.creator), ((5, 6), (7, 8)));
    }
}
