//! Processes that cannot be checkpointed, or not just now.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_checkpoint::{CheckpointOptions, Target};
use farfork_image::format;
use farfork_pool::{ImageWriter, Pool};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use farfork_types::{CHUNK_BYTES, align_down};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Case;
use crate::restore::image;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, failed_in_words};

pub const CASES: &[Case] = &[
    ("of_no_process", of_no_process),
    ("of_a_kernel_thread", of_a_kernel_thread),
    ("of_itself", of_itself),
    ("of_a_zombie", of_a_zombie),
    ("of_a_stopped_process", of_a_stopped_process),
    ("of_a_traced_process", of_a_traced_process),
    ("without_permission", without_permission),
    ("without_a_pool", without_a_pool),
    ("into_a_full_pool", into_a_full_pool),
    ("into_a_full_pool_with_kill", into_a_full_pool_with_kill),
    ("into_just_enough_room", into_just_enough_room),
    ("into_a_deleted_pool", into_a_deleted_pool),
    ("tells_how_far_it_is", tells_how_far_it_is),
    ("of_processes_that_exit", of_processes_that_exit),
    ("of_processes_that_exec", of_processes_that_exec),
    ("of_processes_that_fork", of_processes_that_fork),
    ("of_names_in_another_encoding", of_names_in_another_encoding),
    ("of_threads_that_come_and_go", of_threads_that_come_and_go),
    ("of_a_thread_in_vfork", of_a_thread_in_vfork),
];

fn refused(scene: &Scene, pid: &str, words: &[&str]) -> Outcome {
    let free = scene.free_bytes()?;
    scene.fails(&["checkpoint", "--pid", pid, "--name", "a/b"], 1, words)?;
    scene.fails(&["checkpoint", "--pid", pid, "--name", "a/b", "--kill"], 1, words)?;
    demand(scene.free_bytes()? == free, "space is lost")?;
    demand(scene.works(&["images", "list"])?.is_empty(), "an image is listed")?;
    scene.check()
}

fn of_no_process() -> Outcome {
    let scene = Scene::set(8)?;
    refused(&scene, "99999999", &["process 99999999 does not exist"])?;
    scene.fails(&["checkpoint", "--pid", "x", "--name", "a/b"], 2, &["invalid value"])?;
    scene.fails(&["checkpoint", "--pid", "0", "--name", "a/b"], 1, &["process 0"])?;
    scene.fails(&["checkpoint", "--pid=-1", "--name", "a/b"], 1, &["process -1"])?;
    scene.fails(&["checkpoint", "--pid", "1", "--name", "nonsense"], 2, &["nonsense"])?;
    scene.strike()
}

fn of_a_kernel_thread() -> Outcome {
    if std::fs::read_to_string("/proc/2/comm").unwrap_or_default().trim() != "kthreadd" {
        return Err(Trouble::Skipped("no kernel thread is seen in this PID namespace".into()));
    }
    let scene = Scene::set(8)?;
    refused(&scene, "2", &["cannot trace process 2: it is a kernel thread"])?;
    scene.strike()
}

fn of_itself() -> Outcome {
    let scene = Scene::set(8)?;
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!(
        "exec {} checkpoint --pool {} --name a/b --pid $$",
        farfork::binary()?.display(),
        scene.pool_path().display()
    ));
    failed_in_words("checkpoint of itself", &farfork::run(command)?, 1, &["itself"])?;
    scene.check()?;
    scene.strike()
}

fn of_a_zombie() -> Outcome {
    let scene = Scene::set(8)?;
    let mut child = Command::new("true").spawn().map_err(during("starting true"))?;
    let stat = format!("/proc/{}/stat", child.id());
    await_until("true has ended", || {
        std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") Z "))
    })?;
    refused(&scene, &child.id().to_string(), &["exited"])?;
    child.wait().map_err(during("waiting"))?;
    scene.strike()
}

fn state(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").map_or(String::new(), |(_, rest)| rest[..1].to_owned())
}

fn signal(subject: &Subject, signal: Signal) -> Outcome {
    kill(Pid::from_raw(subject.pid() as i32), signal).map_err(during("sending a signal"))
}

/// Parent and clone are both stopped then, and go on when they are continued.
fn of_a_stopped_process() -> Outcome {
    let mut scene = Scene::set(48)?;
    scene.agent()?;
    let mut subject = scene.subject("threads_regs")?;
    signal(&subject, Signal::SIGSTOP)?;
    await_until("the process is stopped", || state(subject.pid()) == "T")?;
    scene.checkpoint(&subject, "a/b")?;
    demand(state(subject.pid()) == "T", "it is no longer stopped")?;
    let mut command = scene.command(&["restore", "a/b", "--json"])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.await_line("]")?; // the end of restore's JSON
    let reported = clone.after("    \"pid\": ").pop().unwrap_or_default();
    let pid: u32 = reported.trim_end_matches(',').parse().map_err(during("reading the pid"))?;
    await_until("the clone is stopped", || state(pid) == "T")?;
    clone.send_byte();
    std::thread::sleep(Duration::from_millis(100));
    demand(state(pid) == "T" && !clone.said("PASS"), "the clone goes on by itself")?;
    scene.works(&["kill", &pid.to_string(), "--signal", "18"])?;
    clone.must_pass()?;
    signal(&subject, Signal::SIGCONT)?;
    subject.must_pass()?;
    scene.strike()
}

fn of_a_traced_process() -> Outcome {
    let scene = Scene::set(16)?;
    let mut subject = scene.subject("steady")?;
    let pid = Pid::from_raw(subject.pid() as i32);
    nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty()).map_err(during("tracing"))?;
    refused(&scene, &subject.pid().to_string(), &["debugger"])?;
    nix::sys::ptrace::interrupt(pid).map_err(during("stopping"))?;
    nix::sys::wait::waitpid(pid, None).map_err(during("waiting"))?;
    nix::sys::ptrace::detach(pid, None).map_err(during("letting go"))?;
    subject.must_pass()?;
    scene.strike()
}

/// An unprivileged user with a pool of his own.
fn without_permission() -> Outcome {
    let scene = Scene::set(16)?;
    let mut subject = scene.subject("steady")?;
    let pid = subject.pid().to_string();
    let as_nobody = |arguments: &[&str]| -> Outcome<Command> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(farfork::binary()?).args(arguments);
        command.env("FARFORK_RUN", scene.directory()).env("FARFORK_POOL", scene.pool_path());
        Ok(command)
    };
    let output = farfork::run(as_nobody(&["images", "list"])?)?;
    failed_in_words(
        "another user's pool",
        &output,
        1,
        &["open the pool", "as the owner or as root"],
    )?;
    let output = farfork::run(as_nobody(&["checkpoint", "--dry-run", "--pid", &pid])?)?;
    failed_in_words("another user's process", &output, 1, &["cannot trace process"])?;
    subject.must_pass()?;
    scene.strike()
}

fn without_a_pool() -> Outcome {
    let scene = Scene::set(16)?;
    let mut subject = scene.subject("steady")?;
    let pid = subject.pid().to_string();
    let call = ["checkpoint", "--name", "a/b", "--pid", &pid, "--pool"];
    scene.fails(
        &[&call[..], &["/nowhere/pool"]].concat(),
        1,
        &["/nowhere/pool", "check the path"],
    )?;
    scene.fails(&[&call[..], &["/bin/true"]].concat(), 1, &["not a farfork pool"])?;
    subject.must_pass()?;
    scene.strike()
}

/// Takes room from a pool until `bytes` are left, and less than a chunk more.
fn leave(pool: &Pool, bytes: u64) -> Outcome<ImageWriter<'_>> {
    let free = pool.info().map_err(during("looking at the pool"))?.free_bytes;
    let mut others = pool.begin(None).map_err(during("beginning an image"))?;
    others.reserve(align_down(free - bytes, CHUNK_BYTES)).map_err(during("filling the pool"))?;
    Ok(others)
}

/// Gives it back.
fn give_back(scene: &Scene, others: ImageWriter<'_>, free: u64) -> Outcome {
    drop(others);
    comes_back(scene, free)
}

/// A process that another test has just forked has files open that this one has closed, until it executes its program.
fn comes_back(scene: &Scene, free: u64) -> Outcome {
    testbed::eventually("the room comes back", || Ok(scene.free_bytes()? >= free))
}

fn into_a_full_pool() -> Outcome {
    full_pool(&[])
}

/// The process must not be lost for an image that is not there.
fn into_a_full_pool_with_kill() -> Outcome {
    full_pool(&["--kill"])
}

fn full_pool(more: &[&str]) -> Outcome {
    let scene = Scene::set(16)?;
    let mut subject = scene.subject("steady")?;
    let (pool, free) = (scene.pool()?, scene.free_bytes()?);
    let others = leave(&pool, CHUNK_BYTES)?;
    refused_by_pool(&scene, &mut subject, more)?;
    give_back(&scene, others, free)?;
    scene.checkpoint(&subject, "a/b")?;
    subject.must_pass()?;
    scene.strike()
}

/// Room is taken by an estimate, which must not ask for more than there is when that is enough. What is
/// enough is whole chunks; what of them the image does not need goes back.
fn into_just_enough_room() -> Outcome {
    let scene = Scene::set(32)?;
    let mut subject = scene.subject("steady")?;
    let pid = subject.pid().to_string();
    let call = ["checkpoint", "--name", "a/b", "--pid", &pid];
    let free = scene.free_bytes()?;
    scene.works(&call)?;
    let needed = free - scene.free_bytes()?;
    let (_, made) = image(&scene)?;
    let enough = format::DATA_AT + made.sums.len() as u64 * CHUNK_BYTES;
    scene.works(&["images", "rm", "a/b"])?;
    comes_back(&scene, free)?;
    let pool = scene.pool()?;
    let others = leave(&pool, enough - CHUNK_BYTES)?;
    scene.fails(&call, 1, &["no space", "images rm"])?;
    give_back(&scene, others, free)?;
    for spare in 0..4 {
        let others = leave(&pool, enough + spare * CHUNK_BYTES)?;
        let before = scene.free_bytes()?;
        scene.works(&call)?;
        demand(before - scene.free_bytes()? == needed, "the image is of another size")?;
        scene.works(&["images", "rm", "a/b"])?;
        give_back(&scene, others, free)?;
    }
    subject.must_pass()?;
    demand(scene.free_bytes()? == free, "space is lost")?;
    scene.strike()
}

fn refused_by_pool(scene: &Scene, subject: &mut Subject, more: &[&str]) -> Outcome {
    let free = scene.free_bytes()?;
    let pid = subject.pid().to_string();
    let call = [&["checkpoint", "--name", "a/b", "--pid", &pid], more].concat();
    scene.fails(&call, 1, &["no space", "images rm"])?;
    demand(scene.free_bytes()? == free, "space is lost")?;
    scene.check()
}

fn into_a_deleted_pool() -> Outcome {
    let scene = Scene::set_in_directory(16)?;
    let mut subject = scene.subject("steady")?;
    let pid = subject.pid().to_string();
    std::fs::rename(scene.pool_path(), scene.directory().join("aside"))
        .map_err(during("moving"))?;
    let call = ["checkpoint", "--name", "a/b", "--pid", &pid];
    scene.fails(&call, 1, &["cannot open the pool", "check the path"])?;
    subject.must_pass()?;
    std::fs::rename(scene.directory().join("aside"), scene.pool_path())
        .map_err(during("moving"))?;
    scene.check()?;
    scene.strike()
}

/// Checkpoints short-lived processes many times: each checkpoint succeeds or is refused with a message, and
/// no process is left behind.
fn race(script: &str, after: Duration) -> Outcome {
    let scene = Scene::set(64)?;
    let free = scene.free_bytes()?;
    let (mut made, mut refused) = (0, 0);
    let begun = Instant::now();
    for round in 0..40u32 {
        let mut child = Command::new("bash")
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(during("starting a shell"))?;
        std::thread::sleep(after + Duration::from_micros(u64::from(round) * 397 % 9_000));
        let pid = child.id().to_string();
        let mut call = scene.command(&["checkpoint", "--name", "a/b", "--pid", &pid])?;
        let output = call.output().map_err(during("checkpointing"))?;
        if output.status.success() {
            made += 1;
            scene.works(&["images", "rm", "a/b"])?;
        } else {
            refused += 1;
            failed_in_words(script, &output, 1, &[])?;
        }
        ends_well(&mut child, script)?;
    }
    println!("{script}: {made} made, {refused} refused in {:?}", begun.elapsed());
    demand(scene.free_bytes()? == free, "space is lost")?;
    scene.check()?;
    scene.strike()
}

/// The process that was checkpointed is unharmed.
fn ends_well(child: &mut Child, script: &str) -> Outcome {
    let mut status = None;
    await_until(&format!("{script} ends"), || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    })?;
    let status = status.map(|status| status.to_string()).unwrap_or_default();
    demand(status == "exit status: 7", format!("{script}: ended with {status}"))
}

fn tells_how_far_it_is() -> Outcome {
    let scene = Scene::set(32)?;
    let (pool, mut subject) = (scene.pool()?, scene.subject("steady")?);
    let mut reported = Vec::new();
    let made = farfork_checkpoint::checkpoint(
        &pool,
        None,
        Target::Process(subject.pid() as i32),
        CheckpointOptions::default(),
        &mut |done, all| {
            reported.push((done, all));
        },
    );
    let made = made.map_err(during("checkpointing"))?;
    let copied = made.copied_bytes;
    let is_rising = reported.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let is_of_all = reported.iter().all(|(_, all)| *all == copied);
    let is_whole = reported.last() == Some(&(copied, copied));
    demand(
        is_rising && is_of_all && is_whole,
        format!("expected {copied} in the end: {reported:?}"),
    )?;
    pool.remove(made.cid).map_err(during("removing"))?;
    drop(made);
    scene.check()?;
    subject.must_pass()?;
    scene.strike()
}

fn of_processes_that_exit() -> Outcome {
    race("for i in {1..2000}; do :; done; exit 7", Duration::ZERO)
}

fn of_processes_that_exec() -> Outcome {
    let again = "n=${0#bash}; [ ${n:-0} -ge 30 ] && exit 7; exec bash -c \"$BASH_EXECUTION_STRING\" $((${n:-0} + 1))";
    race(again, Duration::ZERO)
}

fn of_processes_that_fork() -> Outcome {
    race("for i in {1..40}; do (:); done; exit 7", Duration::ZERO)
}

/// A process with any name is found. A path that an image cannot hold is a reason to refuse it.
fn of_names_in_another_encoding() -> Outcome {
    let mut scene = Scene::set(48)?;
    scene.agent()?;
    let name = OsStr::from_bytes(b"r\xe9serveur");
    let script = "printf 'r\\351serveur' > /proc/self/comm; echo READY; read answer; exit 0";
    let mut shell = Command::new("sh");
    let mut shell = Subject::start("shell", shell.args(["-c", script]), PATIENCE)?;
    shell.await_ready()?;
    scene.checkpoint(&shell, "a/b")?;
    scene.works(&["restore", "a/b"])?;
    let program = scene.directory().join(name);
    // By another process: what a test that forks at this moment inherits from this one would have the
    // copy open for writing, and it could not be executed.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
    demand(copied.map_err(during("copying a program"))?.success(), "cp fails")?;
    misnamed(&scene, &mut Command::new(program), &["exe ", "mapping ", "is not UTF-8"])?;
    let place = scene.directory().join("place").join(name);
    std::fs::create_dir_all(&place).map_err(during("making a directory"))?;
    misnamed(&scene, Command::new("sleep").current_dir(&place), &["cwd ", "is not UTF-8"])?;
    scene.strike()
}

fn misnamed(scene: &Scene, sleep: &mut Command, words: &[&str]) -> Outcome {
    let mut child = sleep
        .arg("60")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(during("starting sleep"))?;
    let outcome =
        scene.fails(&["checkpoint", "--pid", &child.id().to_string(), "--name", "a/c"], 1, words);
    child.kill().and_then(|()| child.wait()).map_err(during("ending sleep"))?;
    outcome
}

/// Threads end while they are listed, seized and waited for.
fn of_threads_that_come_and_go() -> Outcome {
    let scene = Scene::set(16)?;
    let mut subject = scene.subject("thread_churn")?;
    let pid = subject.pid().to_string();
    for _ in 0..60 {
        scene.works(&["checkpoint", "--dry-run", "--pid", &pid])?;
    }
    subject.must_pass()?;
    scene.strike()
}

/// A thread that waits for a vforked child cannot be stopped before that child has gone on.
fn of_a_thread_in_vfork() -> Outcome {
    let scene = Scene::set(16)?;
    let mut subject = scene.subject("vfork_waits")?;
    subject.send(b"v");
    let path = format!("/proc/{0}/task/{0}/children", subject.pid());
    let child = || std::fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
    await_until("there is a child", || !child().is_empty())?;
    let words = format!("waits in vfork for child {}", child());
    let pid = subject.pid().to_string();
    let begun = Instant::now();
    scene.fails(
        &["checkpoint", "--pid", &pid, "--name", "a/b"],
        1,
        &["cannot stop thread", &words],
    )?;
    demand(begun.elapsed() < PATIENCE, format!("it took {:?}", begun.elapsed()))?;
    demand(state(subject.pid()) == "D", "the child has ended before")?;
    // Its other threads have gone on, and so does this one: it counts.
    let child: i32 = child().parse().map_err(during("reading the child's pid"))?;
    kill(Pid::from_raw(child), Signal::SIGKILL).map_err(during("ending the child"))?;
    subject.must_pass()?;
    scene.strike()
}
