//! Files that several processes of an image have.

use farfork_image::model::{Backing, LockKind, OpenFile};

use super::{carried, file, open_file, pids, start};

#[test]
fn what_was_inherited_is_one_file() {
    let subject = start(
        "
import tempfile
opened = tempfile.TemporaryFile(dir='/tmp'); opened.write(b'text'); opened.flush()
event = os.eventfd(3); other = os.eventfd(3)
def own():
    os.dup2(event, 40); os.close(other); os.eventfd(9)
child(own)
stop()
",
    );
    let model = carried(&subject);
    for fd in [3, 4] {
        assert_eq!(file(&model, 0, fd), file(&model, 1, fd));
    }
    assert_eq!(file(&model, 1, 40), file(&model, 0, 4));
    assert_ne!(file(&model, 1, 5), file(&model, 0, 5));
    assert!(matches!(open_file(&model, 1, 5), OpenFile::Event { count: 9, .. }));
    assert_eq!(file(&model, 0, 0), file(&model, 1, 0), "standard streams too");
    assert_eq!(model.unnamed.len(), 1);
}

#[test]
fn pipes_and_pairs_between_processes_are_inside() {
    let subject = start(
        "
r, w = os.pipe(); a, b = socket.socketpair()
os.write(w, b'to the child'); a.send(b'to b')
def reads():
    os.close(w); a.close(); os.dup2(r, 0); os.close(r); os.dup2(b.fileno(), 1)
child(reads)
os.close(r); b.close()
lone_r, lone_w = os.pipe()
def writes():
    os.dup2(lone_w, 1); os.close(lone_w); os.close(lone_r); os.close(w); a.close()
child(writes)
os.close(lone_r); os.close(lone_w)
stop()
",
    );
    let model = carried(&subject);
    let OpenFile::Pipe { pipe, is_write_end: true, .. } = open_file(&model, 0, 4) else { panic!() };
    assert!(matches!(open_file(&model, 1, 0), OpenFile::Pipe { pipe: own, content, .. }
        if own == pipe && content == b"to the child"));
    let OpenFile::SocketPair { pair, .. } = open_file(&model, 0, 5) else { panic!() };
    assert!(matches!(open_file(&model, 1, 1), OpenFile::SocketPair { pair: own, incoming, .. }
        if own == pair && incoming[0].bytes == b"to b"));
    // No process has the other end, also not outside: a descendant's stream is not a standard
    // stream.
    assert!(matches!(open_file(&model, 2, 1), OpenFile::Pipe { is_write_end: true, .. }));
}

#[test]
fn what_leads_out_of_the_tree_is_external_for_all() {
    let script = "
import subprocess
r, w = os.pipe()
pid = os.fork()
if pid == 0:  # leaves the tree
    if os.fork() == 0:
        os.close(r); os.setsid(); signal.alarm(60); signal.pause()
    os._exit(0)
os.waitpid(pid, 0)
os.close(w)
child()
stop()
";
    let subject = super::Subject::start_with(
        &format!("{}\n{script}", super::PRELUDE),
        std::process::Stdio::piped,
    );
    let model = carried(&subject);
    for fd in [0, 1, 3] {
        assert_eq!(file(&model, 0, fd), file(&model, 1, fd));
        assert!(matches!(open_file(&model, 0, fd), OpenFile::External { .. }), "fd {fd}");
    }
}

#[test]
fn a_watch_belongs_to_the_process_that_has_what_is_watched() {
    let subject = start(
        "
poll = select.epoll(); event = os.eventfd(0)
poll.register(event, select.EPOLLIN)
def adds():
    os.close(event)
    own = os.eventfd(0); assert own == event
    poll.register(own, select.EPOLLOUT)
child(adds)
stop()
",
    );
    let model = carried(&subject);
    let OpenFile::Epoll { watches, .. } = open_file(&model, 0, 3) else { panic!() };
    let mut found: Vec<_> = watches.iter().map(|w| (w.member, w.fd, w.events & 5)).collect();
    found.sort_unstable();
    assert_eq!(found, [(0, 4, 1), (1, 4, 4)]);
    assert_eq!(file(&model, 1, 3), file(&model, 0, 3));
}

#[test]
fn locks_are_those_of_their_owners() {
    let subject = start(
        "
import tempfile
shared = tempfile.TemporaryFile(); shared.write(bytes(100)); shared.flush()
fcntl.lockf(shared, fcntl.LOCK_EX, 10, 0)
fcntl.flock(shared, fcntl.LOCK_SH)
child(lambda: fcntl.lockf(shared, fcntl.LOCK_EX, 5, 50))
stop()
",
    );
    let model = carried(&subject);
    let locks = |member: usize| -> Vec<_> {
        let locks = model.members[member].locks.iter();
        locks.map(|lock| (lock.kind == LockKind::Process, lock.start, lock.length)).collect()
    };
    assert_eq!(locks(0), [(false, 0, 0), (true, 0, 10)]);
    assert_eq!(locks(1), [(true, 50, 5)]);
}

#[test]
fn files_may_signal_members_and_their_groups() {
    let subject = start(
        "
pipes = [os.pipe()[0] for _ in range(2)]
pid = child(lambda: os.setpgid(0, 0))
for r, owner in zip(pipes, [pid, -pid]):
    fcntl.fcntl(r, fcntl.F_SETOWN, owner); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
stop()
",
    );
    let model = carried(&subject);
    let child = pids(&model.members)[1] as i32;
    let owners: Vec<_> = model.members[0].notices.iter().map(|notice| notice.owner).collect();
    assert_eq!(owners, [child, -child]);
    assert!(model.members[1].notices.is_empty(), "once is enough");
}

#[test]
fn handles_of_members_name_them() {
    let subject = start(
        "
own = os.pidfd_open(os.getpid())
first = child()
second = child()
of_first = os.pidfd_open(first)
gone = os.fork()
if gone == 0: os._exit(3)
ended(gone)
of_ended = os.pidfd_open(gone)
stop()
",
    );
    let model = carried(&subject);
    let handle = |fd| match open_file(&model, 0, fd) {
        OpenFile::ProcessHandle { member, .. } => *member,
        other => panic!("{other:?}"),
    };
    assert_eq!([handle(3), handle(4), handle(5)], [0, 1, 3]);
    assert_eq!(file(&model, 1, 3), file(&model, 0, 3));
}

#[test]
fn shared_memory_of_members_is_one_object() {
    let subject = start(
        "
import mmap
anonymous = mmap.mmap(-1, 8192); anonymous[0] = 7
memfd = os.memfd_create('both'); os.ftruncate(memfd, 4096)
mapped = mmap.mmap(memfd, 4096)
child(); child(lambda: child())
stop()
",
    );
    let model = carried(&subject);
    assert_eq!((model.members.len(), model.objects.len()), (4, 2));
    for member in &model.members {
        let backings = member.memory.regions.iter().map(|region| &region.backing);
        let shown = backings.filter(|backing| matches!(backing, Backing::Object { .. }));
        assert_eq!(shown.count(), 2);
    }
}

const TERMINAL: &str = "
import pty, termios, tty
master, slave = os.openpty()
def session():
    os.setsid(); fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = child(lambda: os.setpgid(0, 0))
    os.tcsetpgrp(slave, job)
    child(background)
";

#[test]
fn a_terminal_serves_a_session_of_members() {
    let subject = start(&format!(
        "
{TERMINAL}
background = lambda: None
child(session)
stop()
"
    ));
    let model = carried(&subject);
    let [_, leader, job, _] = pids(&model.members)[..] else { panic!("four processes") };
    let [terminal] = &model.terminals[..] else { panic!("one terminal") };
    assert_eq!((terminal.session, terminal.foreground), (leader, job));
}
