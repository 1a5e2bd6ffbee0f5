//! What clones need is learnt, and comes first for the next ones, on any node; what was fetched stays a while.

use std::time::Duration;

use farfork_tests::nodes::{AWAY, HOME, demand, demand_few_fetched, end};
use farfork_tests::{Outcome, testbed};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::{Bed, Seed};
use crate::{memory, order};

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_default()
}

fn known_pages(bed: &Bed, seed: &Seed) -> Outcome<u64> {
    Ok(number(&bed.status(seed)?, "known_pages"))
}

/// Pages that a clone has needed are here before the first instruction of the next one, which gets them with its seed
/// gone. What no clone has needed is not.
pub fn pushed() -> Outcome {
    let bed = Bed::set("pushed")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let alone = ["--prefetch", "0", "--no-cache"];
    demand(known_pages(&bed, &seed)? == 0, "no page", &known_pages(&bed, &seed)?)?;
    let (mut first, pid) = bed.detached(&seed, &alone)?;
    order(&mut first, b"w")?;
    testbed::eventually("its pages are known", || Ok(known_pages(&bed, &seed)? > 0))?;
    let mut known = 0;
    testbed::eventually("all of them are", || {
        let before = std::mem::replace(&mut known, known_pages(&bed, &seed)?);
        std::thread::sleep(Duration::from_millis(600));
        Ok(before == known)
    })?;
    end(pid, Signal::SIGKILL);
    drop(first);
    let pushing = [&alone[..], &["--push-ms", "20000"]].concat();
    let (mut clone, pid) = bed.detached(&seed, &pushing)?;
    let mounts = bed.json(AWAY, &["far", "status", "--json"])?;
    let images = mounts.as_array().into_iter().flatten().map(|mount| &mount["images"][0]);
    let most = number(&seed.report, "memory_bytes") / 2;
    for fetched in images.map(|image| number(image, "fetched_bytes")) {
        let is_known_alone = (known * 4096..most).contains(&fetched);
        demand(is_known_alone, "what is known, and no more", &(fetched, known, most))?;
    }
    let keeper = bed.status(&seed)?["keeper_pid"].as_i64().unwrap_or_default();
    end(keeper as i32, Signal::SIGKILL);
    order(&mut clone, b"w")?;
    clone.send(b"v");
    demand(bed.wait(pid)?["signal"] == i64::from(Signal::SIGBUS as i32), "SIGBUS", &())?;
    let said = bed.refused(AWAY, &["resume", "--eager", "--push-ms", "1", &seed.handle], 2)?;
    demand(said.contains("--push-ms"), "a contradiction", &said)?;
    let other = bed.prepare(&parent, &[])?;
    let started = bed.resumed_with(&other, &pushing)?;
    demand(started[0]["pushed_bytes"] == 0, "no page that is known", &started)?;
    parent.must_pass()
}

/// The background ends with a read that is late, and on a busy machine reads are late.
const PATIENT: [&str; 2] = ["--far-deadline-ms", "60000"];

/// All pages come while a clone runs that touches nothing. They stay for the next one after its end, which fetches
/// none, and not for one with a cache of its own.
pub fn streamed_and_kept() -> Outcome {
    let bed = Bed::set("streamed")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let memory_bytes = number(&seed.report, "memory_bytes");
    let fetched = || -> Outcome<u64> {
        let image = &bed.json(AWAY, &["far", "status", "--json"])?[0]["images"][0];
        // A thread of the keeper answers: no device reads a frozen copy. Beside reads it is not always known.
        demand(image["one_sided"] != true, "that it is not one-sided", image)?;
        Ok(number(image, "fetched_bytes"))
    };
    let (clone, pid) = bed.detached(&seed, &PATIENT)?;
    let (mut before, mut same) = (0, 0);
    testbed::eventually("all pages are here", || {
        let last = std::mem::replace(&mut before, fetched()?);
        std::thread::sleep(Duration::from_millis(200));
        // The last pieces may come late on a busy machine, after what the front took twice.
        same = if before >= memory_bytes && before == last { same + 1 } else { 0 };
        Ok(same == 3)
    })?;
    testbed::eventually("the transport is known", || {
        Ok(bed.json(AWAY, &["far", "status", "--json"])?[0]["images"][0]["one_sided"] == false)
    })?;
    end(pid, Signal::SIGKILL);
    drop(clone);
    bed.wait(pid)?;
    // Not one page more. What the header and the metadata take is read when the image is found.
    let next = || bed.resume(&seed, &[&PATIENT[..], &["--no-prefetch"]].concat())?.must_pass();
    demand_few_fetched(1, fetched, next)?;
    let own = [&PATIENT[..], &["--no-prefetch", "--no-cache"]].concat();
    let own = bed.resumed_with(&seed, &own)?;
    let of_own = number(&own[0], "fetched_bytes");
    demand(of_own > 0 && of_own < before, "pages of its own", &(of_own, before))?;
    bed.json(HOME, &["reclaim", "--json", &seed.handle])?;
    parent.must_pass()
}

/// More than comes with the search for an image.
const FRONT: u64 = 1 << 20;

/// One clone's start does not compete with the background, which begins when the clone runs: as long as the agent stands
/// still, no more comes than what the command itself reads.
pub fn after_the_start() -> Outcome {
    let bed = Bed::set("after")?;
    let mut parent = bed.parent(&memory())?;
    let earlier = bed.prepare(&parent, &[])?;
    let alone = [&PATIENT[..], &["--no-prefetch"]].concat();
    let (_clone, pid) = bed.detached(&earlier, &alone)?;
    let agent = bed.agent(AWAY)?;
    let seed = bed.prepare(&parent, &[])?;
    let all = number(&seed.report, "memory_bytes");
    let fetched = || -> Outcome<Option<u64>> {
        let mounts = bed.json(AWAY, &["far", "status", "--json"])?;
        let images = mounts[0]["images"].as_array().cloned().unwrap_or_default();
        let own = images.iter().find(|image| image["cid"] == seed.report["id"]);
        Ok(own.map(|image| number(image, "fetched_bytes")))
    };
    end(agent, Signal::SIGSTOP);
    let started = bed.resume(&seed, &PATIENT);
    let found = testbed::eventually("the seed is found", || Ok(fetched()?.is_some()));
    // Long enough for several reads, also on a busy machine.
    std::thread::sleep(Duration::from_millis(800));
    let early = fetched();
    end(agent, Signal::SIGCONT);
    let mut clone = started?;
    found?;
    let early = early?.unwrap_or_default();
    demand(early <= FRONT && FRONT < all, "what a start reads, and no more", &(early, all))?;
    testbed::eventually("all pages are here", || Ok(fetched()?.is_some_and(|now| now >= all)))?;
    clone.must_pass()?;
    end(pid, Signal::SIGKILL);
    bed.wait(pid)?;
    parent.must_pass()
}
