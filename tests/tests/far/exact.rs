//! Exactly the right bytes or an error, when memory is short and when servers do not agree.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use farfork_tests::driver::Tests;
use farfork_tests::nodes::{AWAY, HOME, SOON, demand, missing};
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::Signal;

use crate::bed::Bed;
use crate::failures::{must_end, write_at};

/// Adds the tests.
pub fn add(tests: &mut Tests) {
    tests.add("far::memory_pressure", missing(), memory_pressure);
    tests.add("far::two_servers", missing(), two_servers);
}

/// A cgroup with little memory.
struct Small(PathBuf);

impl Small {
    fn of(bytes: u64) -> Outcome<Small> {
        let name = format!("farfork-far-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/memory").join(&name);
        let (path, limit) = match first.parent().is_some_and(Path::exists) {
            true => (first, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup").join(&name), "memory.max"),
        };
        fs::create_dir(&path)
            .and_then(|()| fs::write(path.join(limit), bytes.to_string()))
            .map_err(|error| Trouble::Skipped(format!("no cgroup that limits memory: {error}")))?;
        Ok(Small(path))
    }

    fn take(&self, pid: i32) -> Outcome {
        let taken = fs::write(self.0.join("cgroup.procs"), pid.to_string());
        taken.map_err(|error| Trouble::during("moving a clone to a cgroup", error))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ =
            testbed::eventually("the cgroup to be empty", || Ok(fs::remove_dir(&self.0).is_ok()));
    }
}

/// Pages that clones map are dropped because memory is short: they are fetched again, or are an error.
fn memory_pressure() -> Outcome {
    let mut bed = Bed::set("pressure")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let small = Small::of(12 << 20)?;
    for round in 0..2 {
        let (mut clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
        small.take(pid)?;
        let (before, _) = bed.fetched()?;
        clone.send_byte();
        bed.must_pass(pid)?;
        let (after, _) = bed.fetched()?;
        demand(after - before > 16 << 20, "dropped pages to be fetched", &(round, before, after))?;
    }
    let (clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
    small.take(pid)?;
    bed.signal_server(Signal::SIGKILL)?;
    must_end(&bed, clone, pid, &["Connection refused", "broke"])
}

/// Two servers have an image of one id, and not the same. The second is refused before a page is read.
fn two_servers() -> Outcome {
    let mut bed = Bed::set("two")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let path = bed.pool.join("names").join(&image).join("latest");
    let cid =
        fs::canonicalize(path).map_err(|error| Trouble::during("finding the image", error))?;
    let cid = cid.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A pool of its own, with a copy.
    let pool = bed.run().join("second");
    let shown = pool.display().to_string();
    farfork::must_run(bed.on(HOME, &["pool", "create", &shown, "--size", "256M"])?)?;
    let mut pull = bed.on(AWAY, &["images", "pull", "--pool", &shown, "--far", bed.address()])?;
    farfork::must_run({
        pull.arg("--far-key").arg(&bed.key).arg(&image);
        pull
    })?;
    let second = "10.77.0.1:7474";
    let serve = ["far", "serve", "--listen", second, "--pool", &shown, "--tcp-only", "--key"];
    let mut server = bed.process_on(HOME, &serve)?;
    let server = server.arg(&bed.key).stderr(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut server = server.map_err(|error| Trouble::during("starting a server", error))?;
    let restore = |more: &[&str]| -> Outcome<Command> {
        let mut command = bed.on(AWAY, &["restore", "--far", second, "--no-prefetch"])?;
        command.arg("--far-key").arg(&bed.key).args(more).arg(&cid);
        Ok(command)
    };
    let tried = || -> Outcome {
        std::thread::sleep(Duration::from_millis(300));
        bed.clone(&image, &["--no-prefetch"])?.must_pass()?;
        // A true copy is accepted.
        Subject::start("clone", &mut restore(&[])?, SOON)?.must_pass()?;
        let unmount = || bed.on(AWAY, &["far", "unmount", second]);
        testbed::eventually("the unmount", || Ok(farfork::run(unmount()?)?.status.success()))?;
        // A byte of the header, whose checksum a forger would make right.
        let file = pool.join("images").join(&cid);
        write_at(&file, 90, b"!")?;
        // The server takes it for another file by the second in which it was written. Within the same one it would refuse what
        // was changed, and the forgery would not be seen here.
        let later = SystemTime::now() + Duration::from_secs(10);
        File::options()
            .write(true)
            .open(&file)
            .and_then(|file| file.set_modified(later))
            .map_err(|error| Trouble::during("dating the forgery", error))?;
        let said = bed.refused(restore(&[])?)?;
        demand(said.contains("is forged or damaged"), "a refusal", &said)?;
        demand(said.contains(bed.address()) && said.contains(second), "both servers", &said)
    };
    let tried = tried();
    let _ = server.kill();
    let _ = server.wait();
    let destroy = ["pool", "destroy", "--force", &shown];
    let _ = farfork::run(bed.on(HOME, &destroy)?);
    tried
}
