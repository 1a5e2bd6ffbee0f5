//! Servers of functions of other kinds than Python.
//!
//! ```text
//!  base image ─► clone ─► action server ── /init ──► a function in Python
//!                               └── /launch: confined, then execve ──► Node.js with action.js ── /init
//!                                                                  └─► a blackbox's own program ── /init
//! ```
//! Every instance begins as a clone of the base image, whose server is the operator's. For other
//! kinds it confines itself and then becomes another program. So the confinement is the same for
//! all kinds, and no code of a user's runs before it.

mod nodejs;

use std::path::{Path, PathBuf};

pub use nodejs::{NodeJs, NodeJsError};

use crate::api::Action;
use crate::confine;

/// The program that serves an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its path.
    pub program: PathBuf,
    /// Its arguments, without its name.
    pub arguments: Vec<String>,
}

/// This machine lacks the runtime of a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no runtime for kind {kind} on this machine")]
pub struct NoRuntime {
    /// The kind.
    pub kind: String,
}

/// The runtimes found on this machine, beside Python's.
#[derive(Clone, Debug, Default)]
pub struct OtherRuntimes {
    /// Node.js, if found.
    pub nodejs: Option<NodeJs>,
}

impl OtherRuntimes {
    /// The server of an action that works in `directory`, where its files are if it has any. `None` if it is
    /// Python's server, with which every instance begins.
    pub fn server(&self, action: &Action, directory: &Path) -> Result<Option<Server>, NoRuntime> {
        let kind = &action.exec.kind;
        let none = || NoRuntime { kind: kind.clone() };
        match kind.split(':').next() {
            Some("python") => Ok(None),
            // An action made with another version is served by the installed one.
            Some("nodejs") => {
                let nodejs = self.nodejs.as_ref().ok_or_else(none)?;
                Ok(Some(nodejs.server(action.limits.memory_mb)))
            }
            _ if action.exec.is_blackbox() => {
                let program = directory.join(confine::PROGRAM);
                Ok(Some(Server { program, arguments: Vec::new() }))
            }
            _ => Err(none()),
        }
    }

    /// Files of the node that functions need.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.nodejs.iter().map(|nodejs| nodejs.program.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ActionPut, Runtimes};
    use serde_json::json;

    fn action(kind: &str, code: &str) -> Action {
        let runtimes =
            Runtimes { python: "3.11".to_owned(), nodejs: Some("20".to_owned()), blackbox: true };
        let put = json!({"exec": {"kind": kind, "code": code}, "limits": {"memory": 512}});
        let put: ActionPut = serde_json::from_value(put).unwrap();
        let names = (&"guest".parse().unwrap(), &"a".parse().unwrap());
        put.apply(names, None, &runtimes, 1).unwrap().action
    }

    #[test]
    fn each_kind_has_its_server() {
        let others = OtherRuntimes { nodejs: Some(NodeJs::for_tests()) };
        let folder = Path::new("/state/code/a");
        assert_eq!(others.server(&action("python", "x"), folder), Ok(None));
        let blackbox = action("blackbox", "#!/bin/sh");
        let server = others.server(&blackbox, folder).unwrap().unwrap();
        assert_eq!(server.program, folder.join("exec"));
        assert_eq!(server.arguments, [""; 0]);
        let nodejs = others.server(&action("nodejs", "x"), folder).unwrap().unwrap();
        assert!(nodejs.arguments.contains(&"--max-old-space-size=384".to_owned()), "{nodejs:?}");
        let error = OtherRuntimes::default().server(&action("nodejs", "x"), folder).unwrap_err();
        assert_eq!(error.to_string(), "no runtime for kind nodejs:20 on this machine");
    }
}
