//! The `sqlite3` shell, checkpointed with an open transaction. Because of its locks, only one process can go
//! on with it. Because of its files, no process can after another has written.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use farfork_tests::subject::Subject;
use farfork_tests::way::Way;
use farfork_tests::{Outcome, Trouble, farfork, testbed};

use crate::serving;

/// The program.
pub const SHELL: &str = "sqlite3";
const TIMEOUT: Duration = Duration::from_secs(120);
/// Rows that are there before the transaction, and those that it adds.
const BEFORE: usize = 100;
const ADDED: usize = 50;

/// A database in a directory of its own, and the image of a shell that has it open.
struct Scene {
    directory: PathBuf,
    image: String,
    mode: &'static str,
}

impl Scene {
    fn set(name: &str, mode: &'static str) -> Outcome<Scene> {
        let name = format!("sqlite-{name}-{mode}");
        let scene =
            Scene { directory: testbed::work_dir(&name)?, image: format!("test/{name}"), mode };
        scene.once(&format!(
            "pragma journal_mode={mode}; create table t(a, b); \
             with recursive n(i) as (select 1 union all select i + 1 from n limit {BEFORE}) \
             insert into t select i, randomblob(200) from n;"
        ))?;
        Ok(scene)
    }

    fn shell(&self) -> Command {
        let mut command = Command::new(SHELL);
        command.args(["-batch", "db"]).current_dir(&self.directory);
        command
    }

    /// What another shell says, from its start to its end.
    fn once(&self, statements: &str) -> Outcome<String> {
        let mut command = self.shell();
        command.arg(statements);
        Ok(farfork::text(&farfork::run(command)?))
    }

    /// A shell that has written and not committed: its cache is small, so that pages are on disk.
    fn in_transaction(&self) -> Outcome<Subject> {
        let mut shell = Subject::start("the parent", &mut self.shell(), TIMEOUT)?;
        must_say(&mut shell, "select count(*) from t;", &BEFORE.to_string())?;
        let write = format!(
            "pragma cache_size=2; begin; insert into t select a + {BEFORE}, randomblob(2000) \
             from t limit {ADDED}; select 'added', count(*) from t;"
        );
        must_say(&mut shell, &write, &format!("added|{}", BEFORE + ADDED))?;
        Ok(shell)
    }

    fn clone(&self, label: &str, more: &[&str]) -> Outcome<Subject> {
        let mut command = farfork::restore(testbed::pool()?, &self.image, more)?;
        Subject::start(label, &mut command, TIMEOUT)
    }

    /// Commits, ends, and finds everything in the file.
    fn must_commit(&self, shell: &mut Subject) -> Outcome {
        must_say(shell, "commit; select 'committed';", "committed")?;
        shell.send(b".exit\n");
        let status = shell.finish()?;
        if !status.success() {
            return shell.fail(&format!("expected exit status 0, saw {status}"));
        }
        self.must_hold(BEFORE + ADDED)
    }

    fn must_hold(&self, rows: usize) -> Outcome {
        let seen = self.once("pragma integrity_check; select count(*), sum(a) from t;")?;
        let added: usize = (BEFORE + 1..=rows).sum();
        let expected = format!("ok\n{rows}|{}\n", BEFORE * (BEFORE + 1) / 2 + added);
        if seen == expected {
            return Ok(());
        }
        Err(Trouble::Failed(format!("{}: expected {expected}, saw {seen}", self.mode)))
    }

    fn must_be_locked(&self) -> Outcome {
        let seen = self.once("begin immediate; rollback;")?;
        if seen.contains("database is locked") {
            return Ok(());
        }
        Err(Trouble::Failed(format!("expected the lock of the clone's transaction, saw {seen}")))
    }

    /// The parent stands still at the checkpoint and ends with it.
    fn kill(&self, mut parent: Subject) -> Outcome {
        serving::checkpoint(parent.pid(), &self.image, &["--kill"])?;
        parent.finish().map(drop)
    }

    /// Beside its parent a clone would be in the same transaction: the lock is the parent's. After the
    /// parent's commit, the clone's pages are those of an outdated database.
    fn beside(&self) -> Outcome {
        let mut parent = self.in_transaction()?;
        serving::checkpoint(parent.pid(), &self.image, &[])?;
        let other = testbed::other_node(testbed::pool()?, 0)?;
        for node in [&[][..], &["--node", other]] {
            serving::must_refuse_restore(&self.image, node, &["taking a lock", "/db", "--kill"])?;
        }
        self.must_commit(&mut parent)?;
        // Both nodes have just looked at the files, and believe for a while what they have seen.
        for node in [&[][..], &["--node", other]] {
            serving::must_refuse_restore(&self.image, node, &["/db"])?;
        }
        farfork::forget(testbed::pool()?, &self.image)
    }

    /// When the parent is gone one clone takes the transaction over, and no second one: with the
    /// same pid here, and on another node.
    fn killed(&self) -> Outcome {
        let other = testbed::other_node(testbed::pool()?, 0)?;
        self.kill(self.in_transaction()?)?;
        self.taken_over(&["--pid-mode", "same"])?;
        self.once(&format!("delete from t where a > {BEFORE};"))?;
        self.kill(self.in_transaction()?)?;
        self.taken_over(&["--node", other])
    }

    /// The same in ghosts. If another process has written after the creation of the ghost, no clone goes on
    /// with the transaction.
    fn in_ghosts(&self) -> Outcome {
        farfork::ghosts_possible()?;
        for way in Way::in_ghosts() {
            self.kill(self.in_transaction()?)?;
            let ghost = serving::start_ghost(way, &self.image, &[])?;
            self.taken_over(&way.options(Some(&ghost)))?;
            self.once(&format!("delete from t where a > {BEFORE};"))?;

            self.kill(self.in_transaction()?)?;
            let ghost = serving::start_ghost(way, &self.image, &[])?;
            self.once(&format!("insert into t select {BEFORE} + 1, randomblob(300);"))?;
            let words = ["not as they were", "/db"];
            serving::must_refuse_restore(&self.image, &way.options(Some(&ghost)), &words)?;
            self.must_hold(BEFORE + 1)?;
            self.once(&format!("delete from t where a > {BEFORE};"))?;
            farfork::forget(testbed::pool()?, &self.image)?;
        }
        Ok(())
    }

    /// A clone goes on with the transaction of a parent that is gone.
    fn taken_over(&self, more: &[&str]) -> Outcome {
        let mut clone = self.clone("the clone", more)?;
        must_say(
            &mut clone,
            "select 'mine', count(*) from t;",
            &format!("mine|{}", BEFORE + ADDED),
        )?;
        self.must_be_locked()?;
        serving::must_refuse_restore(&self.image, &[], &["taking a lock", "/db"])?;
        self.must_commit(&mut clone)?;
        farfork::forget(testbed::pool()?, &self.image)
    }

    /// Another process writes after the parent's end and before the clone's start.
    fn overtaken(&self) -> Outcome {
        self.kill(self.in_transaction()?)?;
        self.once(&format!("insert into t select {BEFORE} + 1, randomblob(300);"))?;
        self.must_hold(BEFORE + 1)?;
        let words = ["not as they were", "/db"];
        serving::must_refuse_restore(&self.image, &["--pid-mode", "same"], &words)?;
        self.must_hold(BEFORE + 1)?;
        farfork::forget(testbed::pool()?, &self.image)
    }
}

/// Sends statements and waits for the line that is to come of them.
fn must_say(shell: &mut Subject, statements: &str, line: &str) -> Outcome {
    shell.send(format!("{statements}\n").as_bytes());
    shell.await_line(line)
}

pub fn journal_beside_its_parent() -> Outcome {
    Scene::set("beside", "delete")?.beside()
}

pub fn journal_after_a_kill() -> Outcome {
    Scene::set("killed", "delete")?.killed()
}

pub fn journal_overtaken() -> Outcome {
    Scene::set("overtaken", "delete")?.overtaken()
}

pub fn wal_beside_its_parent() -> Outcome {
    Scene::set("beside", "wal")?.beside()
}

pub fn wal_after_a_kill() -> Outcome {
    Scene::set("killed", "wal")?.killed()
}

pub fn wal_overtaken() -> Outcome {
    Scene::set("overtaken", "wal")?.overtaken()
}

pub fn journal_in_ghosts() -> Outcome {
    Scene::set("ghosts", "delete")?.in_ghosts()
}

pub fn wal_in_ghosts() -> Outcome {
    Scene::set("ghosts", "wal")?.in_ghosts()
}

/// Between transactions clones and parent have one database together, as processes do: in WAL mode
/// they see each other through the `-shm` file that all map.
pub fn idle_is_cloned() -> Outcome {
    for mode in ["delete", "wal"] {
        let scene = Scene::set("idle", mode)?;
        let mut parent = Subject::start("the parent", &mut scene.shell(), TIMEOUT)?;
        must_say(&mut parent, "select count(*) from t;", &BEFORE.to_string())?;
        serving::checkpoint(parent.pid(), &scene.image, &[])?;
        let other = testbed::other_node(testbed::pool()?, 0)?;
        let mut everyone =
            vec![scene.clone("clone 1", &[])?, scene.clone("clone 2", &["--node", other])?];
        // Both must exist before the first write: after it the files have changed.
        for clone in &mut everyone {
            must_say(clone, "select 'here';", "here")?;
        }
        everyone.push(parent);
        for (index, shell) in everyone.iter_mut().enumerate() {
            let row = BEFORE + 1 + index;
            let write = format!("insert into t values({row}, 0); select 'rows', count(*) from t;");
            must_say(shell, &write, &format!("rows|{row}"))?;
        }
        for shell in &mut everyone {
            must_say(shell, "select 'all', count(*) from t;", &format!("all|{}", BEFORE + 3))?;
            shell.send(b".exit\n");
            shell.finish()?;
        }
        scene.must_hold(BEFORE + 3)?;
        farfork::forget(testbed::pool()?, &scene.image)?;
    }
    Ok(())
}
