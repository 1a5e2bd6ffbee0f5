//! What is not there is an error that names the source, by the deadline. It is never other bytes.

use std::fs::{self, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use farfork_tests::driver::Tests;
use farfork_tests::nodes::{AWAY, SOON};
use farfork_tests::nodes::{demand, missing};
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::bed::Bed;

/// Above a deadline: a fault is tried twice, and the machine has other things to do.
const MARGIN: Duration = Duration::from_secs(4);

/// Adds the tests.
pub fn add(tests: &mut Tests) {
    tests.add("far::server_killed", missing(), server_killed);
    tests.add("far::server_stopped", missing(), server_stopped);
    tests.add("far::cable_cut", missing(), cable_cut);
    tests.add("far::system_call", missing(), system_call);
    tests.add("far::clone_killed_while_it_waits", missing(), clone_killed_while_it_waits);
    tests.add("far::far_process_killed", missing(), far_process_killed);
    tests.add("far::far_process_killed_often", missing(), far_process_killed_often);
    tests.add("far::command_without_far_process", missing(), command_without_far_process);
    tests.add("far::holder_killed", missing(), holder_killed);
    tests.add("far::both_killed", missing(), both_killed);
    tests.add("far::far_process_stopped", missing().or_else(not_long), far_process_stopped);
    tests.add("far::dropped_pages", missing(), dropped_pages);
    tests.add("far::mounted_elsewhere", missing(), mounted_elsewhere);
    tests.add("far::wrong_key", missing(), wrong_key);
    tests.add("far::changed_image", missing(), changed_image);
    tests.add("far::other_image", missing(), other_image);
}

/// A clone that has its first pages, and can be waited for.
fn scene(bed: &mut Bed) -> Outcome<(Subject, i32, String)> {
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let (mut clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
    clone.send(b"t");
    clone.await_line("NOTE touched 1")?;
    Ok((clone, pid, image))
}

/// The clone touches what is not there; demands SIGBUS in time, with page, source and cause.
pub fn must_end(bed: &Bed, mut clone: Subject, pid: i32, causes: &[&str]) -> Outcome {
    clone.send_byte();
    let (end, took) = bed.wait(pid)?;
    demand(took < 2 * bed.deadline + MARGIN, "an end by the deadline", &took)?;
    demand(end["signal"] == libc_sigbus(), "SIGBUS", &end)?;
    demand(end["status"].is_null() && end["page"].is_u64(), "a page", &end)?;
    demand(end["source"] == format!("tcp://{}", bed.address()), "the source", &end)?;
    let cause = end["cause"].as_str().unwrap_or_default();
    demand(causes.iter().any(|known| cause.contains(known)), "the cause", &end)?;
    demand(cause.contains(bed.address()), "the address in the cause", &end)?;
    demand(!clone.said("PASS"), "no answer", &clone.transcript())
}

fn libc_sigbus() -> Value {
    Value::from(Signal::SIGBUS as i32)
}

fn server_killed() -> Outcome {
    let mut bed = Bed::hasty("killed")?;
    let (clone, pid, image) = scene(&mut bed)?;
    bed.signal_server(Signal::SIGKILL)?;
    must_end(&bed, clone, pid, &["Connection refused", "broke"])?;
    let said = bed.refused(bed.restore(&image, &[])?)?;
    demand(said.contains(bed.address()) && said.contains("refused"), "a named error", &said)
}

fn server_stopped() -> Outcome {
    let mut bed = Bed::hasty("stopped")?;
    let (clone, pid, _) = scene(&mut bed)?;
    bed.signal_server(Signal::SIGSTOP)?;
    must_end(&bed, clone, pid, &["did not answer within the deadline"])?;
    // What does not answer for a while is not given up for good.
    bed.signal_server(Signal::SIGCONT)?;
    let image = format!("far/{}", "stopped");
    bed.clone(&image, &["--no-prefetch"])?.must_pass()
}

fn cable_cut() -> Outcome {
    let mut bed = Bed::hasty("cut")?;
    let (clone, pid, _) = scene(&mut bed)?;
    bed.cut()?;
    must_end(&bed, clone, pid, &["did not answer within the deadline", "unreachable", "timed out"])
}

/// A system call gets an error, and the process goes on.
fn system_call() -> Outcome {
    let mut bed = Bed::hasty("call")?;
    let (mut clone, _, _) = scene(&mut bed)?;
    // With all the code that it needs for the second call.
    clone.send(b"f");
    clone.await_line("NOTE write 64 0")?;
    bed.signal_server(Signal::SIGKILL)?;
    clone.send(b"f");
    clone.await_line(&format!("NOTE write -1 {}", nix::errno::Errno::EFAULT as i32))
}

fn clone_killed_while_it_waits() -> Outcome {
    let mut bed = Bed::hasty("waits")?;
    let (mut clone, pid, _) = scene(&mut bed)?;
    bed.signal_server(Signal::SIGSTOP)?;
    clone.send_byte();
    std::thread::sleep(bed.deadline / 4);
    let begun = Instant::now();
    kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(|error| Trouble::during("kill", error))?;
    let (end, _) = bed.wait(pid)?;
    demand(begun.elapsed() < bed.deadline + MARGIN, "an end by the deadline", &begun.elapsed())?;
    demand(end["signal"] == Signal::SIGKILL as i32, "the signal", &end)
}

/// What was asked of a far process that is killed is answered by the next one.
fn far_process_killed() -> Outcome {
    let mut bed = Bed::set("process")?;
    let (mut clone, pid, _) = scene(&mut bed)?;
    // The clone waits for a page that the far process has asked for.
    bed.signal_server(Signal::SIGSTOP)?;
    clone.send_byte();
    std::thread::sleep(bed.deadline / 4);
    let first = bed.far_process("pid")?;
    kill(first, Signal::SIGKILL).map_err(|error| Trouble::during("kill", error))?;
    bed.signal_server(Signal::SIGCONT)?;
    bed.must_pass(pid)?;
    demand(bed.far_process("pid")? != first, "another far process", &first)
}

/// Several clones read while one far process after the other is killed.
fn far_process_killed_often() -> Outcome {
    let mut bed = Bed::set("often")?;
    let (first, pid, image) = scene(&mut bed)?;
    let mut clones = vec![(first, pid)];
    for _ in 0..2 {
        clones.push(bed.detached(&image, &["--no-prefetch"])?);
    }
    for (clone, _) in &mut clones {
        clone.send_byte();
    }
    // As often as a holder accepts it in so short a time.
    for kills in 1..=5 {
        let Ok(far) = bed.far_process("pid") else {
            // The next one does not listen yet.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        kill(far, Signal::SIGKILL).map_err(|error| Trouble::during("kill", error))?;
        std::thread::sleep(Duration::from_millis(5 * kills));
    }
    clones.iter().try_for_each(|(_, pid)| bed.must_pass(*pid))
}

/// A command that comes between two far processes waits for the next one, and mounts nothing: before and after the holder
/// was killed.
fn command_without_far_process() -> Outcome {
    let mut bed = Bed::set("between")?;
    let (mut clone, pid, image) = scene(&mut bed)?;
    command_between(&bed, &image)?;
    let (far, holder) = (bed.far_process("pid")?, bed.far_process("holder_pid")?);
    kill(holder, Signal::SIGKILL).map_err(|error| Trouble::during("kill", error))?;
    let adopted = || Ok(bed.far_process("holder_pid").is_ok_and(|holder| holder == far));
    testbed::eventually("the far process to be the holder", adopted)?;
    command_between(&bed, &image)?;
    clone.send_byte();
    bed.must_pass(pid)
}

/// The device of the one mount, which another mount in its place would not have.
fn mounted(bed: &Bed) -> Outcome<u64> {
    let failed = |error| Trouble::during("looking at the mount", error);
    let mut places = fs::read_dir(bed.run().join("far")).map_err(failed)?.flatten();
    let place = places.next().ok_or_else(|| Trouble::during("looking at the mount", "none"))?;
    Ok(fs::metadata(place.path().join("pool/images")).map_err(failed)?.dev())
}

fn command_between(bed: &Bed, image: &str) -> Outcome {
    let mount = mounted(bed)?;
    let (far, holder) = (bed.far_process("pid")?, bed.far_process("holder_pid")?);
    let send = |pid, signal| kill(pid, signal).map_err(|error| Trouble::during("kill", error));
    // A holder that is stopped starts nothing.
    send(holder, Signal::SIGSTOP)?;
    send(far, Signal::SIGKILL)?;
    let other = bed.clone(image, &["--detach", "--no-prefetch"]);
    std::thread::sleep(Duration::from_millis(400));
    send(holder, Signal::SIGCONT)?;
    let mut other = other?;
    let pid = bed.pid_of(&mut other)?;
    demand(bed.far_process("holder_pid")? == holder, "the holder as before", &holder)?;
    demand(mounted(bed)? == mount, "the mount as before", &mount)?;
    other.send_byte();
    bed.must_pass(pid)
}

/// When the holder is killed, its far process becomes the holder: what was asked, and what is asked later, is answered.
fn holder_killed() -> Outcome {
    let mut bed = Bed::set("holder")?;
    let (mut clone, pid, image) = scene(&mut bed)?;
    // The clone waits for a page that the far process has asked for.
    bed.signal_server(Signal::SIGSTOP)?;
    clone.send_byte();
    std::thread::sleep(bed.deadline / 4);
    let (far, holder) = (bed.far_process("pid")?, bed.far_process("holder_pid")?);
    kill(holder, Signal::SIGKILL).map_err(|error| Trouble::during("kill", error))?;
    bed.signal_server(Signal::SIGCONT)?;
    bed.must_pass(pid)?;
    let adopted = || Ok(bed.far_process("holder_pid").is_ok_and(|holder| holder == far));
    testbed::eventually("the far process to be the holder", adopted)?;
    // The new holder does what the first one did.
    let next = bed.far_process("pid")?;
    kill(next, Signal::SIGKILL).map_err(|error| Trouble::during("kill", error))?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()
}

/// With holder and far process gone at once, the kernel ends what waits; the next restore mounts anew.
fn both_killed() -> Outcome {
    let mut bed = Bed::hasty("both")?;
    let (mut clone, pid, image) = scene(&mut bed)?;
    let (far, holder) = (bed.far_process("pid")?, bed.far_process("holder_pid")?);
    // One that is stopped becomes nothing.
    kill(far, Signal::SIGSTOP).map_err(|error| Trouble::during("kill", error))?;
    kill(holder, Signal::SIGKILL).map_err(|error| Trouble::during("kill", error))?;
    kill(far, Signal::SIGKILL).map_err(|error| Trouble::during("kill", error))?;
    clone.send_byte();
    let (end, took) = bed.wait(pid)?;
    demand(took < MARGIN && end["signal"] == libc_sigbus(), "SIGBUS at once", &(end, took))?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()
}

/// Why a test that waits for the kernel does not run.
fn not_long() -> Option<String> {
    let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
    (!is_long).then(|| "it takes half a minute (FARFORK_TEST_LONG=1 has it)".to_owned())
}

/// The kernel ends a file system whose process answers nothing.
fn far_process_stopped() -> Outcome {
    if !Path::new("/proc/sys/fs/fuse/max_request_timeout").exists() {
        return Err(Trouble::Skipped("requests have a limit since Linux 6.14".to_owned()));
    }
    let mut bed = Bed::set("halted")?;
    let (mut clone, pid, image) = scene(&mut bed)?;
    let (far, holder) = (bed.far_process("pid")?, bed.far_process("holder_pid")?);
    let send = |signal| kill(far, signal).map_err(|error| Trouble::during("kill", error));
    send(Signal::SIGSTOP)?;
    clone.send_byte();
    let (end, took) = bed.wait(pid)?;
    // 15 s are the least limit, and it is looked at every 15 s.
    demand(took < Duration::from_secs(32) + MARGIN, "an end", &took)?;
    demand(end["signal"] == libc_sigbus(), "SIGBUS", &end)?;
    // While it is still stopped, another takes its place.
    bed.clone(&image, &["--no-prefetch"])?.must_pass()?;
    demand(bed.far_process("pid")? != far, "another far process", &far)?;
    demand(send(Signal::SIGCONT).is_err(), "the end of the one that was stopped", &far)?;
    testbed::eventually("the end of what the kernel has ended", || Ok(kill(holder, None).is_err()))
}

/// Pages that the kernel has dropped are fetched again, or are an error.
fn dropped_pages() -> Outcome {
    let mut bed = Bed::set("dropped")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let (clone, pid) = bed.detached(&image, &[])?;
    let whole = || Ok(bed.fetched().is_ok_and(|(fetched, bytes)| fetched >= bytes));
    testbed::eventually("all to be fetched", whole)?;
    let (before, _) = bed.fetched()?;
    drop_cached(&bed)?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()?;
    let (after, _) = bed.fetched()?;
    demand(after > before + (30 << 20), "dropped pages to be fetched again", &(before, after))?;
    drop_cached(&bed)?;
    bed.signal_server(Signal::SIGKILL)?;
    must_end(&bed, clone, pid, &["Connection refused", "broke"])
}

/// Writes into the file of an image, which nothing should ever do.
pub fn write_at(path: &Path, at: u64, bytes: &[u8]) -> Outcome {
    let write = || -> std::io::Result<()> {
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        let mut file = fs::OpenOptions::new().write(true).open(path)?;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(bytes)
    };
    write().map_err(|error| Trouble::during("overwriting an image", error))
}

/// Has the kernel drop the pages of the far images that no process maps.
pub fn drop_cached(bed: &Bed) -> Outcome {
    let places = fs::read_dir(bed.run().join("far")).into_iter().flatten().flatten();
    for place in places.map(|place| place.path().join("pool/images")) {
        for file in fs::read_dir(&place).into_iter().flatten().flatten() {
            let advise = || -> std::io::Result<()> {
                let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
                Ok(posix_fadvise(fs::File::open(file.path())?, 0, 0, advice)?)
            };
            advise().map_err(|error| Trouble::during("dropping pages", error))?;
        }
    }
    Ok(())
}

/// The agent does not see the far process's mount.
fn mounted_elsewhere() -> Outcome {
    let mut bed = Bed::set("elsewhere")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()?;
    testbed::eventually("the unmount", || Ok(farfork::run(bed.unmount()?)?.status.success()))?;
    let restore = bed.restore(&image, &["--no-prefetch"])?;
    let mut command = std::process::Command::new("unshare");
    command.arg("--mount").arg(restore.get_program()).args(restore.get_args());
    command.envs(restore.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = bed.refused(command)?;
    demand(said.contains("in another mount namespace"), "the reason", &said)?;
    // The agent has opened the pool while nothing was mounted, and knows all the same what images lie on.
    farfork::must_run(bed.unmount()?)?;
    let said = bed.refused(bed.restore(&image, &["--tiering", "moa"])?)?;
    demand(said.contains("--copy-images"), "a refusal", &said)?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()
}

fn wrong_key() -> Outcome {
    let mut bed = Bed::set("key")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let right = fs::read(&bed.key).map_err(|error| Trouble::during("reading the key", error))?;
    let write = |bytes: &[u8]| {
        let _ = fs::remove_file(&bed.key);
        fs::write(&bed.key, bytes)
            .and_then(|()| fs::set_permissions(&bed.key, Permissions::from_mode(0o600)))
            .map_err(|error| Trouble::during("writing a key", error))
    };
    let mut wrong = right.clone();
    // A letter of the secret.
    wrong[40] = if wrong[40] == b'A' { b'B' } else { b'A' };
    write(&wrong)?;
    let said = bed.refused(bed.restore(&image, &[])?)?;
    demand(said.contains("does not accept the shared key"), "a refusal", &said)?;
    demand(bed.status()?["reads"] == 0, "no read", &bed.status()?)?;
    write(b"not a key")?;
    let said = bed.refused(bed.restore(&image, &[])?)?;
    demand(said.contains("is not a key of far memory"), "a refusal", &said)?;
    write(&right)?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()?;
    key_on_stdin(&bed, &image, &right)
}

/// The first line of stdin is the key, the rest is the clone's.
fn key_on_stdin(bed: &Bed, image: &str, key: &[u8]) -> Outcome {
    let restore = |first: &[u8]| -> Outcome<Subject> {
        let restore = ["restore", "--far", bed.address(), "--far-key", "-", "--no-prefetch", image];
        let mut clone = Subject::start("clone", &mut bed.on(AWAY, &restore)?, SOON)?;
        clone.send(first);
        Ok(clone)
    };
    let status = restore(b"a key\n")?.finish()?;
    demand(!status.success(), "a refusal", &status)?;
    restore(key)?.must_pass()
}

/// The image's file on the serving node, which nothing should ever write to.
fn overwrite(bed: &Bed, image: &str) -> Outcome {
    let path = bed.pool.join("names").join(image).join("latest");
    let path =
        fs::canonicalize(path).map_err(|error| Trouble::during("finding the image", error))?;
    let found = fs::metadata(&path).map_err(|error| Trouble::during("finding the image", error))?;
    write_at(&path, found.len() / 2, &vec![0x5a; 4 << 20])
}

fn changed_image() -> Outcome {
    let mut bed = Bed::set("changed")?;
    let (clone, pid, image) = scene(&mut bed)?;
    overwrite(&bed, &image)?;
    must_end(&bed, clone, pid, &["the image's file was changed"])
}

/// The server comes back with another image of the same id.
fn other_image() -> Outcome {
    let mut bed = Bed::set("other")?;
    let (clone, pid, image) = scene(&mut bed)?;
    bed.signal_server(Signal::SIGKILL)?;
    overwrite(&bed, &image)?;
    bed.serve()?;
    must_end(&bed, clone, pid, &["has another image"])
}
