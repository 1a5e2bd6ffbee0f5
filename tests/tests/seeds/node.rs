//! Seeds as the other node sees them: all are in one mount, each has a connection of its own, and a life that it can
//! renew.

use std::time::Duration;

use farfork_seed::handle::Handle;
use farfork_tests::nodes::{AWAY, HOME, demand};
use farfork_tests::{Outcome, Trouble, testbed};
use serde_json::Value;

use crate::bed::{Bed, Seed};
use crate::{memory, order, waiting};

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
    demand(bed.keys_away()? == 1, "one key", &bed.keys_away()?)?;
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
    bed.json(HOME, &[&renew[..], &["0"]].concat())?;
    testbed::eventually("the seed ends", || Ok(bed.status(&seed)?["state"] != "open"))?;
    let said = bed.refused(AWAY, &[&renew[..], &["60"]].concat(), 1)?;
    let is_known = ["it has expired", "cannot reach", "does not know"];
    demand(is_known.iter().any(|known| said.contains(known)), "a refusal", &said)?;
    parent.must_pass()
}
