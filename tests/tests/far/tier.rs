//! Images of which some parts are in the pool and others on another node.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use farfork_tests::driver::Tests;
use farfork_tests::nodes::{
    AWAY, SOON, demand, demand_few_fetched, json, missing, pid_of, refused,
};
use farfork_tests::program::{Program, Source};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::Bed;

/// Adds the tests.
pub fn add(tests: &mut Tests) {
    tests.add("far::tier_all", missing(), all);
    tests.add("far::tier_by_record", missing(), by_record);
    tests.add("far::tier_python", missing(), python);
    tests.add("far::tier_without_server", missing(), without_server);
    tests.add("far::tier_clone_of_a_clone", missing(), clone_of_a_clone);
    tests.add("far::tier_copied", missing(), copied);
    tests.add("far::tier_refused", missing(), refusals);
    tests.add("far::tier_killed", missing(), killed);
}

/// A node whose pool has a copy of an image that the other node serves.
pub struct Near {
    pub bed: Bed,
    pub pool: PathBuf,
    pub image: String,
}

impl Near {
    pub fn set(test: &'static str, program: &Program) -> Outcome<Near> {
        Near::of(Bed::set(test)?, test, program)
    }

    fn of(mut bed: Bed, test: &str, program: &Program) -> Outcome<Near> {
        let image = bed.image(program)?;
        bed.serve()?;
        Near::pulled(bed, test, image, &[])
    }

    /// The same, of an image that `bed` serves already.
    pub fn pulled(bed: Bed, test: &str, image: String, more: &[&str]) -> Outcome<Near> {
        let pool = testbed::work_dir(&format!("far-{test}"))?.join("near");
        let path = pool.display().to_string();
        farfork::must_run(bed.on(AWAY, &["pool", "create", &path, "--size", "256M"])?)?;
        let near = Near { bed, pool, image };
        farfork::must_run(near.with_node(&[&["images", "pull"], more].concat())?)?;
        Ok(near)
    }

    /// A command about the image.
    pub fn command(&self, words: &[&str]) -> Outcome<Command> {
        let mut command = self.bed.on(AWAY, words)?;
        command.arg("--pool").arg(&self.pool).arg(&self.image).stdin(Stdio::null());
        Ok(command)
    }

    /// The same, with the other node.
    pub fn with_node(&self, words: &[&str]) -> Outcome<Command> {
        let mut command = self.command(words)?;
        command.args(["--far", self.bed.address(), "--far-key"]).arg(&self.bed.key);
        Ok(command)
    }

    pub fn tier(&self, more: &[&str]) -> Outcome {
        farfork::must_run(self.with_node(&[&["images", "tier"], more].concat())?).map(drop)
    }

    pub fn back(&self) -> Outcome {
        farfork::must_run(self.command(&["images", "tier", "--back"])?).map(drop)
    }

    pub fn show(&self) -> Outcome<Value> {
        json(self.command(&["images", "show", "--json"])?)
    }

    /// Bytes in the pool, and on the other node.
    fn bytes(&self) -> Outcome<(u64, u64)> {
        let shown = self.show()?;
        let number = |of: &str| shown[of].as_u64().unwrap_or(u64::MAX);
        Ok((number("pool_bytes"), number("far_bytes")))
    }

    fn restore(&self, more: &[&str]) -> Outcome<Command> {
        let mut command = self.bed.on(AWAY, &["restore"])?;
        command.arg("--pool").arg(&self.pool).args(more).arg(&self.image);
        Ok(command)
    }

    pub fn clone(&self, more: &[&str]) -> Outcome<Subject> {
        Subject::start("clone", &mut self.restore(more)?, SOON)
    }

    pub fn detached(&self, more: &[&str]) -> Outcome<(Subject, i32)> {
        let mut clone = self.clone(&[&["--detach"], more].concat())?;
        let pid = pid_of(&mut clone)?;
        Ok((clone, pid))
    }

    /// Records what a clone does that touches some pages and is killed.
    fn record(&self, commands: &[u8], last: &str) -> Outcome {
        let (mut clone, pid) = self.detached(&["--profile"])?;
        clone.send(commands);
        clone.await_line(last)?;
        self.end(pid)
    }

    /// Kills a clone, and waits until what it has touched is recorded.
    fn end(&self, pid: i32) -> Outcome {
        farfork::must_run(self.bed.on(AWAY, &["kill", &pid.to_string()])?)?;
        testbed::eventually("the record", || {
            Ok(self.show()?["access"]["accessed_pages"].as_u64() > Some(0))
        })
    }

    fn sound(&self) -> Outcome<String> {
        let mut command = self.bed.on(AWAY, &["pool", "check"])?;
        command.arg(&self.pool);
        Ok(farfork::text(&farfork::must_run(command)?))
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        let path = self.pool.display().to_string();
        if let Ok(command) = self.bed.on(AWAY, &["pool", "destroy", "--force", &path]) {
            let _ = farfork::run(command);
        }
    }
}

fn all() -> Outcome {
    let near = Near::set("tier-all", &Program::c("far_pages"))?;
    let (before, none) = near.bytes()?;
    demand(before > 32 << 20 && none == 0, "all in the pool", &(before, none))?;
    near.clone(&[])?.must_pass()?;
    // A clone that runs goes on with what it maps.
    let (mut running, pid) = near.detached(&[])?;
    near.tier(&["--all"])?;
    let (pool, far) = near.bytes()?;
    demand(pool < 2 << 20 && far > 32 << 20, "all far", &(pool, far))?;
    demand(near.sound()?.contains("not verified"), "what is not verified", &near.sound()?)?;
    running.send_byte();
    near.bed.must_pass(pid)?;
    let (fetched, _) = near.bed.fetched()?;
    near.clone(&[])?.must_pass()?;
    let (more, _) = near.bed.fetched()?;
    demand(more > fetched + (32 << 20), "a fetch of all", &(fetched, more))?;
    let again = || near.clone(&[])?.must_pass();
    demand_few_fetched(64 << 10, || Ok(near.bed.fetched()?.0), again)?;
    // What is far is exported as if it were here.
    let file = near.bed.run().join("archive");
    let archive = |pool: &PathBuf| -> Outcome<Vec<u8>> {
        let mut command = near.bed.on(AWAY, &["images", "export", "--pool"])?;
        farfork::must_run({
            command.arg(pool).arg(&near.image).arg(&file);
            command
        })?;
        fs::read(&file).map_err(|error| Trouble::during("reading an archive", error))
    };
    let is_same = archive(&near.pool)? == archive(&near.bed.pool)?;
    demand(is_same, "the archive of the other node's image", &is_same)?;
    near.back()?;
    demand(near.bytes()? == (before, 0), "all back", &near.bytes()?)?;
    near.clone(&[])?.must_pass()
}

fn by_record() -> Outcome {
    let mut near = Near::set("tier-record", &Program::c("far_pages"))?;
    let (_, said) = refused(near.with_node(&["images", "tier"])?)?;
    demand(said.contains("it is not known") && said.contains("--profile"), "a remedy", &said)?;
    near.record(b"t", "NOTE touched 1")?;
    near.tier(&[])?;
    let (pool, far) = near.bytes()?;
    demand(pool > 2 << 20 && far > 20 << 20, "hot parts here, cold ones far", &(pool, far))?;
    let (before, _) = near.bed.fetched()?;
    let (mut clone, pid) = near.detached(&[])?;
    clone.send(b"t");
    clone.await_line("NOTE touched 1")?;
    let (hot, _) = near.bed.fetched()?;
    demand(hot - before < 1 << 20, "hot parts from the pool", &(before, hot))?;
    clone.send_byte();
    near.bed.must_pass(pid)?;
    let (all, _) = near.bed.fetched()?;
    demand(all - hot > 20 << 20, "cold parts fetched", &(hot, all))?;
    // With another record, other parts are hot: they come back by themselves.
    near.record(b"tttttttttt", "NOTE touched 2314")?;
    near.tier(&[])?;
    let (more, less) = near.bytes()?;
    // Ten pages, two in each part.
    let promoted = far - less;
    demand(more > pool && promoted >= 8 << 20, "promoted parts", &(pool, more, promoted))?;
    near.clone(&[])?.must_pass()?;
    near.back()?;
    near.bed.signal_server(Signal::SIGKILL)?;
    near.clone(&[])?.must_pass()
}

fn python() -> Outcome {
    let program = Program::of("rt_python", Source::Script("python3", &[], "rt_python.py"));
    let near = Near::set("tier-python", &program)?;
    near.tier(&["--all"])?;
    near.clone(&[])?.must_pass()?;
    // It has hardly begun when it is killed.
    let (_clone, pid) = near.detached(&["--profile"])?;
    near.end(pid)?;
    near.tier(&[])?;
    let (pool, far) = near.bytes()?;
    demand(pool > 2 << 20 && far > 2 << 20, "hot parts here, cold ones far", &(pool, far))?;
    near.clone(&[])?.must_pass()?;
    near.back()?;
    near.clone(&[])?.must_pass()
}

fn without_server() -> Outcome {
    let bed = Bed::hasty("tier-server")?;
    let mut near = Near::of(bed, "tier-server", &Program::c("far_pages"))?;
    near.record(b"t", "NOTE touched 1")?;
    near.tier(&[])?;
    let (first, pid) = near.detached(&[])?;
    near.bed.signal_server(Signal::SIGKILL)?;
    // The agent knows the image: clones start, and use what is hot.
    let (mut second, second_pid) = near.detached(&[])?;
    second.send(b"t");
    second.await_line("NOTE touched 1")?;
    for (mut clone, pid) in [(first, pid), (second, second_pid)] {
        clone.send_byte();
        let (end, took) = near.bed.wait(pid)?;
        demand(
            took < 2 * near.bed.deadline + Duration::from_secs(4),
            "an end by the deadline",
            &took,
        )?;
        demand(end["signal"] == Signal::SIGBUS as i32 && end["page"].is_u64(), "SIGBUS", &end)?;
        demand(end["source"] == format!("tcp://{}", near.bed.address()), "the source", &end)?;
        demand(
            end["cause"].as_str().is_some_and(|cause| cause.contains("10.77.0.1")),
            "a cause",
            &end,
        )?;
        demand(!clone.said("PASS"), "no answer", &clone.transcript())?;
    }
    let (_, said) = refused(near.command(&["images", "tier", "--back"])?)?;
    demand(near.bytes()?.1 > 0 && !said.is_empty(), "the image as it was", &said)?;
    // The bytes are where they were.
    near.bed.serve()?;
    // For a second after a failure reads fail at once.
    std::thread::sleep(Duration::from_millis(1100));
    near.clone(&[])?.must_pass()
}

fn clone_of_a_clone() -> Outcome {
    let mut near = Near::set("tier-again", &Program::c("far_pages"))?;
    near.record(b"t", "NOTE touched 1")?;
    near.tier(&[])?;
    let (mut clone, pid) = near.detached(&[])?;
    clone.send(b"t");
    clone.await_line("NOTE touched 1")?;
    let again = format!("{}-2", near.image);
    let mut command = near.bed.on(AWAY, &["checkpoint", "--pid", &pid.to_string()])?;
    command.args(["--name", &again, "--pool"]).arg(&near.bed.pool);
    farfork::must_run(command)?;
    clone.send_byte();
    near.bed.must_pass(pid)?;
    near.bed.signal_server(Signal::SIGKILL)?;
    let mut command = farfork::restore(&near.bed.pool, &again, &[])?;
    Subject::start("clone", &mut command, SOON)?.must_pass()
}

/// An agent that copies images has all policies.
fn copied() -> Outcome {
    let mut near = Near::set("tier-copied", &Program::c("far_pages"))?;
    near.tier(&["--all"])?;
    let mut command = near.restore(&["--detach", "--tiering", "moa"])?;
    command.env("FARFORK_COPY_IMAGES", "true");
    let mut clone = Subject::start("clone", &mut command, SOON)?;
    let pid = pid_of(&mut clone)?;
    near.bed.signal_server(Signal::SIGKILL)?;
    clone.send_byte();
    near.bed.must_pass(pid)
}

fn refusals() -> Outcome {
    let near = Near::set("tier-refused", &Program::c("far_pages"))?;
    // The other node has the bytes in this very file.
    let mut command = near.bed.on(AWAY, &["images", "tier", "--all", "--pool"])?;
    command.arg(&near.bed.pool).arg(&near.image);
    command.args(["--far", near.bed.address(), "--far-key"]).arg(&near.bed.key);
    let (_, said) = refused(command)?;
    demand(said.contains("it serves them from this pool"), "a refusal", &said)?;
    let (_, said) = refused(near.command(&["images", "tier", "--all"])?)?;
    demand(said.contains("--far ADDRESS:PORT"), "a refusal", &said)?;
    near.tier(&["--all"])?;
    for policy in ["moa", "hybrid"] {
        let (_, said) = refused(near.restore(&["--tiering", policy])?)?;
        demand(said.contains("--copy-images"), "a refusal with its remedy", &said)?;
    }
    Ok(())
}

/// A command that is killed anywhere leaves the image as it was, or as it should be.
fn killed() -> Outcome {
    let near = Near::set("tier-killed", &Program::c("far_pages"))?;
    for round in 0..8u64 {
        let to_far = near.bytes()?.1 == 0;
        let mut command = match to_far {
            true => near.with_node(&["images", "tier", "--all"])?,
            false => near.command(&["images", "tier", "--back"])?,
        };
        let mut child = command
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Trouble::during("starting farfork", error))?;
        std::thread::sleep(Duration::from_millis(10 * (1 << round.min(5))));
        // The command that `timeout` runs goes with the group's signal.
        let _ = Command::new("pkill").args(["-KILL", "-P", &child.id().to_string()]).status();
        let _ = child.wait();
        near.sound()?;
        let (pool, far) = near.bytes()?;
        let is_whole = (pool > 32 << 20 && far == 0) || (pool < 2 << 20 && far > 32 << 20);
        demand(is_whole, "one of the two", &(round, pool, far))?;
        near.clone(&[])?.must_pass()?;
    }
    Ok(())
}
