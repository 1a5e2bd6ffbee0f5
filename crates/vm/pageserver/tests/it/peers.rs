//! Peers that do not do what Firecracker does, and the ends of holders.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use farfork_image::vm::Snapshot;
use farfork_minivmm::Walk;
use farfork_pageserver::{Event, Holder, HolderError, Record, Recording};
use farfork_sys::userfault::Userfault;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::bed::{Bed, LIMIT, PATTERN, Serving, can_serve, child};

fn send(socket: &UnixStream, text: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

fn connect(serving: &Serving) -> UnixStream {
    let socket = UnixStream::connect(&serving.socket).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

fn refused(serving: &Serving) -> String {
    serving.wait(|event| match event {
        Event::Refused { why, .. } => Some(why.to_string()),
        _ => None,
    })
}

/// Regions of memory of this process, each of the whole snapshot.
fn regions(memory: &[u64], more: &str) -> String {
    let size = PATTERN.memory_bytes;
    let one = |address: &u64| {
        let at = format!(r#"{{"base_host_virt_addr":{address},"size":{size},"offset":0"#);
        format!(r#"{at},"page_size":4096,"page_size_kib":4096{more}}}"#)
    };
    format!("[{}]", memory.iter().map(one).collect::<Vec<_>>().join(","))
}

/// Memory of this process.
struct Memory(memory::Mapping);

mod memory {
    #![allow(unsafe_code)] // reason: memory that a userfaultfd can be registered for

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    const BYTES: usize = crate::bed::PATTERN.memory_bytes as usize;

    pub struct Mapping(*mut u64);

    impl Mapping {
        pub fn new() -> Mapping {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, wherever the kernel puts it.
            let start = unsafe {
                mmap_anonymous(std::ptr::null_mut(), BYTES, protection, MapFlags::PRIVATE).unwrap()
            };
            Mapping(start.cast())
        }

        pub fn address(&self) -> u64 {
            self.0 as u64
        }

        /// The first word of a page.
        pub fn load(&self, page: usize) -> u64 {
            assert!(page < BYTES / 4096);
            // SAFETY: in the mapping.
            unsafe { self.0.add(page * 512).read_volatile() }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: made by `mmap` with this length.
            let _ = unsafe { munmap(self.0.cast(), BYTES) };
        }
    }
}

impl Memory {
    fn new() -> (Memory, Userfault) {
        let memory = Memory(memory::Mapping::new());
        let userfault = Userfault::create(0).unwrap();
        userfault.register(memory.0.address(), PATTERN.memory_bytes).unwrap();
        (memory, userfault)
    }
}

#[test]
fn garbage_is_refused_and_other_machines_do_not_notice() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let mut monitor = bed.restore(&serving.socket);
    let pages = bed.pages();
    bed.check(&mut monitor, &Walk { count: 1000, ..Walk::whole(pages) });
    let mut unfinished = Vec::new();
    for garbage in [&b"GET / HTTP/1.1\r\n"[..], b"{}", b"[[", b"[1,2]", b"\0\xff"] {
        let mut socket = connect(&serving);
        socket.write_all(garbage).unwrap();
        // What is not finished is waited for.
        if garbage == b"[[" {
            unfinished.push(socket);
            continue;
        }
        assert!(refused(&serving).contains("not a JSON array"));
        assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    }
    let mut socket = connect(&serving);
    socket.write_all(b"[]").unwrap();
    drop(socket);
    assert!(refused(&serving).contains("closed"));
    bed.check(&mut monitor, &Walk::whole(pages));
}

#[test]
fn a_descriptor_may_come_late_and_not_alone() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let (memory, userfault) = Memory::new();
    let text = regions(&[memory.0.address()], r#","guest_memfd":[1,{"a":null}]"#);
    let socket = connect(&serving);
    let (first, second) = text.as_bytes().split_at(30);
    send(&socket, first, &[]);
    std::thread::sleep(Duration::from_millis(20));
    send(&socket, second, &[std::io::stderr().as_fd()]);
    std::thread::sleep(Duration::from_millis(20));
    send(&socket, b"x", &[socket.as_fd(), userfault.as_fd()]);
    assert_eq!(memory.0.load(20), bed.word(20, 0));
    drop(socket);
    assert_eq!(serving.ended().faults, 1);
}

#[test]
fn two_userfaultfds_are_both_served() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let [(one, first), (other, second)] = [Memory::new(), Memory::new()];
    let text = regions(&[one.0.address(), other.0.address()], "");
    let socket = connect(&serving);
    send(&socket, text.as_bytes(), &[first.as_fd(), second.as_fd()]);
    assert_eq!([one.0.load(20), other.0.load(20)], [bed.word(20, 0); 2]);
}

#[test]
fn machines_that_vanish_halfway_are_forgotten() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let mut monitor = bed.restore(&serving.socket);
    for pause in [0, 1, 3, 10, 30] {
        let (state, socket) = (bed.path("state"), serving.socket.display());
        let mut guest = child(&format!("guest {} {socket}", state.display())).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        guest.kill().unwrap();
        guest.wait().unwrap();
    }
    bed.check(&mut monitor, &Walk::whole(bed.pages()));
}

#[test]
fn a_holder_waits_for_its_machines_and_removes_its_socket() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let mut serving = bed.serve();
    let mut monitor = bed.restore(&serving.socket);
    serving.wait(|event| matches!(event, Event::Started { .. }).then_some(()));
    serving.stop();
    serving.wait(|event| matches!(event, Event::Stopping { machines: 1 }).then_some(()));
    assert!(UnixStream::connect(&serving.socket).is_err());
    bed.check(&mut monitor, &Walk::whole(bed.pages()));
    drop(monitor);
    serving.ended();
    let socket = serving.socket.clone();
    serving.join().unwrap();
    assert!(!socket.exists());
}

/// Asked twice, it does not leave guests waiting.
#[test]
fn a_holder_that_has_to_stop_kills_its_machines() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let mut serving = bed.serve();
    let (state, socket) = (bed.path("state"), serving.socket.display().to_string());
    let mut guest = child(&format!("hold {} {socket}", state.display())).spawn().unwrap();
    serving.wait(|event| matches!(event, Event::Started { .. }).then_some(()));
    serving.stop();
    serving.wait(|event| matches!(event, Event::Stopping { machines: 1 }).then_some(()));
    serving.stop();
    assert_eq!(guest.wait().unwrap().signal(), Some(9));
    assert!(serving.join().unwrap_err().contains("1 machines were killed"));
}

/// If no server can be started, guests are killed and that is reported.
#[test]
fn without_a_server_machines_are_killed() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let (state, socket) = (bed.path("state"), serving.socket.display().to_string());
    let mut guest = child(&format!("hold {} {socket}", state.display())).spawn().unwrap();
    serving.wait(|event| matches!(event, Event::Started { .. }).then_some(()));
    serving.fail();
    let begun = Instant::now();
    assert_eq!(guest.wait().unwrap().signal(), Some(9));
    println!("killed after {:?}", begun.elapsed());
    assert!(serving.join().unwrap_err().contains("cannot start a server"));
}

#[test]
fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
    let bed = Bed::new(&PATTERN, 1);
    let file = bed.pool.find(bed.cid).unwrap();
    let snapshot = Snapshot::read_from(&file).unwrap();
    let listen = || {
        let mut start = |_| Err(std::io::ErrorKind::Unsupported.into());
        let mut show = |_| ();
        let mut save = |_: farfork_pageserver::Learnt| ();
        let recording = Recording { record: Record::Nothing, known: Vec::new(), save: &mut save };
        Holder::listen(&bed.path("s"), (&snapshot, &file), &mut start, &mut show, recording)
            .map(drop)
    };
    let other = UnixListener::bind(bed.path("s")).unwrap();
    assert!(matches!(listen().unwrap_err(), HolderError::InUse { .. }));
    drop(other);
    // A process that another test has just forked listens, too, until it executes its program.
    let until = Instant::now() + LIMIT;
    while let Err(error) = listen() {
        assert!(matches!(error, HolderError::InUse { .. }) && Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::fs::remove_file(bed.path("s")).unwrap();
    std::fs::write(bed.path("s"), "text").unwrap();
    assert!(matches!(listen().unwrap_err(), HolderError::InUse { .. }));
    assert_eq!(std::fs::read(bed.path("s")).unwrap(), b"text");
}
