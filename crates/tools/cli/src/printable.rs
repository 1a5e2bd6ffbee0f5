//! Text of others, made safe to print.
//!
//! Functions, and callers of web actions, decide what is in logs and results. Raw control characters would
//! let them begin lines of their own in a log, or command a terminal.

use std::borrow::Cow;
use std::io::IsTerminal;

use farfork_types::{is_unsafe, printable};

/// A line for `stream`: without raw control characters if that is a terminal.
pub(crate) fn shown<'l>(line: &'l str, stream: &impl IsTerminal) -> Cow<'l, str> {
    if stream.is_terminal() { printable(line) } else { Cow::Borrowed(line) }
}

/// A text of several lines, each of them [printable].
pub(crate) fn printable_text(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// A JSON document without raw control characters, except line ends between its parts. It has the same
/// value: in JSON these characters occur in strings only, where an escape means the same.
pub(crate) fn printable_json(document: &str) -> String {
    let escape = |letter: char| match is_unsafe(letter) && letter != '\n' {
        true => format!("\\u{:04x}", u32::from(letter)),
        false => letter.to_string(),
    };
    document.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printed_to_a_terminal_stays_as_it_is() {
        let hostile = "a\u{1b}[31m";
        let file = tempfile::tempfile().unwrap();
        assert_eq!(shown(hostile, &file), hostile, "no terminal");
    }

    #[test]
    fn lines_of_a_text_stay_lines() {
        assert_eq!(printable_text("one\ntwo\u{1b}]0;x\u{7}\n"), "one\ntwo\\u{1b}]0;x\\u{7}\n");
    }

    #[test]
    fn documents_keep_their_value() {
        let document = serde_json::json!({ "a": "\u{9b}2J\u{7f}\u{1b}\n\u{202e}", "b": [1] });
        let text = serde_json::to_string_pretty(&document).unwrap();
        assert!(text.contains('\u{9b}'), "JSON itself does not escape it");
        let printable = printable_json(&text);
        assert!(!printable.contains(|letter| is_unsafe(letter) && letter != '\n'), "{printable}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printable).unwrap(), document);
    }
}
