//! What the restorer does once, right after `execve`: it becomes a program without its own file, with
//! no memory outside its window but the kernel's vvar and vdso.
//!
//! Without its file, because `PR_SET_MM_MAP` gives a clone the parent's `/proc/PID/exe` only when
//! no mapping of the old executable is left.

use farfork_plan::window;
use linux_raw_sys::general as k;

use crate::call::{self, Errno, SysResult, syscall};
use crate::cell::ProcessCell;
use crate::text::hexadecimal;

/// Most mappings that vvar and vdso together have had in any kernel.
const VDSO_PARTS: usize = 4;
/// One past the highest address a process can map with four-level page tables.
const TASK_END: u64 = 0x7fff_ffff_f000;

/// The kernel's mappings in every process: vvar, vvar_vclock and vdso, adjacent in this order.
pub struct Vdso {
    parts: [(u64, u64); VDSO_PARTS],
    count: usize,
}

/// Where this process, and so each of its forks, has them.
pub static VDSO: ProcessCell<Vdso> =
    ProcessCell::new(Vdso { parts: [(0, 0); VDSO_PARTS], count: 0 });

/// Where the plan has put it in this process; 0 as long as it has not.
pub static VDSO_AT: ProcessCell<u64> = ProcessCell::new(0);

impl Vdso {
    /// First address.
    pub fn start(&self) -> u64 {
        self.parts[0].0
    }

    /// Length of all together.
    pub fn bytes(&self) -> u64 {
        self.end() - self.start()
    }

    fn end(&self) -> u64 {
        self.parts[self.count - 1].1
    }

    /// Touches it where a clone's own code is going to, when it is mapped from `start` on.
    ///
    /// # Safety
    /// It must have been moved there.
    pub unsafe fn touch(&self, start: u64) {
        let Some((last, end)) = self.parts[..self.count].last() else { return };
        let (first, end) = (last - self.start() + start, end - self.start() + start);
        let code = (first..end).step_by(farfork_types::PAGE_BYTES as usize);
        for page in code.chain([start]) {
            // SAFETY: the kernel's own pages, which are readable; the first holds the time.
            let _ = unsafe { (page as *const u8).read_volatile() };
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        if self.count < VDSO_PARTS {
            self.parts[self.count] = (start, end);
            self.count += 1;
        }
    }

    /// Moves every part from the group starting at `from` to the group starting at `to`.
    ///
    /// # Safety
    /// The parts must be at `from`, and what is at `to` unused.
    pub unsafe fn move_parts(&self, from: u64, to: u64) -> SysResult {
        for (start, end) in &self.parts[..self.count] {
            let offset = start - self.start();
            // SAFETY: passed on to the caller.
            unsafe { call::move_mapping(from + offset, end - start, to + offset)? };
        }
        Ok(to)
    }
}

/// Entered from `_start` on the kernel's stack, which starts at `stack`. Returns the number of
/// arguments.
///
/// # Safety
/// Only `_start` may call this, once.
pub unsafe extern "C" fn settle(stack: *const u64) -> u64 {
    // SAFETY: the kernel laid out argc, argv, envp and auxv at `stack`; nothing else runs.
    unsafe {
        let arguments = *stack;
        let (headers, count) = program_headers(stack);
        // A ghost is not forked from: no other process would share the file.
        let code = if arguments > 1 { None } else { code_file() };
        for index in 0..count {
            detach_segment(&*headers.add(index), code);
        }
        if let Some(file) = code {
            seal(file);
        }
        find_vdso(); // it writes to memory that is in its place only now
        arguments
    }
}

/// Drops every mapping but the window and the kernel's own. To be called on a stack that lies in
/// the window.
pub fn drop_the_rest() {
    // SAFETY: written once by `find_vdso`.
    let vdso = unsafe { VDSO.get() };
    let page = farfork_types::PAGE_BYTES;
    for (start, end) in
        [(16 * page, window::BASE), (window::END, vdso.start()), (vdso.end(), TASK_END)]
    {
        // SAFETY: the restorer lives in the window alone and never calls into the vdso.
        let _ = unsafe { call::munmap(start, end - start) };
    }
}

#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
    align: u64,
}

impl ProgramHeader {
    fn start(&self) -> u64 {
        self.address & !(farfork_types::PAGE_BYTES - 1)
    }

    fn bytes(&self) -> u64 {
        (self.address + self.memory_bytes).next_multiple_of(farfork_types::PAGE_BYTES)
            - self.start()
    }

    fn protection(&self) -> u32 {
        (self.flags & PF_READ) >> 2 | self.flags & PF_WRITE | (self.flags & PF_EXECUTE) << 2
    }
}

unsafe fn program_headers(stack: *const u64) -> (*const ProgramHeader, usize) {
    // SAFETY: argc, argv.., NULL, envp.., NULL, then pairs up to AT_NULL, as the ABI has it.
    unsafe {
        let mut at = stack.add(1 + *stack as usize + 1);
        while *at != 0 {
            at = at.add(1);
        }
        at = at.add(1);
        let (mut headers, mut count) = (0, 0);
        while *at != 0 {
            match (*at) as u32 {
                AT_PHDR => headers = *at.add(1),
                AT_PHNUM => count = *at.add(1),
                _ => {}
            }
            at = at.add(2);
        }
        (headers as *const ProgramHeader, count as usize)
    }
}

const AT_PHDR: u32 = 3;
const AT_PHNUM: u32 = 5;
const PT_LOAD: u32 = 1;
const PF_EXECUTE: u32 = 1;
const PF_WRITE: u32 = 2;
const PF_READ: u32 = 4;

/// Replaces a segment mapped from the executable by memory with the same bytes at the same address.
/// The call that puts it in place returns into the copy.
///
/// Read-only segments come from the file `code`, if there is one. So the template and the processes
/// forked from it share that memory.
unsafe fn detach_segment(header: &ProgramHeader, code: Option<u64>) {
    if header.kind != PT_LOAD {
        return;
    }
    let is_written = header.flags & PF_WRITE != 0;
    // SAFETY: what is replaced has the same bytes; nothing else runs, and this stack is the kernel's.
    let placed = unsafe {
        match code.filter(|_| !is_written) {
            // Where files in memory may not be executed this fails, and leaves the old mapping in place.
            Some(file) => map_from(header, file).or_else(|_| copy(header)),
            None => copy(header),
        }
    };
    if placed.is_err() {
        call::exit(call::EXIT_BUG)
    }
}

unsafe fn map_from(header: &ProgramHeader, file: u64) -> SysResult {
    let (start, bytes) = (header.start(), header.bytes());
    let at = start - window::BASE;
    // SAFETY: the kernel reads the segment; the file has the same bytes then.
    unsafe {
        if syscall(k::__NR_pwrite64, [file, start, bytes, at])? != bytes {
            return Err(Errno(linux_raw_sys::errno::ENOMEM as i32));
        }
        let flags = k::MAP_PRIVATE | k::MAP_FIXED;
        call::mmap(start, bytes, header.protection(), flags, file as i32, at)
    }
}

unsafe fn copy(header: &ProgramHeader) -> SysResult {
    let (start, bytes) = (header.start(), header.bytes());
    let rw = k::PROT_READ | k::PROT_WRITE;
    // SAFETY: the copy is made before anything is replaced, and nothing writes to the segment
    // meanwhile. What the file has no bytes for is zero, and stays without pages.
    unsafe {
        let copy = call::mmap(0, bytes, rw, k::MAP_PRIVATE | k::MAP_ANONYMOUS, -1, 0)?;
        let to = (copy + header.address - start) as *mut u8;
        core::ptr::copy_nonoverlapping(header.address as *const u8, to, header.file_bytes as usize);
        syscall(k::__NR_mprotect, [copy, bytes, u64::from(header.protection())])?;
        call::move_mapping(copy, bytes, start)
    }
}

/// A file in memory for what is only read; if there can be none, that is copied, too.
fn code_file() -> Option<u64> {
    let name = c"farfork-restorer".as_ptr() as u64;
    let flags = u64::from(k::MFD_CLOEXEC | k::MFD_ALLOW_SEALING);
    // SAFETY: makes a new descriptor.
    unsafe { syscall(k::__NR_memfd_create, [name, flags]) }.ok()
}

/// Seals the file, whose code all clones run: no process may change it. Where it cannot be sealed, only
/// processes that may change the clones themselves could change it.
fn seal(file: u64) {
    let seals = k::F_SEAL_SEAL | k::F_SEAL_SHRINK | k::F_SEAL_GROW | k::F_SEAL_WRITE;
    // SAFETY: takes no pointers.
    let _ = unsafe { syscall(k::__NR_fcntl, [file, k::F_ADD_SEALS.into(), seals.into()]) };
    call::close_range(file as u32, file as u32);
}

/// Reads `/proc/self/maps` for the kernel's mappings.
unsafe fn find_vdso() {
    let mut text = [0u8; 8192];
    let path = b"/proc/self/maps\0";
    let at = k::AT_FDCWD as i64 as u64;
    // SAFETY: reads a file into `text`; writes VDSO before any fork.
    unsafe {
        let Ok(fd) = syscall(k::__NR_openat, [at, path.as_ptr() as u64, 0, 0]) else {
            call::exit(call::EXIT_BUG)
        };
        let mut length = 0;
        while let Ok(read @ 1..) = syscall(
            k::__NR_read,
            [fd, text.as_mut_ptr() as u64 + length, text.len() as u64 - length],
        ) {
            length += read;
        }
        call::close_range(fd as u32, fd as u32);
        for line in text[..length as usize].split(|byte| *byte == b'\n') {
            if line.ends_with(b"[vdso]") || line.windows(5).any(|name| name == b"[vvar") {
                let (start, end) = range(line);
                VDSO.get_mut().add(start, end);
            }
        }
    }
}

fn range(line: &[u8]) -> (u64, u64) {
    let mut ends = line.splitn(3, |byte| *byte == b'-' || *byte == b' ').map(hexadecimal);
    let mut next = || ends.next().flatten().unwrap_or(0);
    (next(), next())
}
