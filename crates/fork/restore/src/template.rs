//! The template process and the clones it starts.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use farfork_plan::What;
use farfork_plan::protocol::{KNOWN, PidMode, Request, Spawned, Status, StatusKind};
use farfork_types::Cid;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv,
    recvmsg, sendmsg, setsockopt, socketpair, sockopt,
};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, Timespec, memfd_create};
use rustix::thread::CapabilitySet;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{self, RestoreError};
use crate::sources::Sources;

static RESTORER: &[u8] = include_bytes!(env!("FARFORK_RESTORER"));

/// How long a template may take to fork. One that takes longer was stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// For a look that waits for nothing.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Where the restorer expects its control socket.
pub(crate) const CONTROL_FD: RawFd = 3;

/// The small process that clones are forked from. Its clones are children of this process.
#[derive(Debug)]
pub struct Template {
    control: OwnedFd,
    child: Child,
    /// Whether it took too long and was killed. A stopped init may still hold its end of the control
    /// socket open.
    is_given_up: bool,
    preforked: Option<PreforkedInit>,
    mounts: Mounts,
}

/// Shows whether mounts of the node have changed since the template copied them.
#[derive(Debug)]
struct Mounts {
    /// The kernel reports a change once to each open file.
    table: File,
    have_changed: bool,
}

impl Mounts {
    fn open() -> io::Result<Mounts> {
        Ok(Mounts { table: File::open("/proc/self/mountinfo")?, have_changed: false })
    }

    fn have_changed(&mut self) -> bool {
        let flags = PollFlags::PRI | PollFlags::ERR;
        let ready = poll(&mut [PollFd::new(&self.table, flags)], Some(&AT_ONCE));
        self.have_changed |= ready != Ok(0);
        self.have_changed
    }
}

/// An init that waits for its request. It saves the start of a clone one fork, one container and one
/// wake-up. Dropped, it ends.
#[derive(Debug)]
struct PreforkedInit {
    control: Option<OwnedFd>,
    init_pid: i32,
}

/// Descriptors that go with a [`Request`].
#[derive(Clone, Copy, Debug)]
pub struct RequestFds<'a> {
    /// The image, or a copy of it.
    pub image: BorrowedFd<'a>,
    /// What keeps the image as long as a process of the clone has it mapped.
    pub pin: BorrowedFd<'a>,
    /// The overlay, if the request has one.
    pub overlay: Option<BorrowedFd<'a>>,
    /// Where the image is.
    pub sources: &'a Sources,
    /// The external descriptors in the order of the plan.
    pub externals: &'a [OwnedFd],
}

/// A clone on its way, or running.
#[derive(Debug)]
pub struct Started {
    cid: Cid,
    /// 0 as long as it is unknown: a template may be killed before it has sent it.
    init_pid: AtomicI32,
    /// Whether the kernel ends the clone with its init.
    pub has_namespace: bool,
    status: OwnedFd,
}

/// A message of a clone or its init.
#[derive(Debug)]
pub enum Event {
    /// It is about to run its first instruction.
    Running {
        /// Its pid as seen here.
        pid: i32,
        /// When each phase ended: see [`Status::at_ns`].
        at_ns: [u64; 6],
    },
    /// It waits before its last steps.
    Waits {
        /// Its pid as seen here.
        pid: i32,
    },
    /// An attribute of the parent could not be set, and the clone starts without; before `Running`.
    Warned(String),
    /// It has ended, with this wait status.
    Exited(i32),
}

pub(crate) fn failed(doing: &'static str) -> impl Fn(io::Error) -> RestoreError {
    move |source| RestoreError::Restorer { doing, source }
}

pub(crate) fn packet_pair() -> Result<(OwnedFd, OwnedFd), RestoreError> {
    let kind = SockType::SeqPacket;
    socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|errno| failed("make a socket for the restorer")(errno.into()))
}

/// The program that this library carries, in memory of its own.
pub(crate) fn program() -> Result<File, RestoreError> {
    let program = memfd_create("farfork-restorer", MemfdFlags::CLOEXEC)
        .map_err(|errno| failed("unpack the restorer")(errno.into()))?;
    let mut file = File::from(program);
    file.write_all(RESTORER).map_err(failed("unpack the restorer"))?;
    Ok(file)
}

/// Sends a request on a control socket, and returns this end of the clone's status socket. The caller
/// reads the answer of a template.
pub(crate) fn send_request(
    control: &OwnedFd,
    request: &Request,
    fds: &RequestFds<'_>,
) -> Result<OwnedFd, RestoreError> {
    let (status, theirs) = packet_pair()?;
    setsockopt(&status, sockopt::PassCred, &true)
        .map_err(|errno| failed("make a socket for the restorer")(errno.into()))?;
    let mut numbers = vec![fds.image.as_raw_fd(), theirs.as_raw_fd(), fds.pin.as_raw_fd()];
    numbers.extend(fds.overlay.map(|overlay| overlay.as_raw_fd()));
    numbers.extend(fds.sources.fds().map(|source| source.as_raw_fd()));
    numbers.extend(fds.externals.iter().map(AsRawFd::as_raw_fd));
    send(control, request, &numbers)?;
    Ok(status)
}

fn send(control: &OwnedFd, request: &Request, fds: &[RawFd]) -> Result<(), RestoreError> {
    let rights = [ControlMessage::ScmRights(fds)];
    let bytes = [IoSlice::new(request.as_bytes())];
    let sent = sendmsg::<()>(control.as_raw_fd(), &bytes, &rights, MsgFlags::MSG_NOSIGNAL, None);
    sent.map(drop).map_err(|errno| match errno {
        Errno::EPIPE => gone(),
        _ => failed("send a request to the restorer")(errno.into()),
    })
}

impl Template {
    /// Starts the template from the program that this library carries.
    pub fn start() -> Result<Template, RestoreError> {
        // Not at the number that the socket is given in the child.
        let file = rustix::io::fcntl_dupfd_cloexec(program()?, CONTROL_FD + 1)
            .map_err(|errno| failed("unpack the restorer")(errno.into()))?;
        let (control, theirs) = packet_pair()?;
        // Before the template copies the mounts: a change in between counts, which only costs a restart.
        let mounts = Mounts::open().map_err(failed("watch the node's mounts"))?;
        let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.env_clear().current_dir("/").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.fd_mappings(vec![FdMapping { parent_fd: theirs, child_fd: CONTROL_FD }]).map_err(
            |_| failed("make a socket for the restorer")(io::Error::other("descriptor 3 taken")),
        )?;
        let child = command.spawn().map_err(failed("start the restorer"))?;
        Ok(Template { control, child, is_given_up: false, preforked: None, mounts })
    }

    /// Whether it was killed. Then another has to be started.
    pub fn has_ended(&self) -> bool {
        self.is_given_up || has_hung_up(&self.control)
    }

    /// Whether the node's mounts have changed since the template copied them. Then another has to be
    /// started.
    pub fn is_outdated(&mut self) -> bool {
        self.mounts.have_changed()
    }

    /// Replaces it by another if it has ended or is outdated.
    ///
    /// # Errors
    /// No template can be started.
    pub fn renew(&mut self) -> Result<(), RestoreError> {
        if self.has_ended() || self.is_outdated() {
            *self = Template::start()?;
        }
        Ok(())
    }

    /// Has an init ready for the next clone, if there is none yet.
    pub fn prepare(&mut self) -> Result<(), RestoreError> {
        if self.preforked.as_ref().is_some_and(PreforkedInit::waits) {
            return Ok(());
        }
        let (control, theirs) = packet_pair()?;
        let request = Request { prepares: 1, ..Request::default() };
        send(&self.control, &request, &[theirs.as_raw_fd()])?;
        drop(theirs);
        let init_pid = self.forked()?;
        self.preforked = Some(PreforkedInit { control: Some(control), init_pid });
        Ok(())
    }

    /// Starts one clone.
    pub fn spawn(
        &mut self,
        cid: Cid,
        request: &Request,
        fds: &RequestFds<'_>,
    ) -> Result<Started, RestoreError> {
        let has_namespace = request.pid_mode == PidMode::New as u32;
        // A preforked init that was killed meanwhile takes no request.
        if has_namespace
            && let Some(mut preforked) = self.preforked.take()
            && let Some(status) = preforked
                .control
                .as_ref()
                .and_then(|control| send_request(control, request, fds).ok())
        {
            preforked.control = None;
            return Ok(Started::new(cid, preforked.init_pid, has_namespace, status));
        }
        let status = send_request(&self.control, request, fds)?;
        let init_pid = match self.forked() {
            Err(error @ RestoreError::Restorer { doing: FORKING, .. }) => return Err(error),
            Ok(init_pid) => init_pid,
            // It may have forked an init before it was killed. Asking another template would make two
            // clones of one request.
            Err(_) if has_init(&status) => 0,
            Err(error) => return Err(error),
        };
        Ok(Started::new(cid, init_pid, has_namespace, status))
    }

    /// Pid of the init that was asked for.
    fn forked(&mut self) -> Result<i32, RestoreError> {
        match self.answer()? {
            Spawned { init_pid: error @ ..0 } => {
                Err(failed(FORKING)(io::Error::from_raw_os_error(-error as i32)))
            }
            Spawned { init_pid } => Ok(init_pid as i32),
        }
    }

    fn answer(&mut self) -> Result<Spawned, RestoreError> {
        if !await_message(&self.control) {
            // All starts would wait for it. Another template takes its place.
            let _ = self.child.kill();
            self.is_given_up = true;
        }
        let mut spawned = Spawned::default();
        let flags = MsgFlags::MSG_DONTWAIT;
        match recv(self.control.as_raw_fd(), spawned.as_mut_bytes(), flags) {
            Ok(bytes) if bytes == size_of::<Spawned>() => Ok(spawned),
            Ok(_) | Err(Errno::EAGAIN) => Err(gone()),
            Err(errno) => Err(failed("get an answer from the restorer")(errno.into())),
        }
    }
}

/// What the template does in answer to a request.
const FORKING: &str = "fork the init of the clone";

impl PreforkedInit {
    fn waits(&self) -> bool {
        self.control.as_ref().is_some_and(|control| !has_hung_up(control))
    }
}

impl Drop for PreforkedInit {
    fn drop(&mut self) {
        // It is the clone's init if it has been given its request.
        if let Some(control) = self.control.take() {
            drop(control);
            // A stopped init does not notice that its socket is closed.
            let _ = kill(Pid::from_raw(self.init_pid), Signal::SIGKILL);
            let _ = waitpid(Pid::from_raw(self.init_pid), None);
        }
    }
}

/// Why a template has ended. Without CAP_SYS_ADMIN its first step fails.
fn gone() -> RestoreError {
    let capabilities = rustix::thread::capabilities(None).map(|sets| sets.effective);
    match capabilities {
        Ok(effective) if !effective.contains(CapabilitySet::SYS_ADMIN) => RestoreError::NoRights,
        _ => failed("get an answer from the restorer")(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a message or the end of the other side can be read from `socket`, for at most
/// [`PATIENCE`].
fn await_message(socket: &OwnedFd) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready != Ok(0),
        }
    }
}

/// Whether a template forked an init before it was killed. Waits for the init's first message, which
/// stays in the queue. An init that keeps its end open without a message is stopped.
fn has_init(status: &OwnedFd) -> bool {
    if !await_message(status) {
        return true;
    }
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(status.as_raw_fd(), &mut [0], flags).is_ok_and(|bytes| bytes > 0)
}

impl Started {
    /// A clone whose init has been asked for, and reports on `status`.
    pub(crate) fn new(cid: Cid, init_pid: i32, has_namespace: bool, status: OwnedFd) -> Started {
        Started { cid, init_pid: AtomicI32::new(init_pid), has_namespace, status }
    }

    /// Pid of its init, a child of the process that holds the template.
    pub fn init_pid(&self) -> i32 {
        self.init_pid.load(Ordering::SeqCst)
    }

    /// Reports to the init that the caller knows of the clone. Until then it ends with this process.
    pub fn confirm(&self) {
        // The end of an init shows on the status socket.
        let flags = MsgFlags::MSG_NOSIGNAL;
        let _ = nix::sys::socket::send(self.status.as_raw_fd(), &[KNOWN], flags);
    }

    /// Notes the pid of the init when it, or its clone, has sent something.
    fn learn_init(&self, sender: i32) {
        if self.init_pid() == 0 {
            let init = parent_of(sender).filter(|parent| *parent != std::process::id() as i32);
            self.init_pid.store(init.unwrap_or(sender), Ordering::SeqCst);
        }
    }

    /// Waits for the next message of the clone or its init.
    pub fn next(&self, plan: &[u8]) -> Result<Event, RestoreError> {
        let (status, sender) = self.receive()?;
        self.learn_init(sender);
        match status.kind {
            kind if kind == StatusKind::Running as u32 => {
                Ok(Event::Running { pid: sender, at_ns: status.at_ns })
            }
            kind if kind == StatusKind::Waits as u32 => Ok(Event::Waits { pid: sender }),
            kind if kind == StatusKind::Exited as u32 => Ok(Event::Exited(status.value as i32)),
            kind => {
                let what = What::from_number(status.what as u16);
                let detail = text_at(plan, status.detail);
                let source = io::Error::from_raw_os_error(status.value as i32);
                if kind == StatusKind::Warned as u32 {
                    return Ok(Event::Warned(error::failure(&what, &detail, &source)));
                }
                Err(RestoreError::Step { cid: self.cid, what, detail, source })
            }
        }
    }

    fn receive(&self) -> Result<(Status, i32), RestoreError> {
        let mut bytes = [0u8; size_of::<Status>()];
        let mut vectors = [IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!(nix::libc::ucred);
        let fd = self.status.as_fd().as_raw_fd();
        let message = loop {
            match recvmsg::<()>(fd, &mut vectors, Some(&mut space), MsgFlags::empty()) {
                // Returned once if the init has ended without reading [`KNOWN`]. Its messages can still be
                // read.
                Err(Errno::EINTR | Errno::ECONNRESET) => {}
                other => {
                    break other
                        .map_err(|errno| failed("read the status of a clone")(errno.into()))?;
                }
            }
        };
        let sender = message
            .cmsgs()
            .ok()
            .into_iter()
            .flatten()
            .find_map(|control| match control {
                ControlMessageOwned::ScmCredentials(sender) => Some(sender.pid()),
                _ => None,
            })
            .unwrap_or(0);
        match message.bytes {
            n if n == size_of::<Status>() => {
                let status = Status::read_from_bytes(&bytes).unwrap_or_default();
                Ok((status, sender))
            }
            _ => Err(self.killed()),
        }
    }

    /// Whether it has ended: its init has closed the status socket.
    pub fn has_ended(&self) -> bool {
        has_hung_up(&self.status)
    }

    /// The error for a clone that was killed.
    pub fn killed(&self) -> RestoreError {
        RestoreError::Killed { cid: self.cid }
    }

    /// The error for a clone that did not run within `patience`.
    pub fn too_slow(&self, patience: Duration) -> RestoreError {
        RestoreError::TooSlow { cid: self.cid, seconds: patience.as_secs() }
    }
}

impl AsFd for Started {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.status.as_fd()
    }
}

/// Whether the other end of a control socket is closed.
pub(crate) fn has_hung_up(control: &OwnedFd) -> bool {
    let mut polls = [PollFd::new(control, PollFlags::empty())];
    poll(&mut polls, Some(&AT_ONCE)).is_ok_and(|ended| ended > 0)
}

pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    let stat = farfork_sys::proc::text(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

/// The NUL-terminated text at an offset of the plan; 0 means none.
fn text_at(plan: &[u8], offset: u64) -> String {
    let rest = plan.get(offset as usize..).filter(|_| offset != 0).unwrap_or_default();
    let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_sys::proc;
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    use std::sync::mpsc;

    /// A template of this process's, where it may have one.
    fn template() -> Option<Template> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED a test of templates: it needs root");
            return None;
        }
        Some(Template::start().unwrap())
    }

    fn stop(pid: i32) {
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        let stat = format!("/proc/{pid}/stat");
        while !proc::text(&stat).unwrap().rsplit_once(") ").unwrap().1.starts_with('T') {
            std::thread::yield_now();
        }
    }

    /// The result of `work`, which must not wait for ever.
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        std::thread::spawn(move || done.send(work()));
        result.recv_timeout(Duration::from_secs(60)).expect("it waits for a stopped process")
    }

    #[test]
    fn a_stopped_preforked_init_delays_no_drop() {
        let Some(mut template) = template() else { return };
        template.prepare().unwrap();
        stop(template.preforked.as_ref().unwrap().init_pid);
        in_time(|| drop(template));
    }

    /// An init that is stopped before it has closed anything has the template's end, too.
    #[test]
    fn a_stopped_template_is_given_up_though_its_end_is_open() {
        let Some(mut template) = template() else { return };
        template.prepare().unwrap();
        template.preforked = None;
        let pid = rustix::process::Pid::from_child(&template.child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let end = pidfd_getfd(&handle, CONTROL_FD, PidfdGetfdFlags::empty()).unwrap();
        stop(template.child.id() as i32);
        let (answer, template) = in_time(|| (template.prepare(), template));
        assert!(answer.is_err() && template.has_ended());
        drop(end);
    }
}
