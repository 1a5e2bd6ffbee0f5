//! Node.js: a program of the machine's, and an action server for it, which is a part of farfork.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use farfork_sys::words;

use super::Server;
use crate::confine;

/// The oldest version that has what the server asks for.
const OLDEST: u32 = 18;
/// What is looked for if nobody names a program.
const USUAL: &str = "node";
/// Tells the version and the program itself.
const WHAT: &str = "console.log(process.versions.node); console.log(process.execPath)";
/// Has OpenSSL draw random numbers that no clone shares.
const DRAWS: &str = "openssl.cnf";
/// The server's files, the first of which is executed.
const FILES: [(&str, &str); 7] = [
    ("action.js", include_str!("nodejs/action.js")),
    ("random.js", include_str!("nodejs/random.js")),
    ("listening.js", include_str!("nodejs/listening.js")),
    ("load.js", include_str!("nodejs/load.js")),
    (DRAWS, include_str!("nodejs/openssl.cnf")),
    ("output.js", include_str!("nodejs/output.js")),
    ("environment.js", include_str!("nodejs/environment.js")),
];

/// Node.js that was asked for cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeJsError {
    /// The program is none that can be.
    #[error("cannot run functions by {}: {reason}: name another by --nodejs", .program.display())]
    Program {
        /// It.
        program: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The server's files cannot be written.
    #[error("cannot write {}: {}", .path.display(), words::of(.source))]
    Files {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Node.js of this machine.
#[derive(Clone, Debug)]
pub struct NodeJs {
    /// The program.
    pub program: PathBuf,
    /// As in `20`.
    pub version: String,
    /// The server's files.
    files: PathBuf,
    /// Whether its clones draw random numbers of their own. Without that it refuses to be checkpointed.
    draws: bool,
}

impl NodeJs {
    /// Looks at a program, the usual one if none is named; nothing if nobody asked for it and it cannot be
    /// used. The server's files are written to the directory `at`.
    pub fn find(program: Option<&Path>, at: &Path) -> Result<Option<NodeJs>, NodeJsError> {
        let tried = program.unwrap_or(Path::new(USUAL));
        match (look(tried), program) {
            (Ok((program, version)), _) => {
                let files = at.join("nodejs");
                write(&files)
                    .map_err(|source| NodeJsError::Files { path: files.clone(), source })?;
                let draws = draws(&program, &files);
                if !draws {
                    let node = program.display();
                    tracing::warn!(%node, "its OpenSSL has no engine rdrand: its functions get no clones");
                }
                Ok(Some(NodeJs { program, version, files, draws }))
            }
            (Err(reason), Some(program)) => {
                Err(NodeJsError::Program { program: program.to_owned(), reason })
            }
            (Err(reason), None) => {
                tracing::warn!(reason, "there are no functions in Node.js");
                Ok(None)
            }
        }
    }

    /// What serves an action whose instances may take so many megabytes.
    pub(super) fn server(&self, memory_mb: u64) -> Server {
        // The rest is for all that is not in the heap. Else garbage would be let grow to gigabytes.
        let heap = format!("--max-old-space-size={}", memory_mb * 3 / 4);
        let script = self.files.join(FILES[0].0).display().to_string();
        let draws = self.draws.then(|| draw_option(&self.files));
        let options = [heap, "--expose-gc".to_owned()].into_iter().chain(draws);
        let arguments = options.chain([script]).collect();
        Server { program: self.program.clone(), arguments, folder: PathBuf::from("/") }
    }

    /// One for tests of others.
    #[cfg(test)]
    pub(super) fn made_up() -> NodeJs {
        let (program, files) = (PathBuf::from("/bin/node"), PathBuf::from("/state/nodejs"));
        NodeJs { program, version: "20".to_owned(), files, draws: true }
    }
}

/// The program itself and its version.
fn look(program: &Path) -> Result<(PathBuf, String), String> {
    let asked = Command::new(program).args(["-e", WHAT]).stdin(Stdio::null()).output();
    let asked = asked.map_err(|error| format!("it does not run: {}", words::of(&error)))?;
    let said = String::from_utf8_lossy(&asked.stdout).into_owned();
    let mut lines = said.lines();
    let mut found = || {
        let major = lines.next()?.split('.').next()?.parse::<u32>().ok()?;
        Some((major, PathBuf::from(lines.next()?)))
    };
    let (major, program) = found().ok_or("it does not tell its version as Node.js does")?;
    if major < OLDEST {
        return Err(format!("it is version {major}, and the oldest that will do is {OLDEST}"));
    }
    match confine::closed(&program) {
        Ok(None) => Ok((program, major.to_string())),
        Ok(Some(closed)) => {
            let (program, closed) = (program.display(), closed.display());
            Err(format!("users of functions may not execute {program}: chmod o+x {closed}"))
        }
        Err(error) => Err(format!("{} is not seen: {}", program.display(), words::of(&error))),
    }
}

fn draw_option(files: &Path) -> String {
    format!("--openssl-config={}", files.join(DRAWS).display())
}

/// Whether the program takes the configuration, which it does not start with if it cannot.
fn draws(program: &Path, files: &Path) -> bool {
    let mut command = Command::new(program);
    command.args([&*draw_option(files), "-e", ""]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Writes the server's files where every function may read them.
fn write(at: &Path) -> io::Result<()> {
    fs::create_dir_all(at)?;
    for directory in at.parent().into_iter().chain([at]) {
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    for (name, text) in FILES {
        // Beside it, so that none is ever read half.
        let draft = tempfile::NamedTempFile::new_in(at)?;
        fs::write(draft.path(), text)?;
        fs::set_permissions(draft.path(), Permissions::from_mode(0o644))?;
        draft.persist(at.join(name)).map_err(|error| error.error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
        let bed = tempfile::tempdir().unwrap();
        let path = bed.path().join("node");
        write_program(&path, text);
        (bed, path)
    }

    /// Has another process write it: what this one has open to write, a child that another test forks just
    /// then has, too, and as long as it does the program does not run.
    fn write_program(path: &Path, text: &str) {
        let write = r#"printf %s "$1" >"$0" && chmod 755 "$0""#;
        let done = Command::new("sh").args(["-c", write]).arg(path).arg(text).status().unwrap();
        assert!(done.success());
    }

    #[test]
    fn what_is_no_nodejs_is_told_only_if_it_was_asked_for() {
        for (text, words) in [
            ("#!/bin/sh\necho 16.2.1; echo /bin/sh", "it is version 16"),
            ("#!/bin/sh\necho hello", "does not tell its version"),
            ("#!/bin/sh\necho 20.1.0; echo /nowhere/node", "/nowhere/node is not seen"),
        ] {
            let (bed, path) = script(text);
            let told = NodeJs::find(Some(&path), bed.path()).unwrap_err().to_string();
            assert!(told.contains(words) && told.contains("--nodejs"), "{told}");
        }
        let told = NodeJs::find(Some(Path::new("/nowhere/node")), Path::new("/")).unwrap_err();
        assert!(told.to_string().contains("does not run"), "{told}");
    }

    #[test]
    fn a_nodejs_whose_clones_would_draw_the_same_is_told_from_others() {
        let (bed, path) = script("");
        fs::set_permissions(bed.path(), Permissions::from_mode(0o755)).unwrap();
        let tells = format!("echo 20.1.0; echo {}", path.display());
        for (says, draws) in [("exit 103", false), ("grep -q rdrand ${1#*=}", true)] {
            let text =
                format!("#!/bin/sh\ncase $1 in --openssl-config=*) {says};; *) {tells};; esac\n");
            write_program(&path, &text);
            let nodejs = NodeJs::find(Some(&path), &bed.path().join("files")).unwrap().unwrap();
            let options = nodejs.server(256).arguments.join(" ");
            assert_eq!(options.contains("--openssl-config="), draws, "{options}");
        }
    }

    #[test]
    fn the_servers_files_are_everybodys_to_read() {
        let bed = tempfile::tempdir().unwrap();
        let (_bed, path) = script("#!/bin/sh\necho 20.1.0; echo /bin/sh\n");
        let nodejs = NodeJs::find(Some(&path), &bed.path().join("runtimes")).unwrap().unwrap();
        assert_eq!((&*nodejs.version, &*nodejs.program), ("20", Path::new("/bin/sh")));
        let server = nodejs.server(256);
        let script = Path::new(server.arguments.last().unwrap());
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(script), mode(script.parent().unwrap())), (0o644, 0o755));
        assert_eq!(mode(&bed.path().join("runtimes")), 0o755);
        let text = fs::read_to_string(script).unwrap();
        for (name, _) in &FILES[1..] {
            assert!(script.with_file_name(name).is_file());
            let is_used = |text: &str| text.contains(&format!("./{name}"));
            assert!(*name == DRAWS || FILES.iter().any(|(_, text)| is_used(text)), "{name}");
        }
        assert!(text.contains("/init"));
    }
}
