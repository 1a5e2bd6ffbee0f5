//! Documents name files that exist, and the changelog has a place for the next change.

use crate::tree::{Complaint, File, Tree};

/// Links of Markdown files to files of this tree.
pub fn links(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.files().filter(|file| file.is("md")) {
        for (number, target) in link_targets(&file) {
            let path = target.split('#').next().unwrap_or_default();
            let missing = resolve(file.path, path).is_none_or(|path| !tree.has(&path));
            if !path.is_empty() && !target.contains(':') && missing {
                complaints.push(file.complaint(number, format!("`{target}` does not exist")));
            }
        }
    }
    complaints
}

/// Paths in code marks under the heading "Reading order" of the README.
pub fn reading_order(tree: &Tree) -> Vec<Complaint> {
    let readme = tree.file_or_empty("README.md");
    let section: Vec<_> = readme
        .lines()
        .skip_while(|(_, line)| !is_heading(line, "reading order"))
        .skip(1)
        .take_while(|(_, line)| !line.starts_with('#'))
        .collect();
    if section.is_empty() {
        return vec![readme.complaint(0, "no section \"Reading order\"")];
    }
    let paths = section.iter().flat_map(|(number, line)| {
        line.split('`').skip(1).step_by(2).map(move |path| (*number, path))
    });
    paths
        .filter(|(_, path)| !tree.has(path))
        .map(|(number, path)| readme.complaint(number, format!("`{path}` does not exist")))
        .collect()
}

/// Words of the README before its reference part.
const README_WORDS: usize = 900;

/// What a newcomer reads first is short.
pub fn readme_length(tree: &Tree) -> Vec<Complaint> {
    let readme = tree.file_or_empty("README.md");
    let first: Vec<_> =
        readme.lines().take_while(|(_, line)| !is_heading(line, "reference")).collect();
    let words: usize = first.iter().map(|(_, line)| line.split_whitespace().count()).sum();
    if words <= README_WORDS {
        return Vec::new();
    }
    let what = format!("{words} words before \"Reference\", {README_WORDS} at most");
    vec![readme.complaint(first.len(), what)]
}

/// The section for the next change.
pub fn changelog(tree: &Tree) -> Vec<Complaint> {
    let changelog = tree.file_or_empty("CHANGELOG.md");
    let is_section = |line: &str| line.starts_with("## ") && is_heading(line, "unreleased");
    if changelog.lines().any(|(_, line)| is_section(line)) {
        Vec::new()
    } else {
        vec![changelog.complaint(0, "no section \"Unreleased\"")]
    }
}

fn is_heading(line: &str, title: &str) -> bool {
    line.starts_with('#') && line.to_lowercase().contains(title)
}

/// `(target)` of `[text](target)`, outside of code blocks.
fn link_targets<'a>(file: &'a File<'_>) -> Vec<(usize, &'a str)> {
    let mut in_code = false;
    let mut targets = Vec::new();
    for (number, line) in file.lines() {
        in_code ^= line.trim_start().starts_with("```");
        if !in_code {
            let ends = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            targets.extend(ends.map(|(target, _)| (number, target)));
        }
    }
    targets
}

/// The path from the root of what `target` means in `document`; `None` outside of the tree.
fn resolve(document: &str, target: &str) -> Option<String> {
    let mut parts: Vec<_> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    #[test]
    fn a_link_to_nothing_is_seen() {
        let words = "does not exist";
        assert_complains(links, &[("README.md", "See [this](docs/gone.md).\n")], words);
        assert_complains(links, &[("README.md", "[a](README.md) and [b](gone)\n")], words);
        assert_complains(links, &[("docs/a.md", "[a](../../outside.md)\n")], words);
    }

    #[test]
    fn links_to_files_folders_sections_and_the_web_are_fine() {
        let text = "[a](docs/b.md#c) [d](docs) [e](#f) [g](https://example.org/h)\n\
                    ```\n[i](gone)\n```\n";
        assert_accepts(links, &[("README.md", text), ("docs/b.md", "[up](../README.md)\n")]);
    }

    #[test]
    fn a_reading_order_that_leads_nowhere_is_seen() {
        let readme = "# A\n## Reading order\n1. `docs/a.md`\n2. `crates/gone`\n## B\n`c`\n";
        let files = [("README.md", readme), ("docs/a.md", "")];
        assert_complains(reading_order, &files, "`crates/gone` does not exist");
        assert_complains(reading_order, &[("README.md", "# A\n")], "no section");
        assert_complains(reading_order, &[], "no section");
        assert_accepts(reading_order, &[files[0], files[1], ("crates/gone/Cargo.toml", "")]);
    }

    #[test]
    fn a_long_readme_is_seen() {
        let long = "word ".repeat(README_WORDS + 1);
        let [before, after] = [format!("{long}\n## Reference\n"), format!("## Reference\n{long}")];
        assert_complains(readme_length, &[("README.md", &before)], "900 at most");
        assert_accepts(readme_length, &[("README.md", &after)]);
    }

    #[test]
    fn a_changelog_without_an_unreleased_section_is_seen() {
        assert_complains(changelog, &[("CHANGELOG.md", "# Changelog\nunreleased\n")], "no section");
        assert_complains(changelog, &[], "no section");
        assert_accepts(changelog, &[("CHANGELOG.md", "# Changelog\n## [Unreleased]\n")]);
    }
}
