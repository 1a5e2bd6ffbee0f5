//! A process without rights, whose files others put in place between checkpoint and restore: its
//! clone gets no more than it could get itself.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use farfork_tests::driver::{self, Tests};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};

const NOBODY: u32 = 65534;

/// A process of the user `nobody` with its log, in a directory of `nobody`.
struct Scene {
    directory: PathBuf,
    image: String,
    pool: &'static Path,
    _parent: Subject,
}

/// Appends a line to its open file after it has read a line.
const SCRIPT: &str = "exec 3>>$1; cd $2; \
    exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all sh -c \
    'echo READY; read line; echo written >&3; echo PASS'";

fn during(what: &str) -> impl Fn(std::io::Error) -> Trouble {
    let what = what.to_owned();
    move |error| Trouble::during(&what, error)
}

impl Scene {
    /// A process of `nobody` that has `log` open, opened as root or as `nobody`.
    fn set(name: &str, is_root_s: bool) -> Outcome<Scene> {
        let pool = testbed::pool()?;
        let directory = testbed::work_dir(&format!("trust-{name}"))?;
        let (open, mine) = (directory.join("open"), directory.join("mine"));
        let failed = during("setting the scene");
        for place in [&open, &mine] {
            fs::create_dir_all(place).map_err(&failed)?;
        }
        fs::write(directory.join("secret"), "the secret\n").map_err(&failed)?;
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(directory.join("secret"), private.clone()).map_err(&failed)?;
        let log = mine.join("log");
        fs::write(&log, "").map_err(&failed)?;
        if is_root_s {
            fs::set_permissions(&log, private).map_err(&failed)?;
        } else {
            chown(&log, Some(NOBODY), Some(NOBODY)).map_err(&failed)?;
        }
        chown(&mine, Some(NOBODY), Some(NOBODY)).map_err(&failed)?;
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(&log).arg(&mine);
        let mut parent = Subject::start("parent", &mut command, Duration::from_secs(180))?;
        parent.await_ready()?;
        let image = format!("test/trust:{name}");
        farfork::must_run(farfork::checkpoint(pool, parent.pid(), &image, &[])?)?;
        Ok(Scene { directory, image, pool, _parent: parent })
    }

    fn log(&self) -> PathBuf {
        self.directory.join("mine/log")
    }

    fn secret(&self) -> PathBuf {
        self.directory.join("secret")
    }

    /// Makes the log lead to the secret.
    fn swap(&self, put: fn(&Path, &Path) -> std::io::Result<()>) -> Outcome {
        let failed = during("putting something else there");
        fs::remove_file(self.log()).map_err(&failed)?;
        put(&self.secret(), &self.log()).map_err(&failed)
    }

    fn clone(&self) -> Outcome<Subject> {
        let mut command = farfork::restore(self.pool, &self.image, &[])?;
        Subject::start("clone", &mut command, Duration::from_secs(180))
    }

    /// No clone starts, the words say why, and the secret stays as it was.
    fn must_fail(&self, word: &str) -> Outcome {
        let mut clone = self.clone()?;
        clone.send_byte();
        let status = clone.finish()?;
        if status.code() != Some(1) || !clone.transcript().contains(word) {
            return clone.fail(&format!("expected exit status 1 and '{word}', saw {status}"));
        }
        let secret = fs::read_to_string(self.secret()).map_err(during("reading the secret"))?;
        if secret != "the secret\n" {
            return Err(Trouble::Failed(format!("the secret is now {secret:?}")));
        }
        farfork::forget(self.pool, &self.image)
    }

    fn must_pass(&self) -> Outcome {
        self.clone()?.must_pass()?;
        let log = fs::read_to_string(self.log()).map_err(during("reading the log"))?;
        if log != "written\n" {
            return Err(Trouble::Failed(format!("expected a line in the log, saw {log:?}")));
        }
        farfork::forget(self.pool, &self.image)
    }
}

fn link_to_a_secret() -> Outcome {
    let scene = Scene::set("symlink", false)?;
    scene.swap(|to, at| symlink(to, at))?;
    scene.must_fail("leads to something else")
}

/// Where nothing keeps users from making hard links of what is not theirs.
fn name_of_a_secret() -> Outcome {
    let scene = Scene::set("hardlink", false)?;
    scene.swap(|to, at| fs::hard_link(to, at))?;
    scene.must_fail("leads to something else")
}

/// The parent had a file of root's open, which it could not open itself.
fn name_of_another_secret() -> Outcome {
    let scene = Scene::set("same-owner", true)?;
    scene.swap(|to, at| fs::hard_link(to, at))?;
    scene.must_fail("leads to something else")
}

fn link_on_the_way() -> Outcome {
    let scene = Scene::set("directory", false)?;
    let (mine, other) = (scene.directory.join("mine"), scene.directory.join("open"));
    let failed = during("moving a directory");
    fs::rename(&mine, scene.directory.join("moved")).map_err(&failed)?;
    fs::write(other.join("log"), "").map_err(&failed)?;
    symlink(&other, &mine).map_err(&failed)?;
    scene.must_fail("leads to something else")
}

fn own_log() -> Outcome {
    Scene::set("own", false)?.must_pass()
}

fn rotated_log() -> Outcome {
    let scene = Scene::set("rotated", false)?;
    let failed = during("rotating the log");
    fs::rename(scene.log(), scene.directory.join("mine/old")).map_err(&failed)?;
    fs::write(scene.log(), "").map_err(&failed)?;
    chown(scene.log(), Some(NOBODY), Some(NOBODY)).map_err(&failed)?;
    scene.must_pass()
}

fn log_of_root() -> Outcome {
    let scene = Scene::set("root-s", true)?;
    let inode = |path: PathBuf| fs::metadata(path).map(|found| found.ino());
    let before = inode(scene.log()).map_err(during("looking at the log"))?;
    scene.must_pass()?;
    let after = inode(scene.log()).map_err(during("looking at the log"))?;
    if before == after { Ok(()) } else { Err(Trouble::Failed("another log".to_owned())) }
}

type Case = (&'static str, fn() -> Outcome);

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    let cases: [Case; 7] = [
        ("a_link_to_a_secret_is_not_followed", link_to_a_secret),
        ("another_file_of_that_name_is_not_opened", name_of_a_secret),
        ("a_file_of_root_s_is_not_taken_for_another", name_of_another_secret),
        ("a_link_on_the_way_is_not_followed", link_on_the_way),
        ("a_log_of_its_own_is_opened", own_log),
        ("a_log_that_was_rotated_is_opened", rotated_log),
        ("a_log_of_root_s_is_opened", log_of_root),
    ];
    for (name, run) in cases {
        tests.add(name, driver::without_clones(), run);
    }
    tests.run()
}
