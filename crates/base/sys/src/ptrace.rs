//! `ptrace` requests that the common wrappers lack. All must come from the thread that seized.
#![allow(unsafe_code)] // reason: ptrace takes untyped pointers

use std::io;

use libc::{c_long, c_void, pid_t};

/// General registers, `struct user_regs_struct`.
pub type Registers = libc::user_regs_struct;

/// Words in [`Registers`].
pub const REGISTER_WORDS: usize = 27;

const NT_PRSTATUS: usize = 1;
const NT_X86_XSTATE: usize = 0x202;
const PTRACE_GETSIGMASK: u32 = 0x420a;
const PTRACE_SETSIGMASK: u32 = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: u32 = 0x4211;
const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;
const PTRACE_SECCOMP_GET_METADATA: u32 = 0x420d;
const PTRACE_O_SUSPEND_SECCOMP: i32 = 1 << 21;
const SECCOMP_FILTER_FLAG_LOG: u64 = 2;
const PTRACE_PEEKSIGINFO_SHARED: u32 = 1;

/// How a thread's restartable sequence is registered (Linux 5.13).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RseqConfiguration {
    /// Address of the `struct rseq`, 0 for none.
    pub address: u64,
    /// Its length in bytes.
    pub size: u32,
    /// Signature before abort handlers.
    pub signature: u32,
    /// Flags.
    pub flags: u32,
    reserved: u32,
}

unsafe fn request(what: u32, tid: i32, address: usize, data: *mut c_void) -> io::Result<c_long> {
    // SAFETY: passed on to the caller.
    let result = unsafe { libc::ptrace(what, tid as pid_t, address as *mut c_void, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

unsafe fn plain(what: u32, tid: i32, data: usize) -> io::Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { request(what, tid, 0, data as *mut c_void) }.map(|_| ())
}

/// Becomes the tracer of a thread without stopping it. Stops at system calls will be reported
/// differently from stops at signals.
pub fn seize(tid: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe { plain(libc::PTRACE_SEIZE, tid, libc::PTRACE_O_TRACESYSGOOD as usize) }
}

/// What a tracer asks of a thread besides telling stops at calls apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Its seccomp filters are set aside for as long as it is traced (Linux 4.3,
    /// `CONFIG_CHECKPOINT_RESTORE`; needs `CAP_SYS_ADMIN`, and a tracer under no filter).
    pub suspends_seccomp: bool,
    /// A process that it makes by `clone` without `SIGCHLD` is traced and stopped from its beginning, with
    /// the same options ([`State::Cloned`]).
    pub follows_clones: bool,
    /// It is killed when its tracer dies.
    pub dies_with_tracer: bool,
}

/// Sets the options of a stopped thread.
pub fn set_options(tid: i32, options: Options) -> io::Result<()> {
    let bits = [
        (true, libc::PTRACE_O_TRACESYSGOOD),
        (options.suspends_seccomp, PTRACE_O_SUSPEND_SECCOMP),
        (options.follows_clones, libc::PTRACE_O_TRACECLONE),
        (options.dies_with_tracer, libc::PTRACE_O_EXITKILL),
    ];
    let bits = bits.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit);
    // SAFETY: no memory is involved.
    unsafe { plain(libc::PTRACE_SETOPTIONS, tid, bits as usize) }
}

/// Sets a stopped thread's seccomp filters aside: [`Options::suspends_seccomp`].
pub fn suspend_seccomp(tid: i32) -> io::Result<()> {
    set_options(tid, Options { suspends_seccomp: true, ..Options::default() })
}

/// The id of the process that a thread in [`State::Cloned`] has made, in this PID namespace.
pub fn cloned(tid: i32) -> io::Result<i32> {
    let mut message = 0u64;
    // SAFETY: the kernel writes one word.
    unsafe { request(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message).cast())? };
    Ok(message as i32)
}

/// A stopped thread's seccomp filter number `index`, the oldest being 0: its instructions, and
/// whether it logs. Needs what [`suspend_seccomp`] needs (Linux 4.16).
pub fn seccomp_filter(tid: i32, index: u64) -> io::Result<(Vec<u64>, bool)> {
    let null = std::ptr::null_mut();
    // SAFETY: without a place to write to, the kernel returns the length.
    let count = unsafe { request(PTRACE_SECCOMP_GET_FILTER, tid, index as usize, null)? };
    let mut instructions = vec![0u64; count as usize];
    let to = instructions.as_mut_ptr().cast();
    // SAFETY: the kernel writes `count` instructions of eight bytes; a filter never changes.
    unsafe { request(PTRACE_SECCOMP_GET_FILTER, tid, index as usize, to)? };
    let mut metadata = [index, 0]; // struct seccomp_metadata: filter_off, flags
    let bytes = size_of_val(&metadata);
    let at = metadata.as_mut_ptr().cast();
    // SAFETY: the kernel reads the first word and writes at most `bytes`.
    unsafe { request(PTRACE_SECCOMP_GET_METADATA, tid, bytes, at)? };
    Ok((instructions, metadata[1] & SECCOMP_FILTER_FLAG_LOG != 0))
}

/// Stops a seized thread.
pub fn interrupt(tid: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe { plain(libc::PTRACE_INTERRUPT, tid, 0) }
}

/// Lets a stopped thread go on, delivering `signal` unless it is 0.
pub fn resume(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe { plain(libc::PTRACE_CONT, tid, signal as usize) }
}

/// Lets a stopped thread go on up to the next entry to or exit from a system call, delivering
/// `signal` unless it is 0.
pub fn to_system_call(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe { plain(libc::PTRACE_SYSCALL, tid, signal as usize) }
}

/// Writes whole words to the memory of a stopped thread, also where its protection forbids it, in
/// a private copy then.
pub fn poke(tid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        let to = address as usize + 8 * index;
        // SAFETY: the memory is the other process's, and the kernel checks the address.
        unsafe { request(libc::PTRACE_POKEDATA, tid, to, word as usize as *mut c_void)? };
    }
    Ok(())
}

/// Lets go of a stopped thread, delivering `signal` unless it is 0.
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe { plain(libc::PTRACE_DETACH, tid, signal as usize) }
}

/// The state of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No change since the last look.
    Unchanged,
    /// It has stopped because it was asked to, or, with another signal than SIGTRAP, as its whole
    /// process has.
    Stopped(i32),
    /// It has stopped before it takes this signal, also one that has no name.
    Taking(i32),
    /// It has made a process and stopped before it returns from that: [`cloned`].
    Cloned,
    /// It is dead.
    Ended,
}

/// Looks at a traced thread without waiting.
pub fn state(tid: i32) -> io::Result<State> {
    let mut status = 0;
    // SAFETY: the kernel writes one number.
    match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
        0 => Ok(State::Unchanged),
        -1 => Err(io::Error::last_os_error()),
        _ if !libc::WIFSTOPPED(status) => Ok(State::Ended),
        _ if status >> 16 == 0 => Ok(State::Taking(libc::WSTOPSIG(status))),
        _ if status >> 16 == libc::PTRACE_EVENT_CLONE => Ok(State::Cloned),
        _ => Ok(State::Stopped(libc::WSTOPSIG(status))),
    }
}

/// General registers of a stopped thread.
pub fn registers(tid: i32) -> io::Result<Registers> {
    // SAFETY: all-zero registers are a valid value of the plain struct.
    let mut registers: Registers = unsafe { std::mem::zeroed() };
    let bytes = size_of::<Registers>();
    let mut vector = libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: bytes };
    // SAFETY: the kernel writes at most `bytes` to `registers`.
    unsafe { request(libc::PTRACE_GETREGSET, tid, NT_PRSTATUS, (&raw mut vector).cast())? };
    Ok(registers)
}

/// Sets the general registers of a stopped thread.
pub fn set_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    let mut copy = *registers;
    let bytes = size_of::<Registers>();
    let mut vector = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: bytes };
    // SAFETY: the kernel reads `bytes` from `copy`.
    unsafe { request(libc::PTRACE_SETREGSET, tid, NT_PRSTATUS, (&raw mut vector).cast()) }
        .map(|_| ())
}

/// The words of `registers` in the kernel's order.
pub fn words(registers: &Registers) -> [u64; REGISTER_WORDS] {
    // SAFETY: the struct is 27 words without padding.
    unsafe { std::mem::transmute(*registers) }
}

/// XSAVE area of a stopped thread, in standard format.
pub fn xstate(tid: i32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; 32 << 10];
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel writes at most `iov_len` and sets it to what it wrote.
    unsafe { request(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, (&raw mut vector).cast())? };
    bytes.truncate(vector.iov_len);
    Ok(bytes)
}

/// Blocked signals of a stopped thread.
pub fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes eight bytes.
    unsafe { request(PTRACE_GETSIGMASK, tid, 8, (&raw mut mask).cast())? };
    Ok(mask)
}

/// Sets the blocked signals of a stopped thread.
pub fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    let mut mask = mask;
    // SAFETY: the kernel reads eight bytes.
    unsafe { request(PTRACE_SETSIGMASK, tid, 8, (&raw mut mask).cast()) }.map(|_| ())
}

/// Signals pending for one thread, or for its process, as raw `siginfo_t`; they stay pending.
pub fn pending_signals(tid: i32, of_process: bool) -> io::Result<Vec<Vec<u8>>> {
    const BATCH: usize = 32;
    let mut all = Vec::new();
    loop {
        let mut batch = vec![0u8; BATCH * 128];
        let mut args = PeekArgs {
            offset: all.len() as u64,
            flags: if of_process { PTRACE_PEEKSIGINFO_SHARED } else { 0 },
            count: BATCH as i32,
        };
        let at = (&raw mut args) as usize;
        // SAFETY: the kernel reads `args` and writes at most BATCH records of 128 bytes.
        let got = unsafe { request(libc::PTRACE_PEEKSIGINFO, tid, at, batch.as_mut_ptr().cast())? };
        all.extend(batch.chunks(128).take(got as usize).map(<[u8]>::to_vec));
        if (got as usize) < BATCH {
            return Ok(all);
        }
    }
}

#[repr(C)]
struct PeekArgs {
    offset: u64,
    flags: u32,
    count: i32,
}

/// How the restartable sequence of a stopped thread is registered.
pub fn rseq_configuration(tid: i32) -> io::Result<RseqConfiguration> {
    let mut configuration = RseqConfiguration::default();
    let bytes = size_of::<RseqConfiguration>();
    let at = (&raw mut configuration).cast();
    // SAFETY: the kernel writes at most `bytes`.
    unsafe { request(PTRACE_GET_RSEQ_CONFIGURATION, tid, bytes, at)? };
    Ok(configuration)
}

/// Whether a stopped thread has its system calls handed to it as signals (Linux 6.4).
pub fn dispatches_calls(tid: i32) -> io::Result<bool> {
    let mut configuration = [0u64; 4]; // struct ptrace_sud_config: mode, selector, offset, len
    let (bytes, at) = (size_of_val(&configuration), configuration.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `bytes`.
    unsafe { request(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, bytes, at)? };
    Ok(configuration[0] != 0)
}

/// Head and length of a thread's robust futex list.
pub fn robust_list(tid: i32) -> io::Result<(u64, u64)> {
    let (mut head, mut length) = (0u64, 0u64);
    // SAFETY: the kernel writes two words.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((head, length)) }
}

const _: () = {
    assert!(size_of::<Registers>() == REGISTER_WORDS * 8);
    assert!(size_of::<RseqConfiguration>() == 24);
};
