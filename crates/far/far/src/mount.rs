//! The far process: answers the requests of the file system and those of commands.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farfork_sys::inherited::keep_on_exec;
use farfork_sys::sync::locked;
use farfork_sys::words;
use farfork_types::{Cid, PAGE_BYTES, TlsFiles};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::census::{Census, CountClones};
use crate::control::{Answer, Ask, ImageStatus, OwnerStatus, Status, write_line};
use crate::error::FarError;
use crate::failures::Recorder;
use crate::filesystem::FarImages;
use crate::place::Place;
use crate::place_lock::PlaceLock;
use crate::prefetch;
use crate::protocol::PageRange;
use crate::source::{Cause, FarImage, SourceAt};
use crate::sources::Sources;
use crate::split::{OwnerImage, SplitImage};
use crate::start;

/// How long an image that has a node of its own is kept after its last use.
const IMAGE_IDLE: Duration = Duration::from_secs(3);
/// How often a far process looks whether it, or an image, can go.
const LOOK: Duration = Duration::from_millis(500);
/// A command waits no longer for the pages that clones were seen to need, in milliseconds.
const MOST_LIMIT_MS: u64 = 60_000;

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
    /// Counts the clones of this machine.
    pub count_clones: CountClones,
    /// This program, with its arguments, as the holder that this process becomes when its own is killed.
    pub holder: Vec<OsString>,
    /// The descriptor of the mount's lock, which was inherited. This process holds it until its end, and passes it on to
    /// the holder that it becomes, but to no other program.
    pub holder_lock: Option<RawFd>,
}

/// What its threads share.
struct FarProcess {
    images: Arc<FarImages>,
    place: Place,
    prefetch: Vec<PathBuf>,
    census: Census,
    tls: Option<TlsFiles>,
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
    // Without a holder nothing would start the next far process. If the holder ends before it is watched, this one does.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let FarProcessSettings { place, source, deadline, idle, prefetch, count_clones, .. } = settings;
    let (holder, lock) = (settings.holder, settings.holder_lock);
    if farfork_mount::when_holder_ends(move || become_holder(&holder, lock)).is_ok() {
        let _ = set_parent_process_death_signal(None);
    }
    let tls = source.as_ref().and_then(|source| source.tls.clone());
    let sources = Sources::new(source.as_ref(), deadline);
    let images = FarImages::new(sources, Recorder::new(&place.pool()), &place);
    let images = Arc::new(images);
    let mounted = place.images();
    let failed = || FarError::io("answer requests for", &mounted);
    let device = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed())?);
    let socket = place.socket();
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(FarError::io("listen at", &socket))?;
    // The command may look for its image while the threads start.
    start::say_ready().map_err(failed())?;
    let limit_s = farfork_mount::limit_for(deadline);
    farfork_mount::answer(&device, &images, takes_over, limit_s, leave).map_err(failed())?;
    let (begun, asked) = (Mutex::default(), Mutex::new(Instant::now()));
    let census = Census::new(count_clones).map_err(failed())?;
    let far = Arc::new(FarProcess { images, place, prefetch, census, tls, begun, asked });
    {
        let far = Arc::clone(&far);
        let thread = std::thread::Builder::new().name("far-idle".to_owned());
        thread.spawn(move || far.look_for_idle(&device, idle)).map_err(failed())?;
    }
    far.answer_commands(&listener);
    Ok(())
}

/// Executes the holder in this process: all threads end at once, and what they have not answered is sent again to the
/// next far process.
fn become_holder(command: &[OsString], lock: Option<RawFd>) {
    let Some((program, arguments)) = command.split_first() else { std::process::exit(1) };
    let _ = lock.map(keep_on_exec);
    // Standard input is the device.
    let error = Command::new(program).args(arguments).exec();
    eprintln!("farfork: cannot go on as the holder of far memory: {}", words::of(&error));
    std::process::exit(1);
}

/// The file system is gone. A process that was asked to stop ends within this time. If the kernel has ended
/// it, because a request took too long, the next restore has to find nothing here.
fn leave() {
    std::thread::sleep(LOOK);
    eprintln!("farfork: the kernel has ended the file system of far images");
    std::process::exit(1);
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
        loop {
            std::thread::sleep(LOOK);
            self.images.say_touched();
            self.census.say(&self.images.in_use());
            let asked = *locked(&self.asked);
            if idle.is_some_and(|idle| asked.elapsed() > idle) && self.leave_no_trace() {
                std::process::exit(0);
            }
            self.forget_idle_images(device);
        }
    }

    fn forget_idle_images(&self, device: &File) {
        let gone = self.images.forget_idle(IMAGE_IDLE).unwrap_or_else(|error| {
            eprintln!("farfork: cannot note images: {}", words::of(&error));
            Vec::new()
        });
        for cid in gone {
            locked(&self.begun).retain(|begun| *begun != cid);
            farfork_mount::forget_name(device, &self.images, &cid.to_string());
        }
    }

    /// Unmounts, and takes the directory along. False if clones or a command need it.
    fn leave_no_trace(&self) -> bool {
        let Ok(Some(lock)) = PlaceLock::take(&self.place) else { return false };
        if self.stop().is_err() {
            return false;
        }
        if let Err(error) = lock.remove(&self.place) {
            let directory = self.place.directory().display();
            eprintln!("farfork: cannot remove {directory}: {}", words::of(&error));
        }
        true
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

    fn find(&self, image: &str, source: Option<&SourceAt>) -> Result<Arc<SplitImage>, Cause> {
        *locked(&self.asked) = Instant::now();
        self.images.find(image, source)
    }

    fn answer(self: &Arc<Self>, ask: Ask) -> Answer {
        match ask {
            Ask::Find { image, prefetch, source } => match self.find(&image, source.as_ref()) {
                Ok(image) => {
                    if prefetch {
                        self.begin_prefetch(&image.image, source.is_some());
                    }
                    Answer::Found { cid: image.image.cid.to_string() }
                }
                Err(cause) => {
                    let known = || self.images.sources.name();
                    let at = source.map_or_else(known, |at| format!("tcp://{}", at.address));
                    Answer::Failed { why: format!("cannot find image {image} at {at}: {cause}") }
                }
            },
            Ask::Prefetch { cid } => match self.known(&cid) {
                Ok(split) => {
                    let far = Arc::clone(self);
                    let begin = move || far.begin_prefetch(&split.image, true);
                    // Without it pages come when they are touched.
                    let _ = std::thread::Builder::new().name("far-begin".to_owned()).spawn(begin);
                    Answer::Begun
                }
                Err(why) => Answer::Failed { why },
            },
            Ask::Touched { cid, limit_ms } => match self.touched(&cid, limit_ms) {
                Ok(ranges) => Answer::Touched { ranges },
                Err(why) => Answer::Failed { why },
            },
            Ask::Record { image } => {
                let record = self.find(&image, None).and_then(|image| {
                    let image = &image.image;
                    image.source.record(image.cid)
                });
                match record {
                    Ok(pages) => Answer::Recorded { pages },
                    Err(cause) => {
                        let at = self.images.sources.name();
                        let why =
                            format!("cannot read the record of image {image} at {at}: {cause}");
                        Answer::Failed { why }
                    }
                }
            }
            Ask::Status => Answer::Status(self.status()),
            Ask::Stop => Answer::Stopping,
        }
    }

    fn status(&self) -> Status {
        let image = |split: &Arc<SplitImage>| {
            let SplitImage { image, lineage, owners } = &**split;
            let of_owner = |(owner, owned_bytes): (&OwnerImage, u64)| OwnerStatus {
                cid: owner.image.cid.to_string(),
                source: owner.image.source.name(),
                owned_bytes,
                fetched_bytes: owner.image.fetched_bytes.load(Ordering::Relaxed),
            };
            ImageStatus {
                cid: image.cid.to_string(),
                source: image.source.name(),
                transport: image.source.transport().map(str::to_owned),
                one_sided: image.source.is_one_sided(image),
                detour: image.source.detour(image),
                bytes: image.bytes,
                fetched_bytes: image.fetched_bytes.load(Ordering::Relaxed),
                owners: owners.iter().zip(lineage.owned_bytes()).map(of_owner).collect(),
            }
        };
        Status {
            source: self.images.sources.name(),
            tls: self.tls.clone(),
            pid: std::process::id(),
            holder_pid: getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned()),
            reads: self.images.reads.load(Ordering::Relaxed),
            failed_reads: self.images.failed_reads.load(Ordering::Relaxed),
            images: self.images.images().iter().map(image).collect(),
        }
    }

    /// The image with this id, if it was asked for before.
    fn known(&self, cid: &str) -> Result<Arc<SplitImage>, Cause> {
        let mut all = self.images.images().into_iter();
        let found = all.find(|split| split.image.cid.to_string() == cid);
        found.ok_or_else(|| format!("it has no image {cid}"))
    }

    /// Pages that clones were seen to need, also those of this node that ran just now. The image's node has so long to
    /// answer.
    fn touched(&self, cid: &str, limit_ms: u64) -> Result<Vec<PageRange>, Cause> {
        let deadline = Instant::now() + Duration::from_millis(limit_ms.min(MOST_LIMIT_MS));
        let image = &self.known(cid)?.image;
        self.images.say_touched_of(image, deadline);
        image.source.pages_by(image.cid, deadline)
    }

    /// Starts a process that reads what clones will need, once for each image. Of a seed all comes in the end: of most
    /// seeds few clones have run.
    fn begin_prefetch(&self, image: &FarImage, is_seed: bool) {
        let mut begun = locked(&self.begun);
        if begun.contains(&image.cid) {
            return;
        }
        begun.push(image.cid);
        drop(begun);
        let known = image.source.pages(image.cid).unwrap_or_default();
        let pages = image.bytes.div_ceil(PAGE_BYTES);
        let known = if is_seed { then_others(known, pages) } else { known };
        let ranges = worth(known, pages);
        if let Err(error) = prefetch::start(&self.prefetch, &self.place, image.cid, ranges) {
            eprintln!("farfork: cannot prefetch image {}: {}", image.cid, words::of(&error));
        }
    }
}

/// These pages, then all others in their order.
fn then_others(mut ranges: Vec<PageRange>, pages: u64) -> Vec<PageRange> {
    let mut known = ranges.clone();
    known.sort_unstable();
    let mut next = 0;
    for (first, count) in known.into_iter().chain([(pages, 0)]) {
        if first > next {
            ranges.push((next, first - next));
        }
        next = next.max(first.saturating_add(count));
    }
    ranges
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
    fn all_others_follow_what_is_known() {
        assert_eq!(then_others(Vec::new(), 10), [(0, 10)]);
        assert_eq!(then_others(vec![(8, 2), (3, 2)], 10), [(8, 2), (3, 2), (0, 3), (5, 3)]);
        assert_eq!(then_others(vec![(0, 4)], 9), [(0, 4), (4, 5)]);
    }

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
