//! The far process: answers the requests of the file system and those of commands.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farfork_sys::words;
use farfork_types::{Cid, PAGE_BYTES};
use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::transport::{FuseBuf, FuseDevWriter, Reader, Writer};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::control::{Answer, Ask, ImageStatus, Status, write_line};
use crate::error::FarError;
use crate::failures::Recorder;
use crate::filesystem::{FarImages, ROOT};
use crate::place::Place;
use crate::prefetch;
use crate::protocol::PageRange;
use crate::request_timeout;
use crate::source::{Cause, FarImage, SourceAt};
use crate::sources::Sources;
use crate::start;

/// Threads that answer the kernel. Each waits for its read, so that so many pages are fetched at once.
const THREADS: usize = 32;
/// How long an image that has a node of its own is kept after its last use.
const IMAGE_IDLE: Duration = Duration::from_secs(3);
/// How often a far process looks whether it, or an image, can go.
const LOOK: Duration = Duration::from_millis(500);
/// The largest request or answer: 256 pages and what stands before them.
const BUFFER_BYTES: usize = 257 * PAGE_BYTES as usize;
/// What a far process serves.
pub struct FarProcessSettings {
    /// Where it is mounted.
    pub place: Place,
    /// The serving node of all images. Without it, each image has one of its own.
    pub source: Option<SourceAt>,
    /// After so long a read that is not answered fails.
    pub deadline: Duration,
    /// After so long without a clone and without a search it unmounts and exits.
    pub idle: Option<Duration>,
    /// This program, with the arguments before the image's path, as a prefetching process.
    pub prefetch: Vec<PathBuf>,
}

/// What its threads share.
struct FarProcess {
    images: Arc<FarImages>,
    place: Place,
    prefetch: Vec<PathBuf>,
    /// Images whose prefetch was begun.
    begun: Mutex<Vec<Cid>>,
    /// When an image was last asked for.
    asked: Mutex<Instant>,
}

/// Answers the kernel, whose device is standard input, and commands, until one of these stops it. One that
/// takes over has the kernel send again what the last far process has not answered.
///
/// # Errors
/// Standard input is not a device, or the socket cannot be made.
pub fn run_far_process(settings: FarProcessSettings, takes_over: bool) -> Result<(), FarError> {
    // Without the holder the device would stay open, and requests would wait that no process answers.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let FarProcessSettings { place, source, deadline, idle, prefetch } = settings;
    let sources = Sources::new(source.as_ref(), deadline);
    let images = FarImages::new(sources, Recorder::new(&place.pool()), place.known());
    let images = Arc::new(images);
    let mounted = place.images();
    let failed = || FarError::io("answer requests for", &mounted);
    let device = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed())?);
    let socket = place.socket();
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(FarError::io("listen at", &socket))?;
    // The command may look for its image while the threads start.
    start::say_ready().map_err(failed())?;
    let limit_s = request_timeout::of(deadline);
    answer_kernel(&device, &images, takes_over, limit_s).map_err(failed())?;
    let (begun, asked) = (Mutex::default(), Mutex::new(Instant::now()));
    let far = Arc::new(FarProcess { images, place, prefetch, begun, asked });
    {
        let far = Arc::clone(&far);
        let thread = std::thread::Builder::new().name("far-idle".to_owned());
        thread.spawn(move || far.look_for_idle(&device, idle)).map_err(failed())?;
    }
    far.answer_commands(&listener);
    Ok(())
}

/// Starts the threads that answer requests, until the file system is unmounted.
fn answer_kernel(
    device: &File,
    images: &Arc<FarImages>,
    takes_over: bool,
    limit_s: u16,
) -> io::Result<()> {
    let server = Arc::new(Server::new(Arc::clone(images)));
    if takes_over {
        let mut answer = vec![0; BUFFER_BYTES];
        let writer = FuseDevWriter::<()>::new(device.as_raw_fd(), &mut answer);
        let sent = writer
            .map_err(io::Error::other)
            .and_then(|writer| server.notify_resend(writer).map_err(io::Error::other));
        // A kernel before 6.9 cannot: what waits there would wait for ever, so the file system must go.
        sent?;
    }
    let left = Arc::new(AtomicUsize::new(THREADS));
    for _ in 0..THREADS {
        let (device, server) = (device.try_clone()?, Arc::clone(&server));
        let thread = std::thread::Builder::new().name("far-answer".to_owned());
        let left = Arc::clone(&left);
        thread.spawn(move || {
            answer_requests(&device, &server, limit_s);
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                leave();
            }
        })?;
    }
    Ok(())
}

/// The file system is gone. A process that was asked to stop ends within this time. If the kernel has ended
/// it, because a request took too long, the next restore has to find nothing here.
fn leave() {
    std::thread::sleep(LOOK);
    eprintln!("farfork: the kernel has ended the file system of far images");
    std::process::exit(1);
}

fn answer_requests(device: &File, server: &Server<Arc<FarImages>>, limit_s: u16) {
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
                let reason = words::of(&error);
                eprintln!("farfork: cannot begin the file system of far images: {reason}");
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

impl FarProcess {
    fn answer_commands(self: &Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming().flatten() {
            let ask = read(&stream);
            if matches!(ask, Some(Ask::Stop)) {
                match self.stop() {
                    Ok(()) => {
                        let _ = write_line(&stream, &Answer::Stopping);
                        return;
                    }
                    Err(why) => drop(write_line(&stream, &Answer::Failed { why })),
                }
            } else if let Some(ask) = ask {
                let far = Arc::clone(self);
                // A search may take until the deadline.
                let answer = move || drop(write_line(&stream, &far.answer(ask)));
                let _ = std::thread::Builder::new().name("far-command".to_owned()).spawn(answer);
            }
        }
    }

    /// Lets go of images, and of the mount, that have not been used for a while. A file system that clones
    /// use cannot be unmounted.
    fn look_for_idle(&self, device: &File, idle: Option<Duration>) {
        let server = Server::new(Arc::clone(&self.images));
        loop {
            std::thread::sleep(LOOK);
            let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.is_some_and(|idle| asked.elapsed() > idle) && self.stop().is_ok() {
                std::process::exit(0);
            }
            self.forget_idle_images(device, &server);
        }
    }

    fn forget_idle_images(&self, device: &File, server: &Server<Arc<FarImages>>) {
        let gone = self.images.forget_idle(IMAGE_IDLE).unwrap_or_else(|error| {
            eprintln!("farfork: cannot note images: {}", words::of(&error));
            Vec::new()
        });
        for cid in gone {
            self.begun.lock().unwrap_or_else(PoisonError::into_inner).retain(|begun| *begun != cid);
            let mut message = [0; 256];
            let writer = FuseDevWriter::<()>::new(device.as_raw_fd(), &mut message);
            if let (Ok(writer), Ok(name)) = (writer, CString::new(cid.to_string())) {
                // The kernel may have forgotten it by itself.
                let _ = server.notify_inval_entry(writer, ROOT, &name);
            }
        }
    }

    fn stop(&self) -> Result<(), String> {
        unmount(self.place.images(), UnmountFlags::empty()).map_err(|errno| {
            let reason = words::of(&errno.into());
            format!("cannot unmount far memory: {reason}; end the clones that use it first")
        })?;
        let _ = fs::remove_file(self.place.socket());
        // Those of images that are not forgotten yet.
        let _ = fs::remove_dir_all(self.place.keys());
        Ok(())
    }

    fn find(&self, image: &str, source: Option<&SourceAt>) -> Result<Arc<FarImage>, Cause> {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.images.find(image, source)
    }

    fn answer(&self, ask: Ask) -> Answer {
        match ask {
            Ask::Find { image, prefetch, source } => match self.find(&image, source.as_ref()) {
                Ok(image) => {
                    if prefetch {
                        self.begin_prefetch(&image);
                    }
                    Answer::Found { cid: image.cid.to_string() }
                }
                Err(cause) => {
                    let known = || self.images.sources.name();
                    let at = source.map_or_else(known, |at| format!("tcp://{}", at.address));
                    Answer::Failed { why: format!("cannot find image {image} at {at}: {cause}") }
                }
            },
            Ask::Status => Answer::Status(self.status()),
            Ask::Stop => Answer::Stopping,
        }
    }

    fn status(&self) -> Status {
        let image = |image: &Arc<FarImage>| ImageStatus {
            cid: image.cid.to_string(),
            source: image.source.name(),
            bytes: image.bytes,
            fetched_bytes: image.fetched_bytes.load(Ordering::Relaxed),
        };
        Status {
            source: self.images.sources.name(),
            pid: std::process::id(),
            holder_pid: getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned()),
            reads: self.images.reads.load(Ordering::Relaxed),
            failed_reads: self.images.failed_reads.load(Ordering::Relaxed),
            images: self.images.images().iter().map(image).collect(),
        }
    }

    /// Starts a process that reads what clones will need, once for each image.
    fn begin_prefetch(&self, image: &FarImage) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.contains(&image.cid) {
            return;
        }
        begun.push(image.cid);
        drop(begun);
        let known = image.source.pages(image.cid).unwrap_or_default();
        let ranges = worth(known, image.bytes.div_ceil(PAGE_BYTES));
        if let Err(error) = self.start_prefetch(image, &ranges) {
            eprintln!("farfork: cannot prefetch image {}: {}", image.cid, words::of(&error));
        }
    }

    fn start_prefetch(&self, image: &FarImage, ranges: &[PageRange]) -> io::Result<()> {
        let Some((program, arguments)) = self.prefetch.split_first() else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(arguments).arg(self.place.images().join(image.cid.to_string()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(prefetch::show(ranges).as_bytes())?;
        }
        let reap = move || drop(child.wait());
        std::thread::Builder::new().name("far-reap".to_owned()).spawn(reap).map(drop)
    }
}

/// What is fetched in advance: the pages that clones were seen to touch; if none were, all in order.
fn worth(known: Vec<PageRange>, pages: u64) -> Vec<PageRange> {
    let all = if known.is_empty() { vec![(0, pages)] } else { known };
    let mut left = prefetch::LIMIT_BYTES / PAGE_BYTES;
    let mut ranges = Vec::new();
    for (first, count) in all {
        let count = count.min(left).min(pages.saturating_sub(first));
        left -= count;
        if count > 0 {
            ranges.push((first, count));
        }
    }
    ranges
}

fn read(stream: &UnixStream) -> Option<Ask> {
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_pages_come_alone_and_the_limit_holds() {
        assert_eq!(worth(Vec::new(), 10), [(0, 10)]);
        assert_eq!(worth(vec![(3, 2), (8, 9)], 10), [(3, 2), (8, 2)]);
        let limit = prefetch::LIMIT_BYTES / PAGE_BYTES;
        assert_eq!(
            worth(vec![(0, 5), (9, limit), (limit * 2, 1)], limit * 3),
            [(0, 5), (9, limit - 5)]
        );
    }
}
