//! Seeds as the other node sees them: all are in one mount, each has a connection of its own, and a life that it can
//! renew.

use std::time::Duration;

use farfork_seed::handle::Handle;
use farfork_tests::nodes::{AWAY, HOME, SOON, demand, end, pid_of};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, testbed};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::{Bed, Seed};
use crate::{memory, must_miss, order, waiting};

/// The images of the one far process.
fn images(bed: &Bed) -> Outcome<Vec<Value>> {
    let status = bed.json(AWAY, &["far", "status", "--json"])?;
    let all = status.as_array().cloned().unwrap_or_default();
    demand(all.len() == 1, "one far process", &status)?;
    Ok(all[0]["images"].as_array().cloned().unwrap_or_default())
}

fn nodes(bed: &Bed, seed: &Seed) -> Outcome<u64> {
    Ok(bed.status(seed)?["nodes"].as_u64().unwrap_or(u64::MAX))
}

/// A node has one mount for all seeds. When the last clone of one has ended, the node lets go of that one,
/// with its key, and of no other; it can come again.
pub fn one_mount() -> Outcome {
    let bed = Bed::set("mount")?;
    let mut parent = bed.parent(&memory())?;
    let [one, other] = [bed.prepare(&parent, &[])?, bed.prepare(&parent, &[])?];
    let (mut clone, pid) = waiting(&bed, &one)?;
    let (mut brief, brief_pid) = waiting(&bed, &other)?;
    demand(images(&bed)?.len() == 2, "two images", &images(&bed)?)?;
    demand((nodes(&bed, &one)?, nodes(&bed, &other)?) == (1, 1), "one node each", &())?;
    brief.send_byte();
    demand(bed.wait(brief_pid)?["status"] == 0, "a clone that passes", &())?;
    testbed::eventually("the node lets go of the seed", || Ok(nodes(&bed, &other)? == 0))?;
    let left = images(&bed)?;
    demand(left.len() == 1 && left[0]["cid"] == one.report["id"], "the other seed", &left)?;
    demand(bed.keys_on(AWAY)? == 1, "one key", &bed.keys_on(AWAY)?)?;
    demand(nodes(&bed, &one)? == 1, "one node", &())?;
    // What it has not fetched yet still comes.
    order(&mut clone, b"v")?;
    bed.resume(&other, &["--no-prefetch"])?.must_pass()?;
    clone.send_byte();
    demand(bed.wait(pid)?["status"] == 0, "a clone that passes", &())?;
    for seed in [&one, &other] {
        bed.json(HOME, &["reclaim", "--json", &seed.handle])?;
    }
    parent.must_pass()
}

/// A seed that closes does not wait for a node without clones, and counts none. One with a clone it waits for.
pub fn reclaimed_after_clones() -> Outcome {
    let bed = Bed::set("after-clones")?;
    let mut parent = bed.parent(&memory())?;
    for has_clone in [false, true] {
        let seed = bed.prepare(&parent, &[])?;
        bed.resume(&seed, &["--no-prefetch"])?.must_pass()?;
        let clone = if has_clone { Some(waiting(&bed, &seed)?) } else { None };
        demand(nodes(&bed, &seed)? == 1, "a node", &nodes(&bed, &seed)?)?;
        // Less than for what a node keeps for clones to come.
        let report = bed.json(HOME, &["reclaim", "--json", "--wait", "2", &seed.handle])?;
        demand(report["cut_off"] == u64::from(has_clone), "nodes with clones", &report)?;
        drop(clone);
    }
    parent.must_pass()
}

/// Keepers know how many clones may fetch their pages: those of a seed, and of its descendants.
pub fn clones_counted() -> Outcome {
    let bed = Bed::set("counted")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let clones = |seed: &Seed, side: &str| -> Outcome<Value> {
        let all = bed.json(side, &["seeds", "--json"])?;
        let mut all = all.as_array().into_iter().flatten();
        let own = all.find(|status| status["id"] == seed.report["id"]);
        Ok(own.map_or(Value::Null, |own| own["clones"].clone()))
    };
    let counted = |seed: &Seed, side: &'static str, expected: u64| {
        testbed::eventually(&format!("{expected} clones"), || Ok(clones(seed, side)? == expected))
    };
    let (_command, one) = bed.detached(&seed, &["--no-prefetch", "--count", "3"])?;
    counted(&seed, HOME, 3)?;
    let pid = one.to_string();
    let arguments = ["prepare", "--json", "--listen", "10.78.0.2", "--pid", &pid];
    let report = bed.json(AWAY, &arguments)?;
    let next = Seed { handle: report["handle"].as_str().unwrap_or_default().to_owned(), report };
    let resume = ["resume", &next.handle, "--no-prefetch", "--detach"];
    let mut of_next = Subject::start("clone of a clone", &mut bed.on(HOME, &resume)?, SOON)?;
    let of_next_pid = pid_of(&mut of_next)?;
    counted(&seed, HOME, 4)?;
    counted(&next, AWAY, 1)?;
    end(one, Signal::SIGKILL);
    counted(&seed, HOME, 3)?;
    let report = bed.json(HOME, &["reclaim", "--json", "--wait", "1", &seed.handle])?;
    demand(report["cut_off_clones"] == 3 && report["cut_off"] == 2, "what was cut off", &report)?;
    end(of_next_pid, Signal::SIGKILL);
    testbed::eventually("none is left", || Ok(clones(&next, AWAY)? == 0))?;
    parent.must_pass()
}

/// The container of the process ends, and with it the frozen copy: clones get an error that says so.
pub fn container_ended() -> Outcome {
    let bed = Bed::set("container")?;
    let built = compile::command(&memory())?;
    let mut command = bed.inside(HOME);
    command.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
    command.arg("exec 3<&0; \"$1\" <&3 & wait").arg("sh").arg(built.get_program());
    let mut container = Subject::start("container", command.current_dir("/"), SOON)?;
    container.await_ready()?;
    let child = |pid: i32| farfork_sys::proc::children(pid).first().copied().unwrap_or_default();
    let init = child(container.pid() as i32);
    let process = child(init).to_string();
    let report = bed.json(HOME, &["prepare", "--json", "--pid", &process])?;
    let seed = Seed { handle: report["handle"].as_str().unwrap_or_default().to_owned(), report };
    let (clone, pid) = waiting(&bed, &seed)?;
    end(init, Signal::SIGKILL);
    testbed::eventually("the seed ends", || Ok(bed.status(&seed)?["state"] == "ended"))?;
    must_miss(&bed, &seed, clone, pid, &["when the container of the prepared process ends"])?;
    let said = bed.refused(AWAY, &["resume", &seed.handle], 1)?;
    demand(said.contains("the container of the prepared process ends"), "the reason", &said)
}

/// A mount without clones goes with its directory, and comes again with the next clone.
pub fn goes_with_its_directory() -> Outcome {
    let bed = Bed::set("goes")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    for more in [&["--mounted-s", "1"][..], &["--mounted-s", "1"], &["--no-cache"]] {
        let more = [&["--no-prefetch"][..], more].concat();
        let (mut clone, pid) = bed.detached(&seed, &more)?;
        order(&mut clone, b"w")?;
        // It would go if the clone did not use it.
        std::thread::sleep(Duration::from_millis(1600));
        demand(bed.places_away() == 1, "one place", &bed.places_away())?;
        // What it has not fetched yet still comes.
        order(&mut clone, b"v")?;
        clone.send_byte();
        demand(bed.wait(pid)?["status"] == 0, "a clone that passes", &())?;
        testbed::eventually("the directory goes", || Ok(bed.places_away() == 0))?;
    }
    parent.must_pass()
}

/// A handle with a wrong key is refused also where clones of the seed run, whose connection has the right one.
pub fn wrong_key_beside_clones() -> Outcome {
    let bed = Bed::set("beside")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let (mut clone, pid) = waiting(&bed, &seed)?;
    let known: Handle =
        seed.handle.parse().map_err(|error| Trouble::during("reading a handle", error))?;
    let wrong = Handle::new(known.address, known.id);
    let wrong = wrong.map_err(|error| Trouble::during("making a key", error))?;
    let said = bed.refused(AWAY, &["resume", &wrong.to_string()], 1)?;
    demand(said.contains("does not know the handle"), "a refusal", &said)?;
    demand(bed.status(&seed)?["resumes"] == 1, "one resume", &bed.status(&seed)?)?;
    order(&mut clone, b"v")?;
    clone.send_byte();
    demand(bed.wait(pid)?["status"] == 0, "a clone that passes", &())?;
    parent.must_pass()
}

/// A seed lives as long as it is renewed, from either node, and not longer.
pub fn renewed() -> Outcome {
    let bed = Bed::set("renewed")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &["--expires", "2"])?;
    let renew = ["seeds", "renew", "--json", &seed.handle, "--expires"];
    let report = bed.json(AWAY, &[&renew[..], &["3600"]].concat())?;
    let before = seed.report["expires_unix_s"].as_u64().unwrap_or(u64::MAX - 3000);
    let after = report["expires_unix_s"].as_u64().unwrap_or_default();
    demand(after > before + 3000, "an hour", &report)?;
    std::thread::sleep(Duration::from_millis(2500));
    bed.resume(&seed, &["--no-prefetch"])?.must_pass()?;
    // Clones that start near its end find it for as long as it was given.
    let near = bed.json(HOME, &[&renew[..], &["6"]].concat())?;
    std::thread::sleep(Duration::from_millis(3200));
    bed.resume(&seed, &["--no-prefetch"])?.must_pass()?;
    let later = bed.status(&seed)?["expires_unix_s"].as_u64();
    demand(later > near["expires_unix_s"].as_u64(), "a later end", &(later, near))?;
    bed.json(HOME, &[&renew[..], &["0"]].concat())?;
    testbed::eventually("the seed ends", || Ok(bed.status(&seed)?["state"] != "open"))?;
    let said = bed.refused(AWAY, &[&renew[..], &["60"]].concat(), 1)?;
    let is_known = ["it has expired", "cannot reach", "does not know"];
    demand(is_known.iter().any(|known| said.contains(known)), "a refusal", &said)?;
    parent.must_pass()
}
