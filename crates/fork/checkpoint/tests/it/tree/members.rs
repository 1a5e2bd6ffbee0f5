//! Which processes are in an image, and where.

use super::{carried, pids, start};

#[test]
fn parents_come_before_their_children() {
    let subject = start(
        "
a = child(lambda: child())
b = child(lambda: child(lambda: child()))
stop()
",
    );
    let model = carried(&subject);
    let parents: Vec<_> = model.members.iter().map(|member| member.kinship.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(0), Some(1), Some(2), Some(4)]);
    assert_eq!(model.members[0].process.pid, subject.pid() as u32);
    assert!(model.members.iter().all(|member| member.threads.len() == 1));
    let first = &model.members[1].memory.stored.segments[0];
    let root = &model.members[0].memory.stored.segments[0];
    assert_ne!(first.place, root.place, "each has room of its own");
    assert!(subject.finishes_well());
}

#[test]
fn children_of_threads_and_adopted_orphans_are_found() {
    let subject = start(
        "
import threading
libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
made = []
def work():
    made.append(child())
    threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
r, w = os.pipe()
def leave_orphan():
    if os.fork() == 0:
        os.setsid(); signal.alarm(60); os.write(w, b'%10d' % os.getpid())
        while True: signal.pause()
    os._exit(0)
pid = os.fork()
if pid == 0: leave_orphan()
os.waitpid(pid, 0)
orphan = int(os.read(r, 10))
while not made: time.sleep(0.01)
stop()
os.kill(orphan, 9)
",
    );
    let model = carried(&subject);
    assert_eq!(model.members.len(), 3);
    assert!(model.members[1..].iter().all(|member| member.kinship.parent == Some(0)));
    assert!(model.members[0].process.is_child_subreaper);
    let orphan = &model.members.iter().find(|m| m.kinship.session == m.process.pid).unwrap();
    assert_eq!(orphan.kinship.group, orphan.process.pid);
    assert!(subject.finishes_well());
}

#[test]
fn the_ended_keep_their_status() {
    let subject = start(
        "
def exits():
    os._exit(7)
def is_killed():
    signal.signal(signal.SIGALRM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGALRM)
for run in [exits, is_killed]:
    pid = os.fork()
    if pid == 0: run()
    ended(pid)
stop()
assert sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)) == [-14, 7]
",
    );
    let model = carried(&subject);
    let mut found: Vec<_> = model.members.iter().filter_map(|m| m.kinship.ended).collect();
    found.sort_unstable();
    assert_eq!(found, [14, 7 << 8]);
    let ended = &model.members[1];
    assert!(ended.threads.is_empty() && ended.kinship.exit_signal == 17);
    assert_eq!(ended.kinship.parent, Some(0));
    assert!(subject.finishes_well());
}

#[test]
fn sessions_and_groups_are_those_of_members_or_from_outside() {
    let subject = start(
        "
def job(): os.setpgid(0, 0)
def daemon(): os.setsid()
first = child(job)
second = child(lambda: os.setpgid(0, first))
third = child(daemon)
stop()
",
    );
    let model = carried(&subject);
    let [_, first, _, third] = pids(&model.members)[..] else { panic!("four processes") };
    let places: Vec<_> =
        model.members.iter().map(|m| (m.kinship.session, m.kinship.group)).collect();
    assert_eq!(places, [(0, 0), (0, first), (0, first), (third, third)]);
}

#[test]
fn a_group_and_a_session_outlive_their_leaders() {
    let subject = start(
        "
def shell():
    os.setsid()
    leader = child(lambda: os.setpgid(0, 0))
    child(lambda: os.setpgid(0, leader))
    os.kill(leader, 9); os.waitpid(leader, 0)
libc.prctl(36, 1)
session = os.fork()
if session == 0:
    os.setsid()
    if os.fork() == 0:
        signal.alarm(60)
        while True: signal.pause()
    os._exit(0)
os.waitpid(session, 0)
child(shell)
stop()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
import glob
for pid in open(f'/proc/self/task/{os.getpid()}/children').read().split(): os.kill(int(pid), 9)
",
    );
    let model = carried(&subject);
    let [_, orphan, shell, left] = &model.members[..] else { panic!("four processes") };
    assert!(!pids(&model.members).contains(&orphan.kinship.session));
    assert_eq!(orphan.kinship.session, orphan.kinship.group);
    assert_eq!(
        (shell.kinship.session, left.kinship.session),
        (shell.process.pid, shell.process.pid)
    );
    assert!(![0, shell.process.pid, left.process.pid].contains(&left.kinship.group));
    assert!(subject.finishes_well());
}

#[test]
fn a_stopped_member_and_its_threads_are_carried() {
    let subject = start(
        "
import threading
def stopped():
    for _ in range(3): threading.Thread(target=threading.Event().wait, daemon=True).start()
    def soon(): time.sleep(0.2); os.kill(os.getpid(), signal.SIGSTOP)
    threading.Thread(target=soon, daemon=True).start()
pid = child(stopped)
os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
stop()
os.kill(pid, signal.SIGCONT)
",
    );
    let model = carried(&subject);
    let member = &model.members[1];
    assert!(member.process.is_stopped && member.threads.len() == 5);
    assert!(subject.finishes_well());
}

#[test]
fn a_tree_that_forks_all_the_time_is_whole() {
    let subject = start(
        "
def storm():
    def run():
        import threading
        def work():
            while True:
                pid = os.fork()
                if pid == 0: os._exit(0)
                os.waitpid(pid, 0)
        threading.Thread(target=work, daemon=True).start()
    run()
for _ in range(3): child(storm)
stop()
",
    );
    for _ in 0..10 {
        let model = carried(&subject);
        assert!(model.members.len() >= 4, "{:?}", pids(&model.members));
    }
    assert!(subject.finishes_well());
}
