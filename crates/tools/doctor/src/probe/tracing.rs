//! Reading the state of another process.

use super::raw::{Descriptor, IdleChild, in_child, rseq_configuration, same_open_file};
use super::{Finding, Probe, setting, while_doing};
use crate::Group;
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const UNHIDE: &str =
    "run as root; in a container, allow the call in the seccomp profile (--cap-add SYS_PTRACE)";

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "ptrace",
        group: Group::Required,
        needed_for: "stopping a process that is not our child and reading its registers",
        advice: UNHIDE,
        look: || trace(registers),
    },
    Probe {
        id: "yama_ptrace_scope",
        group: Group::Required,
        needed_for: "attaching to processes that are not our children",
        advice: "boot with kernel.yama.ptrace_scope below 3 (3 cannot be lowered while running)",
        look: yama_ptrace_scope,
    },
    Probe {
        id: "rseq_configuration",
        group: Group::Required,
        needed_for: "restoring the restartable sequences that glibc registers for every thread",
        advice: "use Linux 5.13 or later with CONFIG_RSEQ",
        look: || trace(rseq),
    },
    Probe {
        id: "pidfd_getfd",
        group: Group::Required,
        needed_for: "reading the state of the process's open files",
        advice: UNHIDE,
        look: copied_descriptor,
    },
    Probe {
        id: "kcmp",
        group: Group::Required,
        needed_for: "finding descriptors that share one open file",
        advice: "use a kernel with CONFIG_KCMP; in a container, allow kcmp in the seccomp profile",
        look: kcmp,
    },
];

/// Seizes and stops an idle process from a sibling, which is not its parent, and reads its state.
fn trace(look: fn(Pid) -> io::Result<String>) -> Finding {
    let idle = IdleChild::start().map_err(while_doing("starting a child"))?;
    let tracee = idle.pid();
    in_child(|| {
        ptrace::seize(tracee, ptrace::Options::empty())
            .map_err(while_doing("seizing a process"))?;
        ptrace::interrupt(tracee).map_err(while_doing("stopping it"))?;
        match waitpid(tracee, None) {
            Ok(WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)) => {}
            other => return Err(format!("the process did not stop: {other:?}")),
        }
        let seen = look(tracee).map_err(while_doing("reading its state"))?;
        ptrace::detach(tracee, None).map_err(while_doing("detaching from it"))?;
        Ok(format!("stopped a process that is not our child and read {seen}"))
    })
}

fn registers(tracee: Pid) -> io::Result<String> {
    let registers = ptrace::getregs(tracee)?;
    Ok(format!("the registers (rip {:#x})", registers.rip))
}

fn rseq(tracee: Pid) -> io::Result<String> {
    let (address, bytes) = rseq_configuration(tracee)?;
    Ok(format!("the rseq area ({bytes} bytes at {address:#x})"))
}

fn yama_ptrace_scope() -> Finding {
    match setting("/proc/sys/kernel/yama/ptrace_scope").as_deref() {
        None => Ok("Yama is not in this kernel".into()),
        Some("3") => Err("ptrace_scope is 3: no process may attach".into()),
        Some(scope) => Ok(format!("ptrace_scope is {scope}: CAP_SYS_PTRACE may attach")),
    }
}

/// An idle child that inherited the reading end of a pipe, and our copy of its descriptor.
fn with_copied_descriptor(
    check: impl FnOnce(&IdleChild, &PipeReader, &OwnedFd) -> Finding,
) -> Finding {
    let (reader, _writer) = io::pipe().map_err(while_doing("making a pipe"))?;
    let child = IdleChild::start().map_err(while_doing("starting a child"))?;
    let pid = rustix::process::Pid::from_raw(child.pid().as_raw()).expect("a child has a pid");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(while_doing("opening a pidfd"))?;
    let copy = pidfd_getfd(&pidfd, reader.as_raw_fd(), PidfdGetfdFlags::empty())
        .map_err(while_doing("copying a child's descriptor"))?;
    check(&child, &reader, &copy)
}

fn copied_descriptor() -> Finding {
    with_copied_descriptor(|_, reader, copy| {
        if inode(reader)? == inode(copy)? {
            Ok("copied a descriptor of a child".into())
        } else {
            Err("the copied descriptor is another file".into())
        }
    })
}

fn inode(fd: impl AsFd) -> Result<u64, String> {
    rustix::fs::fstat(fd).map(|stat| stat.st_ino).map_err(while_doing("looking at a pipe"))
}

fn kcmp() -> Finding {
    with_copied_descriptor(|child, reader, copy| {
        let inherited = Descriptor { pid: child.pid(), fd: reader.as_raw_fd() };
        let same = |fd: i32| {
            same_open_file(Descriptor { pid: Pid::this(), fd }, inherited)
                .map_err(while_doing("comparing descriptors"))
        };
        let other = std::fs::File::open("/dev/null").map_err(while_doing("opening /dev/null"))?;
        if same(copy.as_raw_fd())? && !same(other.as_raw_fd())? {
            Ok("distinguished shared and separate open files".into())
        } else {
            Err("did not distinguish shared and separate open files".into())
        }
    })
}
