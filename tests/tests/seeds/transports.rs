//! Seeds by other ways than plain TCP: shared memory on one host, and certificates beside the handle's key.

use farfork_tests::certificates::{BOTH, Files, with};
use farfork_tests::nodes::{AWAY, HOME, SOON, demand, end};
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, testbed};
use nix::sys::signal::Signal;

use crate::bed::{Bed, Seed};
use crate::{memory, must_miss, order, waiting};

/// The node reads the seed in this way.
fn must_use(bed: &Bed, side: &str, transport: &str) -> Outcome {
    let status = bed.json(side, &["far", "status", "--json"])?;
    let mounts = status.as_array().into_iter().flatten();
    let mut images = mounts.flat_map(|mount| mount["images"].as_array().into_iter().flatten());
    demand(images.any(|image| image["transport"] == transport), transport, &status)
}

/// On one host pages come through shared memory, whatever happens to the network. A keeper that is killed leaves
/// nothing.
pub fn by_memory() -> Outcome {
    let bed = Bed::on_one_host("memory")?;
    let mut parent = bed.parent(&memory())?;
    let seed = bed.prepare(&parent, &[])?;
    let (mut clone, pid) = waiting(&bed, &seed)?;
    must_use(&bed, AWAY, "shm")?;
    let started = bed.resumed(&seed)?;
    demand(started[0]["transport"] == "shm", "shm", &started)?;
    bed.cut()?;
    order(&mut clone, b"v")?;
    clone.send_byte();
    demand(bed.wait(pid)?["status"] == 0, "a clone that passes", &())?;
    bed.mend()?;
    let (clone, pid) = bed.detached(&seed, &["--no-prefetch", "--no-cache"])?;
    let keeper = bed.status(&seed)?["keeper_pid"].as_i64().unwrap_or_default();
    end(keeper as i32, Signal::SIGKILL);
    testbed::eventually("the seed is over", || Ok(bed.status(&seed)?.is_null()))?;
    must_miss(&bed, &seed, clone, pid, &["10.78.0.1"])?;
    demand(bed.seed_files(HOME) == 0, "no sockets", &bed.seed_files(HOME))?;
    let seed = bed.prepare(&parent, &["--tcp-only"])?;
    let started = bed.resumed(&seed)?;
    demand(started[0]["transport"] == "tcp", "tcp", &started)?;
    parent.must_pass()
}

/// With certificates, a handle alone opens nothing; a second hop has pages of both nodes.
pub fn by_certificates() -> Outcome {
    let bed = Bed::set("certificates")?;
    let files = Files::of("seeds-certificates-files")?;
    files.authority("other-ca")?;
    for (name, authority, address) in [
        ("home", "ca", "10.78.0.1"),
        ("away", "ca", "10.78.0.2"),
        ("foreign", "other-ca", "10.78.0.2"),
    ] {
        files.node(name, authority, address, BOTH)?;
    }
    let [home, away, foreign] = ["home", "away", "foreign"].map(|name| files.options(name, "ca"));
    let mut parent = bed.parent(&Program::c("seed_hops"))?;
    let seed = bed.prepare(&parent, &with(&home, &[]))?;
    for (options, why) in
        [(&[][..], "demands a certificate beside the shared key"), (&foreign[..], "(CA)")]
    {
        for command in [&["resume"][..], &["reclaim"], &["seeds", "renew"]] {
            let arguments = [command, &with(options, &[&seed.handle])].concat();
            let said = bed.refused(AWAY, &arguments, 1)?;
            demand(said.contains(why) && said.contains("10.78.0.1"), why, &said)?;
        }
    }
    let status = bed.status(&seed)?;
    demand(status["served_bytes"] == 0 && status["resumes"] == 0, "no read", &status)?;
    let (mut clone, pid) = bed.detached(&seed, &with(&away, &["--prefetch", "0"]))?;
    must_use(&bed, AWAY, "tcp+tls")?;
    order(&mut clone, b"h")?;
    let pid = pid.to_string();
    let prepare = ["prepare", "--json", "--listen", "10.78.0.2", "--pid", &pid];
    let report = bed.json(AWAY, &[&prepare[..], &with(&away, &[])].concat())?;
    demand(report["owners"][0]["id"] == seed.report["id"], "an owner", &report)?;
    let next = Seed { handle: report["handle"].as_str().unwrap_or_default().to_owned(), report };
    let resume = [&["resume", &next.handle][..], &with(&home, &["--prefetch", "0"])].concat();
    Subject::start("clone of a clone", &mut bed.on(HOME, &resume)?, SOON)?.must_pass()?;
    bed.json(HOME, &[&["seeds", "renew", "--json", &next.handle][..], &with(&home, &[])].concat())?;
    // Nodes without certificates cannot reach the first seed: the node of the second one serves all pages.
    let plain = bed.json(AWAY, &prepare)?;
    demand(plain["owners"].as_array().is_some_and(Vec::is_empty), "no owners", &plain)?;
    let handle = plain["handle"].as_str().unwrap_or_default();
    let resume = ["resume", handle, "--prefetch", "0"];
    Subject::start("plain clone", &mut bed.on(HOME, &resume)?, SOON)?.must_pass()?;
    bed.json(HOME, &["reclaim", "--json", "--wait", "0", handle])?;
    for handle in [&next.handle, &seed.handle] {
        let reclaim = ["reclaim", "--json", "--wait", "0", handle];
        bed.json(HOME, &[&reclaim[..], &with(&home, &[])].concat())?;
    }
    drop(clone);
    parent.must_pass()
}
