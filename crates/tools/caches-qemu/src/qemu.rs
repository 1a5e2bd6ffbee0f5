//! The part of QEMU's plugin interface that is needed.
#![allow(unsafe_code, reason = "QEMU calls this, and is called, by C's conventions")]
#![allow(missing_debug_implementations)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use farfork_caches::LINE_BYTES;

use crate::follow;

/// QEMU's id of the plugin.
pub type Id = u64;

/// A translated block or an instruction, owned by QEMU.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

type OnBlock = extern "C" fn(Id, *mut Opaque);
type OnAccess = extern "C" fn(c_uint, u32, u64, *mut c_void);
type OnExecution = extern "C" fn(c_uint, *mut c_void);

/// Flag of callbacks that neither read nor write registers.
const NO_REGISTERS: c_int = 0;
const READS_AND_WRITES: c_int = 3;

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, call: OnBlock);
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Opaque,
        call: OnExecution,
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Opaque,
        call: OnAccess,
        flags: c_int,
        kinds: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(block: *const Opaque) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const Opaque, index: usize) -> *mut Opaque;
    fn qemu_plugin_insn_vaddr(instruction: *const Opaque) -> u64;
    fn qemu_plugin_insn_size(instruction: *const Opaque) -> usize;
    fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    fn qemu_plugin_mem_is_store(info: u32) -> bool;
}

/// The version of the interface that the plugin uses. QEMU reads it.
// SAFETY: QEMU alone has this name, and only reads an int by it.
#[unsafe(no_mangle)]
static qemu_plugin_version: c_int = 1;

/// Called by QEMU at its start. A result other than 0 ends QEMU.
// SAFETY: QEMU alone has this name.
#[unsafe(no_mangle)]
extern "C" fn qemu_plugin_install(
    id: Id,
    _info: *const c_void,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    let at = |index| {
        // SAFETY: QEMU passes `count` texts, which end with 0 and live until this returns.
        unsafe { CStr::from_ptr(*options.add(index)) }
    };
    let options: Vec<&CStr> = (0..usize::try_from(count).unwrap_or(0)).map(at).collect();
    match crate::install(id, &options) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("farfork plugin for QEMU: {reason}");
            1
        }
    }
}

/// Follows every block of code that QEMU translates from now on.
pub fn follow_blocks(id: Id) {
    // SAFETY: `id` came from QEMU, and `on_block` keeps to what such a callback may do.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, on_block) };
}

extern "C" fn on_block(_: Id, block: *mut Opaque) {
    // SAFETY: blocks and their instructions are valid while QEMU translates them, which is now;
    // the data of the callbacks is not dereferenced.
    unsafe {
        let count = qemu_plugin_tb_n_insns(block);
        let mut end = 0;
        for index in 0..count {
            let instruction = qemu_plugin_tb_get_insn(block, index);
            end = qemu_plugin_insn_vaddr(instruction) + qemu_plugin_insn_size(instruction) as u64;
            // QEMU 7.2 calls for reads and writes even if only one of them was requested.
            let (kinds, data) = (READS_AND_WRITES, std::ptr::null_mut());
            qemu_plugin_register_vcpu_mem_cb(instruction, on_access, NO_REGISTERS, kinds, data);
        }
        if count > 0 {
            let begin = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(block, 0));
            let lines = Lines::of_block(begin, end).packed();
            qemu_plugin_register_vcpu_tb_exec_cb(block, on_execution, NO_REGISTERS, lines);
        }
    }
}

extern "C" fn on_access(_: c_uint, info: u32, address: u64, _: *mut c_void) {
    // SAFETY: these compute with the number alone.
    let (shift, is_store) =
        unsafe { (qemu_plugin_mem_size_shift(info), qemu_plugin_mem_is_store(info)) };
    follow::access(address, 1 << shift, is_store);
}

extern "C" fn on_execution(_: c_uint, lines: *mut c_void) {
    let Lines { first, count } = Lines::unpacked(lines);
    follow::fetch(first, count);
}

/// Lines of instructions.
struct Lines {
    first: u64,
    count: u64,
}

/// A block has few lines, and the number of a line has 41 bits.
const COUNT_BITS: u32 = 16;

impl Lines {
    /// The lines of a block.
    fn of_block(begin: u64, end: u64) -> Lines {
        let first = begin / LINE_BYTES;
        Lines { first, count: end.saturating_sub(1) / LINE_BYTES - first + 1 }
    }

    /// The lines as data of a callback, which QEMU does not dereference.
    fn packed(&self) -> *mut c_void {
        std::ptr::without_provenance_mut((self.first << COUNT_BITS | self.count) as usize)
    }

    fn unpacked(data: *mut c_void) -> Lines {
        let packed = data.addr() as u64;
        Lines { first: packed >> COUNT_BITS, count: packed & ((1 << COUNT_BITS) - 1) }
    }
}
