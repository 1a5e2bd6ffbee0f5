//! The keeper of one seed: a process that prepares, traces the shadow, serves its pages and ends it.
//!
//! ```text
//!  listen ─► prepare ─► serve ─► report ─► wait ──► close ─► wait for nodes ─► end ─► say why, a while
//!                                           ├ reclaimed      (a limit)
//!                                           ├ expired
//!                                           └ shadow killed ─────────────────► end
//! ```
//! MITOSIS (§5.1) keeps descriptors in the parent's kernel, until the platform frees them. Here a process
//! stands for the kernel: the thread that traces the shadow has to live as long as that, and its death,
//! however it comes, takes the shadow along.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_checkpoint::{Parent, Prepared, Reply, Shadow, prepare};
use farfork_fabric::tcp::{Server, ServerSettings};
use farfork_fabric::{Region, Regions};
use farfork_far::lineage::Lineage;
use farfork_far::protocol::Found;
use farfork_far::renewed;
use farfork_handle::Handle;
use farfork_image::layout::DATA_AT;
use farfork_image::store::Descriptor;
use farfork_types::{Cid, PAGE_BYTES, TlsFiles};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

use crate::address;
use crate::ancestry::{Ancestry, KeptOwners, OwnerShare, shares};
use crate::answers::{Answers, OWNERS_LONGER, unix_s};
use crate::census::Census;
use crate::client::shared_key;
use crate::error::SeedError;
use crate::learned::Learned;
use crate::protocol::Reclaimed;
use crate::region::SeedRegion;
use crate::seed::{Phase, Seed};
use crate::served::ServedSeed;
use crate::status::{self, Status, StatusSocket};

/// What is kept, and for how long.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The process.
    pub pid: i32,
    /// Where to listen; any port of the machine's address towards others without it.
    pub listen: Option<SocketAddr>,
    /// How long the seed lives.
    pub expires: Duration,
    /// How long a seed that has expired waits for clones that may still fetch pages.
    pub grace: Duration,
    /// Directory in which keepers report.
    pub directory: PathBuf,
    /// When the user asked.
    pub requested: Instant,
    /// Where in its memory the process waits for the handle, if it has asked itself.
    pub reply_at: Option<u64>,
    /// Whether id and key have 64 bits each, for C.
    pub short_key: bool,
    /// The files that prove this node beside the handle's key. With them, other nodes must prove themselves, too.
    pub tls: Option<TlsFiles>,
    /// Whether nodes on this host read by TCP, too, and not through shared memory.
    pub tcp_only: bool,
}

/// A seed that was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The word that names it. It is a secret.
    pub handle: String,
    /// Its name, which may be shown.
    pub id: String,
    /// When it expires, in seconds since 1970.
    pub expires_unix_s: u64,
    /// Microseconds from the request until clones could start.
    pub prepare_us: u64,
    /// Microseconds that the process stood still.
    pub frozen_us: u64,
    /// Microseconds of them in which the shadow was forked.
    pub fork_us: u64,
    /// Bytes of the descriptor: what a node reads before a clone runs.
    pub descriptor_bytes: u64,
    /// Bytes of memory that clones can fetch.
    pub memory_bytes: u64,
    /// Bytes of them that were copied, because a fork does not inherit them.
    pub copied_bytes: u64,
    /// Seeds that own some of them: the process has never written these, and they are fetched there.
    pub owners: Vec<OwnerShare>,
}

/// How long a keeper says why its seed has ended.
const EPITAPH: Duration = Duration::from_secs(60);
/// How often a seed that closes looks for nodes that are connected.
const LOOK: Duration = Duration::from_millis(20);
const CONNECTIONS: usize = 256;

struct Keeper {
    seed: Arc<Seed>,
    served: Arc<ServedSeed>,
    server: Server,
    learned: Arc<Learned>,
    census: Arc<Census>,
    socket: StatusSocket,
    signals: SignalFd,
    shadow: Option<Shadow>,
    parent: Parent,
    grace: Duration,
    status: Status,
}

/// Prepares a process and keeps its seed until that ends. `report` hands the handle to the caller: if that
/// fails, nothing knows of the seed, and it ends at once.
///
/// # Errors
/// The process goes on as if nothing had been asked.
pub fn keep(
    settings: &Settings,
    report: impl FnOnce(&Report) -> io::Result<()>,
) -> Result<(), SeedError> {
    let (mut keeper, made) = Keeper::begin(settings)?;
    if report(&made).is_err() {
        keeper.end("the command that prepared it was killed", Reclaimed::default());
        return Ok(());
    }
    keeper.keep();
    keeper.say_why();
    Ok(())
}

/// Where a seed will be served, before there is one.
struct Place {
    listener: TcpListener,
    handle: Handle,
    socket: StatusSocket,
    signals: SignalFd,
}

impl Place {
    fn open(settings: &Settings) -> Result<Place, SeedError> {
        let failed = |doing| failed(settings.pid, doing);
        let signals = signals().map_err(failed("block signals"))?; // before there are threads
        let (listener, address) = address::listen(settings.listen).map_err(|source| {
            let address = settings.listen.map_or("a free port".to_owned(), |at| at.to_string());
            SeedError::Listen { address, source }
        })?;
        let handle = new_handle(address, settings.short_key);
        let handle = handle.map_err(|error| failed("draw a name and a key")(error.into()))?;
        let socket = StatusSocket::bind(&settings.directory, handle.id)?;
        Ok(Place { listener, handle, socket, signals })
    }
}

fn new_handle(address: SocketAddr, is_short: bool) -> Result<Handle, getrandom::Error> {
    if is_short {
        return Handle::new_short(address);
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id)?;
    Handle::new(address, Cid::from_bytes(id))
}

fn failed(pid: i32, doing: &'static str) -> impl Fn(io::Error) -> SeedError {
    move |source| SeedError::Keep { pid, doing, source }
}

/// Signals that end a seed in an orderly way.
fn signals() -> io::Result<SignalFd> {
    let set: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Serves a seed to nodes that have its handle.
fn serve(
    place: (TcpListener, &Handle),
    seed: &Arc<Seed>,
    served: &Arc<ServedSeed>,
    (lineage, kept): (Lineage, KeptOwners),
    settings: &Settings,
) -> Result<(Server, Arc<Learned>, Arc<Census>), SeedError> {
    let (listener, handle) = place;
    let failed = failed(settings.pid, "start to serve");
    let Settings { tls, tcp_only, directory, .. } = settings;
    let certificates = tls.as_ref().map(renewed).transpose()?;
    let regions = Arc::new(Regions::new());
    let key = regions.register(Arc::clone(served) as _).map_err(&failed)?;
    let now_ns = unix_s(Duration::ZERO) * 1_000_000_000;
    let learned = Arc::new(Learned::new(served.bytes().saturating_sub(DATA_AT) / PAGE_BYTES));
    let census = Arc::new(Census::default());
    let answers = Answers {
        census: Arc::clone(&census),
        learned: Arc::clone(&learned),
        seed: Arc::clone(seed),
        found: Found::new(handle.id, served.bytes(), now_ns, key)
            .with_owners(lineage.extents.len() as u64),
        lineage,
        kept,
    };
    let local = (!tcp_only).then(|| status::memory_socket(directory, handle.id));
    let mut settings = ServerSettings::new(regions, shared_key(handle).alone());
    settings.service = Arc::new(move |request| answers.answer(request));
    settings.connections = CONNECTIONS;
    (settings.certificates, settings.local) = (certificates, local);
    Ok((Server::start(listener, settings).map_err(failed)?, learned, census))
}

impl Keeper {
    /// Prepares the process and starts to serve.
    fn begin(settings: &Settings) -> Result<(Keeper, Report), SeedError> {
        let failed = |doing| failed(settings.pid, doing);
        let Place { listener, handle, socket, signals } = Place::open(settings)?;
        let reply = |address| Reply { address, text: handle.to_string() };
        let reply = settings.reply_at.map(reply);
        let Prepared { model, parts, copied, ancestor, shadow, frozen, forking } =
            prepare(settings.pid, reply.as_ref())?;
        let expires = Instant::now() + settings.expires;
        let memory_bytes = parts.iter().map(|part| part.bytes).sum();
        let copied_bytes = copied.len() as u64;
        let descriptor = Descriptor::of(&model, handle.id);
        let (ancestry, kept) = Ancestry::of(ancestor, &parts, settings.tls.as_ref());
        let lineage = ancestry.lineage();
        let owners = shares(&lineage);
        kept.outlive(settings.expires + OWNERS_LONGER);
        let region = SeedRegion::new(descriptor, parts, copied, ancestry, shadow.memory());
        let descriptor_bytes = region.descriptor_bytes();
        let served = Arc::new(ServedSeed::new(handle.id, region));
        let seed = Arc::new(Seed::new(expires).map_err(failed("make an event"))?);
        let (server, learned, census) =
            serve((listener, &handle), &seed, &served, (lineage, kept), settings)?;
        let micros = |duration: Duration| duration.as_micros() as u64;
        let report = Report {
            handle: handle.to_string(),
            id: handle.id.to_string(),
            expires_unix_s: unix_s(settings.expires),
            prepare_us: micros(settings.requested.elapsed()),
            frozen_us: micros(frozen),
            fork_us: micros(forking),
            descriptor_bytes,
            memory_bytes,
            copied_bytes,
            owners: owners.clone(),
        };
        let (parent, grace) = (shadow.parent(), settings.grace);
        let status = Status {
            id: report.id.clone(),
            address: handle.address.to_string(),
            pid: parent.pid,
            keeper_pid: std::process::id() as i32,
            shadow_pid: shadow.pid(),
            owners,
            ..Status::default()
        };
        let shadow = Some(shadow);
        let keeper = Keeper {
            seed,
            served,
            server,
            learned,
            census,
            socket,
            signals,
            shadow,
            parent,
            grace,
            status,
        };
        Ok((keeper, report))
    }

    /// Until the seed has ended.
    fn keep(&mut self) {
        loop {
            let now = Instant::now();
            self.seed.close_if_expired(now, self.grace);
            match self.seed.phase() {
                Phase::Open => self.wait(self.seed.expires().saturating_duration_since(now)),
                Phase::Closing { why, until } => {
                    let left = self.left();
                    if left.cut_off == 0 || now >= until {
                        return self.end(ended(&why), left);
                    }
                    self.wait(LOOK.min(until - now));
                }
                Phase::Ended { .. } => return,
            }
        }
    }

    /// Nodes that may fetch pages.
    fn nodes(&self) -> usize {
        self.server.connections().saturating_sub(self.seed.reclaimers())
    }

    /// What may fetch pages: nodes, and the clones that they have. A node that has just begun has not said yet.
    fn left(&self) -> Reclaimed {
        let cut_off = self.nodes();
        let clones = if cut_off > 0 { self.census.clones(Instant::now()) } else { 0 };
        Reclaimed { cut_off, cut_off_clones: clones }
    }

    /// Waits for what may happen, for `limit` at most.
    fn wait(&mut self, limit: Duration) {
        let limit = Timespec::try_from(limit).ok();
        let nothing = self.socket.listener.as_fd();
        let shadow = self.shadow.as_ref().map_or(nothing, AsFd::as_fd);
        let mut polls = [
            PollFd::new(&self.seed, PollFlags::IN),
            PollFd::new(&self.socket.listener, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&shadow, PollFlags::IN),
        ];
        // An error would be one of the arguments, and the caller looks again in any case.
        let _ = poll(&mut polls, limit.as_ref());
        let [woken, asked, signalled, died] = polls.map(|poll| !poll.revents().is_empty());
        if woken {
            self.seed.is_awake();
        }
        if asked {
            self.socket.answer(&self.status());
        }
        if signalled && self.signals.read_signal().is_ok_and(|signal| signal.is_some()) {
            self.seed.close("its keeper was ended", Instant::now());
        }
        if died && self.shadow.is_some() {
            let left = self.left();
            self.end(SHADOW_DIED, left);
        }
    }

    fn status(&self) -> Status {
        let (state, reason) = match self.seed.phase() {
            Phase::Open => ("open", None),
            Phase::Closing { why, .. } => ("closing", Some(why)),
            Phase::Ended { why, .. } => ("ended", Some(why)),
        };
        Status {
            parent_lives: self.parent.lives(),
            expires_unix_s: unix_s(self.seed.expires().saturating_duration_since(Instant::now())),
            state: state.to_owned(),
            reason,
            resumes: self.seed.found(),
            nodes: self.nodes(),
            clones: self.left().cut_off_clones,
            served_bytes: self.server.served_bytes(),
            known_pages: self.learned.count(),
            ..self.status.clone()
        }
    }

    /// Lets go of the pages, and has the parent reap the shadow.
    fn end(&mut self, why: &str, cut_off: Reclaimed) {
        self.seed.close(why, Instant::now());
        self.served.end(why);
        if let Some(shadow) = self.shadow.take() {
            // If it fails the dead shadow stays with its parent until the next checkpoint of that.
            let _ = shadow.reclaim();
        }
        self.seed.end(why, cut_off);
    }

    /// Clones that were cut off get the reason for a while.
    fn say_why(&mut self) {
        let until = Instant::now() + EPITAPH;
        while self.nodes() + self.seed.reclaimers() > 0 {
            let now = Instant::now();
            if now >= until || self.was_signalled_again() {
                return;
            }
            self.wait(LOOK.min(until - now));
        }
    }

    fn was_signalled_again(&mut self) -> bool {
        self.signals.read_signal().is_ok_and(|signal| signal.is_some())
    }
}

const SHADOW_DIED: &str = "its frozen copy was killed, as it is when the container of the prepared \
                           process ends or memory runs out";

/// What has happened, from what was going to happen.
fn ended(why: &str) -> &str {
    match why {
        "it is being reclaimed" => "it was reclaimed",
        other => other,
    }
}
