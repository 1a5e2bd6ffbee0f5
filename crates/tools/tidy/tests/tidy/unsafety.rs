//! `unsafe` is allowed in few files, with a reason, and every block has a SAFETY comment.
//!
//! Clippy checks the second part, too, but not in crates outside of the workspace.

use crate::manifests::stand_alone;
use crate::tree::{Complaint, File, Tree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

pub fn rule(tree: &Tree) -> Vec<Complaint> {
    let free = allowed_as_a_whole(tree);
    let is_free = |file: &File<'_>| free.iter().any(|folder| file.path.starts_with(folder));
    let sources = tree.files().filter(|file| file.is("rs"));
    sources.flat_map(|file| check(&file, is_free(&file))).collect()
}

/// Sources of crates outside of the workspace that allow unsafe code in all modules.
fn allowed_as_a_whole(tree: &Tree) -> Vec<String> {
    let folders = stand_alone(tree).into_iter().map(|folder| folder + "/src/");
    let allows = |folder: &String| {
        let root = tree.file(&format!("{folder}main.rs"));
        root.or_else(|| tree.file(&format!("{folder}lib.rs")))
            .is_some_and(|root| root.lines().any(|(_, line)| line.starts_with(ALLOW_ALL)))
    };
    folders.filter(allows).collect()
}

const ALLOW_ALL: &str = "#![allow(unsafe_code";
const ALLOW_ITEM: &str = "#[allow(unsafe_code";

fn check(file: &File<'_>, is_allowed: bool) -> Vec<Complaint> {
    // The rule of sizes reports files that do not parse.
    let Ok(parsed) = file.parsed() else { return Vec::new() };
    let mut found = Unsafety::default();
    found.visit_file(parsed);
    let lines: Vec<_> = file.text.lines().collect();
    let mut complaints: Vec<_> = found
        .blocks
        .iter()
        .filter(|block| !block.starts.iter().any(|&line| explained(&lines, line)))
        .map(|block| file.complaint(block.line, "no SAFETY comment above this `unsafe`"))
        .collect();
    let allows: Vec<_> = (1..=lines.len()).filter(|&line| is_allow(lines[line - 1])).collect();
    let without_reason = allows.iter().filter(|&&line| !has_reason(&lines, line));
    complaints.extend(
        without_reason.map(|&line| file.complaint(line, "`allow(unsafe_code)` without a reason")),
    );
    if let Some(first) = found.first
        && allows.is_empty()
        && !is_allowed
    {
        complaints.push(file.complaint(first, "`unsafe` in a file without `allow(unsafe_code)`"));
    }
    complaints
}

fn is_allow(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with(ALLOW_ALL) || line.starts_with(ALLOW_ITEM)
}

/// `reason = "…"` in the attribute, or a comment on its line or the line above.
fn has_reason(lines: &[&str], line: usize) -> bool {
    let attribute = lines[line - 1];
    let above = line.checked_sub(2).map_or("", |above| lines[above].trim_start());
    attribute.contains("reason = \"") || attribute.contains("// ") || above.starts_with("// ")
}

/// Whether a SAFETY comment stands right above the line, or on it.
fn explained(lines: &[&str], line: usize) -> bool {
    let is_comment = |text: &&&str| {
        let text = text.trim_start();
        text.starts_with("//") || text.starts_with("#[")
    };
    let above = lines[..line - 1].iter().rev().take_while(is_comment);
    above.chain([&lines[line - 1]]).any(|text| text.contains("SAFETY:"))
}

struct Block {
    line: usize,
    /// Lines that may follow the comment: the block's own, or that of the enclosing statement or item.
    starts: Vec<usize>,
}

#[derive(Default)]
struct Unsafety {
    first: Option<usize>,
    blocks: Vec<Block>,
    /// First line of the innermost statement, match arm or item.
    enclosing: usize,
}

impl Unsafety {
    fn note(&mut self, line: usize) {
        self.first = Some(self.first.map_or(line, |first| first.min(line)));
    }

    fn note_block(&mut self, line: usize) {
        self.note(line);
        self.blocks.push(Block { line, starts: vec![line, self.enclosing.max(1)] });
    }

    fn within(&mut self, start: usize, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.enclosing, start);
        visit(self);
        self.enclosing = outer;
    }
}

impl<'ast> Visit<'ast> for Unsafety {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        self.within(item.span().start().line, |this| visit::visit_item(this, item));
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        self.within(statement.span().start().line, |this| visit::visit_stmt(this, statement));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.within(arm.span().start().line, |this| visit::visit_arm(this, arm));
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.note_block(block.unsafe_token.span.start().line);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = &item.unsafety {
            self.note_block(token.span.start().line);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let syn::Safety::Unsafe(token) = &signature.safety {
            self.note(token.span.start().line);
        }
        visit::visit_signature(self, signature);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        self.note(item.span().start().line);
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if attribute.path().is_ident("unsafe") {
            self.note(attribute.span().start().line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    const PATH: &str = "crates/a/src/lib.rs";
    const ALLOW: &str = "#![allow(unsafe_code)] // raw system calls\n";

    fn with(allow: &str, code: &str) -> String {
        format!("{allow}{code}\n")
    }

    #[test]
    fn a_block_without_a_reason_is_seen() {
        for code in [
            "fn a() { unsafe { b() } }",
            "fn a() {\n    // SAFETY: of another statement.\n    b();\n    unsafe { b() }\n}",
            "unsafe impl Send for A {}",
            "const A: u8 = unsafe { b() };",
        ] {
            assert_complains(rule, &[(PATH, &with(ALLOW, code))], "no SAFETY");
        }
    }

    #[test]
    fn the_comment_may_stand_above_the_block_or_what_encloses_it() {
        for code in [
            "fn a() {\n    // SAFETY: fine.\n    unsafe { b() }\n}",
            "fn a() {\n    // SAFETY: fine,\n    // in two lines.\n    let c =\n        unsafe { b() };\n}",
            "fn a() {\n    match c {\n        // SAFETY: fine.\n        1 => unsafe { b() },\n    }\n}",
            "// SAFETY: fine.\nunsafe impl Send for A {}",
            "// SAFETY: fine.\n#[cfg(unix)]\nunsafe impl Send for A {}",
            "pub unsafe fn a() {}",
        ] {
            assert_accepts(rule, &[(PATH, &with(ALLOW, code))]);
        }
    }

    #[test]
    fn a_file_must_allow_unsafe_code() {
        for code in [
            "// SAFETY: fine.\nunsafe impl Send for A {}",
            "unsafe fn a() {}",
            "unsafe extern \"C\" { fn a(); }",
            "#[unsafe(no_mangle)]\nfn a() {}",
            "mod a { impl B { unsafe fn a() {} } }",
        ] {
            assert_complains(rule, &[(PATH, code)], "in a file without `allow(unsafe_code)`");
            assert_accepts(rule, &[(PATH, &with(ALLOW, code))]);
        }
    }

    #[test]
    fn allowing_unsafe_code_needs_a_reason() {
        for bare in ["#![allow(unsafe_code)]", "/// A.\n#[allow(unsafe_code)]"] {
            let code = format!("{bare}\nunsafe fn a() {{}}");
            assert_complains(rule, &[(PATH, &code)], "without a reason");
        }
        for allow in [
            "// Raw system calls.\n#![allow(unsafe_code)]",
            "#![allow(unsafe_code, reason = \"raw system calls\")]",
            "// SAFETY: fine.\n#[allow(unsafe_code)]",
        ] {
            assert_accepts(rule, &[(PATH, &with(allow, "\nunsafe fn a() {}"))]);
        }
    }

    #[test]
    fn a_crate_outside_of_the_workspace_may_allow_it_for_all_its_files() {
        let root = ("Cargo.toml", "[workspace]\nexclude = [\"crates/a\"]\n");
        let module = ("crates/a/src/b.rs", "unsafe fn b() {}\n");
        assert_accepts(rule, &[root, module, ("crates/a/src/main.rs", ALLOW)]);
        let words = "in a file without `allow(unsafe_code)`";
        assert_complains(rule, &[module, ("crates/a/src/main.rs", ALLOW)], words);
        assert_complains(rule, &[root, module, ("crates/a/src/main.rs", "")], words);
    }
}
