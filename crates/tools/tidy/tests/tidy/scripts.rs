//! Shell scripts stop at the first error.

use crate::tree::{Complaint, File, Tree};

pub fn rule(tree: &Tree) -> Vec<Complaint> {
    tree.files().filter(is_shell).filter_map(|file| check(&file)).collect()
}

fn is_shell(file: &File<'_>) -> bool {
    let first = file.text.lines().next().unwrap_or_default();
    let shells = ["sh", "bash", "dash"];
    let names_shell = first.starts_with("#!")
        && shells.iter().any(|shell| first.split(['/', ' ']).any(|part| part == *shell));
    file.is("sh") || names_shell
}

fn check(file: &File<'_>) -> Option<Complaint> {
    let is_command = |(_, line): &(usize, &str)| !line.is_empty() && !line.starts_with('#');
    match file.lines().find(is_command) {
        Some((_, line)) if line.starts_with("set -eu") => None,
        found => {
            let line = found.map_or(0, |(line, _)| line);
            Some(file.complaint(line, "a shell script begins with `set -eu`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    #[test]
    fn a_script_that_goes_on_after_errors_is_seen() {
        let words = "begins with `set -eu`";
        assert_complains(rule, &[("a.sh", "#!/bin/sh\ncd /tmp\nset -eu\n")], words);
        assert_complains(rule, &[(".ci/run", "#!/usr/bin/env bash\nset -e\n")], words);
        assert_complains(rule, &[("a.sh", "")], words);
    }

    #[test]
    fn comments_may_come_first() {
        assert_accepts(rule, &[("a.sh", "#!/bin/sh\n# What it does.\n\nset -eu\n")]);
        assert_accepts(rule, &[("a", "#!/bin/bash\nset -euo pipefail\n")]);
        assert_accepts(rule, &[("a.py", "#!/usr/bin/env python3\nprint()\n")]);
    }
}
