//! Clones that are prepared in their turn, many times: each page comes from the seed that owns it.

use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farfork_far::write_key_at;
use farfork_seed::handle::Handle;
use farfork_seed::shared_key;
use farfork_tests::nodes::{self, AWAY, HOME, SOON, demand, end};
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::{Bed, Seed};
use crate::order;

/// Bytes that the program has in pages which one hop has written, and which it can read alone.
const WOVEN_BYTES: u64 = 8 * 4096;
/// More than the paper tries.
const MANY: usize = 17;

/// A seed, and the process that it was made of.
pub struct Hop {
    pub subject: Subject,
    pub seed: Seed,
    pub side: &'static str,
}

impl Hop {
    pub fn id(&self) -> &str {
        self.seed.report["id"].as_str().unwrap_or("none")
    }
}

/// A process, and clones of clones of it, each of which has written memory of its own before it was prepared.
pub struct Chain {
    pub bed: Bed,
    pub hops: Vec<Hop>,
}

fn address(side: &str) -> &'static str {
    if side == HOME { "10.78.0.1" } else { "10.78.0.2" }
}

fn other(side: &str) -> &'static str {
    if side == HOME { AWAY } else { HOME }
}

impl Chain {
    /// The process, and so many hops, in turn on either node.
    pub fn of(test: &str, hops: usize) -> Outcome<Chain> {
        Chain::on(Bed::set(test)?, hops)
    }

    /// The same on these nodes.
    pub fn on(bed: Bed, hops: usize) -> Outcome<Chain> {
        let subject = bed.parent(&Program::c("seed_hops"))?;
        let seed = bed.prepare(&subject, &[])?;
        let mut chain = Chain { bed, hops: vec![Hop { subject, seed, side: HOME }] };
        for _ in 0..hops {
            chain.hop()?;
        }
        Ok(chain)
    }

    fn last(&self) -> &Hop {
        &self.hops[self.hops.len() - 1]
    }

    fn hop(&mut self) -> Outcome {
        let side = other(self.last().side);
        let (mut subject, pid) = self.clone_on(side, &self.last().seed)?;
        order(&mut subject, b"h")?;
        let seed = self.prepare(side, pid)?;
        self.hops.push(Hop { subject, seed, side });
        Ok(())
    }

    pub fn prepare(&self, side: &str, pid: i32) -> Outcome<Seed> {
        let pid = pid.to_string();
        let arguments = ["prepare", "--json", "--listen", address(side), "--pid", &pid];
        let report = self.bed.json(side, &arguments)?;
        let handle = report["handle"].as_str().unwrap_or_default().to_owned();
        Ok(Seed { handle, report })
    }

    /// A detached clone that fetches each page when it touches it, and no other with it.
    pub fn clone_on(&self, side: &str, seed: &Seed) -> Outcome<(Subject, i32)> {
        let arguments = ["resume", &seed.handle, "--detach", "--prefetch", "0"];
        let mut clone = Subject::start("clone", &mut self.bed.on(side, &arguments)?, SOON)?;
        let pid = nodes::pid_of(&mut clone)?;
        Ok((clone, pid))
    }

    pub fn end_of(&self, side: &str, pid: i32) -> Outcome<Value> {
        let output = farfork::run(self.bed.on(side, &["wait", "--json", &pid.to_string()])?)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|_| Trouble::during("farfork wait", farfork::text(&output)))
    }

    /// Bytes that each keeper has sent.
    fn sent(&self) -> Outcome<Vec<u64>> {
        let all = [HOME, AWAY].map(|side| self.bed.json(side, &["seeds", "--json"]));
        let [home, away] = all;
        let all = [home?, away?];
        let of = |hop: &Hop| {
            let mut known = all.iter().flat_map(|all| all.as_array().into_iter().flatten());
            let own = known.rfind(|status| status["id"] == hop.id());
            own.and_then(|own| own["served_bytes"].as_u64()).unwrap_or_default()
        };
        Ok(self.hops.iter().map(of).collect())
    }

    /// Each hop's pages come from that hop's keeper, and from no other; all bytes are right; the processes in
    /// between go on.
    fn check(mut self) -> Outcome {
        let last = self.hops.len() - 1;
        let side = other(self.last().side);
        let owners = self.last().seed.report["owners"].as_array().cloned().unwrap_or_default();
        let named = |hop: &Hop| owners.iter().any(|owner| owner["id"] == hop.id());
        let all_but_last = self.hops[..last].iter().all(named);
        demand(owners.len() == last && all_but_last, "all owners by name", &owners)?;
        let (mut clone, pid) = self.clone_on(side, &self.last().seed)?;
        // What the code of the program needs has come then.
        order(&mut clone, &[b'A' + last as u8 + 1])?;
        for of in 0..=last {
            let before = self.sent()?;
            order(&mut clone, &[b'A' + of as u8])?;
            let after = self.sent()?;
            let sent: Vec<u64> = after.iter().zip(&before).map(|(now, then)| now - then).collect();
            let expected: Vec<u64> =
                (0..=last).map(|hop| if hop == of { WOVEN_BYTES } else { 0 }).collect();
            demand(sent == expected, &format!("bytes of hop {of} alone: {expected:?}"), &sent)?;
        }
        self.counted(side, last)?;
        order(&mut clone, b"v")?;
        clone.send_byte();
        demand(self.end_of(side, pid)?["status"] == 0, "a clone that passes", &())?;
        clone.hear(Duration::from_millis(100));
        demand(clone.after("HOP") == [last.to_string()], "the last hop", &clone.after("HOP"))?;
        let seed = Seed { handle: self.last().seed.handle.clone(), report: Value::Null };
        let arguments = ["resume", &seed.handle, "--eager"];
        Subject::start("clone", &mut self.bed.on(side, &arguments)?, SOON)?.must_pass()?;
        for hop in self.hops.iter_mut().rev() {
            order(&mut hop.subject, b"v")?;
        }
        Ok(())
    }

    /// The node that has fetched shows the same by owner.
    fn counted(&self, side: &str, last: usize) -> Outcome {
        let status = self.bed.json(side, &["far", "status", "--json"])?;
        let mounts = status.as_array().into_iter().flatten();
        let mut images = mounts.flat_map(|mount| mount["images"].as_array().into_iter().flatten());
        let own = images.find(|image| image["cid"] == self.hops[last].id());
        let owners = own.and_then(|own| own["owners"].as_array()).cloned().unwrap_or_default();
        let fetched = |hop: &Hop| {
            let owner = owners.iter().find(|owner| owner["cid"] == hop.id());
            owner.and_then(|owner| owner["fetched_bytes"].as_u64()).unwrap_or_default()
        };
        let has_all = self.hops[..last].iter().all(|hop| fetched(hop) >= WOVEN_BYTES);
        demand(has_all, "bytes of each owner", &status)
    }
}

/// Few hops.
pub fn three() -> Outcome {
    Chain::of("hops", 3)?.check()
}

/// Many hops.
pub fn many() -> Outcome {
    if std::env::var_os("FARFORK_TEST_LONG").is_none() {
        return Err(Trouble::Skipped(format!("{MANY} hops: FARFORK_TEST_LONG=1 runs them")));
    }
    Chain::of("many-hops", MANY)?.check()
}

/// Clones that need a page of an ancestor that is lost get SIGBUS, with its name. All others go on, and new ones
/// start.
pub fn lost_ancestor() -> Outcome {
    let mut chain = Chain::of("lost", 3)?;
    let lost = chain.hops[1].id().to_owned();
    // One that has all of its memory, and two that do not.
    let (mut whole, _) = chain.clone_on(chain.last().side, &chain.last().seed)?;
    order(&mut whole, b"v")?;
    let side = other(chain.last().side);
    let (mut spared, spared_pid) = chain.clone_on(side, &chain.last().seed)?;
    let (mut struck, struck_pid) = chain.clone_on(side, &chain.last().seed)?;
    for clone in [&mut spared, &mut struck] {
        order(clone, b"D")?;
    }
    let seeds = chain.bed.json(chain.hops[1].side, &["seeds", "--json"])?;
    let keeper = seeds.as_array().into_iter().flatten().find(|seed| seed["id"] == *lost);
    let keeper = keeper.and_then(|seed| seed["keeper_pid"].as_i64()).unwrap_or_default();
    end(keeper as i32, Signal::SIGKILL);
    struck.send(b"B");
    let is_named = |end: &Value, id: &str, why: &str| {
        let cause = end["cause"].as_str().unwrap_or_default();
        let is_bus_error = end["signal"] == i64::from(Signal::SIGBUS as i32);
        is_bus_error && end["page"].is_u64() && cause.contains(id) && cause.contains(why)
    };
    let ended = chain.end_of(side, struck_pid)?;
    demand(is_named(&ended, &lost, "10.78.0.2"), "SIGBUS with the lost seed", &ended)?;
    let source = ended["source"].as_str().unwrap_or_default();
    demand(source.contains(address(AWAY)), "the address of the lost seed", &ended)?;
    for of in [b"A", b"C", b"D"] {
        order(&mut spared, of)?;
    }
    order(&mut whole, b"v")?;
    for hop in [2, 3] {
        order(&mut chain.hops[hop].subject, b"D")?;
    }
    let (mut new, new_pid) = chain.clone_on(side, &chain.last().seed)?;
    order(&mut new, b"A")?;
    // An ancestor that was reclaimed says so itself.
    let first = chain.hops[0].id().to_owned();
    chain.bed.json(HOME, &["reclaim", "--json", "--wait", "0", &chain.hops[0].seed.handle])?;
    order(&mut spared, b"C")?;
    // The rest of the memory of the first hop.
    spared.send(b"v");
    let ended = chain.end_of(side, spared_pid)?;
    let either = is_named(&ended, &first, "it was reclaimed") || is_named(&ended, &lost, "10.78");
    demand(either, "SIGBUS with one of the lost seeds", &ended)?;
    end(new_pid, Signal::SIGKILL);
    Ok(())
}

/// A seed lives as long as those that descend from it, also after that of its clone was renewed.
pub fn ancestor_outlives() -> Outcome {
    let bed = Bed::set("outlives")?;
    let subject = bed.parent(&Program::c("seed_hops"))?;
    let seed = bed.prepare(&subject, &["--expires", "10"])?;
    let first_end = seed.report["expires_unix_s"].as_u64().unwrap_or_default();
    let mut chain = Chain { bed, hops: vec![Hop { subject, seed, side: HOME }] };
    chain.hop()?;
    let expires = |chain: &Chain| -> Outcome<u64> {
        let status = chain.bed.status(&chain.hops[0].seed)?;
        Ok(status["expires_unix_s"].as_u64().unwrap_or_default())
    };
    let second = chain.last().seed.report["expires_unix_s"].as_u64().unwrap_or(u64::MAX);
    testbed::eventually("the first seed is renewed", || Ok(expires(&chain)? > second))?;
    let renew = ["seeds", "renew", "--json", &chain.last().seed.handle, "--expires", "9000"];
    chain.bed.json(HOME, &renew)?;
    testbed::eventually("it is renewed again", || Ok(expires(&chain)? > second + 8000))?;
    let after = UNIX_EPOCH + Duration::from_secs(first_end) + Duration::from_millis(500);
    std::thread::sleep(after.duration_since(SystemTime::now()).unwrap_or_default());
    let (mut clone, pid) = chain.clone_on(HOME, &chain.last().seed)?;
    order(&mut clone, b"v")?;
    clone.send_byte();
    demand(chain.end_of(HOME, pid)?["status"] == 0, "a clone that passes", &())
}

/// A seed that closes starts no clones of its own, but has pages for those of its descendants, also for nodes that
/// come then. It ends with the last of them.
pub fn ancestor_closes() -> Outcome {
    let mut chain = Chain::of("closes", 1)?;
    let first = &chain.hops[0].seed;
    let mut command = chain.bed.on(HOME, &["reclaim", &first.handle, "--wait", "60", "--json"])?;
    command.stdin(Stdio::null());
    let reclaiming = std::thread::spawn(move || farfork::must_run(command));
    testbed::eventually("the seed closes", || Ok(chain.bed.status(first)?["state"] == "closing"))?;
    let said = chain.bed.refused(AWAY, &["resume", &first.handle], 1)?;
    demand(said.contains("it is being reclaimed"), "a refusal", &said)?;
    let (mut clone, pid) = chain.clone_on(HOME, &chain.hops[1].seed)?;
    order(&mut clone, b"v")?;
    clone.send_byte();
    demand(chain.end_of(HOME, pid)?["status"] == 0, "a clone that passes", &())?;
    chain.hops[1].subject.send_byte();
    let second = &chain.hops[1].seed.handle;
    chain.bed.json(HOME, &["reclaim", "--json", "--wait", "60", second])?;
    let output = reclaiming.join().map_err(|_| Trouble::Failed("a thread panicked".into()))??;
    let text = farfork::text(&output);
    demand(text.contains("\"cut_off\": 0"), "no node cut off", &text)
}

/// A far process that takes over knows the owners of pages; a key stays as long as an image needs it.
pub fn far_process_killed() -> Outcome {
    let chain = Chain::of("taken-over", 1)?;
    let (mut direct, direct_pid) = chain.clone_on(HOME, &chain.hops[0].seed)?;
    let (mut clone, pid) = chain.clone_on(HOME, &chain.hops[1].seed)?;
    order(&mut clone, b"B")?;
    direct.send_byte();
    demand(chain.end_of(HOME, direct_pid)?["status"] == 0, "a clone that passes", &())?;
    let mounts = || chain.bed.json(HOME, &["far", "status", "--json"]);
    let images = || -> Outcome<usize> { Ok(mounts()?[0]["images"].as_array().map_or(0, Vec::len)) };
    testbed::eventually("the node forgets the first seed", || Ok(images()? == 1))?;
    let keys = chain.bed.keys_on(HOME)?;
    demand(keys == 2, "the keys of a seed and of the owner of its pages", &keys)?;
    let far = mounts()?[0]["pid"].as_i64().unwrap_or_default();
    end(far as i32, Signal::SIGKILL);
    order(&mut clone, b"v")?;
    clone.send_byte();
    demand(chain.end_of(HOME, pid)?["status"] == 0, "a clone that passes", &())
}

/// A seed that names a wrong key for its ancestor gets nothing from that one.
pub fn wrong_key_of_ancestor() -> Outcome {
    let chain = Chain::of("wrong-ancestor", 0)?;
    let first = &chain.hops[0].seed;
    let known: Handle =
        first.handle.parse().map_err(|error| Trouble::during("reading a handle", error))?;
    let (mut clone, pid) = chain.clone_on(AWAY, first)?;
    order(&mut clone, b"h")?;
    let wrong = Handle::new(known.address, known.id);
    let wrong = wrong.map_err(|error| Trouble::during("making a key", error))?;
    let key = chain.bed.key_away(&known.fingerprint())?;
    let written = write_key_at(&key, &shared_key(&wrong));
    written.map_err(|error| Trouble::during("writing a key", error))?;
    let second = chain.prepare(AWAY, pid)?;
    let before = chain.sent()?;
    let text = chain.bed.refused(HOME, &["resume", &second.handle], 1);
    let text = text.or_else(|_| chain.bed.refused(HOME, &["resume", &second.handle], 135))?;
    demand(text.contains(&known.id.to_string()), "the ancestor's name", &text)?;
    demand(text.contains("key"), "the reason", &text)?;
    testbed::eventually("nothing was read", || Ok(chain.sent()? == before))?;
    order(&mut clone, b"v")
}
