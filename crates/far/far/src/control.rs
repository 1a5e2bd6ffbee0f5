//! What commands ask the far process: one JSON document a line, over a Unix socket that only its owner may
//! connect to.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::FarError;
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
    /// Length of its file.
    pub bytes: u64,
    /// Bytes that were fetched from the serving node.
    pub fetched_bytes: u64,
}

/// Asks the far process that listens at `socket`.
///
/// # Errors
/// It does not run, or does not answer.
pub fn ask(socket: &Path, ask: &Ask) -> Result<Answer, FarError> {
    let failed = || FarError::io("ask the far process at", socket);
    let stream = UnixStream::connect(socket).map_err(failed())?;
    let patience = if matches!(ask, Ask::Status) { STATUS_PATIENCE } else { PATIENCE };
    stream.set_read_timeout(Some(patience)).map_err(failed())?;
    write_line(&stream, ask).map_err(failed())?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(failed())?;
    serde_json::from_str(&line).map_err(|error| failed()(error.into()))
}

/// Sends one document.
pub(crate) fn write_line(mut to: impl Write, document: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(document)? + "\n";
    to.write_all(line.as_bytes())
}
