//! What killed checkpointers have left in a process: stubs, and threads in them.
//!
//! A thread that cannot run (its cgroup is frozen, or a signal has stopped it) stays where the
//! killed checkpointer had it, and the next one finds it there: its registers are not its own, and
//! follow from the data of the stub. A thread that could run has come back, unless a signal handler
//! began on the way: its return leads through the stub, which has to stay as it is until then.

use std::path::Path;

use farfork_pool::failpoint::step;
use farfork_sys::ptrace::{self, Registers};
use farfork_sys::{kcmp, memory};

use super::stub::{self, Data};
use crate::error::{CheckpointError, doing};
use crate::maps::Mapping;
use crate::stopped::StoppedProcess;

/// Restores the registers and masks of threads that a killed checkpointer has left in a stub. It
/// must run before everything else but reading the mappings: the registers are not the process's
/// own until then. Returns the address range of a leftover scratch page, which is not part of the
/// process.
pub fn restore_threads(
    stopped: &StoppedProcess,
    mappings: &[Mapping],
) -> Result<Option<(u64, u64)>, CheckpointError> {
    let (pid, vdso) = (stopped.pid(), crate::memory::kernel_range(mappings).1);
    if vdso.0 == vdso.1 {
        return Ok(None); // no checkpointer has made a call in it
    }
    let code = read(pid, vdso)?;
    for tid in stopped.tids() {
        let registers = ptrace::registers(*tid).map_err(doing(pid, "read the registers"))?;
        let within = |at: &usize| {
            let start = vdso.0 + *at as u64;
            (start..start + stub::BYTES).contains(&registers.rip)
        };
        let place = stub::places(&code).find(within);
        let left = place.and_then(|at| Some((at, Data::read(&code[at..])?)));
        if let Some((at, data)) = left {
            if let Some(page) = data.scratch().filter(|page| is_scratch(mappings, *page)) {
                mark(pid, page)?; // as long as the thread would unmap it
            }
            restore_thread(pid, *tid, &data, &registers)?;
            poke(pid, vdso.0 + at as u64 + stub::OWNER, 0)?;
        }
    }
    Ok(scratch(pid, &code).map(|page| (page, page + stub::SCRATCH_BYTES)))
}

/// Whether a page looks like a scratch page, marked or not.
fn is_scratch(mappings: &[Mapping], page: u64) -> bool {
    const READ_WRITE: u32 = (libc::PROT_READ | libc::PROT_WRITE) as u32;
    mappings.iter().any(|mapping| {
        (mapping.start, mapping.end) == (page, page + stub::SCRATCH_BYTES)
            && (mapping.prot, mapping.is_shared, &*mapping.name) == (READ_WRITE, false, "")
    })
}

/// Marks a scratch page so that the next checkpointer finds it if this one dies.
pub fn mark(pid: i32, page: u64) -> Result<(), CheckpointError> {
    poke(pid, page + stub::SCRATCH_MARK, stub::MAGIC)
}

fn poke(pid: i32, address: u64, word: u64) -> Result<(), CheckpointError> {
    ptrace::poke(pid, address, &word.to_le_bytes()).map_err(doing(pid, "write to the memory"))?;
    step();
    Ok(())
}

/// The mask differs from the thread's own only while it is in the stub, and so comes first.
fn restore_thread(
    pid: i32,
    tid: i32,
    data: &Data,
    registers: &Registers,
) -> Result<(), CheckpointError> {
    ptrace::set_signal_mask(tid, data.mask()).map_err(doing(pid, "set the signal mask"))?;
    step();
    ptrace::set_registers(tid, &data.own(registers)).map_err(doing(pid, "set the registers"))?;
    step();
    Ok(())
}

/// The bytes of a vDSO.
pub fn read(pid: i32, vdso: (u64, u64)) -> Result<Vec<u8>, CheckpointError> {
    let mut code = vec![0u8; (vdso.1 - vdso.0) as usize];
    memory::read(pid, vdso.0, &mut code).map_err(doing(pid, "read the vDSO"))?;
    Ok(code)
}

/// The offset in the vDSO of a place for a stub that no thread needs.
pub fn free_place(stopped: &StoppedProcess, vdso: &[u8]) -> Result<usize, CheckpointError> {
    let pid = stopped.pid();
    let mut error = CheckpointError::NoVdso { pid };
    for at in stub::places(vdso) {
        let Some(data) = Data::read(&vdso[at..]) else { return Ok(at) };
        match data.owner().filter(|tid| may_return(stopped, *tid, &data)) {
            None => return Ok(at),
            Some(tid) => error = CheckpointError::Returning { pid, tid },
        }
    }
    Err(error)
}

/// Whether a thread that is not in the stub may come back to it: a handler has another mask than
/// the code that it has interrupted.
fn may_return(stopped: &StoppedProcess, tid: i32, data: &Data) -> bool {
    if stopped.tids().contains(&tid) {
        return ptrace::signal_mask(tid).is_ok_and(|mask| mask != data.mask());
    }
    // Another process in the same memory, which is not stopped.
    let is_there = Path::new(&format!("/proc/{tid}")).exists();
    is_there && kcmp::shares_memory(stopped.pid(), tid).unwrap_or(false)
}

/// A scratch page that a killed checkpointer has left.
pub fn scratch(pid: i32, vdso: &[u8]) -> Option<u64> {
    let left = stub::places(vdso).filter_map(|at| Data::read(&vdso[at..])?.scratch());
    left.into_iter().find(|page| is_ours(pid, *page))
}

fn is_ours(pid: i32, page: u64) -> bool {
    let mut mark = [0u8; 8];
    let got = memory::read(pid, page + stub::SCRATCH_MARK, &mut mark);
    got.is_ok_and(|bytes| bytes == 8) && mark == stub::MAGIC.to_le_bytes()
}

/// The vDSO as the kernel made it.
pub fn without(mut vdso: Vec<u8>) -> Vec<u8> {
    let places: Vec<usize> = stub::places(&vdso).collect();
    for at in places {
        vdso[at..at + stub::BYTES as usize].fill(0);
    }
    vdso
}
