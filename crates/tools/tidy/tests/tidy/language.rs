//! Plain English: words and phrases that readers would have to translate (docs/glossary.md).
//!
//! Documents, scripts and programs are checked as a whole. Of Rust files, comments, strings and names
//! in lower case are checked: types of other crates are not in the hands of the file that uses them.
//! The patterns are put together here so that this file does not contain them.

use crate::tree::{Complaint, File, Tree};

/// Files and folders that are clean. Add a folder when it is.
const COVERED: &[&str] = &[
    "CONTRIBUTING.md",
    "README.md",
    "bench/",
    "crates/base/",
    "crates/far/",
    "crates/fork/",
    "crates/platform/platform/src/",
    "crates/platform/policy/",
    "crates/platform/sim/",
    "crates/storage/",
    "crates/tools/",
    "crates/vm/",
    "docs/",
    "python/farfork/",
    "setup/",
    "tests/README.md",
    "tests/package/",
    "tests/qemu/",
    "tests/src/",
    "tests/tests/",
];

/// Results of past runs, and a file that calls a method of Python's files by its name.
const EXEMPT: &[&str] = &["docs/results/", "python/farfork/demo/command.py"];

/// A sequence of words, and what to write instead. `*` is any word in lower case.
struct Pattern {
    words: &'static [&'static str],
    instead: &'static str,
}

const PROCESS: &str = "name the process, user or client";
const REPORT: &str = "write report, print, show or return";
const IS_NOT: &str = "write \"is not\" or \"invalid\"";

const PATTERNS: &[Pattern] = &[
    Pattern { words: &[concat!("who", "ever")], instead: PROCESS },
    Pattern { words: &[concat!("some", "body")], instead: PROCESS },
    Pattern { words: &[concat!("no", "body")], instead: PROCESS },
    Pattern { words: &[concat!("any", "body")], instead: PROCESS },
    Pattern { words: &[concat!("every", "body")], instead: PROCESS },
    Pattern { words: &[concat!("te", "ll")], instead: REPORT },
    Pattern { words: &[concat!("te", "lls")], instead: REPORT },
    Pattern { words: &[concat!("to", "ld")], instead: REPORT },
    Pattern { words: &["for", "want", "of"], instead: "write \"out of\" or \"OOM-killed\"" },
    Pattern { words: &["is", "no", "*"], instead: IS_NOT },
    Pattern { words: &["are", "no", "*"], instead: IS_NOT },
];

/// Words before "is no" and after it that make it plain English.
const THERE: &str = "there";
const NO_LONGER: &[&str] = &["longer", "more"];

pub fn rule(tree: &Tree) -> Vec<Complaint> {
    let is_in = |file: &File<'_>, paths: &[&str]| paths.iter().any(|p| file.path.starts_with(p));
    let covered = tree.files().filter(|file| is_in(file, COVERED) && !is_in(file, EXEMPT));
    covered.flat_map(|file| check(&file)).collect()
}

fn check(file: &File<'_>) -> Vec<Complaint> {
    let words = words(file);
    let mut complaints = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let found = PATTERNS.iter().find(|pattern| matches(pattern, &words[at..]));
        let before = at.checked_sub(1).map(|at| words[at].text.as_str());
        if let Some(pattern) = found.filter(|_| before != Some(THERE)) {
            let what = format!("\"{}\": {}", pattern.words.join(" "), pattern.instead);
            complaints.push(file.complaint(word.line, what));
        }
    }
    complaints
}

fn matches(pattern: &Pattern, words: &[Word]) -> bool {
    let fits = |(wanted, word): (&&str, &Word)| match *wanted {
        "*" => word.starts_in_lower_case && !NO_LONGER.contains(&word.text.as_str()),
        wanted => word.text == wanted,
    };
    words.len() >= pattern.words.len() && pattern.words.iter().zip(words).all(fits)
}

/// A word of prose, in lower case, or a whole name of a program.
struct Word {
    text: String,
    line: usize,
    starts_in_lower_case: bool,
}

/// The words of a file. Quoted words such as the user `nobody` are names and left out, as are words in
/// capital letters.
fn words(file: &File<'_>) -> Vec<Word> {
    let mut words = Vec::new();
    let mut lexer = Lexer::default();
    for (line, text) in file.lines() {
        let prose: Vec<bool> = match file.is("rs") {
            true => lexer.prose(text),
            false => vec![true; text.len()],
        };
        for (at, word) in split(text) {
            let capitals = word.chars().filter(|c| c.is_uppercase()).count();
            let is_name = capitals > 1 || (capitals > 0 && !prose[at]) || is_quoted(text, at, word);
            if !is_name {
                let starts_in_lower_case = word.starts_with(char::is_lowercase);
                words.push(Word { text: word.to_lowercase(), line, starts_in_lower_case });
            }
        }
    }
    words
}

/// Words with their places, and punctuation that ends a phrase. Names of programs with `_` are one word.
fn split(text: &str) -> Vec<(usize, &str)> {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let ends_phrase = |c: char| ".,:;()[]{}=|\"".contains(c);
    let mut found = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices() {
        if is_letter(c) {
            start.get_or_insert(at);
            continue;
        }
        found.extend(start.take().map(|start| (start, &text[start..at])));
        if ends_phrase(c) {
            found.push((at, &text[at..=at]));
        }
    }
    found.extend(start.map(|start| (start, &text[start..])));
    found
}

fn is_quoted(text: &str, at: usize, word: &str) -> bool {
    let (before, after) = (&text[..at], &text[at + word.len()..]);
    ['`', '"', '\''].iter().any(|quote| before.ends_with(*quote) && after.starts_with(*quote))
}

/// Finds comments and strings of Rust, line by line.
#[derive(Default)]
struct Lexer {
    is_in_string: bool,
}

impl Lexer {
    /// For each byte of a line, whether it is in a comment or a string.
    fn prose(&mut self, line: &str) -> Vec<bool> {
        let bytes = line.as_bytes();
        let mut prose = vec![false; bytes.len()];
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if self.is_in_string {
                prose[at] = true;
                match rest {
                    [b'\\', ..] => at += 1,
                    [b'"', ..] => self.is_in_string = false,
                    _ => {}
                }
            } else if rest.starts_with(b"//") {
                prose[at..].fill(true);
                return prose;
            } else if rest.starts_with(b"'\"'") {
                at += 2;
            } else if rest[0] == b'"' {
                self.is_in_string = true;
            }
            at += 1;
        }
        prose
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    const RUST: &str = "crates/tools/a/src/lib.rs";

    /// Text that contains a pattern.
    fn sample(pattern: &Pattern) -> String {
        format!("The image {} here.\n", pattern.words.join(" ").replace('*', "file"))
    }

    #[test]
    fn every_pattern_is_seen_in_documents_comments_and_strings() {
        for pattern in PATTERNS {
            let (text, words) = (sample(pattern), pattern.words.join(" "));
            assert_complains(rule, &[("docs/a.md", &text)], &words);
            assert_complains(rule, &[("setup/a.sh", &format!("# {text}"))], &words);
            let broken = text.trim_end().replace(' ', "\n");
            assert_complains(rule, &[("README.md", &broken)], &words);
            for rust in [
                format!("/// {text}fn a() {{}}\n"),
                format!("// {text}"),
                format!("const A: &str = \"{}\";\n", text.trim_end()),
                format!("#[error(\"{}\")]\n", text.trim_end()),
                format!("const A: &str = \"{}\\\n    a\";\n", broken.replace('\n', " \\\n    ")),
            ] {
                assert_complains(rule, &[(RUST, &rust)], &words);
            }
            assert_accepts(rule, &[("crates/elsewhere/src/lib.rs", &format!("// {text}"))]);
        }
    }

    #[test]
    fn a_capital_at_the_beginning_of_a_sentence_is_seen() {
        let word = concat!("Who", "ever");
        assert_complains(rule, &[(RUST, &format!("// {word} waits.\n"))], "whoever");
        assert_complains(
            rule,
            &[(RUST, &format!("/* a */ let a = \"{word} waits\";\n"))],
            "whoever",
        );
    }

    #[test]
    fn names_are_seen_in_lower_case_only() {
        let name = concat!("to", "ld");
        let code = format!("fn a() {{ let {name} = 1; }}\n");
        assert_complains(rule, &[(RUST, &code)], name);
        let of_another_crate = concat!("To", "ld");
        assert_accepts(rule, &[(RUST, &format!("use a::{of_another_crate};\n"))]);
    }

    #[test]
    fn plain_english_and_users_are_accepted() {
        let user = concat!("no", "body");
        let text = format!(
            "The scope is 3: no process may attach. There is no pool here. There\nare no clones. It is no longer used. Run it as `{user}` \
             (\"{user}\", '{user}'). Is NO_FILE set? The answer is no.\n"
        );
        assert_accepts(
            rule,
            &[("docs/a.md", &text), (RUST, &format!("// {text}").replace('\n', " "))],
        );
    }
}
