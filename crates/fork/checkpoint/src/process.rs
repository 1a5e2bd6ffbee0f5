//! What belongs to the process as a whole, besides memory and descriptors.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_image::clocks;
use farfork_image::model::{
    FileIdentity, MadeOn, Memory, PosixTimer, Process, Signals, Thread, Timers,
};
use farfork_sys::{ptrace, xstate};
use rustix::fs::StatVfsMountFlags;

use crate::error::{CheckpointError, doing};
use crate::files;
use crate::inject::{Injector, RemoteThread};
use crate::kernel_state;
use crate::refuse::{Cause, Refusals, causes};
use crate::stat::Stat;
use farfork_sys::status::Status;

const PR_GET_MDWE: u64 = 66;
const PR_GET_MEMORY_MERGE: u64 = 68;
const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;
const PR_TIMER_CREATE_RESTORE_IDS_GET: u64 = 2;
const MEMBARRIER_GET_REGISTRATIONS: u64 = 1 << 9;

/// Whether process `pid` has yet to wait for the stop of its child `child`, an id of its PID namespace.
pub fn has_unreported_stop(
    injector: &Injector<'_>,
    pid: i32,
    child: u32,
) -> Result<bool, CheckpointError> {
    let leader = injector.thread(pid)?;
    let how = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let args = [libc::P_PID.into(), child.into(), injector.scratch(), how as u64, 0, 0];
    leader.call(libc::SYS_waitid, args)?;
    // `si_signo`, 0 if there is nothing to wait for.
    let [first] = injector.words()?;
    Ok(first as u32 != 0)
}

/// Identity and attributes.
pub fn collect(
    injector: &Injector<'_>,
    leader: &RemoteThread<'_>,
    refusals: &mut Refusals,
) -> Result<Process, CheckpointError> {
    let pid = injector.pid();
    let status = Status::read(pid, pid)?;
    if !has_its_childrens_clocks(pid) {
        refusals.add("process", causes::process::TIME_NAMESPACE);
    }
    let prctl =
        |option: i32| leader.call(libc::SYS_prctl, [option as u64, injector.scratch(), 0, 0, 0, 0]);
    let dumpable = leader.call(libc::SYS_prctl, [libc::PR_GET_DUMPABLE as u64, 0, 0, 0, 0, 0])?;
    let thp_disable =
        leader.call(libc::SYS_prctl, [libc::PR_GET_THP_DISABLE as u64, 0, 0, 0, 0, 0])?;
    // Linux 6.4; an error means that the kernel does not have it.
    let merges = leader.try_call(libc::SYS_prctl, [PR_GET_MEMORY_MERGE, 0, 0, 0, 0, 0])?;
    // Linux 6.3, likewise.
    let exec_gain = leader.try_call(libc::SYS_prctl, [PR_GET_MDWE, 0, 0, 0, 0, 0])?;
    prctl(libc::PR_GET_CHILD_SUBREAPER)?;
    let [is_child_subreaper] = injector.words()?;
    let membarrier =
        leader.try_call(libc::SYS_membarrier, [MEMBARRIER_GET_REGISTRATIONS, 0, 0, 0, 0, 0])?;
    kernel_state::check_process(injector, leader, refusals)?;
    let cwd = place(pid, "cwd", refusals)?;
    if let Some((what, cause)) = files::shows_other(&cwd, status.innermost_pid) {
        refusals.add(format!("cwd {} ({what})", cwd.display()), cause);
    }
    let exe = place(pid, "exe", refusals)?;
    if let Some(cause) = unfit(pid, &exe) {
        refusals.add(format!("executable {}", exe.display()), cause);
    }
    Ok(Process {
        pid: status.innermost_pid,
        exe,
        exe_identity: file_identity(pid, "exe")?,
        command_line: command_line(pid),
        cwd,
        cwd_identity: file_identity(pid, "cwd")?,
        umask: status.umask,
        personality: fs::read_to_string(format!("/proc/{pid}/personality"))
            .ok()
            .and_then(|text| u32::from_str_radix(text.trim(), 16).ok())
            .unwrap_or(0),
        dumpable: dumpable as u32,
        refuses_exec_gain: exec_gain.max(0) as u32,
        is_child_subreaper: is_child_subreaper as u32 != 0,
        membarrier: membarrier.max(0) as u32,
        thp_disable: thp_disable as u32,
        merges_memory: merges == 1,
        locks_future: 0,
        is_stopped: false,
        stop_is_unreported: false,
        oom_score_adj: number(pid, "oom_score_adj", 10) as i32,
        coredump_filter: number(pid, "coredump_filter", 16) as u32,
        limits: limits(pid)?,
    })
}

/// A process that has made a time namespace gets there by `exec` or `setns`, or its children do. Of its
/// own namespace the kernel then shows no offsets.
fn has_its_childrens_clocks(pid: i32) -> bool {
    let namespace = |name| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    namespace("time") == namespace("time_for_children")
}

/// A number that a file of `/proc/PID` holds.
fn number(pid: i32, file: &str, base: u32) -> i64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    i64::from_str_radix(text.trim(), base).unwrap_or(0)
}

/// Soft and hard limit of every resource, in the kernel's order. `prlimit` shows those of another user's
/// process only with `CAP_SYS_RESOURCE`, which not even every root has.
fn limits(pid: i32) -> Result<Vec<(u64, u64)>, CheckpointError> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let limits: Vec<_> = text.lines().skip(1).map_while(limit).collect();
    match limits.len() {
        RESOURCES => Ok(limits),
        _ => Err(CheckpointError::Proc { pid, what: "the resource limits" }),
    }
}

/// `RLIM_NLIMITS`.
const RESOURCES: usize = 16;
/// Width of a resource's name in `/proc/PID/limits`, with the blank after it.
const NAME_WIDTH: usize = 26;

/// `Max open files            1024                 4096                 files`.
fn limit(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.get(NAME_WIDTH..)?.split_whitespace();
    let mut next = || match fields.next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    Some((next()?, next()?))
}

/// Where a link of `/proc/PID` leads.
fn place(
    pid: i32,
    name: &'static str,
    refusals: &mut Refusals,
) -> Result<PathBuf, CheckpointError> {
    let place = match fs::read_link(format!("/proc/{pid}/{name}")) {
        Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => {
            refusals.add(name, causes::files::TOO_LONG);
            return Ok(PathBuf::from("/"));
        }
        place => place.map_err(|_| CheckpointError::Proc { pid, what: name })?,
    };
    if place.to_str().is_none() {
        refusals.add(format!("{name} {}", place.display()), causes::files::NOT_UTF_8);
    }
    Ok(place)
}

/// Why what a process executes cannot be the executable of a clone.
fn unfit(pid: i32, exe: &Path) -> Option<&'static Cause> {
    let at = format!("/proc/{pid}/exe");
    let is_allowed = |at: &str| fs::metadata(at).is_ok_and(|found| found.mode() & 0o111 != 0);
    let is_on_noexec = |at: &str| {
        let flags = rustix::fs::statvfs(at).map(|found| found.f_flag);
        flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::NOEXEC))
    };
    if exe.as_os_str().as_bytes().starts_with(b"/memfd:") {
        return Some(causes::process::EXECUTABLE_IN_MEMORY);
    }
    (!is_allowed(&at) || is_on_noexec(&at)).then_some(causes::process::NOT_EXECUTABLE)
}

fn file_identity(pid: i32, name: &'static str) -> Result<FileIdentity, CheckpointError> {
    let at = format!("/proc/{pid}/{name}");
    let found = fs::metadata(&at).map_err(|_| CheckpointError::Proc { pid, what: name })?;
    let is_kernel_s = files::is_kernel_s(Path::new(&at));
    Ok(FileIdentity { is_kernel_s, ..FileIdentity::from_metadata(&found) })
}

fn command_line(pid: i32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Where code, heap, stack, arguments and environment are, and the auxiliary vector.
pub fn layout(
    leader: &RemoteThread<'_>,
    pid: i32,
    memory: Memory,
) -> Result<Memory, CheckpointError> {
    let stat = Stat::read(pid)?;
    let field = |number: usize| stat.field(number) as u64;
    let brk = leader.call(libc::SYS_brk, [0; 6])?;
    let layout = [
        field(26), // start_code
        field(27), // end_code
        field(45), // start_data
        field(46), // end_data
        field(47), // start_brk
        brk,
        field(28), // start_stack
        field(48), // arg_start
        field(49), // arg_end
        field(50), // env_start
        field(51), // env_end
    ];
    let auxv = fs::read(format!("/proc/{pid}/auxv"))
        .map_err(|_| CheckpointError::Proc { pid, what: "the auxiliary vector" })?;
    let auxv = auxv.chunks_exact(8).map(|word| xstate::word(word, 0)).collect();
    Ok(Memory { layout, auxv, ..memory })
}

/// Signal actions that are not the default, and signals pending for the process.
pub fn signals(injector: &Injector<'_>, pid: i32) -> Result<Signals, CheckpointError> {
    let status = Status::read(pid, pid)?;
    let leader = injector.thread(pid)?;
    let mut signals = Signals::default();
    for signal in (1..=64u32).filter(|s| (status.handled | status.ignored) >> (s - 1) & 1 != 0) {
        let args = [signal.into(), 0, injector.scratch(), 8, 0, 0];
        leader.call(libc::SYS_rt_sigaction, args)?;
        signals.actions.push((signal, injector.words()?));
    }
    signals.pending =
        ptrace::pending_signals(pid, true).map_err(doing(pid, "read the pending signals"))?;
    Ok(signals)
}

/// Interval timers and POSIX timers.
pub fn timers(
    injector: &Injector<'_>,
    leader: &RemoteThread<'_>,
    threads: &[Thread],
    refusals: &mut Refusals,
) -> Result<Timers, CheckpointError> {
    let pid = injector.pid();
    let mut timers = Timers::default();
    for (which, setting) in timers.interval.iter_mut().enumerate() {
        leader.call(libc::SYS_getitimer, [which as u64, injector.scratch(), 0, 0, 0, 0])?;
        *setting = rearmed(injector.words()?);
    }
    let text = fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    for mut timer in parse_timers(&text) {
        timer.tid = innermost(pid, timer.tid, threads)?;
        timer.setting = setting(injector, leader, timer.id)?;
        timers.posix.push(timer);
    }
    if let Some(timer) = timers.posix.first() {
        // Linux 6.15; whether it is set does not matter.
        let asked = [PR_TIMER_CREATE_RESTORE_IDS, PR_TIMER_CREATE_RESTORE_IDS_GET, 0, 0, 0, 0];
        if leader.try_call(libc::SYS_prctl, asked)? < 0 {
            refusals.add(format!("timer {}", timer.id), causes::process::POSIX_TIMERS);
        }
    }
    Ok(timers)
}

/// A periodic timer whose signal has not been delivered yet stands still at zero, and setting it
/// to zero would stop it for good: it starts with a whole period.
fn rearmed([interval_s, interval_us, value_s, value_us]: [u64; 4]) -> [u64; 4] {
    match (value_s, value_us) {
        (0, 0) => [interval_s, interval_us, interval_s, interval_us],
        _ => [interval_s, interval_us, value_s, value_us],
    }
}

fn setting(
    injector: &Injector<'_>,
    leader: &RemoteThread<'_>,
    id: u32,
) -> Result<[u64; 4], CheckpointError> {
    leader.call(libc::SYS_timer_gettime, [id.into(), injector.scratch(), 0, 0, 0, 0])?;
    injector.words()
}

/// The kernel names the thread of a timer by its id in this PID namespace.
fn innermost(pid: i32, tid: u32, threads: &[Thread]) -> Result<u32, CheckpointError> {
    match Status::read(pid, tid as i32) {
        Ok(status) => Ok(status.innermost_tid),
        Err(_) => Ok(threads.first().map_or(tid, |leader| leader.tid)),
    }
}

/// `ID: n`, `signal: s/value`, `notify: kind/how.tid`, `ClockID: c`.
fn parse_timers(text: &str) -> Vec<PosixTimer> {
    const THREAD_ID: u32 = 4;
    let mut timers: Vec<PosixTimer> = Vec::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once(": ")) {
        if key == "ID" {
            let id = value.trim().parse().unwrap_or(0);
            timers.push(PosixTimer { id, ..PosixTimer::default() });
            continue;
        }
        let Some(timer) = timers.last_mut() else { continue };
        match (key, value.split_once('/')) {
            ("signal", Some((signal, data))) => {
                timer.signal = signal.trim().parse().unwrap_or(0);
                timer.value = u64::from_str_radix(data.trim(), 16).unwrap_or(0);
            }
            ("notify", Some((kind, target))) => {
                let (how, id) = target.split_once('.').unwrap_or((target, "0"));
                timer.notify = match (kind.trim(), how) {
                    (_, "tid") => THREAD_ID,
                    ("none", _) => libc::SIGEV_NONE as u32,
                    _ => libc::SIGEV_SIGNAL as u32,
                };
                timer.tid = id.trim().parse().unwrap_or(0);
            }
            ("ClockID", _) => timer.clock = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
    timers
}

/// The kernel and processor that this runs on, and the clocks of the process.
pub fn made_on(pid: i32, vdso: &[u8], area: &[u8]) -> Result<MadeOn, CheckpointError> {
    Ok(MadeOn {
        xcr0: xstate::word(area, xstate::XCR0_OFFSET),
        vdso_crc: crc32c::crc32c(vdso),
        clocks: clocks::of_process(pid).map_err(doing(pid, "read the clocks"))?,
        ..farfork_image::machine::this().clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_read_as_the_kernel_prints_them() {
        let text = "ID: 3\nsignal: 34/00000000deadbeef\nnotify: signal/tid.77\nClockID: 1\n\
                    ID: 4\nsignal: 14/0000000000000004\nnotify: signal/pid.70\nClockID: 0\n";
        let timers = parse_timers(text);
        assert_eq!(timers.len(), 2);
        assert_eq!((timers[0].id, timers[0].signal, timers[0].value), (3, 34, 0xdead_beef));
        assert_eq!((timers[0].notify, timers[0].tid, timers[0].clock), (4, 77, 1));
        assert_eq!((timers[1].notify, timers[1].tid), (0, 70));
    }

    #[test]
    fn all_limits_are_read_in_the_kernels_order() {
        let own = limits(std::process::id() as i32).unwrap();
        let asked = (0..RESOURCES as u32).map(|resource| farfork_sys::limits::get(0, resource));
        assert_eq!(own, asked.collect::<Result<Vec<_>, _>>().unwrap());
        assert_eq!(
            limit("Max realtime timeout      7                    unlimited            us"),
            { Some((7, u64::MAX)) }
        );
        assert!(limits(i32::MAX).is_err(), "no process has none");
    }
}
