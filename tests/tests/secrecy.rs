//! A clone reaches no image but its own, whatever it does: its kernel keeps it in the file that it maps.
//!
//! Nothing confines these clones: they have no filter of functions, only no rights.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use farfork_tests::driver::{self, Tests};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Program, Trouble, compile, farfork, testbed};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(180);
const SECRET_BYTES: usize = 32;
/// What the bytes of the secret are given with, so that who looks for it does not have it.
const MASK: u8 = 0xa5;
/// Without rights.
const USER: &[&str] =
    &["--reuid=200001", "--regid=200001", "--clear-groups", "--inh-caps=-all", "--no-new-privs"];
const OTHER_USER: &[&str] =
    &["--reuid=200002", "--regid=200002", "--clear-groups", "--inh-caps=-all"];
/// By its number root, and no more.
const WITHOUT_CAPABILITIES: &[&str] = &["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];

fn demand(holds: bool, what: &str, seen: &dyn std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(Trouble::Failed(format!("expected {what}, saw {seen:?}"))) }
}

fn during<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Outcome<T> {
    result.map_err(|error| Trouble::during(what, error))
}

/// What a file is known by: its device and inode.
type Inode = (u64, u64);

/// Two programs of two users, checkpointed into one pool, and the files of their images.
struct Scene {
    pool: &'static Path,
    name: String,
    owner: Inode,
    own: Inode,
    /// The images' files, and what was in them at first.
    files: Vec<(PathBuf, Vec<u8>)>,
    _parents: [Subject; 2],
}

impl Scene {
    /// `who` attacks, with the rights that `setpriv` leaves to it.
    fn set(name: &str, who: &str, rights: &[&str]) -> Outcome<Scene> {
        let (pool, name) = (testbed::pool()?, format!("test/secrecy:{name}"));
        let secret = random()?;
        let (mut scene, mut files) = (Vec::new(), Vec::new());
        for (who, rights, of) in [("owner", OTHER_USER, "owner"), (who, rights, "attacker")] {
            let directory = testbed::work_dir(&format!("{}-{of}", name.replace(['/', ':'], "-")))?;
            let mut command = Command::new("setpriv");
            command.args(rights).arg("--").arg(copied(&directory)?).arg(who);
            command.arg(masked(&secret)).arg(images(pool)).current_dir("/");
            let mut parent = Subject::start(of, &mut command, TIMEOUT)?;
            parent.await_ready()?;
            let image = format!("{name}-{of}");
            let made = farfork::must_run(farfork::checkpoint(pool, parent.pid(), &image, &[])?)?;
            let said: Value = during("checkpoint --json", serde_json::from_slice(&made.stdout))?;
            let file = images(pool).join(said["cid"].as_str().unwrap_or_default());
            let found = during("looking at an image", fs::metadata(&file))?;
            let bytes = during("reading an image", fs::read(&file))?;
            files.push((file, bytes));
            scene.push((parent, (found.dev(), found.ino())));
        }
        let is_there = files[0].1.windows(SECRET_BYTES).any(|bytes| bytes == secret);
        demand(is_there, "the secret in its owner's image", &"none")?;
        let [(first, owner), (second, own)] = take_two(scene)?;
        Ok(Scene { pool, name, owner, own, files, _parents: [first, second] })
    }

    /// A clone of the attacker that has tried everything, and waits; the words that it has said.
    fn attack(&self, more: &[&str]) -> Outcome<(Subject, u32)> {
        let image = format!("{}-attacker", self.name);
        let mut command = farfork::restore(self.pool, &image, more)?;
        let mut clone = Subject::start("the clone", &mut command, TIMEOUT)?;
        let pid = begun(&mut clone)?;
        Ok((clone, pid))
    }

    /// Looks from outside at the clone, at what it has forked, and at its init.
    fn look(&self, pid: u32) -> Outcome {
        let all = farfork_images(self.pool)?;
        demand(all.contains(&self.own) && all.contains(&self.owner), "both images", &all)?;
        demand(self.own != self.owner, "two files", &self.own)?;
        let mut seen = BTreeMap::new();
        for pid in family(pid)? {
            let reached: BTreeSet<Inode> = held(pid)?.intersection(&all).copied().collect();
            seen.insert(pid, reached);
        }
        demand(seen.len() >= 3, "a clone, its child and its init", &seen)?;
        let own = BTreeSet::from([self.own]);
        demand(seen[&pid] == own, "the clone's own image alone", &(&seen, self.own))?;
        let is_own = |reached: &BTreeSet<Inode>| reached.is_subset(&own);
        demand(seen.values().all(is_own), "no process with another image", &(&seen, self.own))
    }

    /// Nothing has changed an image.
    fn must_be_the_same(&self) -> Outcome {
        for (file, before) in &self.files {
            let is_same = during("reading an image", fs::read(file))? == *before;
            demand(is_same, "an image that is as it was", file)?;
        }
        Ok(())
    }

    fn forget(self) -> Outcome {
        for of in ["owner", "attacker"] {
            farfork::forget(self.pool, &format!("{}-{of}", self.name))?;
        }
        Ok(())
    }
}

/// Has a clone attack. Its pid, when it has tried everything.
fn begun(clone: &mut Subject) -> Outcome<u32> {
    clone.await_line("]")?; // the end of restore's JSON
    let reported = clone.after("    \"pid\": ").pop().unwrap_or_default();
    let pid = during("the clone's pid", reported.trim_end_matches(',').parse())?;
    clone.send_byte();
    clone.await_line("NOTE LOOK")?;
    Ok(pid)
}

fn take_two<T>(all: Vec<T>) -> Outcome<[T; 2]> {
    all.try_into().map_err(|_| Trouble::Failed("expected two programs".to_owned()))
}

fn random() -> Outcome<[u8; SECRET_BYTES]> {
    let mut bytes = [0; SECRET_BYTES];
    let mut source = during("opening /dev/urandom", fs::File::open("/dev/urandom"))?;
    during("reading it", std::io::Read::read_exact(&mut source, &mut bytes))?;
    Ok(bytes)
}

fn masked(secret: &[u8]) -> String {
    secret.iter().map(|byte| format!("{:02x}", byte ^ MASK)).collect()
}

/// The directory of a pool's images, with a slash at its end.
fn images(pool: &Path) -> PathBuf {
    pool.join("images").join("")
}

/// The program where others than root can execute it: a checkout may be root's alone.
fn copied(to: &Path) -> Outcome<PathBuf> {
    let built = compile::command(&Program::c("neighbours"))?;
    let place = to.join("neighbours");
    // By a process: a file that this one has open for writing is busy in what its other threads fork meanwhile.
    let copied = Command::new("cp").arg(built.get_program()).arg(&place).status();
    demand(during("copying a program", copied)?.success(), "a copy of the program", &place)?;
    Ok(place)
}

/// The files of all images.
fn farfork_images(pool: &Path) -> Outcome<BTreeSet<Inode>> {
    let listed = during("listing the images", fs::read_dir(images(pool)))?;
    let found = listed.flatten().filter_map(|entry| entry.metadata().ok());
    Ok(found.map(|found| (found.dev(), found.ino())).collect())
}

/// A clone, its init, and all that the clone has forked.
fn family(pid: u32) -> Outcome<Vec<u32>> {
    let status = during("its status", fs::read_to_string(format!("/proc/{pid}/status")))?;
    let init = status.lines().find_map(|line| line.strip_prefix("PPid:\t"));
    let init = during("its init's pid", init.unwrap_or_default().parse::<u32>())?;
    let (mut all, mut next) = (vec![init], 0);
    while let Some(pid) = all.get(next).copied() {
        let tasks = during("its threads", fs::read_dir(format!("/proc/{pid}/task")))?;
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        next += 1;
    }
    Ok(all)
}

/// The files that a process maps or has open.
fn held(pid: u32) -> Outcome<BTreeSet<Inode>> {
    let mut all = BTreeSet::new();
    for kind in ["map_files", "fd"] {
        let listed = during("its files", fs::read_dir(format!("/proc/{pid}/{kind}")))?;
        let found = listed.flatten().filter_map(|entry| fs::metadata(entry.path()).ok());
        all.extend(found.map(|found| (found.dev(), found.ino())));
    }
    Ok(all)
}

/// What stands before `word` in the last line of the attack.
fn count(clone: &Subject, word: &str) -> u64 {
    let line = clone.after("NOTE ATTACK ").pop().unwrap_or_default();
    let parts = line.split(", ").find_map(|part| part.strip_prefix(word)?.trim().parse().ok());
    parts.unwrap_or(0)
}

fn reaches_nothing(name: &str, rights: &[&str], more: &[&str]) -> Outcome {
    let scene = Scene::set(name, "attacker", rights)?;
    let (mut clone, pid) = scene.attack(more)?;
    scene.look(pid)?;
    let reached = clone.after("NOTE REACHED ");
    demand(reached.is_empty(), "nothing reached", &reached)?;
    let [tried, read, past_end] = ["tried", "read", "past the end"].map(|word| count(&clone, word));
    // Some attempts take their own code away.
    demand(tried > 100 && read * 10 > tried * 9, "attempts that look", &clone.transcript())?;
    demand(past_end > 30, "SIGBUS past the image's end", &clone.transcript())?;
    clone.must_pass()?;
    scene.must_be_the_same()?;
    scene.forget()
}

/// What looks for the secret finds it where it is: or the tests above would show nothing.
fn finds_what_it_has() -> Outcome {
    let scene = Scene::set("betrayed", "betrayed", USER)?;
    let (mut clone, _) = scene.attack(&[])?;
    let found = clone.after("NOTE REACHED ");
    // Where it was, and where a mapping grew over it.
    for way in ["nothing", "grow far", "fork, then grow", "/proc/self/mem"] {
        let finds = |line: &String| line.contains(way) && line.contains("has the secret");
        demand(found.iter().any(finds), &format!("'{way}' to find it"), &clone.transcript())?;
    }
    clone.must_pass()?;
    scene.forget()
}

/// A tree lies in one image. Its first process attacks, and its child has the secret.
fn of_a_tree(who: &str) -> Outcome<(Subject, Subject, u32)> {
    let (pool, image) = (testbed::pool()?, format!("test/secrecy:{who}"));
    let directory = testbed::work_dir(&image.replace(['/', ':'], "-"))?;
    let mut command = Command::new(copied(&directory)?);
    command.arg(who).arg(masked(&random()?)).arg(images(pool)).current_dir("/");
    let mut parent = Subject::start(who, &mut command, TIMEOUT)?;
    parent.await_ready()?;
    farfork::must_run(farfork::checkpoint(pool, parent.pid(), &image, &["--tree"])?)?;
    let mut command = farfork::restore(pool, &image, &[])?;
    let mut clone = Subject::start("the clone", &mut command, TIMEOUT)?;
    let pid = begun(&mut clone)?;
    farfork::forget(pool, &image)?;
    Ok((parent, clone, pid))
}

fn reaches_no_other_user_of_its_tree() -> Outcome {
    let (_parent, mut clone, pid) = of_a_tree("parent")?;
    let reached = clone.after("NOTE REACHED ");
    demand(reached.is_empty(), "nothing reached", &reached)?;
    let images = farfork_images(testbed::pool()?)?;
    for pid in family(pid)? {
        let holds: Vec<Inode> = held(pid)?.intersection(&images).copied().collect();
        demand(holds.is_empty(), "no process that holds an image", &(pid, holds))?;
    }
    clone.must_pass()
}

/// Processes of one user may read each other anyway, and share the image.
fn reaches_its_own_user_in_its_tree() -> Outcome {
    let (_parent, mut clone, _) = of_a_tree("relative")?;
    let found = clone.after("NOTE REACHED ");
    let finds = |line: &String| line.contains("grow") && line.contains("has the secret");
    demand(found.iter().any(finds), "growing to find it", &clone.transcript())?;
    clone.must_pass()
}

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    let missing = driver::without_clones();
    let rights = [("a_user", USER), ("root_without_capabilities", WITHOUT_CAPABILITIES)];
    for (who, rights) in rights {
        let tierings: &[&str] = if who == "a_user" { &["mow", "moa", "copy"] } else { &["mow"] };
        for tiering in tierings {
            let name = format!("{who}_reaches_no_other_image::{tiering}");
            tests.add(name.clone(), missing.clone(), move || {
                reaches_nothing(&format!("{who}-{tiering}"), rights, &["--tiering", tiering])
            });
        }
    }
    tests.add("a_secret_that_is_there_is_found", missing.clone(), finds_what_it_has);
    tests.add("other_users_of_a_tree", missing.clone(), reaches_no_other_user_of_its_tree);
    tests.add("one_user_of_a_tree", missing, reaches_its_own_user_in_its_tree);
    tests.run()
}
