//! A user that has only a uid, with a pool and an agent of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, farfork, table, testbed};

/// How long anything may take.
pub const TIMEOUT: Duration = Duration::from_secs(180);
const POOL_SIZE: &str = "1G";

/// A user.
pub struct User {
    directory: PathBuf,
}

/// A uid that no user and no other test on this machine has.
fn number() -> u32 {
    200_000 + std::process::id()
}

/// Where the user's pool is.
fn pool() -> PathBuf {
    PathBuf::from(format!("/dev/shm/farfork-tests-{}/pool", number()))
}

impl User {
    /// The user of all tests here, made at the first call: with a directory, and a pool of
    /// their own making.
    pub fn new() -> Outcome<User> {
        static MADE: OnceLock<Result<(), String>> = OnceLock::new();
        let user = User { directory: testbed::work_dir("user")? };
        let made = MADE.get_or_init(|| user.make().map_err(|trouble| format!("{trouble:?}")));
        made.clone().map_err(Trouble::Failed)?;
        Ok(user)
    }

    fn make(&self) -> Outcome {
        std::os::unix::fs::chown(&self.directory, Some(number()), Some(number()))
            .map_err(|error| Trouble::during("giving a directory away", error))?;
        self.take(&farfork::binary()?)?;
        let create = self.farfork(&["pool", "create", "--size", POOL_SIZE]);
        farfork::must_run({
            let mut create = create;
            create.arg(pool());
            create
        })
        .map(drop)
    }

    /// The user's uid.
    pub fn number(&self) -> u32 {
        number()
    }

    /// A directory that the user owns.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Copies what root has to where the user can read it: a checkout may be root's alone.
    pub fn take(&self, from: &Path) -> Outcome<PathBuf> {
        let place = testbed::work_dir("taken")?;
        let to = place.join(from.file_name().unwrap_or_default());
        // Renamed into place: another test may be running it.
        let fresh = place.join(format!(".{:?}", std::thread::current().id()));
        let mut copy = Command::new("cp");
        copy.args(["-rL", "--"]).arg(from).arg(&fresh);
        if !to.exists() {
            farfork::must_run(copy)?;
            if std::fs::rename(&fresh, &to).is_err() {
                let _ = std::fs::remove_dir_all(&fresh); // another was faster
            }
        }
        Ok(to)
    }

    /// A command that the user runs in their directory.
    pub fn command(&self, program: &Path) -> Command {
        let number = number().to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &number, "--regid", &number, "--clear-groups", "--"]);
        command.arg(program).current_dir(&self.directory);
        command.env_remove("XDG_RUNTIME_DIR").env("HOME", &self.directory);
        command.env("FARFORK_POOL", pool()).env(farfork::RUN, self.directory.join("run"));
        command
    }

    /// `farfork` with arguments, as the user.
    pub fn farfork(&self, arguments: &[&str]) -> Command {
        let binary = self.directory.with_file_name("taken").join("farfork");
        let mut command = self.command(&binary);
        command.args(arguments);
        command
    }

    /// A program of the table that waits for its byte.
    pub fn start(&self, name: &str) -> Outcome<Subject> {
        let program = table::all()
            .find(|program| program.name == name)
            .ok_or_else(|| Trouble::Failed(format!("no program {name}")))?;
        let built = compile::command(program)?;
        let mut command = self.command(&self.take(Path::new(built.get_program()))?);
        command.args(built.get_args()).envs(program.env.iter().copied());
        // A directory for each, since some make files.
        let own = self.directory.join(name);
        std::fs::create_dir_all(&own)
            .and_then(|()| std::os::unix::fs::chown(&own, Some(number()), Some(number())))
            .map_err(|error| Trouble::during("making a directory", error))?;
        let mut subject = Subject::start("the parent", command.current_dir(own), TIMEOUT)?;
        subject.await_ready()?;
        Ok(subject)
    }

    /// Checkpoints, as the user.
    pub fn checkpoint(&self, pid: u32, image: &str, more: &[&str]) -> Outcome {
        let mut command = self.farfork(&["checkpoint", "--name", image, "--pid"]);
        command.arg(pid.to_string()).args(more);
        farfork::must_run(command).map(drop)
    }

    /// An attached clone.
    pub fn clone(&self, image: &str) -> Outcome<Subject> {
        Subject::start("a clone", &mut self.farfork(&["restore", "--json", image]), TIMEOUT)
    }
}

/// A process without standard streams: its clones would keep those of `restore` open. Dropped, it is killed.
pub struct Background(Child);

impl Background {
    /// Starts it.
    pub fn start(command: &mut Command) -> Outcome<Background> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| Trouble::during("starting", error))?;
        Ok(Background(child))
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends the agent that the user's first clone has started and removes their pool; their directory
/// goes with all others.
pub fn tear_down() {
    if let Ok(directory) = testbed::work_dir("user") {
        // There is none if nothing was restored.
        let _ = testbed::end_agent(&directory.join("run/local.sock"));
    }
    if let Some(directory) = pool().parent() {
        let _ = std::fs::remove_dir_all(directory);
    }
}
