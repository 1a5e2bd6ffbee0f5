//! What is set for one process and not for another is seen. Both are `sleep`, without randomized addresses.

use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

/// A process that waits, killed at the end.
struct Waiting(Child);

impl Waiting {
    /// `set` is shell text that changes the process before it waits.
    fn begin(set: &str) -> Waiting {
        let script = format!("{set}\nexec sleep 600");
        let child = Command::new("setarch").args(["-R", "sh", "-c", &script]).spawn().unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        let waiting = Waiting(child);
        while std::fs::read_to_string(&comm).unwrap() != "sleep\n" || !waiting.is_asleep() {
            thread::sleep(Duration::from_millis(2));
        }
        waiting
    }

    fn is_asleep(&self) -> bool {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.0.id())).unwrap();
        call.starts_with("230 ") // clock_nanosleep
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What differs between a process and one for which something is set.
fn found(set: &str) -> Vec<String> {
    let (plain, changed) = (Waiting::begin(""), Waiting::begin(set));
    let found = farfork_audit::compare(plain.pid(), changed.pid()).unwrap();
    found.into_iter().map(|difference| difference.fact).collect()
}

#[test]
fn each_change_is_seen_and_nothing_else() {
    // Pids, and the random bytes that a program is given.
    let named = ["thread leader/status/NSpid", "thread leader/status/NStgid", "environ", "auxv"];
    for (set, fact) in [
        ("", ""),
        ("umask 077", "thread leader/status/Umask"),
        ("trap '' USR1", "thread leader/status/SigIgn"),
        ("ulimit -n 77", "limits/Max open files"),
        ("cd /tmp", "cwd"),
        ("renice -n 5 $$ >/dev/null", "stat/nice"),
        ("ionice -c 3 -p $$", "thread leader/ioprio"),
        ("chrt -b -p 0 $$", "stat/policy"),
        ("exec 5</dev/null", "fd 5"),
        ("exec 5</dev/zero 6<&5", "fd 5/is one with"),
        ("exec 5<>/dev/null", "fd 5/flags"),
        ("choom -n 500 -p $$ >/dev/null", "oom_score_adj"),
        ("echo 7 >/proc/$$/coredump_filter", "coredump_filter"),
        ("echo 77777 >/proc/$$/timerslack_ns", "timerslack_ns"),
    ] {
        let found: Vec<String> =
            found(set).into_iter().filter(|name| !named.contains(&&**name)).collect();
        let is_seen = found.iter().any(|name| name == fact);
        assert_eq!(is_seen, !fact.is_empty(), "{set}: {fact} among {found:?}");
        assert!(found.len() <= 16, "{set}: too much differs: {found:?}");
    }
}
