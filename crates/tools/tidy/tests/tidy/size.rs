//! Files and functions are short.

use crate::tree::{Complaint, File, Tree};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 600;

/// Production code only: tests may be long where they list cases.
pub fn rule(tree: &Tree) -> Vec<Complaint> {
    let production = |file: &File<'_>| file.is("rs") && !is_test_path(file.path);
    tree.files().filter(production).flat_map(|file| check(&file)).collect()
}

fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "benches" | "fuzz"))
}

fn check(file: &File<'_>) -> Vec<Complaint> {
    let parsed = match file.parsed() {
        Ok(parsed) => parsed,
        Err(error) => return vec![file.complaint(error.span().start().line, error.to_string())],
    };
    let mut sizes = Sizes { functions: Vec::new(), test_lines: 0 };
    sizes.visit_file(parsed);
    let mut complaints: Vec<_> = sizes
        .functions
        .into_iter()
        .filter(|function| function.lines > FUNCTION_LINES)
        .map(|Function { name, line, lines }| {
            let what = format!("`{name}` has {lines} lines, more than {FUNCTION_LINES}");
            file.complaint(line, what + ": name its phases and give each a function")
        })
        .collect();
    let lines = file.lines().count() - sizes.test_lines;
    if lines > FILE_LINES {
        let what = format!("{lines} lines without tests, more than {FILE_LINES}: split the file");
        complaints.push(file.complaint(0, what));
    }
    complaints
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

struct Sizes {
    functions: Vec<Function>,
    test_lines: usize,
}

impl Sizes {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let line = signature.fn_token.span.start().line;
        let lines = block.span().end().line - line + 1;
        self.functions.push(Function { name: signature.ident.to_string(), line, lines });
    }
}

impl<'ast> Visit<'ast> for Sizes {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if is_test_only(&module.attrs) {
            self.test_lines += lines_of(module.span());
        } else {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if is_test_only(&function.attrs) {
            self.test_lines += lines_of(function.span());
        } else {
            self.add(&function.sig, &function.block);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

fn lines_of(span: Span) -> usize {
    span.end().line - span.start().line + 1
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    let is_cfg_test = |attribute: &syn::Attribute| {
        let condition = attribute.parse_args::<syn::Path>();
        attribute.path().is_ident("cfg") && condition.is_ok_and(|path| path.is_ident("test"))
    };
    attributes.iter().any(|a| a.path().is_ident("test") || is_cfg_test(a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_function_is_seen_wherever_it_hides() {
        let long = function(71);
        let (words, path) = ("`long` has 71 lines", "crates/a/src/lib.rs");
        assert_complains(rule, &[(path, &long)], words);
        for keyword in ["impl A", "trait A", "mod a", "fn outer()"] {
            assert_complains(rule, &[(path, &format!("{keyword} {{ {long} }}"))], words);
        }
        assert_accepts(rule, &[(path, &function(70))]);
    }

    #[test]
    fn tests_may_be_long() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(700));
        assert_accepts(rule, &[("crates/a/src/lib.rs", &tests)]);
        assert_accepts(rule, &[("crates/a/tests/a.rs", &function(700))]);
    }

    #[test]
    fn a_long_file_is_seen() {
        let constants = "const A: u8 = 0;\n";
        let long = constants.repeat(601);
        assert_complains(rule, &[("crates/a/src/lib.rs", &long)], "601 lines without tests");
        assert_accepts(rule, &[("crates/a/src/lib.rs", &constants.repeat(600))]);
    }

    #[test]
    fn a_file_that_does_not_parse_is_seen() {
        assert_complains(rule, &[("crates/a/src/lib.rs", "struct;\n")], "expected identifier");
    }
}
