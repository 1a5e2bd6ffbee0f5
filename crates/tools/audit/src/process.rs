//! What belongs to the process as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::facts::Facts;

/// Files of `/proc/PID` that hold one value.
const VALUES: [&str; 8] = [
    "cmdline",
    "coredump_filter",
    "environ",
    "loginuid",
    "oom_score_adj",
    "personality",
    "sessionid",
    "timerslack_ns",
];
/// Fields of `/proc/PID/stat` behind the name of the program, by number as in proc_pid_stat(5). Pids, times
/// and counters are left out.
const STAT: [(usize, &str); 19] = [
    (7, "terminal"),
    (18, "priority"),
    (19, "nice"),
    (20, "threads"),
    (25, "rsslim"),
    (26, "startcode"),
    (27, "endcode"),
    (28, "startstack"),
    (38, "exit_signal"),
    (40, "rt_priority"),
    (41, "policy"),
    (45, "start_data"),
    (46, "end_data"),
    (47, "start_brk"),
    (48, "arg_start"),
    (49, "arg_end"),
    (50, "env_start"),
    (51, "env_end"),
    (52, "exit_code"),
];
const NAMESPACES: [&str; 8] =
    ["cgroup", "ipc", "mnt", "net", "pid_for_children", "time", "user", "uts"];

/// Reads what a process shows that has ended, too; whether it has.
pub fn read_stat(pid: i32, facts: &mut Facts) -> io::Result<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    add_stat(&stat, facts);
    Ok(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

/// Reads the rest.
pub fn read(pid: i32, facts: &mut Facts) -> io::Result<()> {
    let place = format!("/proc/{pid}");
    let place = Path::new(&place);
    for name in VALUES {
        let value = fs::read(place.join(name));
        let value = value.map(|bytes| bytes.escape_ascii().to_string());
        facts.add_result(name.to_owned(), value);
    }
    let timers = fs::read_to_string(place.join("timers")).map(|text| without_pids(&text));
    facts.add_result("timers".to_owned(), timers);
    facts.add("auxv", fs::read(place.join("auxv"))?.escape_ascii().to_string());
    for link in ["cwd", "exe", "root"] {
        let target = fs::read_link(place.join(link)).map(|path| path.display().to_string());
        facts.add_result(link.to_owned(), target);
    }
    for line in fs::read_to_string(place.join("limits"))?.lines().skip(1) {
        let (name, values) = line.split_at(26.min(line.len()));
        let values = values.split_whitespace().collect::<Vec<_>>().join(" ");
        facts.add(format!("limits/{}", name.trim()), values);
    }
    for name in ["uid_map", "gid_map", "setgroups"] {
        facts.add_result(name.to_owned(), fs::read_to_string(place.join(name)));
    }
    for name in NAMESPACES {
        let link =
            fs::read_link(place.join("ns").join(name)).map(|path| path.display().to_string());
        facts.add_result(format!("namespace/{name}"), link);
    }
    Ok(())
}

fn add_stat(stat: &str, facts: &mut Facts) {
    // The name of the program may have parentheses and spaces.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or(stat, |(_, rest)| rest).split_whitespace().collect();
    for (number, name) in STAT {
        // The first field behind the name is the third.
        facts.add(format!("stat/{name}"), fields.get(number - 3).copied().unwrap_or("missing"));
    }
}

/// Which process or thread a timer signals is seen as a pid of the reader's namespace.
fn without_pids(timers: &str) -> String {
    let inner = |line: &str| match line.rsplit_once('.') {
        Some((what, pid)) => {
            let inner = pid.parse().ok().and_then(inner_pid).unwrap_or(0);
            format!("{what} {inner}\n")
        }
        None => format!("{line}\n"),
    };
    timers.lines().map(inner).collect()
}

/// The pid that a process of the machine has in its own PID namespace.
pub fn inner_pid(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// A process and all that descend from it, by the pids that they have in their own namespace.
pub fn family(pid: i32) -> BTreeMap<i32, i32> {
    let mut family = BTreeMap::new();
    let mut left = vec![pid];
    while let Some(pid) = left.pop() {
        if let Some(inner) = inner_pid(pid) {
            family.insert(inner, pid);
        }
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            left.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_stat_are_counted_from_the_name() {
        let mut facts = Facts::default();
        let rest: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        add_stat(&format!("1 (a) (b c) {}", rest.join(" ")), &mut facts);
        for (number, name) in STAT {
            assert_eq!(facts.get(&format!("stat/{name}")), Some(&*number.to_string()));
        }
    }

    #[test]
    fn a_process_is_known_in_its_own_namespace() {
        let own = std::process::id() as i32;
        assert!(inner_pid(own).is_some_and(|inner| inner > 0));
        assert_eq!(inner_pid(i32::MAX), None);
    }
}
