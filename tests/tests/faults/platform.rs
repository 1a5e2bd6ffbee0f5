//! A scene where `farfork serve` runs functions on one node, and what the command line asks of it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use farfork_tests::{Outcome, Trouble, farfork};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::scene::{Scene, await_until, demand, during, fail};

/// A platform of one node.
pub struct Platform {
    gateway: Gateway,
    scene: Scene,
    function: PathBuf,
}

/// The gateway, and those after it. Dropped, it is killed, and what it has kept is removed.
struct Gateway {
    state: PathBuf,
    python: PathBuf,
    /// Waits for it instead of its parent: here, its tracer would get its end first.
    shell: Option<Child>,
    pid: u32,
    address: String,
}

impl Platform {
    /// One with this Python function to deploy.
    pub fn set(code: &str) -> Outcome<Platform> {
        farfork::ghosts_possible()?;
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python");
        if !python.exists() {
            return Err(Trouble::Skipped("functions need .venv: setup/python.sh makes it".into()));
        }
        let scene = Scene::set(128)?;
        let function = scene.directory().join("function.py");
        fs::write(&function, code).map_err(during("writing a function"))?;
        // Users of functions have to pass it, and have a /tmp of their own.
        let state = Path::new("/run").join(scene.directory().file_name().unwrap_or_default());
        fs::create_dir(&state).map_err(during("making a directory"))?;
        let address = "127.0.0.1:0".to_owned();
        let mut gateway = Gateway { state, python, shell: None, pid: 0, address };
        let mode = Permissions::from_mode(0o711);
        fs::set_permissions(&gateway.state, mode).map_err(during("making a directory"))?;
        gateway.begin(&scene)?;
        Ok(Platform { gateway, scene, function })
    }

    /// The pid of the gateway.
    pub fn gateway(&self) -> u32 {
        self.gateway.pid
    }

    /// Kills the gateway if it has not been, and starts the next one.
    pub fn replace_gateway(&mut self) -> Outcome {
        self.gateway.end(Signal::SIGKILL)?;
        self.gateway.begin(&self.scene)
    }

    /// Asks the platform by the command line.
    pub fn ask(&self, arguments: &[&str]) -> Outcome<Output> {
        let key = self.gateway.state.join("guest.key");
        let key = fs::read_to_string(key).map_err(during("reading a key"))?;
        let mut command = self.scene.command(arguments)?;
        command.env("FARFORK_URL", format!("http://{}", self.gateway.address));
        command.env("FARFORK_KEY", key.trim());
        farfork::run(command)
    }

    /// Asks for what has to work; what is printed.
    pub fn works(&self, arguments: &[&str]) -> Outcome<String> {
        let output = self.ask(arguments)?;
        let text = farfork::text(&output);
        demand(output.status.success(), format!("{arguments:?}: {}\n{text}", output.status))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Deploys the function by this name.
    pub fn deploy(&self, name: &str) -> Outcome {
        self.works(&["deploy", "--name", name, &self.function.to_string_lossy()]).map(drop)
    }

    /// Adds to a failure what the gateways have logged last.
    pub fn with_log<T>(&self, outcome: Outcome<T>) -> Outcome<T> {
        outcome.map_err(|trouble| self.gateway.reported(trouble))
    }

    /// Demands that it ends in order, and that nothing is left of it.
    pub fn strike(mut self) -> Outcome {
        let is_in_order = self.gateway.end(Signal::SIGTERM)?;
        self.with_log(demand(is_in_order, "the gateway failed when it was to end"))?;
        let ghosts = self.scene.directory().join("run/node1.ghosts");
        let containers = ghosts.join("runc");
        let left = || -> Vec<PathBuf> {
            let entries = [&ghosts, &containers].map(fs::read_dir).into_iter().flatten().flatten();
            entries.flatten().map(|entry| entry.path()).filter(|path| *path != containers).collect()
        };
        await_until("containers are gone", || left().is_empty())
            .or_else(|_| fail(format!("containers stay behind: {:?}", left())))?;
        self.scene.check()?;
        self.scene.strike()
    }
}

impl Gateway {
    /// Starts the first, or the next, where the last one has listened; waits until it serves.
    fn begin(&mut self, scene: &Scene) -> Outcome {
        let said = self.state.join("said");
        let out = File::create(&said).map_err(during("making a file"))?;
        let log = OpenOptions::new().create(true).append(true).open(self.log());
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\" & echo $!; wait $!", "sh"]).arg(farfork::binary()?);
        command.args(["serve", "--nodes", "1", "--listen", &self.address, "--state"]);
        command.arg(&self.state).arg("--python").arg(&self.python);
        scene.set_place_of(&mut command);
        command.stdin(Stdio::null()).stdout(out).stderr(log.map_err(during("opening a log"))?);
        self.shell = Some(command.spawn().map_err(during("starting a gateway"))?);
        let reported = || -> Option<(u32, String)> {
            let text = fs::read_to_string(&said).ok()?;
            let (pid, address) = text.strip_suffix('\n')?.split_once('\n')?;
            Some((pid.parse().ok()?, address.strip_prefix("http://")?.to_owned()))
        };
        await_until("a gateway serves", || reported().is_some())
            .map_err(|trouble| self.reported(trouble))?;
        (self.pid, self.address) = reported().unwrap_or_default();
        Ok(())
    }

    /// Sends a signal that ends it, if it goes on; whether its end was in order.
    fn end(&mut self, signal: Signal) -> Outcome<bool> {
        let Some(mut shell) = self.shell.take() else { return Ok(true) };
        let _ = kill(Pid::from_raw(self.pid as i32), signal);
        Ok(shell.wait().map_err(during("waiting for a gateway"))?.success())
    }

    fn log(&self) -> PathBuf {
        self.state.join("log")
    }

    fn reported(&self, trouble: Trouble) -> Trouble {
        let Trouble::Failed(why) = trouble else { return trouble };
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let mut lines: Vec<&str> = log.lines().rev().take(40).collect();
        lines.reverse();
        Trouble::Failed(format!("{why}\nthe gateways' last words:\n{}", lines.join("\n")))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.pid > 0 {
            let _ = self.end(Signal::SIGKILL);
        }
        let _ = fs::remove_dir_all(&self.state);
    }
}
