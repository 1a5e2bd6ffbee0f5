//! Text of others, made safe to print.
//!
//! Processes choose their names and those of their files; functions, and callers of web actions, decide what is
//! in logs and results. Raw control characters would let them begin lines of their own in a log, or command a
//! terminal.

use std::borrow::Cow;

/// A line without raw control characters, except tabs.
pub fn printable(line: &str) -> Cow<'_, str> {
    match line.contains(is_unsafe) {
        true => Cow::Owned(line.chars().map(escaped).collect()),
        false => Cow::Borrowed(line),
    }
}

/// Control characters, and those that end lines or turn their direction.
pub fn is_unsafe(letter: char) -> bool {
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
    }
}
