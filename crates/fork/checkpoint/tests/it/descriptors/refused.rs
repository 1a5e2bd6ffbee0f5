//! What is refused, and in which words.

use farfork_checkpoint::refuse::Refusal;

use super::look;
use crate::subject::Subject;

fn refusals(script: &str) -> Vec<Refusal> {
    let subject = Subject::start(script);
    look(subject.pid()).1
}

/// Each line of `expected` names a refusal's object and part of its reason, in the order of
/// descriptors.
fn check(script: &str, expected: &[(&str, &str)]) {
    let found = refusals(script);
    let messages: Vec<String> = found.iter().map(|refusal| format!("{refusal}")).collect();
    assert_eq!(found.len(), expected.len(), "{messages:#?}");
    for (refusal, (object, reason)) in found.iter().zip(expected) {
        assert!(refusal.object.contains(object), "{refusal} is not about {object}");
        assert!(refusal.cause().why().contains(reason), "{refusal} does not say {reason}");
        assert!(!format!("{refusal}").contains("os error"));
    }
}

#[test]
fn sockets_whose_state_is_the_kernels_are_refused_by_protocol_and_address() {
    check(
        "
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136); u.bind(('127.0.0.1', 0))
v = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
stop()
",
        &[("IP 127.0.0.1:", "what its protocol keeps"), ("vsock", "virtual machine")],
    );
}

#[test]
fn files_about_other_threads_are_refused() {
    check(
        "
import threading
t = threading.Thread(target=threading.Event().wait, daemon=True); t.start()
os.open(f'/proc/self/task/{t.native_id}/status', os.O_RDONLY)
os.open(f'/proc/self/task/{os.getpid()}/status', os.O_RDONLY)
os.open('/proc/self/task', os.O_RDONLY)
stop()
",
        &[("thread", "does not have yet")],
    );
}

#[test]
fn kernel_objects_are_refused_one_by_one() {
    check(
        "
i = libc.inotify_init1(0); libc.inotify_add_watch(i, b'/proc', 0xfff)
os.pidfd_open(os.getppid()); os.memfd_create('x', os.MFD_HUGETLB)
os.open('/proc/self/ns/net', os.O_RDONLY)
os.open('/proc/1/status', os.O_RDONLY)
stop()
",
        &[
            ("watch 1 on inode 1", "no name"),
            ("pidfd", "stands for a process"),
            ("memfd", "huge pages"),
            ("net:[", "namespace"),
            ("process 1)", "does not have"),
        ],
    );
}

#[test]
fn kernel_objects_that_need_rights_are_refused_too() {
    let script = "
def make(number, *args):
    fd = libc.syscall(number, *args)
    if fd < 0: signal.raise_signal(signal.SIGKILL)
make(300, 4, 0)  # fanotify_init: FAN_CLASS_CONTENT
make(321, 0, struct.pack('IIII', 2, 4, 4, 1) + bytes(100), 72)  # bpf: a map
make(444, struct.pack('Q', 1), 8, 0)  # landlock_create_ruleset
make(430, b'tmpfs', 0)  # fsopen
make(428, -100, b'/tmp', 1)  # open_tree: a mount without a place
make(298, struct.pack('IIQ', 1, 128, 0) + bytes(112), 0, -1, -1, 0)  # perf_event_open
make(447, 0)  # memfd_secret
make(323, 1)  # userfaultfd
queue = f'/farfork-{os.getpid()}'.encode()
ctypes.CDLL('librt.so.1').mq_open(queue, 0o102, 0o600, None)
ctypes.CDLL('librt.so.1').mq_unlink(queue)
stop()
";
    let Some(subject) = Subject::try_start(script) else {
        println!("skipped: this machine does not let root make all of them");
        return;
    };
    let messages: Vec<String> = look(subject.pid()).1.iter().map(ToString::to_string).collect();
    let expected = [
        "other processes may wait for its answers",
        "program or map of this kernel",
        "not yet in force",
        "an unfinished mount",
        "attach the mount",
        "counts events",
        "only the process itself can read it",
        "handles page faults",
        "message queue",
    ];
    assert_eq!(messages.len(), expected.len(), "{messages:#?}");
    for (line, words) in messages.iter().zip(expected) {
        assert!(line.contains(words), "{line} does not say {words}");
    }
}

#[test]
fn write_leases_and_signals_to_others_are_refused() {
    check(
        "
import tempfile
dir = tempfile.mkdtemp()
e = open(f'{dir}/e', 'w+'); fcntl.fcntl(e, 1024, fcntl.F_WRLCK)
r, w = os.pipe()
os.setpgid(0, 0); fcntl.fcntl(r, fcntl.F_SETOWN, -os.getpid()); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
stop()
",
        &[("a lease, write", "breaks a write lease"), ("pipe:[", "another process (F_SETOWN)")],
    );
}

#[test]
fn deleted_files_that_are_not_the_process_s_alone_are_refused() {
    check(
        "
import tempfile
dir = tempfile.mkdtemp()
shared, large, moved = [open(f'{dir}/{name}', 'wb') for name in ['shared', 'large', 'moved']]
for i in range(65): large.write(b'x' * (1 << 20))
large.flush()
os.mkdir(f'{dir}/in'); os.link(f'{dir}/moved', f'{dir}/in/other')
for name in ['shared', 'large', 'moved']: os.unlink(f'{dir}/{name}')
gone = tempfile.mkdtemp(); os.open(gone, os.O_RDONLY); os.rmdir(gone)
r, w = os.pipe()
if os.fork() == 0:
    signal.alarm(60); os.closerange(4, 100); signal.pause()
os.close(w); os.read(r, 1); os.close(r)  # the child has closed its own
stop()
",
        &[
            ("shared (deleted)", "another process"),
            ("large (deleted), 65 MiB of deleted files", "hold more than the 64 MiB"),
            ("moved (deleted)", "other directories"),
            ("(deleted)", "only regular files"),
        ],
    );
}

#[test]
fn a_stale_watch_is_refused() {
    check(
        "
p = select.epoll(); r, w = os.pipe(); p.register(r, select.EPOLLIN)
os.dup2(r, 20); os.close(r)
q = select.epoll(); e = os.eventfd(0); q.register(e, select.EPOLLIN)
os.dup2(e, 21); os.dup2(os.open('/dev/null', os.O_RDONLY), e)
stop()
",
        &[("watching fd 4", "closed or reused"), ("watching fd", "closed or reused")],
    );
}

#[test]
fn descriptors_in_flight_and_odd_sockets_are_refused() {
    check(
        "
a, b = socket.socketpair(); p = select.epoll(); socket.send_fds(a, [b'x'], [p.fileno()]); p.close()
d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); d.bind('')
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'x', d.getsockname()); s.close()
e, f = socket.socketpair(); f.setsockopt(1, 16, 1)
if os.fork() == 0:
    e.send(b'x'); os._exit(0)
os.wait()
g, h = socket.socketpair(type=socket.SOCK_DGRAM); g.send(b'')
stop()
",
        &[
            ("Unix socket at @", "from other processes"),
            ("Unix socket pair", "credentials of another"),
            ("Unix socket pair", "without consuming them"),
            ("descriptor in flight (anon_inode:[eventpoll])", "its kind is not carried there"),
        ],
    );
}

#[test]
fn terminals_with_others_in_them_are_refused() {
    check(
        "
m, s = os.openpty()
n, t = os.openpty()
if os.fork() == 0:
    signal.alarm(60); os.close(n); signal.pause()
os.close(s); os.write(t, b'shown')
stop()
",
        &[
            ("ptmx", "another process has its terminal open"),
            ("ptmx", "another process has its terminal open"),
        ],
    );
}

#[test]
fn odd_pipes_are_refused() {
    check(
        "
r, w = os.pipe(); os.open(f'/proc/self/fd/{r}', os.O_RDONLY)
x, y = os.pipe2(os.O_DIRECT); os.write(y, b'packet')
stop()
",
        &[
            ("pipe:[", "opened again"),
            ("pipe:[", "opened again"),
            ("pipe:[", "opened again"),
            ("pipe:[", "packets"),
        ],
    );
}

#[test]
fn a_thread_with_a_table_of_its_own_is_refused() {
    check(
        "
import threading
ready = threading.Event()
def own():
    assert libc.unshare(0x400) == 0
    ready.set(); threading.Event().wait()
threading.Thread(target=own, daemon=True).start(); ready.wait()
stop()
",
        &[("descriptors of thread", "of its own")],
    );
}

#[test]
fn a_name_that_leads_to_another_file_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: mounting needs root");
        return;
    }
    check(
        "
import tempfile
dir = tempfile.mkdtemp().encode()
assert libc.unshare(0x20000) == 0 and libc.mount(b'none', b'/', None, 0x44000, None) == 0
a = open(dir + b'/a', 'w'); b = open(dir + b'/b', 'w')
assert libc.mount(b'none', dir, b'tmpfs', 0, None) == 0
open(dir + b'/a', 'w')
stop()
",
        &[("/a", "another file has this name"), ("/b", "no file has this name")],
    );
}
