//! A descriptor table that runs ops, and fails where one would harm what is already in place.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use farfork_plan::protocol::{SLOT_EXTERNAL, SLOTS};
use farfork_plan::{Op, SLOT_NONE, nr, window};

use super::terminal::OPEN_SLAVE;

/// What a description is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// The restorer's own.
    Restorer,
    /// Supplied for this number.
    External(u32),
    /// An opened path and its offset.
    Path(String, u64),
    /// A description of the file without a name that was made `0`th; its flags and offset.
    Unnamed(usize, u64, u64),
    /// An eventfd with its counter.
    Event(u64),
    /// An end of a pair made by the call that was `0`th; `1` is 0 for the first end.
    Pair(usize, u32),
    /// A socket as it was made.
    Socket(Made),
    /// Numbers, paths and masks that are watched, and the next number.
    Inotify(Vec<(u32, String, u32)>, u32),
    /// Paths, masks and flags that are marked.
    Fanotify(Vec<(String, u64, u64)>),
    /// The master of the terminal that was made `0`th, its open flags.
    Master(usize, u64),
    /// A slave of that terminal, its open flags.
    Slave(usize, u64),
    /// A handle of this process.
    Handle(u64),
    /// Watches: number, description watched, events, data.
    Epoll(Vec<(u32, usize, u32, u64)>),
}

/// What was done to a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Family, type, protocol.
    pub kind: [u64; 3],
    /// Options that are set, the last value of each.
    pub options: BTreeMap<(i32, i32), Vec<u8>>,
    /// Where it was bound.
    pub name: Option<Vec<u8>>,
    /// How many may wait for it.
    pub backlog: Option<u64>,
    /// Where it was connected.
    pub peer: Option<Vec<u8>>,
    /// Whether it was shut down.
    pub is_shut: bool,
}

/// A number that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Index in [`Table::things`].
    pub thing: usize,
    /// Whether `execve` closes it.
    pub cloexec: bool,
}

/// The table of the clone.
#[derive(Clone)]
pub struct Table<'m> {
    /// Open numbers.
    pub fds: BTreeMap<u32, Open>,
    /// Descriptions, also closed ones.
    pub things: Vec<Thing>,
    /// Bytes written through the second end of each pair, and through the first.
    pub written: BTreeMap<(usize, u32), Vec<u8>>,
    /// Descriptions sent through the second end of each pair, and through the first: one list for
    /// each message with any.
    pub sent: BTreeMap<(usize, u32), Vec<Vec<usize>>>,
    /// Locks that were taken: description, command (0 for `flock`), type, start, length.
    pub locks: Vec<(usize, u64, u64, u64, u64)>,
    /// Bytes of each file without a name.
    pub unnamed: Vec<Vec<u8>>,
    slots: [u64; SLOTS],
    /// Numbers of the caller's that it has left out.
    pub left_out: BTreeSet<u32>,
    memory: &'m [u8],
    spare: Range<u32>,
    in_flight: Range<u32>,
    pairs: usize,
    terminals: usize,
}

impl<'m> Table<'m> {
    /// The table as the restorer leaves it for the ops: what the caller supplied for the numbers
    /// `external`, its own numbers `gap` apart, the last `in_flight` of them unused. Of what the
    /// caller may supply, it has left `left_out` out.
    pub fn new(
        spare: Range<u32>,
        external: &[u32],
        in_flight: u32,
        memory: &'m [u8],
        gap: u32,
        left_out: BTreeSet<u32>,
    ) -> Table<'m> {
        let mut table = Table {
            fds: BTreeMap::new(),
            things: Vec::new(),
            written: BTreeMap::new(),
            sent: BTreeMap::new(),
            locks: Vec::new(),
            unnamed: Vec::new(),
            slots: [u64::MAX; SLOTS],
            left_out,
            memory,
            spare: spare.clone(),
            in_flight: spare.end - in_flight..spare.end,
            pairs: 0,
            terminals: 0,
        };
        table.open_at(spare.start, Thing::Restorer);
        for (index, external) in external.iter().enumerate() {
            let fd = spare.start + (index as u32 + 1) * (gap + 1);
            assert!(table.spare.contains(&fd), "the run is too short for the restorer's own");
            table.open_at(fd, Thing::External(*external));
            table.slots[usize::from(SLOT_EXTERNAL) + index] = fd.into();
        }
        table
    }

    /// Runs all ops, then closes what is the restorer's.
    pub fn run(&mut self, ops: &[Op]) {
        self.perform(ops);
        self.fds.retain(|fd, _| !self.spare.contains(fd));
    }

    /// Runs ops that place what is held in the restorer's own run.
    pub fn hold(&mut self, ops: &[Op]) {
        let spare = std::mem::take(&mut self.spare);
        self.perform(ops);
        self.spare = spare;
    }

    fn perform(&mut self, ops: &[Op]) {
        let mut rest = ops.iter();
        while let Some(op) = rest.next() {
            if op.nr == nr::TAKE_SUPPLIED && self.is_left_out(op) {
                continue;
            }
            let result = self.step(op);
            if op.nr == nr::TAKE_SUPPLIED {
                rest.by_ref().take(op.args[1] as usize).for_each(drop);
            }
            if op.store != SLOT_NONE {
                self.slots[usize::from(op.store)] = result;
            }
        }
    }

    fn is_left_out(&self, take: &Op) -> bool {
        let fd = self.slots[take.args[0] as usize] as u32;
        let thing = &self.things[self.fds[&fd].thing];
        matches!(thing, Thing::External(target) if self.left_out.contains(target))
    }

    fn open_at(&mut self, fd: u32, thing: Thing) {
        self.things.push(thing);
        self.fds.insert(fd, Open { thing: self.things.len() - 1, cloexec: false });
    }

    fn lowest(&self, from: u32) -> u32 {
        (from..).find(|fd| !self.fds.contains_key(fd)).unwrap()
    }

    fn open(&mut self, thing: Thing) -> u64 {
        let fd = self.lowest(0);
        self.open_at(fd, thing);
        fd.into()
    }

    fn step(&mut self, op: &Op) -> u64 {
        let mut a = op.args;
        for (index, arg) in a.iter_mut().enumerate() {
            if op.slots & (1 << index) != 0 {
                *arg = self.slots[*arg as usize];
            }
        }
        match (op.nr, i64::from(op.nr)) {
            (nr::PIPE, _) => self.pair(a[1], a[2]),
            (nr::SOCKETPAIR, _) => self.pair(a[2], a[3]),
            (nr::MOVE_FD, _) => self.move_fd(a[0] as u32, a[1] as u32, a[2] != 0),
            (nr::TAKE_SUPPLIED, _) => a[0],
            (nr::MEET, _) => 0,
            (_, libc::SYS_close_range) => self.close_range(a[0] as u32, a[1] as u32),
            (nr::REPAIR, _) => {
                assert!(matches!(self.things[self.fds[&(a[0] as u32)].thing], Thing::Socket(_)));
                0
            }
            (_, libc::SYS_dup3) => self.dup3(a[0] as u32, a[1] as u32, a[2] != 0),
            (_, libc::SYS_close) => self.close(a[0] as u32),
            (_, libc::SYS_fcntl) => self.fcntl(a[0] as u32, a[1] as i32, a[2]),
            (_, libc::SYS_flock) => self.lock(a[0] as u32, 0, a[1], (0, 0)),
            (nr::WRITE_ALL, _) => self.write_at(a[0] as u32, a[1], a[2], a[3]),
            (_, libc::SYS_openat) => self.open_path(a[1], a[2]),
            (_, libc::SYS_ftruncate) => self.truncate(a[0] as u32, a[1]),
            (_, libc::SYS_lseek) => self.seek(a[0] as u32, a[1]),
            (_, libc::SYS_eventfd2) => self.open(Thing::Event(a[0])),
            (_, libc::SYS_epoll_create1) => self.open(Thing::Epoll(Vec::new())),
            (_, libc::SYS_inotify_init1) => self.open(Thing::Inotify(Vec::new(), 1)),
            (_, libc::SYS_fanotify_init) => self.open(Thing::Fanotify(Vec::new())),
            (_, libc::SYS_pidfd_open) => self.open(Thing::Handle(a[0])),
            (_, libc::SYS_ioctl) if a[1] & 0xff00 == 0x5400 => {
                self.terminal(a[0] as u32, a[1], a[2])
            }
            (_, libc::SYS_ioctl) => self.place(op.nr, a),
            (_, libc::SYS_epoll_ctl) => self.watch(a[0] as u32, a[2] as u32, a[3]),
            (_, libc::SYS_write | libc::SYS_sendto) => self.write(a[0] as u32, a[1], a[2]),
            (_, libc::SYS_sendmsg) => self.send(a[0] as u32, a[1]),
            (_, libc::SYS_socket) => {
                let kind = [a[0], a[1], a[2]];
                self.open(Thing::Socket(Made { kind, ..Made::default() }))
            }
            (_, libc::SYS_fchmod | libc::SYS_utimensat) => {
                assert!(self.fds.contains_key(&(a[0] as u32)));
                0
            }
            (nr::SOCKET_FILE | nr::ASSUME | nr::RESUME, _) => 0,
            (nr::OPEN, _) => self.open_path(a[0], a[1]),
            (nr::REOPEN, _) => self.reopen(a[0] as u32, a[1]),
            (nr::BIND, _) => self.on_socket(libc::SYS_bind, a),
            (nr::WATCH | nr::MARK, _) => self.place(op.nr, a),
            (_, number) => self.on_socket(number, a),
        }
    }

    /// Calls on a socket; ends of pairs take options and are shut down as well, and files without
    /// a name get owners.
    fn on_socket(&mut self, number: i64, a: [u64; 6]) -> u64 {
        let thing = self.fds[&(a[0] as u32)].thing;
        let value = match number {
            libc::SYS_setsockopt => self.bytes(a[3], a[4]).to_vec(),
            libc::SYS_bind | libc::SYS_connect => self.bytes(a[1], a[2]).to_vec(),
            _ => Vec::new(),
        };
        let Thing::Socket(socket) = &mut self.things[thing] else {
            let is_known = [libc::SYS_setsockopt, libc::SYS_shutdown, libc::SYS_fchown];
            assert!(is_known.contains(&number), "{number}");
            return 0;
        };
        match number {
            libc::SYS_setsockopt => {
                assert!(socket.name.is_none(), "option {} is set too late", a[2]);
                socket.options.insert((a[1] as i32, a[2] as i32), value);
            }
            libc::SYS_bind => socket.name = Some(value),
            libc::SYS_connect => socket.peer = Some(value),
            libc::SYS_listen => socket.backlog = Some(a[1]),
            libc::SYS_shutdown => socket.is_shut = true,
            libc::SYS_fchown => {}
            other => panic!("op {other:?} is not simulated"),
        }
        0
    }

    fn reopen(&mut self, number: u32, flags: u64) -> u64 {
        match self.things[self.fds[&number].thing] {
            Thing::Unnamed(file, ..) => self.open(Thing::Unnamed(file, flags, 0)),
            ref other => panic!("{other:?} opened once more"),
        }
    }

    fn open_path(&mut self, path: u64, flags: u64) -> u64 {
        let path = self.text(path);
        if flags & libc::O_TMPFILE as u64 == libc::O_TMPFILE as u64 {
            self.unnamed.push(Vec::new());
            return self.open(Thing::Unnamed(self.unnamed.len() - 1, flags, 0));
        }
        if path == "/dev/ptmx" {
            self.terminals += 1;
            return self.open(Thing::Master(self.terminals, flags));
        }
        self.open(Thing::Path(path, 0))
    }

    /// Of what is asked of a terminal, opening its slave matters here.
    fn terminal(&mut self, fd: u32, request: u64, flags: u64) -> u64 {
        match self.things[self.fds[&fd].thing] {
            Thing::Master(terminal, _) if request == OPEN_SLAVE => {
                self.open(Thing::Slave(terminal, flags))
            }
            Thing::Master(..) | Thing::Slave(..) => 0,
            ref other => panic!("terminal request {request:#x} of {other:?}"),
        }
    }

    fn content(&mut self, fd: u32) -> &mut Vec<u8> {
        match self.things[self.fds[&fd].thing] {
            Thing::Unnamed(file, flags, _) if flags & libc::O_ACCMODE as u64 != 0 => {
                &mut self.unnamed[file]
            }
            ref other => panic!("content for {other:?}"),
        }
    }

    fn write_at(&mut self, fd: u32, at: u64, length: u64, offset: u64) -> u64 {
        let bytes = self.bytes(at, length).to_vec();
        let content = self.content(fd);
        let (start, end) = (offset as usize, (offset + length) as usize);
        content.resize(content.len().max(end), 0);
        content[start..end].copy_from_slice(&bytes);
        length
    }

    fn truncate(&mut self, fd: u32, length: u64) -> u64 {
        self.content(fd).resize(length as usize, 0);
        0
    }

    fn pair(&mut self, first: u64, second: u64) -> u64 {
        // The executor puts the second end into the slot after the first.
        assert_eq!(second, first + 1);
        self.pairs += 1;
        self.slots[first as usize] = self.open(Thing::Pair(self.pairs, 0));
        self.slots[second as usize] = self.open(Thing::Pair(self.pairs, 1));
        0
    }

    fn move_fd(&mut self, fd: u32, target: u32, cloexec: bool) -> u64 {
        if fd == target {
            self.fds.get_mut(&fd).expect("open").cloexec = cloexec;
            return 0;
        }
        self.dup3(fd, target, cloexec);
        self.close(fd)
    }

    fn dup3(&mut self, fd: u32, target: u32, cloexec: bool) -> u64 {
        let thing = self.fds[&fd].thing;
        // Of the restorer's own, those at the end are in no one's way.
        let is_in_flight = self.in_flight.contains(&target);
        assert!(is_in_flight || !self.spare.contains(&target), "{target} is the restorer's");
        let before = self.fds.insert(target, Open { thing, cloexec });
        assert_eq!(before, None, "dup3 closed what was at {target}");
        target.into()
    }

    fn close(&mut self, fd: u32) -> u64 {
        assert!(self.locks.is_empty(), "a close takes the process's locks away");
        self.fds.remove(&fd).unwrap_or_else(|| panic!("close of {fd}, which is not open"));
        0
    }

    fn close_range(&mut self, first: u32, last: u32) -> u64 {
        assert!(self.locks.is_empty(), "a close takes the process's locks away");
        self.fds.retain(|fd, _| !(first..=last).contains(fd));
        0
    }

    fn fcntl(&mut self, fd: u32, command: i32, argument: u64) -> u64 {
        let thing = self.fds[&fd].thing;
        match command {
            libc::F_DUPFD_CLOEXEC => {
                let made = self.lowest(argument as u32);
                self.fds.insert(made, Open { thing, cloexec: true });
                made.into()
            }
            libc::F_SETLEASE => self.lock(fd, command as u64, argument, (0, 0)),
            libc::F_SETLK | libc::F_OFD_SETLK => {
                let words = self.bytes(argument, 32).chunks(8);
                let words: Vec<u64> =
                    words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
                self.lock(fd, command as u64, words[0], (words[1], words[2]))
            }
            _ => 0,
        }
    }

    fn lock(&mut self, fd: u32, command: u64, kind: u64, range: (u64, u64)) -> u64 {
        self.locks.push((self.fds[&fd].thing, command, kind, range.0, range.1));
        0
    }

    fn seek(&mut self, fd: u32, to: u64) -> u64 {
        let thing = self.fds[&fd].thing;
        match &mut self.things[thing] {
            Thing::Path(_, offset) | Thing::Unnamed(_, _, offset) => *offset = to,
            other => panic!("seek on {other:?}"),
        }
        to
    }

    fn watch(&mut self, epoll: u32, fd: u32, event: u64) -> u64 {
        let watched = self.fds[&fd].thing;
        let event: [u8; 12] = self.bytes(event, 12).try_into().unwrap();
        let (events, data) = event.split_at(4);
        let watch = (
            fd,
            watched,
            u32::from_le_bytes(events.try_into().unwrap()),
            u64::from_le_bytes(data.try_into().unwrap()),
        );
        let instance = self.fds[&epoll].thing;
        match &mut self.things[instance] {
            Thing::Epoll(watches) => watches.push(watch),
            other => panic!("watch by {other:?}"),
        }
        0
    }

    /// `ioctl` of an inotify instance sets the next number, which the next watch takes.
    fn place(&mut self, number: u32, [fd, first, second, _, flags, _]: [u64; 6]) -> u64 {
        let path = (number != libc::SYS_ioctl as u32).then(|| self.text(first));
        let thing = self.fds[&(fd as u32)].thing;
        match (&mut self.things[thing], path) {
            (Thing::Inotify(watches, next), Some(path)) => {
                watches.push((*next, path, second as u32));
                *next += 1;
            }
            (Thing::Fanotify(marks), Some(path)) => marks.push((path, second, flags)),
            (Thing::Inotify(_, next), None) => *next = second as u32,
            (other, _) => panic!("a place watched by {other:?}"),
        }
        0
    }

    fn write(&mut self, fd: u32, at: u64, length: u64) -> u64 {
        let bytes = self.bytes(at, length).to_vec();
        let thing = self.fds[&fd].thing;
        match &mut self.things[thing] {
            Thing::Event(count) => *count = u64::from_le_bytes(bytes.try_into().unwrap()),
            Thing::Pair(pair, end) => self.written.entry((*pair, *end)).or_default().extend(bytes),
            other => panic!("write to {other:?}"),
        }
        length
    }

    /// A message with descriptors, credentials, or both.
    fn send(&mut self, fd: u32, header: u64) -> u64 {
        let word = |at: u64| u64::from_le_bytes(self.bytes(at, 8).try_into().unwrap());
        let (vector, control, length) = (word(header + 16), word(header + 32), word(header + 40));
        let (at, bytes) = (word(vector), word(vector + 8));
        let mut things = Vec::new();
        let mut next = control;
        while next < control + length {
            let (size, kind) = (word(next), word(next + 8) >> 32);
            for place in (next + 16..next + size).step_by(4).filter(|_| kind == 1) {
                let number = u32::from_le_bytes(self.bytes(place, 4).try_into().unwrap());
                things.push(self.fds[&number].thing);
            }
            next += size.next_multiple_of(8);
        }
        let Thing::Pair(pair, end) = self.things[self.fds[&fd].thing] else { panic!("no pair") };
        self.sent.entry((pair, end)).or_default().extend((!things.is_empty()).then_some(things));
        self.write(fd, at, bytes)
    }

    fn bytes(&self, at: u64, length: u64) -> &'m [u8] {
        let start = (at - window::PLAN) as usize;
        &self.memory[start..start + length as usize]
    }

    fn text(&self, at: u64) -> String {
        let rest = &self.memory[(at - window::PLAN) as usize..];
        let end = rest.iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8(rest[..end].to_vec()).unwrap()
    }
}
