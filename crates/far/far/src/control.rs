//! What commands ask the far process: one JSON document a line, over a Unix socket that only its owner may
//! connect to.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use farfork_types::TlsFiles;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Uid};
use serde::{Deserialize, Serialize};

use crate::error::FarError;
use crate::protocol::PageRange;
use crate::source::SourceAt;

/// A far process that does not answer hangs: each read of it has a deadline of its own.
const PATIENCE: Duration = Duration::from_secs(60);
/// What it has done it says at once, unless it is stopped.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);

/// What a command asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// The id of the image with this name or id. With `prefetch` its pages are fetched in the background.
    Find {
        /// Name or id.
        image: String,
        /// Whether pages are fetched in advance.
        prefetch: bool,
        /// The serving node, if it is not that of all images of the mount.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<SourceAt>,
    },
    /// Fetch the pages of a seed in the background. The answer does not wait for that.
    Prefetch {
        /// 32 hexadecimal digits.
        cid: String,
    },
    /// Which pages of an image clones were seen to need.
    Touched {
        /// 32 hexadecimal digits.
        cid: String,
        /// How long the answer may take.
        limit_ms: u64,
    },
    /// Which pages of a virtual machine's image its machines needed at the serving node.
    Record {
        /// Name or id.
        image: String,
    },
    /// What the far process has done.
    Status,
    /// Unmount, and exit.
    Stop,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Ask::Find`].
    Found {
        /// 32 hexadecimal digits.
        cid: String,
    },
    /// To [`Ask::Prefetch`].
    Begun,
    /// To [`Ask::Touched`], in the order in which they should come.
    Touched {
        /// Ranges of pages of its file.
        ranges: Vec<PageRange>,
    },
    /// To [`Ask::Record`].
    Recorded {
        /// Pages side by side, first and count, in the order in which they were needed.
        pages: Vec<PageRange>,
    },
    /// To [`Ask::Status`].
    Status(Status),
    /// To [`Ask::Stop`].
    Stopping,
    /// The reason of a failure.
    Failed {
        /// In words.
        why: String,
    },
}

/// What a far process has done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The serving node of all images; "several nodes" if each image has one of its own.
    pub source: String,
    /// The files that prove this node to it; `None` without TLS.
    #[serde(default)]
    pub tls: Option<TlsFiles>,
    /// Pid of the far process, as it sees itself.
    pub pid: u32,
    /// Pid of its holder.
    pub holder_pid: u32,
    /// Reads of the kernel.
    pub reads: u64,
    /// Those that failed.
    pub failed_reads: u64,
    /// The images that were asked for.
    pub images: Vec<ImageStatus>,
}

/// An image in a [`Status`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageStatus {
    /// 32 hexadecimal digits.
    pub cid: String,
    /// The serving node.
    pub source: String,
    /// How the serving node is read at present: `tcp`, `rdma`, or `shm` on one host, with `+tls` if both ends have
    /// proved certificates. `None` without a connection, as before the first read of a far process.
    #[serde(default)]
    pub transport: Option<String>,
    /// Whether its bytes are read without any code of the serving node. `None` without a connection.
    #[serde(default)]
    pub one_sided: Option<bool>,
    /// Why its bytes are not read by RDMA, where that was chosen: a device that has died, or the server's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detour: Option<String>,
    /// Length of its file.
    pub bytes: u64,
    /// Bytes that were fetched from the serving node.
    pub fetched_bytes: u64,
    /// Images that own parts of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<OwnerStatus>,
}

/// An image that owns parts of another one, in a [`Status`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OwnerStatus {
    /// 32 hexadecimal digits.
    pub cid: String,
    /// The node that serves it.
    pub source: String,
    /// Bytes that it owns of the other image.
    pub owned_bytes: u64,
    /// Bytes of them that were fetched from there, some of them perhaps more than once.
    pub fetched_bytes: u64,
}

/// Asks the far process that listens at `socket`.
///
/// # Errors
/// It does not run, or does not answer.
pub fn ask(socket: &Path, ask: &Ask) -> Result<Answer, FarError> {
    let failed = || FarError::io("ask the far process at", socket);
    let stream = UnixStream::connect(socket).map_err(failed())?;
    let patience = match ask {
        Ask::Status => STATUS_PATIENCE,
        // A limit of zero would be none.
        Ask::Touched { limit_ms, .. } => Duration::from_millis((*limit_ms).max(1)),
        _ => PATIENCE,
    };
    stream.set_read_timeout(Some(patience)).map_err(failed())?;
    write_line(&stream, ask).map_err(failed())?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(in_words).map_err(failed())?;
    serde_json::from_str(&line).map_err(|error| failed()(error.into()))
}

/// What the kernel calls "try again" at the end of a timeout.
fn in_words(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "it does not answer; is it stopped?")
        }
        _ => error,
    }
}

/// The process that listens at `socket`, which need not answer, and its user.
///
/// # Errors
/// None listens there.
pub(crate) fn listening_process(socket: &Path) -> io::Result<(Pid, Uid)> {
    let credentials = socket_peercred(UnixStream::connect(socket)?)?;
    Ok((credentials.pid, credentials.uid))
}

/// Sends one document.
pub(crate) fn write_line(mut to: impl Write, document: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(document)? + "\n";
    to.write_all(line.as_bytes())
}
