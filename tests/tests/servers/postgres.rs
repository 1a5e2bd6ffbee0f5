//! PostgreSQL: a postmaster with its helpers and a backend for each client.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use farfork_tests::{Outcome, Trouble, farfork, testbed};

use crate::serving::{self, Server};

/// Makes a private cluster; the other programs lie beside the file that it is a link to.
pub const INITDB: &str = "/usr/lib/postgresql/15/bin/initdb";
/// The server does not run as root.
const USER: &str = "nobody";

struct Postgres {
    server: Server,
    directory: PathBuf,
}

/// A program of PostgreSQL's, run as its user.
fn program(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", "nogroup", "--clear-groups", "--"]);
    command.arg(Path::new(INITDB).with_file_name(name));
    command
}

impl Postgres {
    fn start() -> Outcome<Postgres> {
        let directory = testbed::work_dir("postgres")?;
        farfork::must_run({
            let mut chown = Command::new("chown");
            chown.arg(USER).arg(&directory);
            chown
        })?;
        let data = directory.join("data");
        farfork::must_run({
            let mut initdb = program("initdb");
            initdb.args(["--auth=trust", "--no-sync", "--no-locale", "--pgdata"]).arg(&data);
            initdb.current_dir(&directory);
            initdb
        })?;
        let mut command = program("postgres");
        // No TCP address: clients come through a socket in the directory.
        command.args(["-h", "", "-c", "fsync=off", "-D"]).arg(&data).arg("-k").arg(&directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| Trouble::during("starting postgres", error))?;
        let postgres = Postgres { server: Server::new(child), directory };
        testbed::eventually("postgres", || Ok(postgres.ask("select 1")? == "1"))?;
        Ok(postgres)
    }

    /// What a client is answered.
    fn ask(&self, statement: &str) -> Outcome<String> {
        let mut client = program("psql");
        client.args(["-XAtq", "-d", "postgres", "-h"]).arg(&self.directory);
        client.args(["-c", statement]).current_dir(&self.directory);
        Ok(farfork::text(&farfork::run(client)?).trim().to_owned())
    }
}

/// It is a tree, and holds a segment of System V by which another postmaster on the same data would
/// notice it: refused, and it goes on serving.
pub fn is_refused() -> Outcome {
    let parent = Postgres::start()?;
    let fill = "create table t as select generate_series(1, 1000) as a; select sum(a) from t";
    for statement in [fill, "select sum(a) from t"] {
        let answer = parent.ask(statement)?;
        if answer != "500500" {
            return Err(Trouble::Failed(format!("{statement}: {answer}")));
        }
        let image = "test/postgres";
        let more = ["--tree"];
        serving::must_refuse_checkpoint_of(parent.server.pid(), image, &more, &["System V"])?;
    }
    Ok(())
}
