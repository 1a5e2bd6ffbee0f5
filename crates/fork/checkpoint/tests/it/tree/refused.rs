//! What is refused of a tree, and which process a refusal names.

use farfork_checkpoint::{CheckpointError, CheckpointOptions, Target, dry_run};

use super::{PRELUDE, look, start};
use crate::subject::Subject;

/// Each line of `expected` names a process, as counted from the root's pid on, and parts of object
/// and reason.
fn check(script: &str, expected: &[(&str, &str)]) {
    check_all(&start(script), expected);
}

fn check_all(subject: &Subject, expected: &[(&str, &str)]) {
    let (_, found) = look(subject);
    let messages: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), expected.len(), "{messages:#?}");
    for (line, (object, reason)) in messages.iter().zip(expected) {
        assert!(line.contains(object) && line.contains(reason), "{line}: not {object}, {reason}");
        assert!(!line.contains(&format!("process {} ", subject.pid())), "{line}: of a child");
    }
}

#[test]
fn children_without_tree_are_refused_with_a_way_out() {
    let subject = start("child(); stop()");
    let (_, found) = dry_run(Target::Process(subject.pid()), CheckpointOptions::default()).unwrap();
    let [refusal] = &found[..] else { panic!("{found:?}") };
    assert!(refusal.object.starts_with("child process "));
    assert!(refusal.cause().remedy().contains("--tree"));
}

#[test]
fn members_in_other_namespaces_are_refused() {
    let script = "
def apart():
    if libc.unshare(0x40000000): os.kill(os.getppid(), 9)
child(apart)
stop()
";
    let Some(subject) = Subject::try_start(&format!("{PRELUDE}{script}")) else {
        println!("skipped: this machine does not allow new namespaces");
        return;
    };
    check_all(&subject, &[("network namespace", "in another namespace than")]);
}

#[test]
fn an_orphan_that_no_fork_brings_back_is_refused() {
    // Both have orphans of the session of one leader; it lives below the second of them only.
    let script = "
assert libc.prctl(36, 1) == 0
def orphan():
    if os.fork() == 0:
        if os.fork() == 0:
            libc.prctl(1, 9); signal.alarm(60)
            while True: signal.pause()
        os._exit(0)
    os.wait()
def leader():
    os.setsid()
    orphan()
    assert libc.kill(os.getppid(), 10) == 0
    time.sleep(0.2)
    orphan()
def second():
    signal.signal(10, lambda *_: libc.prctl(36, 1))
    child(leader)
child(second)
stop()
";
    check(script, &[("session", "whose orphans another process gets")]);
}

#[test]
fn what_only_threads_share_is_refused() {
    check(
        "
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
sleep = ctypes.cast(libc.pause, ctypes.c_void_p)
stack = ctypes.create_string_buffer(1 << 16)
top = (ctypes.addressof(stack) + (1 << 16)) & ~15
pid = libc.clone(sleep, top, 0x400 | 0x200 | 0x100 | 17, None)
assert pid > 0
import atexit; atexit.register(lambda: os.kill(pid, 9))
stop()
",
        &[
            ("memory of process", "shares the memory"),
            ("descriptors of process", "as threads do"),
            ("working directory of process", "as threads do"),
        ],
    );
}

#[test]
fn a_group_that_its_maker_has_left_is_refused() {
    check(
        "
r, w = os.pipe()
first = os.fork()
if first == 0:
    libc.prctl(1, 9); os.setpgid(0, 0)
    if os.fork() == 0:
        libc.prctl(1, 9); os.setpgid(0, 0)
        if os.fork() == 0:
            libc.prctl(1, 9); os.write(w, b'x'); signal.pause()
        os.setpgid(0, os.getppid()); os.write(w, b'x'); signal.pause()
    signal.pause()
assert [os.read(r, 1), os.read(r, 1)]
stop()
",
        &[("process group", "in another one now")],
    );
}

/// The child of a leader that has ended comes to the root; one of its circle has gone outside.
fn torn(make: &str) -> String {
    format!(
        "
r, w = os.pipe()
def wait(): os.write(w, b'x'); signal.alarm(60); signal.pause()
leader = os.fork()
if leader == 0:
    {make}
    if os.fork() == 0:
        if os.fork() == 0: wait()
        os._exit(0)
    os.wait(); assert os.read(r, 1)
    libc.prctl(36, 1, 0, 0, 0)
    if os.fork() == 0: libc.prctl(1, 0); wait()
    os.kill(os.getpid(), signal.SIGSTOP); os._exit(0)
os.waitpid(leader, os.WUNTRACED); libc.prctl(36, 1); os.kill(leader, signal.SIGCONT)
os.waitpid(leader, 0); assert os.read(r, 1)
stop()
"
    )
}

#[test]
fn sessions_and_groups_that_reach_outside_are_refused() {
    let group = ("process group", "comes from outside of the tree");
    check(&torn("os.setpgid(0, 0)"), &[group]);
    check(&torn("os.setsid()"), &[("session", "another session that comes from outside"), group]);
}

#[test]
fn handles_that_were_handed_on_are_refused() {
    let subject = start(
        "
first = child()
handle = os.pidfd_open(first)
child()
stop()
",
    );
    let (_, found) = look(&subject);
    let [refusal] = &found[..] else { panic!("{found:?}") };
    assert!(refusal.cause().why().contains("several processes inherited it"));
}

#[test]
fn what_each_process_opens_itself_is_refused_in_flight() {
    let subject = start(
        "
r, w = os.pipe()
if os.fork() == 0:
    if os.fork() == 0: os.setsid(); signal.alarm(60); signal.pause()
    os._exit(0)
os.wait(); os.close(w)
a, b = socket.socketpair()
socket.send_fds(a, [b'x'], [os.eventfd(3), os.pidfd_open(os.getpid()), r])
child()
stop()
",
    );
    let (_, found) = look(&subject);
    let [handle, outside] = &found[..] else { panic!("{found:?}") };
    for refusal in [handle, outside] {
        assert!(refusal.cause().why().contains("each process of a clone opens its own"));
    }
    assert!(format!("{handle:?}").contains("pidfd in flight"), "{handle:?}");
}

#[test]
fn what_shows_a_descendant_and_was_handed_on_is_refused() {
    check(
        "
def opens():
    os.open('/proc/self/status', os.O_RDONLY)
    child()
child(opens)
stop()
",
        &[("/status)", "a process that a clone does not have")],
    );
}

#[test]
fn a_terminal_is_refused_where_its_session_cannot_be_made() {
    let terminal = "
import termios
master, slave = os.openpty()
def session(close):
    os.setsid(); fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    def gives_up(): fcntl.ioctl(slave, 0x5422)
    child(lambda: None if close else gives_up())
    if close: os.close(slave)
";
    let why = |script: &str| {
        let subject = start(&format!("{terminal}{script}"));
        let (_, found) = look(&subject);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].cause().why()
    };
    assert!(why("child(lambda: session(True)); stop()").contains("has closed all descriptors"));
    assert!(why("child(lambda: session(False)); stop()").contains("given it up"));
}

#[test]
fn a_tree_that_farfork_is_in_is_refused() {
    let parent = std::os::unix::process::parent_id() as i32;
    match dry_run(Target::Tree(parent), CheckpointOptions::default()) {
        Err(CheckpointError::Descendant { pid }) => assert_eq!(pid, std::process::id() as i32),
        other => panic!("{:?}", other.map(|found| found.1)),
    }
}

#[test]
fn a_member_under_a_debugger_is_refused() {
    let subject = start(
        "
def traced(): libc.ptrace(0, 0, 0, 0)
child(traced)
stop()
",
    );
    match dry_run(Target::Tree(subject.pid()), CheckpointOptions::default()) {
        Err(CheckpointError::Refused(found)) => {
            assert!(found[0].cause().why().contains("debugger"));
            assert!(!found[0].process.contains(&subject.pid().to_string()));
        }
        other => panic!("{:?}", other.map(|found| found.1)),
    }
}
