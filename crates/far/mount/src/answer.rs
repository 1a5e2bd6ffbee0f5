//! The server: answers the requests of the kernel.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farfork_sys::words;
use farfork_types::PAGE_BYTES;
use fuse_backend_rs::api::filesystem::FileSystem;
use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::transport::{FuseBuf, FuseDevWriter, Reader, Writer};
use rustix::io::Errno;

use crate::files::{Directory, Files, ROOT};
use crate::request_timeout;

/// Threads that answer the kernel. Each waits for its read, so that so many pages are fetched at once.
const THREADS: usize = 32;
/// The largest request or answer: 256 pages and what stands before them.
pub const BUFFER_BYTES: usize = 257 * PAGE_BYTES as usize;

/// Starts the threads that answer requests, until the file system is unmounted. The last of them calls `left`. A
/// server that takes over has the kernel send again what the last one has not answered. `limit_s` is the kernel's own
/// limit for a request ([`limit_for`](crate::limit_for)).
///
/// # Errors
/// No thread can be started, or a kernel before 6.9 cannot send anything again.
pub fn answer(
    device: &File,
    files: &Arc<impl Files>,
    takes_over: bool,
    limit_s: u16,
    left: fn(),
) -> io::Result<()> {
    let server = Arc::new(Server::new(Arc::new(Directory(Arc::clone(files)))));
    if takes_over {
        let mut answer = vec![0; BUFFER_BYTES];
        let writer = FuseDevWriter::<()>::new(device.as_raw_fd(), &mut answer);
        let sent = writer
            .map_err(io::Error::other)
            .and_then(|writer| server.notify_resend(writer).map_err(io::Error::other));
        // A kernel before 6.9 cannot: what waits there would wait for ever, so the file system must go.
        sent?;
    }
    let running = Arc::new(AtomicUsize::new(THREADS));
    for _ in 0..THREADS {
        let (device, server) = (device.try_clone()?, Arc::clone(&server));
        let thread = std::thread::Builder::new().name("fuse-answer".to_owned());
        let running = Arc::clone(&running);
        thread.spawn(move || {
            answer_requests(&device, &server, limit_s);
            if running.fetch_sub(1, Ordering::SeqCst) == 1 {
                left();
            }
        })?;
    }
    Ok(())
}

fn answer_requests<F>(device: &File, server: &Server<Arc<F>>, limit_s: u16)
where
    F: FileSystem + Send + Sync + 'static,
{
    let (mut request, mut answer) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    loop {
        let bytes = match rustix::io::read(device.as_fd(), &mut request) {
            Ok(bytes) => bytes,
            // The process that waited was killed.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            // Unmounted.
            Err(_) => return,
        };
        if request_timeout::is_init(&request[..bytes]) {
            let done = request_timeout::answer_init(
                device,
                server,
                &mut request[..bytes],
                &mut answer,
                limit_s,
            );
            if let Err(error) = done {
                eprintln!("farfork: cannot begin a file system: {}", words::of(&error));
            }
            continue;
        }
        let reader = Reader::<()>::from_fuse_buffer(FuseBuf::new(&mut request[..bytes]));
        let writer = FuseDevWriter::<()>::new(device.as_raw_fd(), &mut answer);
        if let (Ok(reader), Ok(writer)) = (reader, writer) {
            // A request that was interrupted takes no answer.
            let _ = server.handle_message(reader, Writer::FuseDev(writer), None, None);
        }
    }
}

/// Has the kernel forget the file of this name, and what is cached of it when no process uses it any more. Nothing
/// happens if the kernel has forgotten it by itself.
pub fn forget_name(device: &File, files: &Arc<impl Files>, name: &str) {
    let server = Server::new(Arc::new(Directory(Arc::clone(files))));
    let mut message = [0; 256];
    let writer = FuseDevWriter::<()>::new(device.as_raw_fd(), &mut message);
    if let (Ok(writer), Ok(name)) = (writer, CString::new(name)) {
        let _ = server.notify_inval_entry(writer, ROOT, &name);
    }
}
