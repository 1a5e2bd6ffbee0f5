//! What each thread has for itself.

use std::fs;
use std::io;
use std::path::Path;

use farfork_sys::kcmp::{self, Shareable};
use farfork_sys::sched;

use crate::facts::Facts;
use crate::process::inner_pid;

/// Lines of `status` that count, or that name the thread in other namespaces.
const LEFT_OUT: [&str; 9] = [
    "Pid",
    "PPid",
    "Tgid",
    "State",
    "FDSize",
    "SigQ",
    "voluntary_ctxt_switches",
    "nonvoluntary_ctxt_switches",
    "Ngid",
];
/// Names in several namespaces; the last is that in the thread's own.
const BY_NAMESPACE: [&str; 2] = ["NStgid", "NSpid"];
/// The same of a group and a session, which may be another process's. That process may be outside of the
/// clone's namespace, where it has no name.
const OF_OTHERS: [&str; 2] = ["NSpgid", "NSsid"];

/// Reads them.
pub fn read(pid: i32, facts: &mut Facts) -> io::Result<()> {
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let name = match inner_pid(tid) {
            _ if tid == pid => "thread leader".to_owned(),
            inner => format!("thread {}", inner.unwrap_or(0)),
        };
        match read_thread((pid, tid), &name, &entry.path(), facts) {
            // It has ended meanwhile.
            Err(error) if tid != pid && has_ended(&error) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

fn has_ended(error: &io::Error) -> bool {
    let search = rustix::io::Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(search)
}

fn read_thread(
    (pid, tid): (i32, i32),
    name: &str,
    place: &Path,
    facts: &mut Facts,
) -> io::Result<()> {
    let status = fs::read_to_string(place.join("status"))?;
    add_status(name, &status, facts);
    for file in ["comm", "syscall", "attr/current"] {
        let value = fs::read_to_string(place.join(file)).map(|text| text.trim().to_owned());
        // Not every kernel has all of them, nor do all belong to threads.
        if let Ok(value) = value {
            facts.add(format!("{name}/{file}"), value);
        }
    }
    let attributes = sched::attributes(tid).map(|found| format!("{found:?}"));
    facts.add_result(format!("{name}/sched"), attributes);
    facts.add_result(format!("{name}/ioprio"), sched::io_priority(tid));
    for what in [Shareable::Descriptors, Shareable::Directories, Shareable::Actions] {
        let shared = kcmp::order(pid, tid, what).map(|order| order.is_eq());
        facts.add_result(format!("{name}/shares {what:?}"), shared);
    }
    Ok(())
}

fn add_status(name: &str, status: &str, facts: &mut Facts) {
    let own = status.lines().find_map(|line| line.strip_prefix("NStgid:"));
    let own = own.and_then(|value| value.split_whitespace().last()).unwrap_or_default();
    for line in status.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        // Sizes of memory are compared mapping by mapping.
        if LEFT_OUT.contains(&key) || is_size(key) {
            continue;
        }
        let values: Vec<&str> = value.split_whitespace().collect();
        let last = values.last().copied().unwrap_or_default();
        let value = match key {
            _ if BY_NAMESPACE.contains(&key) => last.to_owned(),
            _ if OF_OTHERS.contains(&key) && last == own => "its own".to_owned(),
            _ if OF_OTHERS.contains(&key) => "another's".to_owned(),
            _ => values.join(" "),
        };
        facts.add(format!("{name}/status/{key}"), value);
    }
}

fn is_size(key: &str) -> bool {
    let is_kind = ["Vm", "Rss"].iter().any(|prefix| key.starts_with(prefix));
    is_kind && key != "VmPin" || key == "HugetlbPages"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_named_as_in_its_own_namespace() {
        let mut facts = Facts::default();
        let status = "Name:\tx\nPid:\t77\nNSpid:\t77\t5\nVmRSS:\t1 kB\nSigBlk:\t0000000000000200\n";
        add_status("thread 5", status, &mut facts);
        assert_eq!(facts.get("thread 5/status/NSpid"), Some("5"));
        assert_eq!(facts.get("thread 5/status/SigBlk"), Some("0000000000000200"));
        assert_eq!(facts.get("thread 5/status/Pid"), None);
        assert_eq!(facts.get("thread 5/status/VmRSS"), None);
    }
}
