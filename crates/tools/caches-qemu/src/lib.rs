//! A plugin for QEMU 7.2's user mode (TCG plugins, version 1 of their interface): it follows what the
//! emulated process accesses, by the orders of whoever listens at a socket.
//!
//! ```text
//!  qemu-x86_64 -plugin libfarfork_caches_qemu.so,socket=PATH PROGRAM …
//!    emulated threads ─ every access, every block of code ─► observer ◄─ orders ─ PATH
//! ```
//! What the kernel reads and writes for the process is not seen.

mod follow;
mod orders;
mod qemu;

use std::ffi::CStr;

use farfork_sys::words;

/// The name of the option that tells where orders come from.
const SOCKET: &str = "socket=";

/// Begins, if it was told where its orders come from.
fn install(id: qemu::Id, options: &[&CStr]) -> Result<(), String> {
    let socket = options.iter().find_map(|option| option.to_str().ok()?.strip_prefix(SOCKET));
    let socket = socket.ok_or("no socket was named: -plugin FILE,socket=PATH")?;
    orders::obey(socket).map_err(|error| format!("connect to {socket}: {}", words::of(&error)))?;
    qemu::follow_blocks(id);
    Ok(())
}
