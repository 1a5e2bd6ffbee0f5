//! A plugin for QEMU 7.2's user mode (TCG plugins, version 1 of their interface). It follows the accesses
//! of the emulated process. The benchmark that listens at a socket sends it orders.
//!
//! ```text
//!  qemu-x86_64 -plugin libfarfork_caches_qemu.so,socket=PATH PROGRAM …
//!    emulated threads ─ every access, every block of code ─► observer ◄─ orders ─ PATH
//! ```
//! Reads and writes by the kernel for the process are not seen.

mod follow;
mod orders;
mod qemu;

use std::ffi::CStr;

use farfork_sys::words;

/// The option with the path of the socket.
const SOCKET: &str = "socket=";

/// Connects to the socket in the options, and begins to follow accesses.
fn install(id: qemu::Id, options: &[&CStr]) -> Result<(), String> {
    let socket = options.iter().find_map(|option| option.to_str().ok()?.strip_prefix(SOCKET));
    let socket = socket.ok_or("missing option: -plugin FILE,socket=PATH")?;
    orders::serve(socket)
        .map_err(|error| format!("cannot connect to {socket}: {}", words::of(&error)))?;
    qemu::follow_blocks(id);
    Ok(())
}
