//! The output of activations.
//!
//! An instance prints to two streams, and ends an activation's output by a sentinel line on each.
//! What it prints between calls stays in the streams and belongs to the next activation. When a
//! stream is full, the instance blocks.

use std::time::{Duration, SystemTime};

use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use super::nodes::Output;
use crate::memory::Reservation;

/// The sentinel.
const END: &[u8] = b"XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX";
/// How long to wait for the sentinels after the answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same for a server that may print no sentinels.
const LITTLE_PATIENCE: Duration = Duration::from_millis(5);
const NAMES: [&str; 2] = ["stdout", "stderr"];
/// Longer lines are split into pieces of this size.
const LONGEST_LINE: u64 = 64 << 10;
/// Bytes of lines for which memory is reserved at once.
const RESERVED_AT_ONCE: u64 = 64 << 10;
/// Bytes that a line takes beside its text, in memory and in its record, so that empty lines count.
const BESIDE: u64 = size_of::<String>() as u64;

/// The two streams of an instance.
pub struct Logs {
    streams: [BufReader<Output>; 2],
    /// The beginnings of incomplete lines.
    parts: [Vec<u8>; 2],
}

/// The lines of an activation for its record.
#[derive(Debug)]
pub struct Lines {
    lines: Vec<String>,
    /// Bytes of the lines from the streams.
    bytes: u64,
    most_bytes: u64,
    is_truncated: bool,
    /// The memory that they may take together with lines of other calls.
    memory: Reservation,
    /// Bytes of it that are reserved.
    reserved: u64,
    /// Whether there was no more of it.
    lacks_memory: bool,
    /// Whether each stream's sentinel or end was seen.
    has_ended: [bool; 2],
}

impl Lines {
    /// No lines yet; lines beyond `most_bytes`, or for which there is no `memory`, will be dropped.
    pub fn new(most_bytes: u64, memory: Reservation) -> Lines {
        let (lines, has_ended) = Default::default();
        let (bytes, reserved, is_truncated, lacks_memory) = Default::default();
        Lines { lines, bytes, most_bytes, is_truncated, memory, reserved, lacks_memory, has_ended }
    }

    fn add(&mut self, stream: usize, text: &[u8]) {
        // After the first dropped line all are dropped, however short.
        if self.is_truncated {
            return;
        }
        let line = line(NAMES[stream], &String::from_utf8_lossy(text));
        self.bytes += line.len() as u64 + BESIDE;
        self.lacks_memory = !self.reserve();
        self.is_truncated = self.bytes > self.most_bytes || self.lacks_memory;
        if !self.is_truncated {
            self.lines.push(line);
        }
    }

    /// Whether there is memory for the lines. It is reserved in pieces: a lock for each line would cost more.
    fn reserve(&mut self) -> bool {
        while self.reserved < self.bytes.min(self.most_bytes) {
            if self.memory.grow(RESERVED_AT_ONCE).is_err() {
                return false;
            }
            self.reserved += RESERVED_AT_ONCE;
        }
        true
    }

    /// Adds a line of the platform.
    pub fn note(&mut self, stream: &str, text: &str) {
        self.lines.push(line(stream, text));
    }

    /// All lines.
    pub fn into_lines(mut self) -> Vec<String> {
        if self.lacks_memory {
            self.note(
                "stderr",
                "Logs were truncated: the logs of running calls take all memory for them.",
            );
        } else if self.is_truncated {
            let words = format!(
                "Logs were truncated: their total size exceeds the limit of {} bytes.",
                self.most_bytes
            );
            self.note("stderr", &words);
        }
        self.lines
    }
}

/// A line in the format of records.
fn line(stream: &str, text: &str) -> String {
    let time = humantime::format_rfc3339_millis(SystemTime::now());
    format!("{time} {stream}: {text}")
}

impl Logs {
    /// The logs of an instance with this output.
    pub fn new(output: [Output; 2]) -> Logs {
        Logs { streams: output.map(BufReader::new), parts: Default::default() }
    }

    /// Reads lines while work runs; returns the work's result.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>, lines: &mut Lines) -> T {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            // The work is polled first, even if lines are ready.
            biased;
            done = &mut work => return done,
            () = self.read(lines) => {}
        }
        // Nothing is left to read: the instance has exited, or the sentinels came early.
        work.await
    }

    /// Reads the rest of an activation's lines after its answer. Not all servers print sentinels.
    pub async fn rest(&mut self, lines: &mut Lines, may_have_no_end: bool) {
        let patience = if may_have_no_end { LITTLE_PATIENCE } else { PATIENCE };
        if timeout(patience, self.read(lines)).await.is_err() && !may_have_no_end {
            let words = "The log of this activation may be incomplete: its end was not printed.";
            lines.note("stderr", words);
        }
    }

    /// Reads what an instance has printed before it exited.
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

/// Reads up to the end of a line, or the longest piece of one; returns `false` at the end of the
/// stream. What was read before a cancellation is kept in `into`.
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
    use std::sync::Arc;

    use farfork_policy::settings::Requests;

    use super::*;
    use crate::memory::RequestMemory;

    fn lines(most_bytes: u64, namespace_bytes: u64) -> Lines {
        let limits = Requests { namespace_bytes, all_bytes: u64::MAX };
        Lines::new(most_bytes, RequestMemory::new(limits).reservation(&"a".parse().unwrap()))
    }

    #[test]
    fn lines_for_which_there_is_no_memory_are_dropped() {
        let mut lines = lines(1 << 20, 200 << 10);
        (0..1000).for_each(|_| lines.add(0, &[b'x'; 1000]));
        let memory = Arc::clone(lines.memory.counted());
        assert_eq!(memory.used(), 192 << 10);
        let all = lines.into_lines();
        assert!(all.last().unwrap().contains("all memory"), "{:?}", all.last());
        assert!(all.len() > 150 && all.len() < 200, "{}", all.len());
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn the_limit_counts_the_overhead_of_lines() {
        let most_bytes = 1 << 20;
        let held = |text: &[u8]| {
            let mut lines = lines(most_bytes, u64::MAX);
            (0..most_bytes).for_each(|_| lines.add(0, text));
            let mut all = lines.into_lines();
            let last = all.pop().unwrap();
            assert!(last.contains("exceeds the limit of 1048576 bytes"), "{last}");
            all.iter().map(|line| line.len() + size_of::<String>()).sum::<usize>() as u64
        };
        // Invalid UTF-8 becomes longer when replaced.
        for text in [&b""[..], b"x", &[0xff; 1000]] {
            let held = held(text);
            assert!(held <= most_bytes && held > most_bytes - 4096, "{text:?}: {held}");
        }
    }
}
