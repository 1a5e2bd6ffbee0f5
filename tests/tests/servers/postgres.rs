//! PostgreSQL: a postmaster with its helpers and a backend for each client. A clone of it needs
//! files of its own, so each starts on a node that has a copy in the place of the parent's.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use farfork_tests::way::{Place, Way};
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::serving::{self, Server};

/// Makes a private cluster; the other programs lie beside the file that it is a link to.
pub const INITDB: &str = "/usr/lib/postgresql/15/bin/initdb";
const IMAGE: &str = "test/postgres";
/// The server does not run as root.
const USER: &str = "nobody";
/// Where its processes share memory by name.
const SHARED: &str = "/dev/shm";

struct Postgres {
    server: Server,
    directory: PathBuf,
    port: u16,
}

/// A client or server program, run as its user, in the network and among the files of process
/// `place` or of this one.
fn program(name: &str, place: Option<i64>) -> Command {
    let as_user = ["--reuid", USER, "--regid", "nogroup", "--clear-groups", "--"];
    let mut command = match place {
        None => Command::new("setpriv"),
        Some(pid) => {
            let mut enter = Command::new("nsenter");
            enter.args(["-t", &pid.to_string(), "-n", "-m", "setpriv"]);
            enter
        }
    };
    command.args(as_user).arg(Path::new(INITDB).with_file_name(name));
    command
}

fn run(name: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(name);
    command.args(arguments);
    farfork::must_run(command).map(drop)
}

impl Postgres {
    fn start() -> Outcome<Postgres> {
        let directory = testbed::work_dir("postgres")?;
        run("chown", &[USER, &directory.display().to_string()])?;
        let data = directory.join("data");
        farfork::must_run({
            let mut initdb = program("initdb", None);
            initdb.args(["--auth=trust", "--no-sync", "--no-locale", "--pgdata"]).arg(&data);
            initdb.current_dir(&directory);
            initdb
        })?;
        let port = serving::free_port()?;
        let mut command = program("postgres", None);
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "fsync=off", "-D"]);
        command.arg(&data).arg("-k").arg(&directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| Trouble::during("starting postgres", error))?;
        let postgres = Postgres { server: Server::new(child), directory, port };
        testbed::eventually("postgres", || Ok(postgres.ask(None, "select 1")? == "1"))?;
        Ok(postgres)
    }

    fn client(&self, place: Option<i64>, host: &str) -> Command {
        let mut client = program("psql", place);
        client.args(["-XAtq", "-d", "postgres", "-p", &self.port.to_string(), "-h", host]);
        client.current_dir("/");
        client
    }

    /// What a client is answered through the socket in the directory.
    fn ask(&self, place: Option<i64>, statement: &str) -> Outcome<String> {
        let mut client = self.client(place, &self.directory.display().to_string());
        client.args(["-c", statement]);
        Ok(farfork::text(&farfork::run(client)?).trim().to_owned())
    }

    fn expect(&self, place: Option<i64>, statement: &str, expected: &str) -> Outcome {
        let answer = self.ask(place, statement)?;
        if answer == expected {
            return Ok(());
        }
        let what = format!("{statement}, at {place:?}");
        Err(Trouble::Failed(format!("{what}: expected '{expected}', saw '{answer}'")))
    }

    /// A node with the files as they are now at the places of the server's own.
    fn node(&self, name: &str) -> Outcome<Node> {
        let files = testbed::work_dir("postgres-copies")?.join(name);
        run("cp", &["-a", &self.directory.display().to_string(), &files.display().to_string()])?;
        let mounts = format!(
            "ip link set lo up && mkdir {0}/shm && cp -a {SHARED}/PostgreSQL.* {0}/shm \
             && mount --bind {0} {1} && mount -t tmpfs shm {SHARED} \
             && cp -a {1}/shm/PostgreSQL.* {SHARED} && exec \"$@\"",
            files.display(),
            self.directory.display(),
        );
        let mut agent = Command::new("unshare");
        agent.args(["--kill-child", "-fmn", "--", "sh", "-c", &mounts, "agent"]);
        agent.arg(farfork::binary()?).args(["node", "--name", name, "--pool"]);
        agent.arg(testbed::pool()?).env(farfork::RUN, testbed::run_directory());
        agent.stdin(Stdio::null()).stdout(Stdio::null());
        let child = agent.spawn().map_err(|error| Trouble::during("starting a node", error))?;
        let socket = testbed::run_directory().join(format!("{name}.sock"));
        testbed::eventually("another node", || Ok(socket.exists()))?;
        Ok(Node(child))
    }

    /// A connection of the parent's that lives through everything.
    fn session(&self) -> Outcome<Session> {
        let mut client = self.client(None, "127.0.0.1");
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client =
            client.spawn().map_err(|error| Trouble::during("starting a client", error))?;
        let answers = client.stdout.take().map(BufReader::new);
        Ok(Session { client, answers })
    }
}

/// An agent. Dropped, it is ended.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Session {
    client: Child,
    answers: Option<BufReader<std::process::ChildStdout>>,
}

impl Session {
    fn expect(&mut self, statement: &str, expected: &str) -> Outcome {
        let during = |error| Trouble::during("asking the parent on an old connection", error);
        let mut answer = String::new();
        if let Some(input) = &mut self.client.stdin {
            writeln!(input, "{statement};").map_err(during)?;
        }
        if let Some(answers) = &mut self.answers {
            answers.read_line(&mut answer).map_err(during)?;
        }
        match answer.trim() {
            answer if answer == expected => Ok(()),
            other => Err(Trouble::Failed(format!("{statement}: saw '{other}'"))),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// Has two processes work on a query, which takes memory that they share by name.
const IN_PARALLEL: &str = "set force_parallel_mode = on; select sum(a) from t";

/// Two clones answer and write, each to its own files, and so does the parent. The segment of
/// System V by which another postmaster on the same data would notice it is in all of them.
pub fn is_cloned() -> Outcome {
    let parent = Postgres::start()?;
    parent.expect(None, "create table t as select generate_series(1, 1000) as a", "")?;
    let mut session = parent.session()?;
    session.expect("select sum(a) from t", "500500")?;
    serving::must_refuse_checkpoint(parent.server.pid(), IMAGE, &["child process", "--tree"])?;
    serving::checkpoint(parent.server.pid(), IMAGE, &["--tree"])?;
    let _nodes = [parent.node("blue")?, parent.node("red")?];
    // What is of several processes starts in empty ones only.
    let mut ways = Way::in_ghosts();
    ways.retain(|way| way.place == Place::EmptyGhost);
    let _others: Vec<Node> =
        ways.iter().map(|way| parent.node(&way.name())).collect::<Outcome<_>>()?;
    let blue = serving::restored(IMAGE, &["--node", "blue", "--tiering", "moa"])?;
    let red = serving::restored(IMAGE, &["--node", "red", "--tiering", "hybrid"])?;
    for (place, name) in [(Some(blue), "blue"), (Some(red), "red"), (None, "parent")] {
        let write = format!("insert into t values (7); create table {name} (a int); checkpoint");
        for statement in write.split("; ") {
            parent.expect(place, statement, "")?;
        }
        parent.expect(place, IN_PARALLEL, "500507")?;
        parent.expect(place, "vacuum full t", "")?;
    }
    for (place, name) in [(Some(blue), "blue"), (Some(red), "red"), (None, "parent")] {
        let tables = "select relname from pg_class where relkind = 'r' and relname in ('blue', \
                      'red', 'parent')";
        parent.expect(place, tables, name)?;
        parent.expect(place, "select sum(a) from t", "500507")?;
    }
    session.expect("select sum(a) from t", "500507")?;
    must_shut_down(blue)?;
    must_shut_down(red)?;
    farfork::ghosts_possible()?;
    for way in ways {
        works_in_ghost(&parent, way)?;
    }
    farfork::forget(testbed::pool()?, IMAGE)
}

/// In a ghost of the node with the name of the way, a clone does the same.
fn works_in_ghost(parent: &Postgres, way: Way) -> Outcome {
    let (pid, ghost) = serving::in_ghost(way, IMAGE, &["--node", &way.name()])?;
    parent.expect(Some(pid), "insert into t values (7)", "")?;
    parent.expect(Some(pid), IN_PARALLEL, "500507")?;
    parent.expect(Some(pid), "vacuum full t", "")?;
    must_shut_down(pid)?;
    testbed::eventually("a ghost's end", || Ok(farfork::remains(&ghost).is_empty()))
}

/// By the signal at which the server ends its clients' backends, writes what it has, and ends.
fn must_shut_down(pid: i64) -> Outcome {
    let pid = Pid::from_raw(pid as i32);
    kill(pid, Signal::SIGINT).map_err(|error| Trouble::during("asking a clone to end", error))?;
    testbed::eventually("the end of a clone", || Ok(kill(pid, None).is_err()))
}
