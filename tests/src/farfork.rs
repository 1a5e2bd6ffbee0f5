//! The calls of the command `farfork` that the flavours make.

use crate::patience::Patience;
use crate::places::{profile_dir, run_directory};
use crate::{Outcome, Trouble};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// The variable that says where agents listen.
pub const RUN: &str = "FARFORK_RUN";

/// `$FARFORK_BIN`, or the binary beside the tests.
pub fn binary() -> Outcome<PathBuf> {
    let path = match std::env::var_os("FARFORK_BIN") {
        Some(path) => PathBuf::from(path),
        None => profile_dir()?.join("farfork"),
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(Trouble::Skipped(format!("no {}: build farfork or set FARFORK_BIN", path.display())))
}

/// What ends a command that hangs and that no test waits for any more. How long a test waits is for [`Patience`] to say: this
/// counts by the clock.
pub(crate) const BACKSTOP: [&str; 3] = ["timeout", "--kill-after=5", "3600"];

/// How long a command may take that does not hang.
const LIMIT: Duration = Duration::from_secs(300);

/// How long one takes to end that is asked to.
const ENDING: Duration = Duration::from_secs(10);

/// A `farfork` command line to be completed, which is ended when it hangs.
pub fn command(arguments: &[&str]) -> Outcome<Command> {
    let [first, rest @ ..] = BACKSTOP;
    let mut command = Command::new(first);
    command.args(rest).arg(binary()?).args(arguments);
    command.env(RUN, run_directory());
    Ok(command)
}

/// What a finished command printed on both sides.
pub fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs to the end, without input. One that hangs is asked to end, and the test fails.
pub fn run(mut command: Command) -> Outcome<Output> {
    let what = format!("{command:?}");
    let failed = |error| Trouble::during(&what, error);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(failed)?;
    let process = farfork_sys::pidfd::open(child.id().cast_signed()).map_err(failed)?;
    let (sender, ended) = channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    let mut patience = Patience::new(LIMIT);
    while !patience.is_over() {
        if let Ok(output) = ended.recv_timeout(patience.slice()) {
            return output.map_err(failed);
        }
    }
    let _ = farfork_sys::pidfd::send_signal(&process, Signal::SIGTERM as i32);
    let printed = ended.recv_timeout(ENDING).ok().and_then(Result::ok);
    let printed = printed.as_ref().map(text).unwrap_or_default();
    Err(Trouble::during(&what, format!("hangs\n{printed}")))
}

/// Runs to the end and demands exit status 0.
pub fn must_run(command: Command) -> Outcome<Output> {
    let what = format!("{command:?}");
    let output = run(command)?;
    if output.status.success() {
        return Ok(output);
    }
    Err(Trouble::during(&what, format!("{}\n{}", output.status, text(&output))))
}

/// `farfork checkpoint` of `pid` as `image`, with further arguments.
pub fn checkpoint(pool: &Path, pid: u32, image: &str, more: &[&str]) -> Outcome<Command> {
    let mut command = command(&["checkpoint", "--json", "--name", image, "--pid"])?;
    command.arg(pid.to_string()).arg("--pool").arg(pool).args(more);
    Ok(command)
}

/// `farfork restore` of `image`, attached: the clone's fds 0 to 2 and exit status are its own.
pub fn restore(pool: &Path, image: &str, more: &[&str]) -> Outcome<Command> {
    let mut command = Command::new(binary()?);
    command.args(["restore", "--json", "--pool"]).arg(pool).args(more).arg(image);
    command.env(RUN, run_directory());
    Ok(command)
}

/// Whether containers can be made here.
pub fn ghosts_possible() -> Outcome {
    // Asked once for every test, and the same each time.
    static HAS_RUNC: LazyLock<bool> = LazyLock::new(|| {
        let runc = Command::new("runc").arg("--version").output();
        runc.is_ok_and(|output| output.status.success())
    });
    if *HAS_RUNC {
        return Ok(());
    }
    Err(Trouble::Skipped("ghosts need runc: setup/system.sh installs it".into()))
}

/// `farfork ghost start` on this node; its name.
pub fn start_ghost(more: &[&str]) -> Outcome<String> {
    let mut command = command(&["ghost", "start"])?;
    command.args(more);
    let output = must_run(command)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What of a ghost `runc` and the kernel still have: its state, its bundle, its cgroups.
pub fn remains(ghost: &str) -> Vec<PathBuf> {
    let places = run_directory().join("local.ghosts");
    let kept = [places.join(ghost), places.join("runc").join(ghost)];
    kept.into_iter().filter(|path| path.exists()).chain(cgroups(ghost)).collect()
}

/// The cgroups of a ghost.
pub fn cgroups(ghost: &str) -> Vec<PathBuf> {
    let name = format!("farfork-{ghost}");
    let found = Command::new("find").args(["/sys/fs/cgroup", "-name", &name]).output();
    let text = found.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().map(PathBuf::from).collect()
}

/// Demands that nothing of a ghost is left.
pub fn must_be_gone(ghost: &str) -> Outcome {
    match remains(ghost) {
        nothing if nothing.is_empty() => Ok(()),
        left => Err(Trouble::Failed(format!("of ghost {ghost} there is still {left:?}"))),
    }
}

/// What the catalog lists, as the command prints it.
pub fn images(pool: &Path) -> Outcome<String> {
    let mut command = command(&["images", "list", "--json", "--pool"])?;
    command.arg(pool);
    let output = must_run(command)?;
    serde_json::from_slice::<serde_json::Value>(&output.stdout)
        .map(|value| value.to_string())
        .map_err(|error| Trouble::during("images list --json", error))
}

/// Removes an image, so that the pool lasts for the next test.
pub fn forget(pool: &Path, image: &str) -> Outcome {
    let mut command = command(&["images", "rm", "--pool"])?;
    command.arg(pool).arg(image);
    must_run(command).map(drop)
}
