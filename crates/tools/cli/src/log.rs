//! The log of `farfork serve`: one line for each event, whatever functions put in it.

use std::io::{self, Write};

use serde_json::Value;

use crate::printable::printable_json;
use farfork_types::printable;

/// Most bytes of an event. What is longer is cut.
const MOST_BYTES: usize = 8 << 10;
/// Most bytes of each text in an event in JSON that is longer.
const MOST_TEXT_BYTES: usize = 1 << 10;

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// lines of text
    #[default]
    Text,
    /// one JSON document a line
    Json,
}

/// Begins to log to stderr.
pub(crate) fn begin(format: LogFormat, level: tracing::Level) {
    let stderr = move || Events { format, to: io::stderr() };
    let log = tracing_subscriber::fmt().with_writer(stderr).with_max_level(level);
    match format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Writes events, each of which comes in one piece.
struct Events<W> {
    format: LogFormat,
    to: W,
}

impl<W: Write> Write for Events<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let mut line = match self.format {
            LogFormat::Text => cut(&printable(text), MOST_BYTES),
            LogFormat::Json => printable_json(&cut_json(text)),
        };
        line.push('\n');
        self.to.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The text, and if it is longer than that, its beginning and how much is missing.
fn cut(text: &str, most_bytes: usize) -> String {
    if text.len() <= most_bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(most_bytes);
    format!("{}… ({} more bytes)", &text[..end], text.len() - end)
}

/// An event in JSON, with its texts cut if it is long. JSON escapes line ends itself.
fn cut_json(text: &str) -> String {
    if text.len() <= MOST_BYTES {
        return text.to_owned();
    }
    let Ok(Value::Object(mut event)) = serde_json::from_str(text) else {
        return cut(text, MOST_BYTES);
    };
    for value in event.values_mut() {
        if let Value::String(long) = value {
            *long = cut(long, MOST_TEXT_BYTES);
        }
    }
    Value::Object(event).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "x\n2026-01-01T00:00:00.000000Z  INFO farfork::serve: FORGED\r\u{1b}[31mred\u{9b}2J";

    /// What is logged when a function's words are the reason for a failure.
    fn logged(format: LogFormat, words: &str) -> String {
        let mut log = Vec::new();
        let event = match format {
            LogFormat::Text => format!("2026-11-26T06:00:00Z ERROR failed why={words}\n"),
            LogFormat::Json => {
                serde_json::json!({ "level": "ERROR", "why": words }).to_string() + "\n"
            }
        };
        let mut events = Events { format, to: &mut log };
        events.write_all(event.as_bytes()).unwrap();
        String::from_utf8(log).unwrap()
    }

    #[test]
    fn a_functions_words_begin_no_line_and_command_no_terminal() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let log = logged(format, HOSTILE);
            assert_eq!(log.lines().count(), 1, "{log}");
            assert!(!log.contains(['\r', '\u{1b}', '\u{9b}']), "{log}");
            assert!(log.contains("FORGED"), "{log}");
        }
    }

    #[test]
    fn long_words_are_cut() {
        let long = "ä".repeat(500_000);
        for format in [LogFormat::Text, LogFormat::Json] {
            let log = logged(format, &long);
            assert!(log.len() < MOST_BYTES + 64, "{}", log.len());
            assert!(log.contains("more bytes") && log.contains("ERROR"), "{log}");
        }
        let log = logged(LogFormat::Json, &long);
        assert!(serde_json::from_str::<Value>(&log).is_ok(), "{log}");
    }
}
