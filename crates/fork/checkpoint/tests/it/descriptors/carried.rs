//! What is carried.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use farfork_image::model::{Member, Model, OpenFile};

use super::clone::Clone;
use super::{Collected, carried, file, look_supplying};
use crate::subject::Subject;

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn model(parent: &Collected) -> Model {
    let member = Member {
        descriptors: parent.descriptors.clone(),
        locks: parent.locks.clone(),
        notices: parent.notices.clone(),
        ..Member::default()
    };
    Model {
        members: vec![member],
        files: parent.files.clone(),
        unnamed: parent.unnamed.clone(),
        terminals: parent.terminals.clone(),
        ..Model::default()
    }
}

type Normalized = (Vec<(u32, u32, bool)>, Vec<OpenFile>);

/// File by file, since all of them with their contents are too much to read.
fn compare(clone: &Normalized, parent: &Normalized) {
    assert_eq!(clone.0, parent.0);
    for (file, expected) in clone.1.iter().zip(&parent.1) {
        assert!(file == expected, "{file:.200?} instead of {expected:.200?}");
    }
}

/// Names pipes and pairs by the order of their first descriptors, and the ends of a pair too.
fn normalized(collected: &Collected) -> Normalized {
    let mut names: HashMap<(bool, u64), u64> = HashMap::new();
    let mut firsts: HashMap<u64, u32> = HashMap::new();
    let mut files = collected.files.clone();
    for file in &mut files {
        let count = names.len() as u64;
        match file {
            OpenFile::Pipe { pipe, .. } => *pipe = *names.entry((false, *pipe)).or_insert(count),
            OpenFile::SocketPair { pair, end, .. } => {
                *pair = *names.entry((true, *pair)).or_insert(count);
                *end ^= *firsts.entry(*pair).or_insert(*end);
            }
            OpenFile::Epoll { watches, .. } => watches.sort_by_key(|w| (w.fd, w.data)),
            OpenFile::External { description } => description.clear(),
            // Time goes on for a timer: only that it runs is compared.
            OpenFile::Timer { setting, .. } => {
                setting[2] = u64::from(setting[2] + setting[3] > 0);
                setting[3] = 0;
            }
            _ => {}
        }
    }
    (collected.descriptors.iter().map(|d| (d.fd, d.file, d.cloexec)).collect(), files)
}

/// The parent's descriptors, which its clone was seen to have too.
fn cloned(script: &str) -> Collected {
    let subject = Subject::start(script);
    let parent = carried(subject.pid());
    let clone = Clone::make(&model(&parent), null);
    let made = carried(clone.pid());
    compare(&normalized(&made), &normalized(&parent));
    assert!(made.unnamed == parent.unnamed, "{:.200?}", made.unnamed);
    assert!(subject.finishes_well(), "the parent was disturbed");
    parent
}

#[test]
fn files_keep_path_position_flags_and_duplicates() {
    let parent = cloned(
        "
import tempfile
dir = tempfile.mkdtemp()
path = dir + '/text'
open(path, 'w').write('0123456789')
a = os.open(path, os.O_RDONLY); os.lseek(a, 4, 0)
b = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
assert (a, b) == (3, 4)
os.dup2(a, 9, inheritable=True); os.dup2(b, 900)
c = os.open(path, os.O_RDONLY); os.lseek(c, 4, 0)
os.open(dir, os.O_RDONLY | os.O_DIRECTORY)
os.open('/dev/zero', os.O_RDWR); os.open('/dev/urandom', os.O_RDONLY)
os.open(path, os.O_PATH)
stop()
assert os.read(9, 3) == b'456' and os.read(a, 3) == b'789'
import shutil; shutil.rmtree(dir)
",
    );
    let at = |fd| parent.descriptors.iter().find(|d| d.fd == fd).unwrap();
    assert_eq!(at(3).file, at(9).file);
    assert_ne!(at(3).file, at(5).file, "opened twice is not duplicated");
    assert!(at(3).cloexec && !at(9).cloexec);
    assert!(matches!(file(&parent, 3), OpenFile::Path { offset: 4, stamp: Some(stamp), .. }
        if stamp.size == 10));
    assert!(matches!(file(&parent, 4), OpenFile::Path { flags, stamp: None, .. }
        if flags & libc::O_APPEND as u32 != 0));
}

/// A file that could be carried, with its duplicate, becomes the caller's of restore.
#[test]
fn a_descriptor_can_be_left_to_the_caller() {
    let script = "
a = os.open('/proc/version', os.O_RDONLY); os.dup2(a, 9); os.open('/proc/version', os.O_RDONLY)
stop()
";
    let subject = Subject::start(script);
    let (parent, refused) = look_supplying(subject.pid(), Some(3));
    assert_eq!(refused, []);
    let files = [3, 9, 4].map(|fd| file(&parent, fd));
    assert!(
        matches!(files[0], OpenFile::External { description } if description.contains("/proc/version"))
    );
    assert_eq!(files[0], files[1]);
    assert!(matches!(files[2], OpenFile::Path { .. }), "it was opened apart");
    let clone = Clone::make(&model(&parent), null);
    let seen = carried(clone.pid());
    let path = |fd| match file(&seen, fd) {
        OpenFile::Path { path, .. } => path.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((path(3), path(9)), ("/dev/null".into(), "/dev/null".into()));
    let (_, refused) = look_supplying(subject.pid(), Some(5));
    let words: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert!(words.len() == 1 && words[0].contains("descriptor 5"), "{words:?}");
}

#[test]
fn files_about_the_process_itself_have_no_size_to_keep() {
    let subject = Subject::start("os.open('/proc/self/status', os.O_RDONLY); stop()");
    let parent = carried(subject.pid());
    assert!(matches!(file(&parent, 3), OpenFile::Path { stamp: None, .. }));
}

#[test]
fn deleted_files_are_made_again_with_their_holes() {
    let parent = cloned(
        "
import tempfile
dir = tempfile.mkdtemp()
a = os.open(dir + '/a', os.O_RDWR | os.O_CREAT, 0o640)
os.write(a, b'start'); os.pwrite(a, b'end', 1 << 30)
b = os.open(dir + '/a', os.O_RDONLY); os.lseek(b, 3, 0)
os.unlink(dir + '/a'); os.rmdir(dir)
os.open('/tmp', os.O_TMPFILE | os.O_RDWR, 0o600)
os.open('/tmp', os.O_TMPFILE | os.O_WRONLY | os.O_SYNC, 0o600)
stop()
assert os.read(b, 9)[:2] == b'rt' and os.pread(a, 3, 1 << 30) == b'end'
",
    );
    let [first, second, _] = &parent.unnamed[..] else { panic!("{:?}", parent.unnamed.len()) };
    assert_eq!(
        (first.directory.to_str(), first.mode, first.extents.len()),
        (Some("/tmp"), 0o640, 2)
    );
    assert_eq!((second.size, second.extents.len()), (0, 0));
    assert!(matches!(file(&parent, 4), OpenFile::Unnamed { file: 0, offset: 3, .. }));
}

#[test]
fn pipes_keep_what_is_in_them() {
    let parent = cloned(
        "
r, w = os.pipe(); os.write(w, b'first '); os.write(w, b'second')
os.dup2(w, 30)
full_r, full_w = os.pipe(); fcntl.fcntl(full_w, 1031, 1 << 18)
assert os.write(full_w, b'x' * (1 << 18)) == 1 << 18
os.set_blocking(full_r, False)
ended, gone = os.pipe(); os.write(gone, b'last words'); os.close(gone)
broken, lonely = os.pipe(); os.close(broken)
late = os.pipe()
os.dup2(late[0], 40); os.dup2(late[1], 35); os.close(late[0]); os.close(late[1])
stop()
assert os.read(r, 100) == b'first second'
assert len(os.read(full_r, 1 << 20)) == 1 << 18
assert os.read(ended, 100) == b'last words' and os.read(ended, 100) == b''
try: os.write(lonely, b'x'); sys.exit(1)
except BrokenPipeError: pass
",
    );
    assert!(matches!(file(&parent, 3), OpenFile::Pipe { content, is_write_end: false, .. }
        if content == b"first second"));
    assert!(matches!(file(&parent, 5), OpenFile::Pipe { content, capacity: 0x40000, flags, .. }
        if content.len() == 1 << 18 && *flags == libc::O_NONBLOCK as u32));
    assert!(matches!(file(&parent, 7), OpenFile::Pipe { content, .. } if content == b"last words"));
}

#[test]
fn counters_and_timers_go_on() {
    let parent = cloned(
        "
import time
os.eventfd(5, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
e = os.eventfd(0); os.eventfd_write(e, (1 << 40) + 3)
once = timerfd(1, 0, 1, 0)
periodic = timerfd(1, 0, 1, 500 * 10**9)
running = timerfd(7, 0, 300 * 10**9, 10**9)
idle = libc.timerfd_create(1, 0o4000)
wall = timerfd(0, 3, (int(time.time()) + 900) * 10**9, 0)
passed = timerfd(1, 1, 1, 100 * 10**9)
mask = ctypes.c_ulong(1 << 9)
libc.signalfd(-1, ctypes.byref(mask), 0)
time.sleep(0.01)
stop()
assert os.eventfd_read(3) == 1 and os.eventfd_read(e) == (1 << 40) + 3
assert os.read(once, 8) == struct.pack('Q', 1)
",
    );
    assert!(matches!(file(&parent, 3), OpenFile::Event { count: 5, is_semaphore: true, .. }));
    assert!(matches!(file(&parent, 5), OpenFile::Timer { ticks: 1, setting: [0, 0, 0, 0], .. }));
    assert!(matches!(
        file(&parent, 6),
        OpenFile::Timer { ticks: 1, setting: [500, 0, 500, 0], .. }
    ));
    assert!(matches!(file(&parent, 7), OpenFile::Timer { clock: 7, setting: [1, 0, 299, _], .. }));
    assert!(matches!(file(&parent, 9), OpenFile::Timer { set_flags: 3, setting, .. }
        if setting[2] > 1_700_000_000));
    assert!(matches!(file(&parent, 11), OpenFile::Signal { mask: 0x200, .. }));
}

#[test]
fn epolls_watch_the_same_again() {
    let parent = cloned(
        "
outer = select.epoll(); inner = select.epoll()
r, w = os.pipe(); e = os.eventfd(1)
inner.register(r, select.EPOLLIN | select.EPOLLET)
inner.register(e, select.EPOLLIN | select.EPOLLONESHOT)
outer.register(inner.fileno(), select.EPOLLIN)
twin = os.dup(e); inner.register(twin, select.EPOLLOUT)
os.dup2(inner.fileno(), 20)
stop()
assert [fd for fd, _ in outer.poll(0)] == [inner.fileno()]
",
    );
    assert!(matches!(file(&parent, 3), OpenFile::Epoll { watches, .. } if watches.len() == 1));
    assert!(matches!(file(&parent, 20), OpenFile::Epoll { watches, .. } if watches.len() == 3));
}

#[test]
fn socket_pairs_keep_what_waits_in_them() {
    let parent = cloned(
        "
a, b = socket.socketpair(); a.send(b'to '); a.send(b'b'); b.send(b'to a')
c, d = socket.socketpair(type=socket.SOCK_DGRAM); c.send(b'one'); c.send(b'three')
e, f = socket.socketpair(type=socket.SOCK_SEQPACKET); e.send(b'1'); e.send(b'22'); e.shutdown(1)
g, h = socket.socketpair(); h.send(b'bye'); h.close(); g.setblocking(False)
i, j = socket.socketpair(); i.setsockopt(1, 7, 1 << 20); i.setblocking(False)
big = b'0123456789abcdef' * 20000
sent = i.send(big)
j.setsockopt(1, 8, 50000)
k, l = socket.socketpair(type=socket.SOCK_DGRAM); l.close()
stop()
assert b.recv(100) == b'to b' and a.recv(100) == b'to a'
assert (d.recv(100), d.recv(100)) == (b'one', b'three')
assert (f.recv(9), f.recv(9), f.recv(9)) == (b'1', b'22', b'')
assert (g.recv(9), g.recv(9)) == (b'bye', b'')
assert sent == len(big) and j.recv(sent, socket.MSG_WAITALL) == big
",
    );
    let incoming = |fd| match file(&parent, fd) {
        OpenFile::SocketPair { incoming, shutdown, .. } => {
            let bytes = incoming.iter().map(|message| message.bytes.clone());
            (bytes.collect::<Vec<_>>(), *shutdown)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(incoming(4), (vec![b"to b".to_vec()], 0));
    assert_eq!(incoming(3), (vec![b"to a".to_vec()], 0));
    assert_eq!(incoming(6), (vec![b"one".to_vec(), b"three".to_vec()], 0));
    assert_eq!(incoming(8), (vec![b"1".to_vec(), b"22".to_vec()], 1));
    assert_eq!(incoming(9), (vec![b"bye".to_vec()], 3));
}

#[test]
fn a_socket_that_peeks_from_an_offset_goes_on_to() {
    let subject = Subject::start(
        "
a, b = socket.socketpair(type=socket.SOCK_DGRAM)
a.send(b'one'); a.send(b'two')
b.setsockopt(1, 42, 3)
stop()
assert b.getsockopt(1, 42) == 3 and b.recv(9, socket.MSG_PEEK) == b'two'
",
    );
    carried(subject.pid());
    assert!(subject.finishes_well());
}

#[test]
fn what_leads_outside_is_left_to_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("listening");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let script = format!(
        "
os.dup2(0, 5); os.dup2(1, 6)
s = socket.socket(socket.AF_UNIX); s.bind('{}'); s.listen()
os.mkfifo('{}'); os.open('{}', os.O_RDWR)
stop()
",
        path.display(),
        dir.path().join("fifo").display(),
        dir.path().join("fifo").display(),
    );
    let subject =
        Subject::start_with(&script, || theirs.try_clone().map(OwnedFd::from).unwrap().into());
    let parent = carried(subject.pid());
    let what = |fd| match file(&parent, fd) {
        OpenFile::External { description } => description.as_str(),
        OpenFile::Socket(socket) if socket.is_replaceable() => socket.description.as_str(),
        other => panic!("fd {fd} is {other:?}"),
    };
    assert_eq!(what(0), "Unix socket connected to another process");
    assert_eq!(what(5), what(0));
    assert_eq!(what(3), format!("listening Unix socket {}", path.display()));
    assert!(what(4).starts_with("named pipe /"));
    drop(ours);
}

#[test]
fn piped_standard_streams_are_external_and_files_are_not() {
    let subject = Subject::start_with("r, w = os.pipe(); os.dup2(0, 7); stop()", Stdio::piped);
    let parent = carried(subject.pid());
    for fd in [0, 1, 7] {
        assert!(matches!(file(&parent, fd), OpenFile::External { .. }));
    }
    assert!(matches!(file(&parent, 3), OpenFile::Pipe { .. }));
    let subject = Subject::start("stop()");
    let parent = carried(subject.pid());
    assert!(matches!(file(&parent, 0), OpenFile::Path { path, .. } if path.ends_with("null")));
}

#[test]
fn a_clone_is_given_its_external_descriptors() {
    let subject =
        Subject::start_with("os.dup2(0, 7); os.dup2(os.eventfd(3), 90); stop()", Stdio::piped);
    let parent = carried(subject.pid());
    let clone = Clone::make(&model(&parent), null);
    let made = carried(clone.pid());
    for fd in [0, 1, 7] {
        assert!(matches!(file(&made, fd), OpenFile::Path { path, .. } if path.ends_with("null")));
    }
    assert!(matches!(file(&made, 3), OpenFile::Event { count: 3, .. }));
}

#[test]
fn a_thousand_descriptors_are_quick() {
    let subject = Subject::start(
        "
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
first = [os.eventfd(n) for n in range(500)]
for fd in first: os.dup2(fd, fd + 500)
stop()
",
    );
    let begun = std::time::Instant::now();
    let parent = carried(subject.pid());
    println!("collected 1,000 descriptors in {:?}", begun.elapsed());
    assert!(begun.elapsed().as_secs() < 5, "comparing every pair takes far longer");
    for fd in 3..503 {
        assert!(matches!(file(&parent, fd + 500), OpenFile::Event { count, .. }
            if *count == u64::from(fd - 3)));
    }
}
