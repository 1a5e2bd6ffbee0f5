//! Seeds: a process is prepared on one node, and its clones start on another, which has no pool.

mod bed;
mod breadth;
mod c_calls;
mod crossing;
mod hops;
mod kinds;
mod learned;
mod node;
mod transports;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bed::{Bed, Seed};
use farfork_seed::handle::Handle;
use farfork_tests::driver::Tests;
use farfork_tests::nodes::{AWAY, HOME, demand, end, missing};
use farfork_tests::program::{Program, Source};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::Signal;

type Case = (&'static str, fn() -> Outcome);

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    let all: [Case; 38] = [
        ("c_program", c_program),
        ("looked_at_in_its_copy", looked_at_in_its_copy),
        ("python", python),
        ("fetched_as_asked", fetched_as_asked),
        ("renewed", node::renewed),
        ("invisible_to_its_parent", invisible_to_its_parent),
        ("handles", handles),
        ("second_hop", second_hop),
        ("three_hops", hops::three),
        ("many_hops", hops::many),
        ("lost_ancestor", hops::lost_ancestor),
        ("ancestor_outlives", hops::ancestor_outlives),
        ("ancestor_closes", hops::ancestor_closes),
        ("far_process_of_hops_killed", hops::far_process_killed),
        ("crossing", crossing::crossing),
        ("programs_over_two_hops", breadth::two_hops),
        ("wrong_key_of_ancestor", hops::wrong_key_of_ancestor),
        ("reclaimed", reclaimed),
        ("expired", expired),
        ("parent_killed", parent_killed),
        ("shadow_and_keeper_killed", shadow_and_keeper_killed),
        ("command_killed", command_killed),
        ("one_mount", node::one_mount),
        ("reclaimed_after_clones", node::reclaimed_after_clones),
        ("mount_goes", node::goes_with_its_directory),
        ("copied", kinds::copied),
        ("refused", kinds::refused),
        ("frozen", kinds::frozen),
        ("c_calls", c_calls::c_calls),
        ("c_calls_without_the_command", c_calls::c_calls_without_the_command),
        ("wrong_key_beside_clones", node::wrong_key_beside_clones),
        ("clones_counted", node::clones_counted),
        ("container_ended", node::container_ended),
        ("pushed", learned::pushed),
        ("streamed_and_kept", learned::streamed_and_kept),
        ("background_after_the_start", learned::after_the_start),
        ("by_memory", transports::by_memory),
        ("by_certificates", transports::by_certificates),
    ];
    for (name, run) in all {
        tests.add(format!("seeds::{name}"), missing(), run);
    }
    tests.run()
}

fn memory() -> Program {
    Program::c("seed_memory")
}

fn order(subject: &mut Subject, command: &[u8]) -> Outcome {
    subject.send(command);
    subject.await_line("OK")
}

fn children(subject: &Subject) -> Vec<i32> {
    farfork_sys::proc::children(subject.pid() as i32)
}

/// A clone has the memory of the moment at which its parent was prepared, whatever the parent does.
fn c_program() -> Outcome {
    let bed = Bed::set("c")?;
    let mut parent = bed.parent(&memory())?;
    let first = bed.prepare(&parent, &[])?;
    order(&mut parent, b"c")?;
    let second = bed.prepare(&parent, &[])?;
    order(&mut parent, b"c")?;
    for (seed, generation) in [(&first, "1"), (&second, "11")] {
        let mut clone = bed.resume(seed, &["--no-prefetch"])?;
        clone.must_pass()?;
        let seen = clone.after("GENERATION");
        demand(seen == [generation], generation, &seen)?;
    }
    let started = bed.resumed(&first)?;
    let one = &started[0];
    let source = one["source"].as_str().unwrap_or_default();
    let id = first.report["id"].as_str().unwrap_or("none");
    demand(source.contains(id) && source.contains("10.78.0.1"), "the seed", &source)?;
    demand(one["transport"] == "tcp" && one["fetched_bytes"].as_u64() > Some(0), "tcp", one)?;
    order(&mut parent, b"v")?;
    parent.must_pass()
}

/// What is looked at after the program goes on is what it was; what a fork does not inherit is not missed.
fn looked_at_in_its_copy() -> Outcome {
    let bed = Bed::set("copy")?;
    let mut parent = bed.parent(&Program::c("seed_plain"))?;
    let mut seeds = Vec::new();
    // As it is; with memory that is kept from forks; with memory that is wiped in them.
    for (generation, change) in [("1", None), ("11", Some(b"d")), ("21", Some(b"p"))] {
        if let Some(change) = change {
            order(&mut parent, b"c")?;
            order(&mut parent, b"n")?;
            order(&mut parent, change)?;
        }
        seeds.push((generation, bed.prepare(&parent, &[])?));
    }
    order(&mut parent, b"c")?;
    for (generation, seed) in &seeds {
        let mut clone = bed.resume(seed, &["--no-prefetch"])?;
        clone.must_pass()?;
        let seen = clone.after("GENERATION");
        demand(seen == [*generation], generation, &seen)?;
        let copied = seed.report["copied_bytes"].as_u64();
        let expected = if *generation == "1" { 0 } else { 16 * 4096 };
        demand(copied == Some(expected), &format!("{expected} copied bytes"), &copied)?;
    }
    for (_, seed) in &seeds {
        bed.json(HOME, &["reclaim", "--json", "--wait", "0", &seed.handle])?;
    }
    order(&mut parent, b"n")?;
    order(&mut parent, b"u")?;
    let pid = parent.pid().to_string();
    let said = bed.refused(HOME, &["prepare", "--pid", &pid], 1)?;
    demand(said.contains("userfaultfd"), "a refusal", &said)?;
    testbed::eventually("the refused seed leaves nothing", || {
        let is_dead = |pid: &i32| farfork_sys::proc::state(*pid) == Some('Z');
        Ok(children(&parent).iter().filter(|pid| !is_dead(pid)).count() == 0)
    })?;
    parent.must_pass()
}

fn python() -> Outcome {
    let bed = Bed::set("python")?;
    let source = Source::Script("python3", &[], "rt_python.py");
    let mut parent = bed.parent(&Program::of("rt_python", source))?;
    let seed = bed.prepare(&parent, &[])?;
    for more in [&["--no-prefetch"][..], &[]] {
        bed.resume(&seed, more)?.must_pass()?;
    }
    parent.must_pass()
}

/// How many pages come with each, all of them before the start, and none that another clone has fetched.
fn fetched_as_asked() -> Outcome {
    let bed = Bed::set("fetched")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let memory_bytes = seed.report["memory_bytes"].as_u64().unwrap_or_default();
    let fetched = |more: &[&str]| -> Outcome<u64> {
        let started = bed.resumed_with(&seed, &[&["--no-cache"], more].concat())?;
        let fetched = started[0]["fetched_bytes"].as_u64();
        fetched.ok_or_else(|| Trouble::Failed(format!("no fetched bytes in {started}")))
    };
    let [alone, six, many] = ["0", "6", "200"].map(|around| fetched(&["--prefetch", around]));
    let (alone, six, many) = (alone?, six?, many?);
    demand(alone < six && six < many, "more pages with each", &(alone, six, many))?;
    let eager = fetched(&["--eager"])?;
    demand(eager >= memory_bytes, "all pages before the start", &(eager, memory_bytes))?;
    for word in ["256", "-1", "most"] {
        let prefetch = format!("--prefetch={word}");
        let said = bed.refused(AWAY, &["resume", &prefetch, &seed.handle], 2)?;
        demand(said.contains("adaptive"), "what is expected", &said)?;
    }
    for more in [&["--prefetch", "1"][..], &["--eager"], &["--no-cache"]] {
        bed.resume(&seed, more)?.must_pass()?;
    }
    parent.must_pass()
}

/// The parent sees neither child nor descriptor, and can be checkpointed and prepared as before.
fn invisible_to_its_parent() -> Outcome {
    let bed = Bed::set("invisible")?;
    let mut parent = bed.parent(&memory())?;
    let seeds = [bed.prepare(&parent, &[])?, bed.prepare(&parent, &[])?];
    order(&mut parent, b"w")?;
    let shadow = bed.status(&seeds[0])?["shadow_pid"].as_i64().unwrap_or_default();
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{shadow}/{file}"));
    let fds = std::fs::read_dir(format!("/proc/{shadow}/fd")).map_or(99, Iterator::count);
    demand(fds == 0, "no descriptors in the frozen copy", &fds)?;
    demand(
        read("oom_score_adj").is_ok_and(|text| text == "1000\n"),
        "1000",
        &read("oom_score_adj"),
    )?;
    let maps = read("maps").unwrap_or_default();
    let shared = maps.lines().filter(|line| line.contains("rw-s")).count();
    demand(shared == 0 && !maps.is_empty(), "no shared memory in the frozen copy", &maps)?;
    let pid = parent.pid().to_string();
    let dry = bed.json(HOME, &["checkpoint", "--dry-run", "--json", "--pid", &pid])?;
    demand(dry["refusals"].as_array().is_some_and(Vec::is_empty), "no refusal", &dry)?;
    for seed in &seeds {
        bed.json(HOME, &["reclaim", "--json", &seed.handle])?;
    }
    demand(children(&parent).is_empty(), "no children", &children(&parent))?;
    parent.must_pass()
}

/// Only the handle itself is accepted, and nothing is read for any other.
fn handles() -> Outcome {
    let bed = Bed::set("handles")?;
    let mut parent = bed.parent(&memory())?;
    let [seed, other] = [bed.prepare(&parent, &[])?, bed.prepare(&parent, &[])?];
    let parse = |seed: &Seed| {
        seed.handle.parse::<Handle>().map_err(|error| Trouble::during("reading a handle", error))
    };
    let (known, mut foreign) = (parse(&seed)?, parse(&other)?);
    let random = |error| Trouble::during("making a key", error);
    let wrong_key = Handle::new(known.address, known.id).map_err(random)?;
    // Another seed's name and key at this seed's keeper.
    foreign.address = known.address;
    for handle in [wrong_key, foreign] {
        let said = bed.refused(AWAY, &["resume", &handle.to_string()], 1)?;
        demand(said.contains("does not know the handle"), "a refusal", &said)?;
        let said = bed.refused(AWAY, &["reclaim", &handle.to_string()], 1)?;
        demand(said.contains("does not know the handle"), "a refusal", &said)?;
    }
    for word in ["demo/hello", &seed.handle[..20], "ff1-"] {
        let said = bed.refused(AWAY, &["resume", word], 2)?;
        demand(said.contains("farfork prepare"), "a remedy", &said)?;
    }
    let status = bed.status(&seed)?;
    demand(status["served_bytes"] == 0 && status["resumes"] == 0, "no read", &status)?;
    bed.resume(&seed, &[])?.must_pass()?;
    parent.must_pass()
}

/// A clone is prepared where it runs, and its clone fetches from there what was fetched or not.
fn second_hop() -> Outcome {
    let bed = Bed::set("hop")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let (mut clone, pid) = waiting(&bed, &seed)?;
    let pid_word = pid.to_string();
    let arguments = ["prepare", "--json", "--listen", "10.78.0.2", "--pid", &pid_word];
    let report = bed.json(AWAY, &arguments)?;
    let handle = report["handle"].as_str().unwrap_or_default();
    order(&mut clone, b"c")?;
    let mut command = bed.on(HOME, &["resume", handle, "--no-prefetch"])?;
    let mut next = Subject::start("clone of a clone", &mut command, Duration::from_secs(30))?;
    next.must_pass()?;
    let seen = next.after("GENERATION");
    demand(seen == ["1"], "the first generation", &seen)?;
    clone.send_byte();
    demand(bed.wait(pid)?["status"] == 0, "a clone that passes", &())?;
    parent.must_pass()
}

/// A clone that has touched only what it needs to wait.
fn waiting(bed: &Bed, seed: &Seed) -> Outcome<(Subject, i32)> {
    let (mut clone, pid) = bed.detached(seed, &["--no-prefetch"])?;
    order(&mut clone, b"w")?;
    Ok((clone, pid))
}

/// The clone touches memory that it has not fetched: SIGBUS, with the seed and a reason.
fn must_miss(bed: &Bed, seed: &Seed, mut clone: Subject, pid: i32, cause: &[&str]) -> Outcome {
    clone.send(b"v");
    let end = bed.wait(pid)?;
    demand(end["signal"] == i64::from(Signal::SIGBUS as i32), "SIGBUS", &end)?;
    let said = format!("{} {}", end["source"], end["cause"]);
    let is_named = cause.iter().any(|cause| said.contains(cause));
    demand(is_named && said.contains("10.78.0.1"), &format!("{cause:?}"), &end)?;
    let id = seed.report["id"].as_str().unwrap_or("none");
    demand(end.to_string().contains(id) || !cause[0].starts_with("it was"), "the seed", &end)
}

fn reclaimed() -> Outcome {
    let bed = Bed::set("reclaimed")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let (clone, pid) = waiting(&bed, &seed)?;
    let mut command = bed.on(HOME, &["reclaim", &seed.handle, "--wait", "2", "--json"])?;
    let begun = Instant::now();
    let reclaiming = std::thread::spawn(move || {
        farfork::must_run({
            command.stdin(std::process::Stdio::null());
            command
        })
    });
    testbed::eventually("the seed closes", || Ok(bed.status(&seed)?["state"] == "closing"))?;
    // New clones first, while those that run may fetch.
    let said = bed.refused(AWAY, &["resume", &seed.handle], 1)?;
    demand(said.contains("it is being reclaimed"), "a refusal", &said)?;
    let output = reclaiming.join().map_err(|_| Trouble::Failed("a thread panicked".into()))??;
    let text = farfork::text(&output);
    demand(begun.elapsed() >= Duration::from_secs(2), "two seconds", &begun.elapsed())?;
    demand(text.contains("\"cut_off\": 1"), "one node", &text)?;
    demand(text.contains("\"cut_off_clones\": 1"), "one clone", &text)?;
    demand(children(&parent).is_empty(), "no children", &children(&parent))?;
    must_miss(&bed, &seed, clone, pid, &["it was reclaimed"])?;
    order(&mut parent, b"v")?;
    parent.must_pass()
}

fn expired() -> Outcome {
    let bed = Bed::set("expired")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &["--expires", "1"])?;
    testbed::eventually("the seed ends", || Ok(bed.status(&seed)?.is_null()))?;
    let said = bed.refused(AWAY, &["resume", &seed.handle], 1)?;
    demand(said.contains("cannot reach the keeper of seed"), "a refusal", &said)?;
    testbed::eventually("the copy is reaped", || Ok(children(&parent).is_empty()))?;
    parent.must_pass()
}

/// The frozen copy outlives the process: what was prepared can still be resumed.
fn parent_killed() -> Outcome {
    let bed = Bed::set("parent-killed")?;
    let parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let (mut clone, pid) = waiting(&bed, &seed)?;
    drop(parent);
    testbed::eventually("the parent is gone", || Ok(bed.status(&seed)?["parent_lives"] == false))?;
    order(&mut clone, b"v")?;
    clone.send_byte();
    demand(bed.wait(pid)?["status"] == 0, "a clone that passes", &())?;
    bed.resume(&seed, &["--no-prefetch"])?.must_pass()?;
    bed.json(HOME, &["reclaim", "--json", &seed.handle]).map(drop)
}

fn shadow_and_keeper_killed() -> Outcome {
    let bed = Bed::set("killed")?;
    let mut parent = bed.parent(&memory())?;
    for (who, cause) in
        [("shadow_pid", &["frozen copy was killed"][..]), ("keeper_pid", &["10.78.0.1"])]
    {
        let seed = bed.prepare(&parent, &[])?;
        let (clone, pid) = waiting(&bed, &seed)?;
        let victim = bed.status(&seed)?[who].as_i64().unwrap_or_default();
        end(victim as i32, Signal::SIGKILL);
        let is_over = || {
            let status = bed.status(&seed)?;
            Ok(status.is_null() || status["state"] == "ended")
        };
        testbed::eventually("the seed is over", is_over)?;
        must_miss(&bed, &seed, clone, pid, cause)?;
        let said = bed.refused(AWAY, &["resume", &seed.handle], 1)?;
        demand(said.contains("10.78.0.1"), "the keeper's address", &said)?;
        testbed::eventually("no copy is left alive", || {
            let is_dead = |pid: &i32| farfork_sys::proc::state(*pid) == Some('Z');
            Ok(children(&parent).iter().all(is_dead))
        })?;
        order(&mut parent, b"v")?;
    }
    // The next one reaps what the killed keeper has left.
    let seed = bed.prepare(&parent, &[])?;
    bed.json(HOME, &["reclaim", "--json", &seed.handle])?;
    demand(children(&parent).is_empty(), "no children", &children(&parent))?;
    parent.must_pass()
}

/// A command that is killed at any moment leaves no seed that nothing knows of.
fn command_killed() -> Outcome {
    let bed = Bed::set("command-killed")?;
    let mut parent = bed.parent(&memory())?;
    let pid = parent.pid().to_string();
    for round in 0..24u64 {
        let mut command = std::process::Command::new(farfork::binary()?);
        let made = bed.on(HOME, &[])?;
        for (name, value) in made.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        command.args(["prepare", "--pid", &pid, "--listen", "127.0.0.1"]);
        command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .map_err(|error| Trouble::during("starting farfork prepare", error))?;
        std::thread::sleep(Duration::from_micros(1_000 + round * 7_919 % 60_000));
        let _ = child.kill();
        let output = child
            .wait_with_output()
            .map_err(|error| Trouble::during("waiting for farfork prepare", error))?;
        let handle = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if handle.is_empty() {
            testbed::eventually("its seed is gone", || {
                Ok(bed.json(HOME, &["seeds", "--json"])?.as_array().is_some_and(Vec::is_empty))
            })?;
        } else {
            // It was printed, so that the seed may be there.
            let mut reclaim = bed.on(HOME, &["reclaim", &handle, "--wait", "0"])?;
            reclaim.stdin(std::process::Stdio::null());
            let _ = std::process::Command::new(farfork::binary()?)
                .args(["reclaim", &handle, "--wait", "0"])
                .output();
        }
        let is_dead = |pid: &i32| farfork_sys::proc::state(*pid) == Some('Z');
        testbed::eventually("no copy is left alive", || Ok(children(&parent).iter().all(is_dead)))?;
        order(&mut parent, b"v")?;
    }
    parent.must_pass()
}
