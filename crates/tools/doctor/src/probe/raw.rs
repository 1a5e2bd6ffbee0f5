//! The system calls of the probes that have no safe wrapper.
//!
//! - A child process started here reports through a pipe, is killed after [`CHILD_SECONDS`], and exits
//!   by `_exit`: it never runs the parent's destructors or flushes the parent's buffers.
//! - Memory mapped here is unmapped on drop and never returned as a reference.
#![allow(unsafe_code, reason = "raw system calls, one documented function each")]

use super::Finding;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{self, Read, Write};
use std::mem::{size_of, zeroed};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// After this time a child that hangs is killed by its own alarm.
const CHILD_SECONDS: u32 = 10;
/// Unit in which the kernel maps huge pages.
pub(super) const HUGE_BYTES: usize = 2 << 20;
/// Page size of x86-64.
pub(super) const PAGE_BYTES: usize = 4096;

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Runs `work` in a forked child and returns its finding.
pub(super) fn in_child(work: impl FnOnce() -> Finding) -> Finding {
    let (mut reader, writer) = io::pipe().map_err(super::while_doing("making a pipe"))?;
    let child = fork(|| {
        let mut writer = writer;
        let (mark, text) = match work() {
            Ok(text) => ('+', text),
            Err(text) => ('-', text),
        };
        // Fails if the parent is dead.
        let _ = write!(writer, "{mark}{text}");
    })
    .map_err(super::while_doing("forking a child"))?;
    let mut answer = String::new();
    let read = reader.read_to_string(&mut answer);
    let end = waitpid(child, None);
    read.map_err(super::while_doing("reading the child's answer"))?;
    match (answer.split_at_checked(1), end) {
        (Some(("+", text)), _) => Ok(text.to_owned()),
        (Some((_, text)), _) => Err(text.to_owned()),
        (None, Ok(WaitStatus::Signaled(_, signal, _))) => {
            Err(format!("the child of the probe was killed by {signal}"))
        }
        (None, _) => Err("the child of the probe exited without an answer".to_owned()),
    }
}

/// Forks; the child runs `work` and exits. The parent's copy of what `work` owns is dropped.
fn fork(work: impl FnOnce()) -> io::Result<Pid> {
    // SAFETY: fork has no preconditions. glibc makes malloc usable in the child of a process with
    // threads, and the child touches no other lock of the parent.
    let pid = checked(unsafe { libc::fork() }.into())?;
    if pid == 0 {
        // SAFETY: alarm and prctl(PR_SET_PDEATHSIG) only set state of the child itself.
        unsafe {
            libc::alarm(CHILD_SECONDS);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        let status = i32::from(catch_unwind(AssertUnwindSafe(work)).is_err());
        // SAFETY: _exit ends the child here, whatever state it is in.
        unsafe { libc::_exit(status) }
    }
    Ok(Pid::from_raw(pid as i32))
}

/// A child that waits until it is dropped, which kills it.
pub(super) struct IdleChild(Pid);

impl IdleChild {
    pub(super) fn start() -> io::Result<Self> {
        fork(|| {
            loop {
                // SAFETY: pause only waits for a signal.
                unsafe { libc::pause() };
            }
        })
        .map(Self)
    }

    pub(super) fn pid(&self) -> Pid {
        self.0
    }
}

impl Drop for IdleChild {
    fn drop(&mut self) {
        // The child may be dead already.
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

/// Starts a child with thread id `tid` in this PID namespace, and checks its id.
pub(super) fn clone_with_tid(tid: i32) -> io::Result<()> {
    let wanted = [tid];
    // SAFETY: an all-zero clone_args asks for a plain fork-like clone.
    let mut args: libc::clone_args = unsafe { zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.set_tid = wanted.as_ptr() as u64;
    args.set_tid_size = 1;
    // SAFETY: `args` and `wanted` live across the call; no CLONE_VM, so the child runs on its own
    // copy of this stack and leaves at once.
    let pid = checked(unsafe { libc::syscall(libc::SYS_clone3, &args, size_of_val(&args)) })?;
    if pid == 0 {
        // SAFETY: gettid and _exit have no preconditions.
        unsafe { libc::_exit(i32::from(libc::syscall(libc::SYS_gettid) != i64::from(tid))) }
    }
    match waitpid(Pid::from_raw(pid as i32), None)? {
        WaitStatus::Exited(_, 0) => Ok(()),
        other => Err(io::Error::other(format!("the child has another id: {other:?}"))),
    }
}

/// Where a stopped tracee registered its restartable sequences: address and length in bytes.
pub(super) fn rseq_configuration(tracee: Pid) -> io::Result<(u64, u32)> {
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        pointer: u64,
        length: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    let mut found = Configuration::default();
    // SAFETY: the kernel writes at most the given size into `found`.
    let written = unsafe {
        libc::ptrace(
            libc::PTRACE_GET_RSEQ_CONFIGURATION,
            tracee.as_raw(),
            size_of::<Configuration>(),
            &mut found,
        )
    };
    checked(written).map(|_| (found.pointer, found.length))
}

/// A descriptor of a process.
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) pid: Pid,
    pub(super) fd: i32,
}

/// Whether two descriptors are one open file.
pub(super) fn same_open_file(a: Descriptor, b: Descriptor) -> io::Result<bool> {
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: kcmp takes numbers only.
    let order = unsafe {
        libc::syscall(libc::SYS_kcmp, a.pid.as_raw(), b.pid.as_raw(), KCMP_FILE, a.fd, b.fd)
    };
    checked(order).map(|order| order == 0)
}

/// A mapping, aligned to [`HUGE_BYTES`].
pub(super) struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Anonymous memory that forked processes would share.
    pub(super) fn shared(bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    pub(super) fn from_file(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::MAP_PRIVATE, file.as_raw_fd())
    }

    fn new(bytes: usize, flags: libc::c_int, file: i32) -> io::Result<Self> {
        let reserved = bytes + HUGE_BYTES;
        let free = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at a place of the kernel's choice.
        let start = mapped(unsafe {
            libc::mmap(std::ptr::null_mut(), reserved, libc::PROT_NONE, free, -1, 0)
        })?;
        let address = start.next_multiple_of(HUGE_BYTES);
        let reservation = Self { address: start, bytes: reserved };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_FIXED;
        // SAFETY: replaces a part of the reservation above, which nothing else uses.
        mapped(unsafe { libc::mmap(address as *mut _, bytes, access, flags, file, 0) })?;
        reservation.keep_only(address, bytes);
        Ok(Self { address, bytes })
    }

    /// Unmaps everything around the given part, which then belongs to the caller.
    fn keep_only(self, address: usize, bytes: usize) {
        let (start, end) = (self.address, self.address + self.bytes);
        std::mem::forget(self);
        drop(Self { address: start, bytes: address - start });
        drop(Self { address: address + bytes, bytes: end - address - bytes });
    }

    pub(super) fn addresses(&self) -> Range<u64> {
        self.address as u64..(self.address + self.bytes) as u64
    }

    pub(super) fn write_page(&self, page: usize) {
        assert!(page * PAGE_BYTES < self.bytes);
        // SAFETY: inside this mapping, which is writable and to which no reference exists.
        unsafe { ((self.address + page * PAGE_BYTES) as *mut u8).write_volatile(1) };
    }

    /// Populates the mapping for writing, by process_madvise. Returns the number of populated bytes.
    pub(super) fn populate_write_as_a_process(&self) -> io::Result<usize> {
        let own = nix::unistd::getpid().as_raw();
        // SAFETY: returns a descriptor, which is owned below.
        let process = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, own, 0) })?;
        // SAFETY: the call above returned this new descriptor, and nothing else owns it.
        let process = unsafe { OwnedFd::from_raw_fd(process as i32) };
        let all = libc::iovec { iov_base: self.address as *mut _, iov_len: self.bytes };
        // SAFETY: populating changes no byte of this mapping; the kernel reads the one range.
        let populated = checked(unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                process.as_raw_fd(),
                &raw const all,
                1,
                libc::MADV_POPULATE_WRITE,
                0,
            )
        })?;
        Ok(populated as usize)
    }

    /// Maps every page for reading, as an attach to the pool does.
    pub(super) fn populate_read(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping; populating changes no contents.
        let done =
            unsafe { libc::madvise(self.address as *mut _, self.bytes, libc::MADV_POPULATE_READ) };
        checked(done.into()).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the range belongs to this mapping alone, and nothing refers into it.
            unsafe { libc::munmap(self.address as *mut _, self.bytes) };
        }
    }
}

fn mapped(address: *mut libc::c_void) -> io::Result<usize> {
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address as usize) }
}

/// Creates a userfaultfd that also serves faults of the kernel, and returns its feature bits.
pub(super) fn userfaultfd_features() -> io::Result<u64> {
    const UFFDIO_API: libc::Ioctl = libc::_IOWR::<Api>(0xaa, 0x3f);
    #[repr(C)]
    struct Api {
        api: u64,
        features: u64,
        ioctls: u64,
    }
    // SAFETY: userfaultfd takes flags only.
    let fd = checked(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })?;
    // SAFETY: the call above returned this new descriptor, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
    // SAFETY: the kernel reads and writes one `Api`.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &mut api) }.into())?;
    Ok(api.features)
}

/// Installs a filter in this process that sends every call of `number` to the returned listener.
///
/// It cannot be undone: use it only in a child that is about to exit.
pub(super) fn listen_to_system_call(number: libc::c_long) -> io::Result<OwnedFd> {
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let fd = filter_system_call(number, libc::SECCOMP_RET_USER_NOTIF, flags)?;
    // SAFETY: with that flag the call returns a new descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Denies every call of `number` from now on. It cannot be undone.
#[cfg(test)]
pub(super) fn deny_system_call(number: libc::c_long) -> io::Result<()> {
    filter_system_call(number, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0).map(drop)
}

fn filter_system_call(number: libc::c_long, action: u32, flags: u64) -> io::Result<libc::c_long> {
    let statement =
        |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut program = [
        // Offset 0 of seccomp_data is the number of the call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32, 1),
        statement(libc::BPF_RET | libc::BPF_K, action, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `program` lives across the calls, which affect this process only.
    checked(unsafe {
        checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program)
    })
}

/// Answers the next call at the listener with `value`.
pub(super) fn answer_system_call(listener: &OwnedFd, value: i64) -> io::Result<()> {
    // SAFETY: both are plain numbers, for which all zeros is a value; the kernel wants them so.
    let (mut call, mut answer): (libc::seccomp_notif, libc::seccomp_notif_resp) =
        unsafe { (zeroed(), zeroed()) };
    let fd = listener.as_raw_fd();
    // SAFETY: the kernel writes one seccomp_notif.
    checked(unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &mut call) }.into())?;
    answer.id = call.id;
    answer.val = value;
    // SAFETY: the kernel reads one seccomp_notif_resp.
    checked(unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, &answer) }.into()).map(drop)
}

/// Creates and drops an io_uring with one entry.
pub(super) fn io_uring() -> io::Result<()> {
    /// `struct io_uring_params` is 120 bytes; all zeros asks for the defaults.
    const PARAMS_BYTES: usize = 120;
    let mut params = [0u64; PARAMS_BYTES / 8];
    // SAFETY: the kernel reads and writes PARAMS_BYTES at `params`.
    let fd = checked(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) })?;
    // SAFETY: the call returned this new descriptor, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

/// Bytes of a full XSAVE area with the features the kernel has enabled; 0 without XSAVE.
pub(super) fn xsave_bytes() -> u32 {
    std::arch::x86_64::__cpuid_count(0xd, 0).ebx
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finding_of_a_child_is_returned() {
        assert_eq!(in_child(|| Ok("fine".into())), Ok("fine".into()));
        assert_eq!(in_child(|| Err("broken".into())), Err("broken".into()));
    }

    #[test]
    fn a_child_that_dies_is_an_error() {
        let killed = in_child(|| {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
            Ok(String::new())
        });
        assert!(killed.unwrap_err().contains("SIGKILL"));
        assert!(in_child(|| panic!("on purpose")).unwrap_err().contains("without an answer"));
    }

    #[test]
    fn an_idle_child_lives_until_dropped() {
        let child = IdleChild::start().unwrap();
        let pid = child.pid();
        assert!(kill(pid, None).is_ok());
        drop(child);
        assert!(kill(pid, None).is_err());
    }

    #[test]
    fn mappings_are_aligned_and_writable() {
        let mapping = Mapping::anonymous(2 * PAGE_BYTES).unwrap();
        assert_eq!(mapping.addresses().start % HUGE_BYTES as u64, 0);
        mapping.write_page(1);
    }
}
