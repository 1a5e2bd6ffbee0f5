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
/// What a line takes beside its letters, in memory and in its record: an empty one is not for nothing.
const BESIDE: u64 = size_of::<String>() as u64;

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
    /// What those of the streams take.
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
        // After one that is left out there is none, short as it may be.
        if self.is_truncated {
            return;
        }
        let line = line(NAMES[stream], &String::from_utf8_lossy(text));
        self.bytes += line.len() as u64 + BESIDE;
        self.is_truncated = self.bytes > self.most_bytes;
        if !self.is_truncated {
            self.lines.push(line);
        }
    }

    /// Adds a line of the platform's.
    pub fn note(&mut self, stream: &str, text: &str) {
        self.lines.push(line(stream, text));
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

/// A line as a record has it.
fn line(stream: &str, text: &str) -> String {
    let time = humantime::format_rfc3339_millis(SystemTime::now());
    format!("{time} {stream}: {text}")
}

impl Logs {
    /// Those of an instance that prints on these.
    pub fn new(output: [Output; 2]) -> Logs {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_has_beside_its_text_counts_too() {
        let most_bytes = 1 << 20;
        let held = |text: &[u8]| {
            let mut lines = Lines::new(most_bytes);
            (0..most_bytes).for_each(|_| lines.add(0, text));
            let mut all = lines.into_lines();
            let last = all.pop().unwrap();
            assert!(last.contains("exceeds the limit of 1048576 bytes"), "{last}");
            all.iter().map(|line| line.len() + size_of::<String>()).sum::<usize>() as u64
        };
        // Letters that are none become longer ones.
        for text in [&b""[..], b"x", &[0xff; 1000]] {
            let held = held(text);
            assert!(held <= most_bytes && held > most_bytes - 4096, "{text:?}: {held}");
        }
    }
}
