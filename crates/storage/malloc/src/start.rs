//! The start: once in a process, at its first allocation, or when the library is loaded.
#![allow(unsafe_code)] // reason: a function that the loader calls

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork::ObjectsError;
use farfork::memory::Memory;

use crate::refusal::refuse;
use crate::thread::{self, Busy};
use crate::{arenas, forks, spaces};

const REGION: &str = "FARFORK_REGION";

static HAS_STARTED: AtomicBool = AtomicBool::new(false);

/// Starts, unless that has happened. The thread is [`Busy`]. The lock of growth is taken before that of an arena here, which only
/// works because no fork can take them in the other order before the functions for forks are registered.
pub(crate) fn once() {
    if HAS_STARTED.load(Ordering::Acquire) {
        return;
    }
    let _held = spaces::lock().hold();
    if !HAS_STARTED.load(Ordering::Acquire) {
        start();
        HAS_STARTED.store(true, Ordering::Release);
    }
}

fn start() {
    let memory = match region().filter(|path| !path.is_empty()) {
        Some(path) => open(Path::new(&path)),
        None => match spaces::first() {
            Some(memory) => memory,
            None => {
                refuse(format_args!("cannot map memory: this process may have none (RLIMIT_AS)"))
            }
        },
    };
    // After the functions of the region: before a fork, those of last are called first, and the region's wait for no lock of an arena.
    forks::register();
    spaces::add(memory);
}

fn open(path: &Path) -> Memory {
    let opened = Memory::open(path).and_then(|memory| {
        let has_place = memory.is_checked() || arenas::make_first(&memory)?;
        Ok((memory, has_place))
    });
    match opened {
        Ok((memory, _)) if memory.is_checked() => refuse(format_args!(
            "cannot use the region at {}: it is a checked one, which malloc cannot use; make one without --checked, or \
             unset {REGION}",
            path.display()
        )),
        Ok((memory, true)) => memory,
        Ok(_) => refuse(format_args!(
            "{}; or unset {REGION}",
            ObjectsError::ClientsFull { path: path.to_owned() }
        )),
        Err(refused) => refuse(format_args!("{refused}; or unset {REGION}")),
    }
}

/// The loader may allocate before the C library knows the environment.
fn region() -> Option<OsString> {
    unsafe extern "C" {
        static environ: *const *const std::ffi::c_char;
    }
    // SAFETY: a variable of the C library.
    let is_known = !unsafe { std::ptr::addr_of!(environ).read_volatile() }.is_null();
    if is_known {
        return env::var_os(REGION);
    }
    let bytes = std::fs::read("/proc/self/environ").ok()?;
    let value = |entry: &[u8]| {
        entry.strip_prefix(REGION.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec)
    };
    bytes.split(|byte| *byte == 0).find_map(value).map(OsString::from_vec)
}

/// At the latest when the library is loaded: so a region that cannot be opened is reported before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    if thread::word() == thread::NEW {
        let _busy = Busy::begin();
        once();
    }
}
