//! Node.js: the machine's program, and farfork's action server for it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use farfork_sys::words;

use super::Server;
use crate::confine;

/// The oldest version that the server supports.
const OLDEST: u32 = 18;
/// The program if none is named.
const DEFAULT_PROGRAM: &str = "node";
/// Prints the version and the program's path.
const PRINT_VERSION: &str = "console.log(process.versions.node); console.log(process.execPath)";
/// Makes OpenSSL draw random numbers from the processor, so that clones do not share them.
const OPENSSL_CONFIG: &str = "openssl.cnf";
/// The server's files, the first of which is executed.
const FILES: [(&str, &str); 8] = [
    ("action.js", include_str!("nodejs/action.js")),
    ("random.js", include_str!("nodejs/random.js")),
    ("kept.js", include_str!("nodejs/kept.js")),
    ("listening.js", include_str!("nodejs/listening.js")),
    ("load.js", include_str!("nodejs/load.js")),
    (OPENSSL_CONFIG, include_str!("nodejs/openssl.cnf")),
    ("output.js", include_str!("nodejs/output.js")),
    ("environment.js", include_str!("nodejs/environment.js")),
];

/// The given Node.js cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeJsError {
    /// The program is unsuitable.
    #[error("cannot use {} as Node.js: {reason}; name another program by --nodejs", .program.display())]
    Program {
        /// Its path.
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
    /// Whether OpenSSL can draw random numbers from the processor. If not, the server refuses to be
    /// checkpointed.
    has_rdrand: bool,
}

impl NodeJs {
    /// Finds the given program, or the default one; `None` if none was given and the default one
    /// cannot be used. Writes the server's files to the directory `at`.
    pub fn find(program: Option<&Path>, at: &Path) -> Result<Option<NodeJs>, NodeJsError> {
        let tried = program.unwrap_or(Path::new(DEFAULT_PROGRAM));
        match (inspect(tried), program) {
            (Ok((program, version)), _) => {
                let files = at.join("nodejs");
                write(&files)
                    .map_err(|source| NodeJsError::Files { path: files.clone(), source })?;
                let has_rdrand = has_rdrand(&program, &files);
                if !has_rdrand {
                    let node = program.display();
                    tracing::warn!(%node, "Node.js functions are not checkpointed: OpenSSL has no engine rdrand");
                }
                Ok(Some(NodeJs { program, version, files, has_rdrand }))
            }
            (Err(reason), Some(program)) => {
                Err(NodeJsError::Program { program: program.to_owned(), reason })
            }
            (Err(reason), None) => {
                tracing::warn!(reason, "no Node.js: functions of its kind cannot be deployed");
                Ok(None)
            }
        }
    }

    /// The server of an action whose instances may take this many megabytes.
    pub(super) fn server(&self, memory_mb: u64) -> Server {
        // The rest is for what is not in the heap. Without a limit, garbage would grow to
        // gigabytes.
        let heap = format!("--max-old-space-size={}", memory_mb * 3 / 4);
        let script = self.files.join(FILES[0].0).display().to_string();
        let openssl = self.has_rdrand.then(|| openssl_option(&self.files));
        let options = [heap, "--expose-gc".to_owned()].into_iter().chain(openssl);
        let arguments = options.chain([script]).collect();
        Server { program: self.program.clone(), arguments }
    }

    /// A value for tests of other modules.
    #[cfg(test)]
    pub(super) fn for_tests() -> NodeJs {
        let (program, files) = (PathBuf::from("/bin/node"), PathBuf::from("/state/nodejs"));
        NodeJs { program, version: "20".to_owned(), files, has_rdrand: true }
    }
}

/// The program's path and its version.
fn inspect(program: &Path) -> Result<(PathBuf, String), String> {
    let output = Command::new(program).args(["-e", PRINT_VERSION]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("it does not run: {}", words::of(&error)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let mut found = || {
        let major = lines.next()?.split('.').next()?.parse::<u32>().ok()?;
        Some((major, PathBuf::from(lines.next()?)))
    };
    let (major, program) = found().ok_or("it does not print its version as Node.js does")?;
    if major < OLDEST {
        return Err(format!("it is version {major}, but at least {OLDEST} is needed"));
    }
    match confine::not_traversable(&program) {
        Ok(None) => Ok((program, major.to_string())),
        Ok(Some(closed)) => {
            let (program, closed) = (program.display(), closed.display());
            Err(format!("users of functions may not execute {program}: run chmod o+x {closed}"))
        }
        Err(error) => Err(format!("cannot access {}: {}", program.display(), words::of(&error))),
    }
}

fn openssl_option(files: &Path) -> String {
    format!("--openssl-config={}", files.join(OPENSSL_CONFIG).display())
}

/// Whether the program accepts the configuration; without the engine it does not start with it.
fn has_rdrand(program: &Path, files: &Path) -> bool {
    let mut command = Command::new(program);
    command.args([&*openssl_option(files), "-e", ""]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Writes the server's files, readable by every function.
fn write(at: &Path) -> io::Result<()> {
    fs::create_dir_all(at)?;
    for directory in at.parent().into_iter().chain([at]) {
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    for (name, text) in FILES {
        // Renamed into place, so that no process reads a half-written file.
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

    /// Written by another process. A child that another test forks meanwhile would inherit this
    /// process's descriptor, and a program open for writing cannot be executed.
    fn write_program(path: &Path, text: &str) {
        let write = r#"printf %s "$1" >"$0" && chmod 755 "$0""#;
        let done = Command::new("sh").args(["-c", write]).arg(path).arg(text).status().unwrap();
        assert!(done.success());
    }

    #[test]
    fn an_unsuitable_nodejs_is_an_error_only_if_it_was_given() {
        for (text, words) in [
            ("#!/bin/sh\necho 16.2.1; echo /bin/sh", "it is version 16"),
            ("#!/bin/sh\necho hello", "does not print its version"),
            ("#!/bin/sh\necho 20.1.0; echo /nowhere/node", "cannot access /nowhere/node"),
        ] {
            let (bed, path) = script(text);
            let message = NodeJs::find(Some(&path), bed.path()).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains("--nodejs"), "{message}");
        }
        let message = NodeJs::find(Some(Path::new("/nowhere/node")), Path::new("/")).unwrap_err();
        assert!(message.to_string().contains("does not run"), "{message}");
    }

    #[test]
    fn openssl_is_configured_only_where_it_has_the_engine() {
        let (bed, path) = script("");
        fs::set_permissions(bed.path(), Permissions::from_mode(0o755)).unwrap();
        let version = format!("echo 20.1.0; echo {}", path.display());
        for (command, has_rdrand) in [("exit 103", false), ("grep -q rdrand ${1#*=}", true)] {
            let text = format!(
                "#!/bin/sh\ncase $1 in --openssl-config=*) {command};; *) {version};; esac\n"
            );
            write_program(&path, &text);
            let nodejs = NodeJs::find(Some(&path), &bed.path().join("files")).unwrap().unwrap();
            let options = nodejs.server(256).arguments.join(" ");
            assert_eq!(options.contains("--openssl-config="), has_rdrand, "{options}");
        }
    }

    #[test]
    fn the_servers_files_are_readable_by_all() {
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
            assert!(
                *name == OPENSSL_CONFIG || FILES.iter().any(|(_, text)| is_used(text)),
                "{name}"
            );
        }
        assert!(text.contains("/init"));
    }
}
