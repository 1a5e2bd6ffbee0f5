//! What serves functions of other kinds than Python.
//!
//! ```text
//!  base image ─► clone ─► action server ── /init ──► a function in Python
//!                               └── /launch: confined, then execve ──► Node.js with action.js ── /init
//!                                                                  └─► a blackbox's own program ── /init
//! ```
//! Every instance begins as a clone of the base image, whose server is the operator's. For other kinds it
//! becomes another program, after it has given up all that a function is not to have: so what confines a
//! function is the same for all, and nothing of a user's runs before.

mod nodejs;

use std::path::{Path, PathBuf};

pub use nodejs::{NodeJs, NodeJsError};

use crate::api::Action;
use crate::confine;

/// A program that serves an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// It.
    pub program: PathBuf,
    /// What it is told, beside its own name.
    pub arguments: Vec<String>,
    /// Where it begins.
    pub folder: PathBuf,
}

/// There is no runtime of a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no runtime for {kind} on this machine")]
pub struct NoRuntime {
    /// It.
    pub kind: String,
}

/// The runtimes that are found on this machine, beside Python's.
#[derive(Clone, Debug, Default)]
pub struct OtherRuntimes {
    /// Node.js, if it is there.
    pub nodejs: Option<NodeJs>,
}

impl OtherRuntimes {
    /// What serves an action, whose files are in `folder` if it has any; nothing if that is the server that
    /// every instance begins with.
    pub fn server(
        &self,
        action: &Action,
        folder: Option<&Path>,
    ) -> Result<Option<Server>, NoRuntime> {
        let kind = &action.exec.kind;
        let none = || NoRuntime { kind: kind.clone() };
        match kind.split(':').next() {
            Some("python") => Ok(None),
            // An action that was made with another version goes on with the one that is there.
            Some("nodejs") => {
                let nodejs = self.nodejs.as_ref().ok_or_else(none)?;
                Ok(Some(nodejs.server(action.limits.memory_mb)))
            }
            _ if action.exec.is_blackbox() => {
                let folder = folder.ok_or_else(none)?.to_owned();
                let program = folder.join(confine::PROGRAM);
                Ok(Some(Server { program, arguments: Vec::new(), folder }))
            }
            _ => Err(none()),
        }
    }

    /// Files of the node's that functions need.
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
        let others = OtherRuntimes { nodejs: Some(NodeJs::made_up()) };
        let folder = Path::new("/state/code/a");
        assert_eq!(others.server(&action("python", "x"), Some(folder)), Ok(None));
        let blackbox = action("blackbox", "#!/bin/sh");
        let server = others.server(&blackbox, Some(folder)).unwrap().unwrap();
        assert_eq!((server.program, server.folder), (folder.join("exec"), folder.to_owned()));
        assert_eq!(server.arguments, [""; 0]);
        let nodejs = others.server(&action("nodejs", "x"), None).unwrap().unwrap();
        assert!(nodejs.arguments.contains(&"--max-old-space-size=384".to_owned()), "{nodejs:?}");
        assert_eq!(nodejs.folder, Path::new("/"));
        let told = OtherRuntimes::default().server(&action("nodejs", "x"), None).unwrap_err();
        assert_eq!(told.to_string(), "there is no runtime for nodejs:20 on this machine");
    }
}
