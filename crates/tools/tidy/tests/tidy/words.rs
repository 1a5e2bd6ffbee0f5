//! Words that tracked files must not contain. They are put together here so that this file does not
//! contain them.

use crate::tree::{Complaint, File, Tree};

const UNFINISHED: &[&str] = &[
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("#[", "ignore"),
];

/// Beginnings of paths of one machine.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("proxy.", "golang.org"),
    concat!("conda", ".io"),
];

const LOCK_FILES: &[&str] =
    &["Cargo.lock", "package-lock.json", "uv.lock", "poetry.lock", "pnpm-lock.yaml", "go.sum"];

/// No unfinished work, no skipped test.
pub fn unfinished(tree: &Tree) -> Vec<Complaint> {
    each_line(
        tree,
        |_| true,
        |line| {
            let word = UNFINISHED.iter().find(|word| has_word(line, word))?;
            Some(format!("`{word}`: finish it, or describe the limit in docs/"))
        },
    )
}

/// No path or package mirror of a developer's machine.
pub fn machine(tree: &Tree) -> Vec<Complaint> {
    let is_lock = |file: &File<'_>| LOCK_FILES.iter().any(|name| file.path.ends_with(name));
    each_line(
        tree,
        |file| !is_lock(file),
        |line| {
            let path = MACHINE_PATHS.iter().find(|path| has_path(line, path));
            let registry = REGISTRIES.iter().find(|host| line.contains(*host));
            let found = path.or(registry)?;
            Some(format!("`{found}` belongs to one machine or one package source"))
        },
    )
}

/// No tabs, nothing invisible at the end of a line, one newline at the end of the file.
pub fn white_space(tree: &Tree) -> Vec<Complaint> {
    let checked = |file: &File<'_>| ["rs", "py", "md"].iter().any(|kind| file.is(kind));
    let mut complaints = each_line(tree, checked, |line| {
        if line.ends_with([' ', '\t', '\r']) {
            Some("white space at the end of the line".to_owned())
        } else {
            line.contains('\t').then(|| "a tab: indent by spaces, write \\t in strings".to_owned())
        }
    });
    let unended = |file: &File<'_>| !file.text.is_empty() && !file.text.ends_with('\n');
    complaints.extend(
        tree.files()
            .filter(|file| checked(file) && unended(file))
            .map(|file| file.complaint(file.lines().count(), "no newline at the end of the file")),
    );
    complaints
}

fn each_line(
    tree: &Tree,
    wanted: impl Fn(&File<'_>) -> bool,
    wrong: impl Fn(&str) -> Option<String>,
) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.files().filter(wanted) {
        for (number, line) in file.text.split('\n').enumerate() {
            complaints.extend(wrong(line).map(|what| file.complaint(number + 1, what)));
        }
    }
    complaints
}

/// Whether `line` contains `word` without a letter or digit beside its letters.
fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        let joined_before = word.starts_with(is_letter) && before.ends_with(is_letter);
        let joined_after = word.ends_with(is_letter) && after.starts_with(is_letter);
        !joined_before && !joined_after
    })
}

/// Whether `line` contains an absolute path that begins with `path`.
fn has_path(line: &str, path: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "._-}~*)".contains(c);
    line.match_indices(path).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + path.len()..]);
        let whole = path.ends_with('/')
            || !after.starts_with(|c: char| c.is_alphanumeric() || "-_.".contains(c));
        !before.ends_with(continues) && whole
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    #[test]
    fn every_unfinished_word_is_seen() {
        for word in UNFINISHED {
            let line = format!("fn a() {{}} // {word}(later)\n");
            assert_complains(unfinished, &[("a.py", &line)], word);
        }
        let template = format!("mktemp /tmp/a.{0}{0}\n", concat!("XX", "X"));
        assert_accepts(unfinished, &[("a.sh", &template)]);
    }

    #[test]
    fn every_trace_of_a_machine_is_seen() {
        for path in MACHINE_PATHS {
            for line in [format!("cd {path}"), format!("\"{path}/a\""), format!("A={path}\n")] {
                assert_complains(machine, &[("a.sh", &line)], path);
            }
        }
        for host in REGISTRIES {
            let line = format!("https://{host}/simple\n");
            assert_complains(machine, &[("a.toml", &line)], host);
            assert_accepts(machine, &[("Cargo.lock", &line), ("js/package-lock.json", &line)]);
        }
        let harmless = ["build/wo", "rk/a ~/wo", "rk ${DIR}/wo", "rk /wo", "rkspace\n"].concat();
        assert_accepts(machine, &[("a.sh", &harmless)]);
    }

    #[test]
    fn odd_white_space_is_seen() {
        for (text, words) in [
            ("a \n", "end of the line"),
            ("a\r\n", "end of the line"),
            ("\ta\n", "tab"),
            ("a", "no newline"),
        ] {
            for path in ["a.rs", "a.py", "a.md"] {
                assert_complains(white_space, &[(path, text)], words);
            }
            assert_accepts(white_space, &[("a.csv", text)]);
        }
        assert_accepts(white_space, &[("a.rs", "a\n\nb\n"), ("b.py", "")]);
    }
}
