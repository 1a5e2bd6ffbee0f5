//! The files that the rules read, and their complaints.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub type Rule = fn(&Tree) -> Vec<Complaint>;

/// What is wrong, and where.
#[derive(Debug)]
pub struct Complaint {
    pub path: String,
    /// Counted from one. Zero means the whole file.
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// One text file.
pub struct File<'a> {
    pub path: &'a str,
    pub text: &'a str,
    parsed: &'a OnceCell<syn::Result<syn::File>>,
}

impl<'a> File<'a> {
    /// The file as Rust code, which several rules read.
    pub fn parsed(&self) -> Result<&'a syn::File, &'a syn::Error> {
        self.parsed.get_or_init(|| syn::parse_file(self.text)).as_ref()
    }

    pub fn complaint(&self, line: usize, what: impl Into<String>) -> Complaint {
        Complaint { path: self.path.to_owned(), line, what: what.into() }
    }

    /// Lines counted from one.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    pub fn is(&self, extension: &str) -> bool {
        Path::new(self.path).extension().is_some_and(|found| found == extension)
    }
}

/// Text files by path from the root. Files that are not UTF-8 count as empty.
#[derive(Default)]
pub struct Tree {
    sources: BTreeMap<String, Source>,
    /// What is read of a file that is missing.
    empty: Source,
}

#[derive(Default)]
struct Source {
    text: String,
    parsed: OnceCell<syn::Result<syn::File>>,
}

impl From<String> for Source {
    fn from(text: String) -> Source {
        Source { text, parsed: OnceCell::new() }
    }
}

impl Tree {
    /// All files that git tracks. Without git, all files except build products.
    pub fn tracked() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let paths = tracked_by_git(&root).unwrap_or_else(|| walk(&root, Path::new("")));
        let read = |path: PathBuf| {
            let whole = root.join(&path);
            let text = whole.is_file().then(|| fs::read(whole).unwrap_or_default())?;
            Some((path.to_str()?.to_owned(), String::from_utf8(text).unwrap_or_default().into()))
        };
        Tree { sources: paths.into_iter().filter_map(read).collect(), ..Tree::default() }
    }

    /// A tree of samples.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| (path.to_string(), text.to_string().into());
        Tree { sources: files.iter().map(own).collect(), ..Tree::default() }
    }

    pub fn files(&self) -> impl Iterator<Item = File<'_>> {
        self.sources.iter().map(file)
    }

    pub fn file(&self, path: &str) -> Option<File<'_>> {
        self.sources.get_key_value(path).map(file)
    }

    pub fn file_or_empty<'a>(&'a self, path: &'a str) -> File<'a> {
        let Source { text, parsed } = self.sources.get(path).unwrap_or(&self.empty);
        File { path, text, parsed }
    }

    /// Whether there is such a file, or a folder with files in it.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = |file: &String| file.strip_prefix(path).is_some_and(|r| r.starts_with('/'));
        path.is_empty() || self.sources.contains_key(path) || self.sources.keys().any(inside)
    }
}

fn file<'a>((path, source): (&'a String, &'a Source)) -> File<'a> {
    File { path, text: &source.text, parsed: &source.parsed }
}

fn tracked_by_git(root: &Path) -> Option<Vec<PathBuf>> {
    let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().ok()?;
    let paths = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<_> =
        paths.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walk(root: &Path, below: &Path) -> Vec<PathBuf> {
    const PRODUCTS: &[&str] = &["target", ".git", ".venv", "build", "__pycache__", "node_modules"];
    let mut paths = Vec::new();
    for entry in fs::read_dir(root.join(below)).into_iter().flatten().flatten() {
        let path = below.join(entry.file_name());
        if PRODUCTS.iter().any(|product| entry.file_name() == *product) {
            continue;
        } else if entry.path().is_dir() {
            paths.extend(walk(root, &path));
        } else {
            paths.push(path);
        }
    }
    paths
}

/// Asserts that a rule complains about a sample, with these words.
#[track_caller]
pub fn assert_complains(rule: Rule, files: &[(&str, &str)], words: &str) {
    let complaints = rule(&Tree::of(files));
    let found = complaints.iter().any(|complaint| complaint.what.contains(words));
    assert!(found, "no complaint has {words:?}: {complaints:?}");
}

/// Asserts that a rule accepts a sample.
#[track_caller]
pub fn assert_accepts(rule: Rule, files: &[(&str, &str)]) {
    let complaints = rule(&Tree::of(files));
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn without_git_build_products_are_left_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let walked = walk(&root, Path::new(""));
    assert!(walked.contains(&PathBuf::from("Cargo.toml")));
    assert!(walked.contains(&PathBuf::from("crates/tools/tidy/tests/tidy.rs")));
    assert!(!walked.iter().any(|path| path.starts_with(".git") || path.starts_with("target")));
}
