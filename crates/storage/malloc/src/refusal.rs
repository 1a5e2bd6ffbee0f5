//! What ends the process: it says why, without memory of the program.
#![allow(unsafe_code)] // reason: ends the process

use std::fmt::Write;
use std::ptr::NonNull;

/// A message of limited length.
struct Message {
    bytes: [u8; 512],
    length: usize,
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.length..];
        let count = room.len().min(text.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

/// Prints a message to the standard error.
pub(crate) fn print(what: std::fmt::Arguments<'_>) {
    let mut message = Message { bytes: [0; 512], length: 0 };
    let _ = writeln!(message, "libfarfork_malloc.so: {what}");
    let _ = rustix::io::write(rustix::stdio::stderr(), &message.bytes[..message.length]);
}

/// Ends the process as the C library does when it finds misuse.
#[cold]
pub(crate) fn misuse(doing: &str, object: NonNull<u8>) -> ! {
    let at = object.addr();
    print(format_args!(
        "cannot {doing} {at:#x}: it is not an object of this program (freed already, or not from malloc)"
    ));
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// Ends a process that cannot have its memory.
#[cold]
pub(crate) fn refuse(what: std::fmt::Arguments<'_>) -> ! {
    print(what);
    // SAFETY: ends the process.
    unsafe { libc::_exit(127) }
}
