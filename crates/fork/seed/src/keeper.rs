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
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_checkpoint::{Parent, Prepared, Reply, Shadow, prepare};
use farfork_fabric::tcp::{Server, ServerSettings};
use farfork_fabric::{Region, Regions};
use farfork_far::protocol::{self, Found, PageRange, Question};
use farfork_handle::Handle;
use farfork_image::store::Descriptor;
use farfork_types::Cid;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

use crate::address;
use crate::client::shared_key;
use crate::error::SeedError;
use crate::protocol::{Reclaimed, Renewed, Request};
use crate::region::SeedRegion;
use crate::seed::{Phase, Seed};
use crate::served::ServedSeed;
use crate::status::{Status, StatusSocket};

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
        keeper.end("the command that prepared it was killed", 0);
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

fn unix_s(from_now: Duration) -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| (since + from_now).as_secs())
}

/// Signals that end a seed in an orderly way.
fn signals() -> io::Result<SignalFd> {
    let set: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Serves a seed to nodes that have its handle.
fn serve(
    listener: TcpListener,
    handle: &Handle,
    seed: &Arc<Seed>,
    served: &Arc<ServedSeed>,
) -> io::Result<Server> {
    let regions = Arc::new(Regions::new());
    let key = regions.register(Arc::clone(served) as _)?;
    let now_ns = unix_s(Duration::ZERO) * 1_000_000_000;
    let answers = Answers {
        seed: Arc::clone(seed),
        found: Found::new(handle.id, served.bytes(), now_ns, key),
    };
    let mut settings = ServerSettings::new(regions, shared_key(handle).alone());
    settings.service = Arc::new(move |request| answers.answer(request));
    settings.connections = CONNECTIONS;
    Server::start(listener, settings)
}

/// What a keeper answers.
struct Answers {
    seed: Arc<Seed>,
    found: Found,
}

impl Answers {
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        if let Some(question) = protocol::decode(request) {
            return self.answer_node(&question);
        }
        match serde_json::from_slice(request) {
            Ok(Request::Renew { expires_ms }) => {
                let expires = Duration::from_millis(expires_ms);
                let at = Instant::now().checked_add(expires);
                self.seed.renew(at.ok_or("it cannot live so long")?)?;
                let renewed = Renewed { expires_unix_s: unix_s(expires) };
                serde_json::to_vec(&renewed).map_err(|error| error.to_string())
            }
            Ok(Request::Reclaim { wait_ms }) => {
                let cut_off = self.seed.reclaim(Duration::from_millis(wait_ms));
                serde_json::to_vec(&Reclaimed { cut_off }).map_err(|error| error.to_string())
            }
            Err(_) => {
                Err("it does not know this call: use one version of farfork on both sides"
                    .to_owned())
            }
        }
    }

    fn answer_node(&self, question: &Question) -> Result<Vec<u8>, String> {
        let id = Cid::from_bytes(self.found.cid);
        let named = |why: String| format!("seed {id}: {why}");
        match question {
            Question::Find { image } if *image != id.to_string() => {
                Err(format!("it has no image {image}, only seed {id}"))
            }
            Question::Find { .. } => {
                self.seed.find().map_err(named)?;
                Ok(protocol::encode(&self.found))
            }
            // Which pages clones touch is not recorded.
            Question::Pages { .. } => Ok(protocol::encode(&Vec::<PageRange>::new())),
        }
    }
}

impl Keeper {
    /// Prepares the process and starts to serve.
    fn begin(settings: &Settings) -> Result<(Keeper, Report), SeedError> {
        let failed = |doing| failed(settings.pid, doing);
        let Place { listener, handle, socket, signals } = Place::open(settings)?;
        let reply = |address| Reply { address, text: handle.to_string() };
        let reply = settings.reply_at.map(reply);
        let Prepared { model, parts, copied, shadow, frozen, forking } =
            prepare(settings.pid, reply.as_ref())?;
        let expires = Instant::now() + settings.expires;
        let memory_bytes = parts.iter().map(|part| part.bytes).sum();
        let copied_bytes = copied.len() as u64;
        let descriptor = Descriptor::of(&model, handle.id);
        let region = SeedRegion::new(descriptor, parts, copied, shadow.memory());
        let descriptor_bytes = region.descriptor_bytes();
        let served = Arc::new(ServedSeed::new(handle.id, region));
        let seed = Arc::new(Seed::new(expires).map_err(failed("make an event"))?);
        let server = serve(listener, &handle, &seed, &served).map_err(failed("start to serve"))?;
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
        };
        let (parent, grace) = (shadow.parent(), settings.grace);
        let status = Status {
            id: report.id.clone(),
            address: handle.address.to_string(),
            pid: parent.pid,
            keeper_pid: std::process::id() as i32,
            shadow_pid: shadow.pid(),
            ..Status::default()
        };
        let shadow = Some(shadow);
        let keeper =
            Keeper { seed, served, server, socket, signals, shadow, parent, grace, status };
        Ok((keeper, report))
    }

    /// Until the seed has ended.
    fn keep(&mut self) {
        loop {
            let now = Instant::now();
            match self.seed.phase() {
                Phase::Open if now >= self.seed.expires() => {
                    self.seed.close("it has expired", now + self.grace);
                }
                Phase::Open => self.wait(self.seed.expires() - now),
                Phase::Closing { why, until } => {
                    let nodes = self.nodes();
                    if nodes == 0 || now >= until {
                        return self.end(ended(&why), nodes);
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
            let nodes = self.nodes();
            self.end(SHADOW_DIED, nodes);
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
            served_bytes: self.server.served_bytes(),
            ..self.status.clone()
        }
    }

    /// Lets go of the pages, and has the parent reap the shadow.
    fn end(&mut self, why: &str, cut_off: usize) {
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
