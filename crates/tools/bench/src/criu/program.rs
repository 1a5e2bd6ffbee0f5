//! The program `criu`, with a tmpfs and a cache for it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use farfork_pool::mount_tmpfs;
use nix::mount::{MntFlags, umount2};

const OLDEST_MAJOR: u32 = 4;
/// Where setup/criu.sh writes the command of the CRIU it unpacked, one word a line: at or above the
/// current directory.
const UNPACKED: &str = "build/criu/command";
/// CRIU's cache of the kernel's features.
const CACHE: &str = "/run/criu.kdat";
/// Fills the cache on a temporary tmpfs and prints it: CRIU writes it only to a tmpfs.
const FILL_CACHE: &str =
    "mount -t tmpfs criu /run && \"$@\" check >/dev/null 2>&1 && cat /run/criu.kdat";

/// A CRIU that works here, and a tmpfs for its images. Dropped, it removes the tmpfs and the cache.
#[derive(Debug)]
pub struct Program {
    /// Its version, as it prints it.
    pub version: String,
    /// Directory of its images.
    pub images: PathBuf,
    command: Vec<OsString>,
    has_made_cache: bool,
}

impl Program {
    /// Looks for a CRIU that works, and mounts a tmpfs of `bytes` at `images`. The error is the reason
    /// for the report.
    pub fn find(images: PathBuf, bytes: u64) -> Result<Program, String> {
        let (command, version) = match (working(vec!["criu".into()]), unpacked()) {
            (Ok(found), _) => found,
            (Err(_), Some(command)) => working(command)?,
            (Err(reason), None) => return Err(reason),
        };
        fs::create_dir(&images)
            .map_err(|error| format!("cannot create {}: {error}", images.display()))?;
        mount_tmpfs(&images, bytes).map_err(|error| error.to_string())?;
        let has_made_cache = !Path::new(CACHE).exists() && fill_cache(&command);
        Ok(Program { version, images, command, has_made_cache })
    }

    /// The command that starts it, by words.
    pub fn command(&self) -> &[OsString] {
        &self.command
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = umount2(&self.images, MntFlags::MNT_DETACH);
        if self.has_made_cache {
            let _ = fs::remove_file(CACHE);
        }
    }
}

fn unpacked() -> Option<Vec<OsString>> {
    let here = std::env::current_dir().ok()?;
    let text = here.ancestors().find_map(|path| fs::read_to_string(path.join(UNPACKED)).ok())?;
    Some(text.lines().map(OsString::from).collect())
}

/// The command and its version, if this CRIU is recent enough and works on this kernel.
fn working(words: Vec<OsString>) -> Result<(Vec<OsString>, String), String> {
    let text = String::from_utf8_lossy(&run(&words, "--version")?.stdout).into_owned();
    let version = version(&text).ok_or("criu --version prints no version")?;
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    if major.is_none_or(|major| major < OLDEST_MAJOR) {
        return Err(format!("CRIU {version} is older than {OLDEST_MAJOR}"));
    }
    run(&words, "check")?;
    Ok((words, version.to_owned()))
}

fn version(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("Version: "))
}

fn run(words: &[OsString], argument: &str) -> Result<Output, String> {
    let output = Command::new(&words[0])
        .args(&words[1..])
        .arg(argument)
        .output()
        .map_err(|_| "the command criu is not installed".to_owned())?;
    if output.status.success() { Ok(output) } else { Err(format!("criu {argument} fails")) }
}

/// Where `/run` is not a tmpfs, CRIU reads a cache there but does not write it. Without this, each run
/// would probe the kernel anew, which takes longer than a small restore.
fn fill_cache(words: &[OsString]) -> bool {
    let filled = Command::new("unshare")
        .args(["--mount", "sh", "-c", FILL_CACHE, "sh"])
        .args(words)
        .stdin(Stdio::null())
        .output();
    let Ok(filled) = filled else { return false };
    let made = || {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(CACHE)?;
        std::io::Write::write_all(&mut file, &filled.stdout)
    };
    filled.status.success() && !filled.stdout.is_empty() && made().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Vec<OsString> {
        ["sh", "-c", text, "sh"].map(OsString::from).to_vec()
    }

    #[test]
    fn an_old_or_a_failing_criu_is_refused() {
        let answers = |version: &str, check: &str| {
            working(script(&format!(
                "case $1 in --version) echo 'Version: {version}';; check) {check};; esac"
            )))
        };
        assert_eq!(answers("4.1.1", "true").unwrap().1, "4.1.1");
        assert_eq!(answers("3.17.1", "true").unwrap_err(), "CRIU 3.17.1 is older than 4");
        assert_eq!(answers("4.0", "false").unwrap_err(), "criu check fails");
        let missing = working(vec!["/nowhere/criu".into()]).unwrap_err();
        assert_eq!(missing, "the command criu is not installed");
    }
}
