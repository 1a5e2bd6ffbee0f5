//! Messages show errors of the kernel in words, without their number. `Errno` and `io::Error` print a
//! number (`EPERM: …`, `… (os error 1)`), so a message must not contain them as they are.

use crate::tree::{Complaint, File, Tree};
use syn::visit::{self, Visit};

/// Values of these types print a number.
const NUMBERED: &[&str] = &["io::Error", "Errno"];
/// Names of errors in format strings, where the type is unknown.
const NAMES: &[&str] = &["{error}", "{errno}", "{err}", "{e}"];
/// Files that print only errors of farfork and of parsers.
const EXEMPT: &[&str] =
    &["crates/tools/cli/src/main.rs", "crates/tools/cli/src/pool.rs", "crates/tools/bench/"];

pub fn rule(tree: &Tree) -> Vec<Complaint> {
    let production = |file: &File<'_>| {
        file.is("rs") && file.path.starts_with("crates/") && file.path.contains("/src/")
    };
    tree.files().filter(production).flat_map(|file| check(&file)).collect()
}

fn check(file: &File<'_>) -> Vec<Complaint> {
    // The rule of sizes reports files that do not parse.
    let Ok(parsed) = file.parsed() else { return Vec::new() };
    let mut messages = Messages { found: Vec::new() };
    messages.visit_file(parsed);
    let complaint =
        |(line, what): (usize, String)| file.complaint(line, what + ": use farfork_sys::words::of");
    let named = file.lines().filter(|_| !EXEMPT.iter().any(|path| file.path.starts_with(path)));
    let named = named.filter_map(|(line, text)| {
        let name = NAMES.iter().find(|name| text.contains(**name))?;
        Some((line, format!("a message with {name} may show an error number")))
    });
    messages.found.into_iter().chain(named).map(complaint).collect()
}

struct Messages {
    found: Vec<(usize, String)>,
}

impl<'ast> Visit<'ast> for Messages {
    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.look_at(&variant.attrs, &variant.fields);
        visit::visit_variant(self, variant);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.look_at(&item.attrs, &item.fields);
        visit::visit_item_struct(self, item);
    }
}

impl Messages {
    fn look_at(&mut self, attributes: &[syn::Attribute], fields: &syn::Fields) {
        let Some(attribute) = attributes.iter().find(|a| a.path().is_ident("error")) else {
            return;
        };
        let syn::Meta::List(list) = &attribute.meta else { return };
        let message = list.tokens.to_string();
        let numbered = fields.iter().enumerate().filter(|(_, field)| is_numbered(&field.ty));
        for (index, field) in numbered {
            let name =
                field.ident.as_ref().map_or_else(|| index.to_string(), |ident| ident.to_string());
            let shown = [format!("{{{name}}}"), format!("{{{name}:")];
            if message == "transparent" || shown.iter().any(|part| message.contains(part)) {
                let line = attribute.pound_token.span.start().line;
                self.found.push((line, format!("a message with {{{name}}} shows an error number")));
            }
        }
    }
}

fn is_numbered(kind: &syn::Type) -> bool {
    let syn::Type::Path(path) = kind else { return false };
    let parts: Vec<String> = path.path.segments.iter().map(|part| part.ident.to_string()).collect();
    let name = parts.join("::");
    NUMBERED.iter().any(|known| name == *known || name.ends_with(&format!("::{known}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    fn error(message: &str, fields: &str) -> String {
        format!("enum A {{ #[error({message})] B {fields} }}\n")
    }

    #[test]
    fn an_error_that_prints_its_number_is_seen() {
        let path = "crates/a/src/lib.rs";
        for kind in ["io::Error", "std::io::Error", "rustix::io::Errno", "Errno"] {
            let named = format!("{{ source: {kind} }}");
            for message in ["\"no: {source}\"", "\"no: {source:?}\"", "transparent"] {
                let sample = error(message, &named);
                assert_complains(rule, &[(path, &sample)], "shows an error number");
            }
            let sample = error("\"no: {0}\"", &format!("(#[from] {kind})"));
            assert_complains(rule, &[(path, &sample)], "shows an error number");
            let in_words = error("\"no: {}\", words::of(source)", &named);
            assert_accepts(rule, &[(path, &in_words)]);
        }
        let ours = error("\"no: {source}\"", "{ source: PoolError }");
        assert_accepts(rule, &[(path, &ours)]);
    }

    #[test]
    fn an_error_in_a_format_is_seen_by_its_name() {
        let sample = "fn a() { format!(\"no: {error}\"); }\n";
        assert_complains(rule, &[("crates/a/src/a.rs", sample)], "may show an error number");
        assert_accepts(rule, &[("crates/a/tests/a.rs", sample), ("tests/src/a.rs", sample)]);
    }
}
