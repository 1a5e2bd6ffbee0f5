//! Messages about what the kernel does not allow without root, with what to do.

use std::process::{Command, Output};

use farfork_pool::TRUSTED_OWNER;
use farfork_tests::{Outcome, Trouble, farfork};

use crate::user::User;

/// A test and its name.
type Case = (&'static str, fn() -> Outcome);

/// The tests.
pub const CASES: [Case; 7] = [
    ("refused_checkpoints", refused_checkpoints),
    ("a_process_of_root", a_process_of_root),
    ("an_image_of_root", an_image_of_root),
    ("the_same_pid", the_same_pid),
    ("a_policy_that_supplies_pages", a_policy_that_supplies_pages),
    ("a_connection_that_ends", a_connection_that_ends),
    ("doctor", doctor),
];

fn must_say(output: &Output, code: i32, words: &[&str]) -> Outcome {
    let text = farfork::text(output);
    match words.iter().find(|word| output.status.code() != Some(code) || !text.contains(**word)) {
        None => Ok(()),
        Some(word) => {
            let status = output.status;
            Err(Trouble::Failed(format!("expected {code} and '{word}', saw {status}\n{text}")))
        }
    }
}

/// The kernel shows some things of a process to root only.
fn refused_checkpoints() -> Outcome {
    let user = User::new()?;
    for (name, word, passes) in [
        ("shared_anon", "CAP_CHECKPOINT_RESTORE", true),
        ("fd_inotify", "CAP_DAC_READ_SEARCH", false), // what it does then takes root
        ("seccomp_own", "CAP_SYS_ADMIN", true),
    ] {
        let mut subject = user.start(name)?;
        let pid = subject.pid().to_string();
        let call = ["checkpoint", "--pid", &pid, "--name", "test/refused"];
        must_say(&farfork::run(user.farfork(&call))?, 1, &["cannot checkpoint the process", word])?;
        if passes {
            subject.must_pass()?;
        }
    }
    Ok(())
}

fn a_process_of_root() -> Outcome {
    let user = User::new()?;
    let pid = std::process::id().to_string();
    let call = ["checkpoint", "--pid", &pid, "--name", "test/root"];
    must_say(
        &farfork::run(user.farfork(&call))?,
        1,
        &["cannot trace process", "the owner of the process"],
    )
}

/// Root, who trusts the user, puts a process of its own into the user's pool.
fn an_image_of_root() -> Outcome {
    let user = User::new()?;
    let mut sleep = std::process::Command::new("sleep");
    sleep.arg("1000").current_dir("/");
    let null = std::process::Stdio::null;
    sleep.stdin(null()).stdout(null()).stderr(null());
    let mut child = sleep.spawn().map_err(|error| Trouble::during("starting sleep", error))?;
    let pid = child.id().to_string();
    let call = ["checkpoint", "--name", "test/root", "--pid", &pid];
    let made =
        refused_to_root(&user, &call).and_then(|()| farfork::must_run(as_root(&user, &call)?));
    let _ = child.kill();
    let _ = child.wait();
    made?;
    let words = ["ran as user 0", "its own identity"];
    must_say(&farfork::run(user.farfork(&["restore", "--detach", "test/root"]))?, 1, &words)
}

/// The same command with the same pool, as root, who trusts its owner.
fn as_root(user: &User, arguments: &[&str]) -> Outcome<Command> {
    let theirs = user.farfork(arguments);
    let mut command = farfork::command(arguments)?;
    let pool = theirs.get_envs().filter_map(|(key, value)| Some((key, value?)));
    command.envs(pool.filter(|(key, _)| *key == "FARFORK_POOL"));
    command.env(TRUSTED_OWNER, user.number().to_string());
    Ok(command)
}

/// Who owns a pool could have its users run anything.
fn refused_to_root(user: &User, arguments: &[&str]) -> Outcome {
    let mut command = as_root(user, arguments)?;
    let owner = format!("belongs to user {}", user.number());
    command.env_remove(TRUSTED_OWNER);
    must_say(&farfork::run(command)?, 1, &["cannot use the pool", &owner, TRUSTED_OWNER])
}

fn the_same_pid() -> Outcome {
    let user = User::new()?;
    let mut parent = user.start("steady")?;
    user.checkpoint(parent.pid(), "test/same", &["--kill"])?;
    parent.finish()?;
    let call = ["restore", "--pid-mode", "same", "--detach", "test/same"];
    must_say(&farfork::run(user.farfork(&call))?, 1, &["--pid-mode same", "omit the option"])
}

fn a_policy_that_supplies_pages() -> Outcome {
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if allowed.is_ok_and(|allowed| allowed.trim() == "1") {
        return Err(Trouble::Skipped("vm.unprivileged_userfaultfd is 1 here".to_owned()));
    }
    let user = User::new()?;
    let mut parent = user.start("steady")?;
    user.checkpoint(parent.pid(), "test/supplied", &[])?;
    for tiering in ["moa", "hybrid"] {
        let call = ["restore", "--tiering", tiering, "--detach", "test/supplied"];
        let words = [tiering, "only root", "use mow", "vm.unprivileged_userfaultfd"];
        must_say(&farfork::run(user.farfork(&call))?, 1, &words)?;
    }
    parent.must_pass()
}

/// A reset needs CAP_NET_ADMIN: the clone reads the end of the stream, and its caller gets a message.
fn a_connection_that_ends() -> Outcome {
    let user = User::new()?;
    let mut parent = user.start("tcp_reset")?;
    user.checkpoint(parent.pid(), "test/reset", &["--kill"])?;
    parent.finish()?;
    let mut clone = user.clone("test/reset")?;
    clone.send_byte();
    clone.finish()?;
    let text = clone.transcript();
    // The program insists on an error beside the hang-up.
    for word in ["runs without: resetting a connection", "a hang-up and an error, saw 0x11"] {
        if !text.contains(word) {
            return clone.fail(&format!("expected '{word}'"));
        }
    }
    Ok(())
}

fn doctor() -> Outcome {
    let user = User::new()?;
    let words = ["yes pid_namespace", "in a user namespace", "no  map_files", "no  same_pid"];
    must_say(&farfork::run(user.farfork(&["doctor"]))?, 0, &words)
}
