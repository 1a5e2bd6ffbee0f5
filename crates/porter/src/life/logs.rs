//! What an activation prints.
//!
//! An instance prints on two streams, and ends what belongs to an activation by a line on each. What
//! it prints when it makes no call waits in the streams, and is the next activation's; more than a
//! stream holds makes it wait.

use std::time::{Duration, SystemTime};

use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use super::nodes::Output;

/// Ends an activation's lines on a stream.
const END: &[u8] = b"XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX";
/// For how long the end is waited for when the answer is there.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same of a server that may print no end: what it has printed before its answer is there.
const LITTLE_PATIENCE: Duration = Duration::from_millis(5);
const NAMES: [&str; 2] = ["stdout", "stderr"];
/// A longer line is told in pieces of this size.
const LONGEST_LINE: u64 = 64 << 10;

/// The two streams of an instance.
pub struct Logs {
    streams: [BufReader<Output>; 2],
    /// What was read of lines that have not ended.
    parts: [Vec<u8>; 2],
}

/// The lines of an activation, as its record has them.
#[derive(Debug)]
pub struct Lines {
    lines: Vec<String>,
    bytes: u64,
    most_bytes: u64,
    is_truncated: bool,
    /// Whether the end was seen, of each stream.
    has_ended: [bool; 2],
}

impl Lines {
    /// None so far; those beyond `most_bytes` are left out.
    pub fn new(most_bytes: u64) -> Lines {
        let (lines, has_ended) = Default::default();
        Lines { lines, bytes: 0, most_bytes, is_truncated: false, has_ended }
    }

    fn add(&mut self, stream: usize, text: &[u8]) {
        self.bytes += text.len() as u64;
        if self.bytes > self.most_bytes {
            self.is_truncated = true;
            return;
        }
        let text = String::from_utf8_lossy(text);
        self.note(NAMES[stream], &text);
    }

    /// Adds a line of the platform's, or of a stream.
    pub fn note(&mut self, stream: &str, text: &str) {
        let time = humantime::format_rfc3339_millis(SystemTime::now());
        self.lines.push(format!("{time} {stream}: {text}"));
    }

    /// All lines.
    pub fn into_lines(mut self) -> Vec<String> {
        if self.is_truncated {
            let words = format!(
                "Logs were truncated: their total size exceeds the limit of {} bytes.",
                self.most_bytes
            );
            self.note("stderr", &words);
        }
        self.lines
    }
}

impl Logs {
    /// Those of an instance that prints on these.
    pub fn of(output: [Output; 2]) -> Logs {
        Logs { streams: output.map(BufReader::new), parts: Default::default() }
    }

    /// Reads lines while work is done; what comes of that.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>, lines: &mut Lines) -> T {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            // Lines that are there already are no reason to look at the work later.
            biased;
            done = &mut work => return done,
            () = self.read(lines) => {}
        }
        // There is nothing to read any more: the instance has ended, or the end came early.
        work.await
    }

    /// Reads what is left of an activation's lines, once its answer is there. Not everybody prints an end.
    pub async fn rest(&mut self, lines: &mut Lines, may_have_no_end: bool) {
        let patience = if may_have_no_end { LITTLE_PATIENCE } else { PATIENCE };
        if timeout(patience, self.read(lines)).await.is_err() && !may_have_no_end {
            let words = "The log of this activation may be incomplete: its end was not printed.";
            lines.note("stderr", words);
        }
    }

    /// Reads what was printed before an instance ended.
    pub async fn last(&mut self, lines: &mut Lines) {
        let _ = timeout(PATIENCE, self.read(lines)).await;
    }

    /// Reads until both streams have ended.
    async fn read(&mut self, lines: &mut Lines) {
        let [out, err] = &mut self.streams;
        while lines.has_ended != [true, true] {
            let [out_part, err_part] = &mut self.parts;
            let (stream, found) = tokio::select! {
                found = piece(out, out_part), if !lines.has_ended[0] => (0, found),
                found = piece(err, err_part), if !lines.has_ended[1] => (1, found),
            };
            let mut text = std::mem::take(&mut self.parts[stream]);
            if text.ends_with(END) {
                text.truncate(text.len() - END.len());
                lines.has_ended[stream] = true;
            }
            lines.has_ended[stream] |= !found;
            if !text.is_empty() || (found && !lines.has_ended[stream]) {
                lines.add(stream, &text);
            }
        }
    }
}

/// Reads up to the end of a line, or of what a line may have; `false` at the end of the stream. What
/// was read before this is cancelled stands in `into`.
async fn piece(from: &mut (impl AsyncBufRead + Unpin), into: &mut Vec<u8>) -> bool {
    loop {
        let Ok(buffer) = from.fill_buf().await else { return false };
        if buffer.is_empty() {
            return false;
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(buffer.len(), |end| end + 1);
        into.extend(&buffer[..end.unwrap_or(taken)]);
        from.consume(taken);
        if end.is_some() || into.len() as u64 >= LONGEST_LINE {
            return true;
        }
    }
}
