//! Text of others, made safe to print.
//!
//! Functions, and callers of web actions, decide what is in logs and results. Raw control characters would
//! let them begin lines of their own in a log, or command a terminal.

use std::borrow::Cow;
use std::io::IsTerminal;

/// A line without raw control characters, except tabs.
pub(crate) fn printable(line: &str) -> Cow<'_, str> {
    match line.contains(is_unsafe) {
        true => Cow::Owned(line.chars().map(escaped).collect()),
        false => Cow::Borrowed(line),
    }
}

/// A line for `stream`: without raw control characters if that is a terminal.
pub(crate) fn shown<'l>(line: &'l str, stream: &impl IsTerminal) -> Cow<'l, str> {
    if stream.is_terminal() { printable(line) } else { Cow::Borrowed(line) }
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

/// Control characters, and those that end lines or turn their direction.
fn is_unsafe(letter: char) -> bool {
    let turns = matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (letter.is_control() && letter != '\t')
}

fn escaped(letter: char) -> String {
    if is_unsafe(letter) { letter.escape_default().to_string() } else { letter.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_no_raw_control_characters() {
        let hostile = "a\tb\u{1b}[31m\r\n\u{9b}2J\u{7f}\u{202e}ä";
        assert_eq!(printable(hostile), "a\tb\\u{1b}[31m\\r\\n\\u{9b}2J\\u{7f}\\u{202e}ä");
        assert!(matches!(printable("as it is"), Cow::Borrowed("as it is")));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(shown(hostile, &file), hostile, "no terminal");
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
