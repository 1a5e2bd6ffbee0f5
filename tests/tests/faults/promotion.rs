//! Pages of running clones become local: no byte changes, whatever the clone does meanwhile.

use std::time::{Duration, Instant};
use std::{fs, thread};

use farfork_tests::Outcome;
use farfork_tests::subject::Subject;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("loses_no_write", loses_no_write),
    ("loses_no_write_of_those_who_write_meanwhile", loses_no_write_meanwhile),
    ("leaves_what_is_not_the_images", leaves_what_is_not_the_images),
    ("failures_are_described", failures_are_described),
    ("stops_below_the_limit_of_a_cgroup", stops_below_a_limit),
];

/// How often a clone is promoted while it writes to pages for the first time.
fn rounds() -> u32 {
    if farfork_tests::is_long() { 100 } else { 4 }
}

fn pid_of(scene: &Scene) -> Outcome<i64> {
    let first = || reported(scene).ok().and_then(|reported| reported["pid"].as_i64());
    await_until("a clone runs", || first().is_some())?;
    first().map_or_else(|| fail("no clone"), Ok)
}

/// The entry of the only clone in `ps`.
fn reported(scene: &Scene) -> Outcome<serde_json::Value> {
    let list: serde_json::Value =
        serde_json::from_str(&scene.works(&["ps", "--json"])?).map_err(during("reading a list"))?;
    list.get(0).cloned().map_or_else(|| fail("no clone"), Ok)
}

fn promote(scene: &Scene, pid: i64, which: &[&str]) -> Outcome<serde_json::Value> {
    let text = scene.works(&[&["promote", "--json", &pid.to_string()], which].concat())?;
    serde_json::from_str(&text).map_err(during("reading what became of pages"))
}

fn number(document: &serde_json::Value, key: &str) -> Outcome<u64> {
    document[key].as_u64().map_or_else(|| fail(format!("no {key} in {document}")), Ok)
}

/// Private mappings that may be written and have no file's name, as the parent has them: the program's
/// own memory.
fn anonymous_of(pid: u32) -> Outcome<Vec<String>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(during("reading"))?;
    let wanted = |line: &&str| line.contains(" rw-p ") && line.split_whitespace().count() == 5;
    let all = maps.lines().filter(wanted);
    Ok(all.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect())
}

fn loses_no_write() -> Outcome {
    ["mow", "hybrid"].into_iter().try_for_each(loses_no_write_under)
}

fn loses_no_write_under(tiering: &str) -> Outcome {
    let mut scene = Scene::set(64)?;
    scene.agent()?;
    let mut parent = scene.subject("promoted")?;
    scene.checkpoint(&parent, "a/b")?;
    let ranges = anonymous_of(parent.pid())?;
    let which: Vec<&str> = ranges.iter().map(String::as_str).collect();
    for round in 0..rounds() {
        let mut command = scene.command(&["restore", "a/b", "--tiering", tiering])?;
        let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
        let pid = pid_of(&scene)?;
        clone.send(b"v");
        clone.await_line("WORKS")?;
        let mut pages = 0;
        for _ in 0..3 {
            pages += number(&promote(&scene, pid, &which)?, "promoted_pages")?;
        }
        let counted = number(&reported(&scene)?, "promoted_bytes")?;
        demand(counted == pages << 12, format!("{pages} pages, and {counted} bytes in ps"))?;
        demand(pages > 0, format!("{tiering}, round {round}: no page became local"))?;
        clone.send(b"e");
        clone.must_pass()?;
        await_until("the clone is gone", || reported(&scene).is_err())?;
    }
    parent.must_pass()?;
    scene.strike()
}

/// Clones whose writers follow the promotion of their pages, one after the other, for so long.
fn loses_no_write_meanwhile() -> Outcome {
    let is_long = farfork_tests::is_long();
    let each = Duration::from_secs(if is_long { 90 } else { 3 });
    let mut scene = Scene::set(96)?;
    scene.agent()?;
    let mut parent = scene.subject("promoted_meanwhile")?;
    scene.checkpoint(&parent, "a/b")?;
    let ranges = in_pieces(&anonymous_of(parent.pid())?)?;
    for tiering in ["mow", "hybrid"] {
        let begun = Instant::now();
        while begun.elapsed() < each {
            let mut command = scene.command(&["restore", "a/b", "--tiering", tiering])?;
            let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
            promoted_while_it_writes(&scene, &mut clone, &ranges)?;
        }
    }
    parent.must_pass()?;
    scene.strike()
}

/// A clone that has lost a write says so, and ends: what its promoters say of that comes after it.
fn promoted_while_it_writes(scene: &Scene, clone: &mut Subject, ranges: &[String]) -> Outcome {
    let pid = pid_of(scene)?;
    clone.send(b"v");
    clone.await_line("WORKS")?;
    let pages = promoted_by_two(scene, pid, ranges);
    clone.send(b"e");
    clone.must_pass()?;
    demand(pages? > 0, "no page became local")?;
    await_until("the clone is gone", || reported(scene).is_err())
}

/// Piece by piece, and all of it once more: by two at once, so that one meets what the other does. The
/// pages that became local.
fn promoted_by_two(scene: &Scene, pid: i64, ranges: &[String]) -> Outcome<u64> {
    let all: Vec<&str> = ranges.iter().map(String::as_str).collect();
    let mut pages = 0;
    for which in all.chunks(1).chain([&all[..]]) {
        let one = || number(&promote(scene, pid, which)?, "promoted_pages");
        let both = thread::scope(|scope| {
            let other = scope.spawn(one);
            (one(), other.join().unwrap_or_else(|_| fail("a promoter has ended")))
        });
        pages += both.0? + both.1?;
    }
    Ok(pages)
}

/// The same ranges in pieces of 16 MiB at most.
fn in_pieces(ranges: &[String]) -> Outcome<Vec<String>> {
    let mut pieces = Vec::new();
    for range in ranges {
        let ends = range.split_once('-').and_then(|(start, end)| {
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
        });
        let Some((start, end)) = ends else { return fail(format!("invalid range {range}")) };
        let cuts = (start..end).step_by(16 << 20);
        pieces.extend(cuts.map(|at| format!("{at:x}-{:x}", end.min(at + (16 << 20)))));
    }
    Ok(pieces)
}

/// What the clone has never touched, what it may not write, and what it has put elsewhere.
fn leaves_what_is_not_the_images() -> Outcome {
    let mut scene = Scene::set(64)?;
    scene.agent()?;
    let parent = scene.subject("steady")?;
    let maps =
        fs::read_to_string(format!("/proc/{}/maps", parent.pid())).map_err(during("reading"))?;
    let code = maps.lines().find(|line| line.contains(" r-xp ") && line.contains("libc"));
    let code = code.and_then(|line| Some(line.split_once(' ')?.0.to_owned())).unwrap_or_default();
    scene.checkpoint(&parent, "a/b")?;
    let mut command = scene.command(&["restore", "a/b"])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    let pid = pid_of(&scene)?;
    let done = promote(&scene, pid, &[&code])?;
    demand(number(&done, "promoted_pages")? == 0, format!("code became local: {done}"))?;
    demand(number(&done, "kept_pages")? > 0, format!("no code was there: {done}"))?;
    demand(number(&done, "untouched_pages")? > 0, format!("all code was there: {done}"))?;
    scene.works(&["kill", &pid.to_string()])?;
    clone.finish()?;
    scene.strike()
}

fn failures_are_described() -> Outcome {
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    let parent = scene.subject("steady")?;
    scene.checkpoint(&parent, "a/b")?;
    let mut command = scene.command(&["restore", "a/b"])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    let pid = pid_of(&scene)?.to_string();
    scene.fails(&["promote", "1"], 1, &["no clone"])?;
    scene.fails(&["promote", &pid, "1000-2000"], 1, &["1000-2000", "from the pool"])?;
    scene.fails(&["promote", &pid, "2000-1000"], 2, &["START"])?;
    let nothing = promote(&scene, pid.parse().unwrap_or(0), &[])?;
    demand(number(&nothing, "promoted_pages")? == 0, format!("nothing was known: {nothing}"))?;
    scene.works(&["kill", &pid])?;
    clone.finish()?;
    scene.strike()
}

/// The kernel would kill the clone.
fn stops_below_a_limit() -> Outcome {
    farfork_tests::farfork::ghosts_possible()?;
    let mut scene = Scene::set(64)?;
    scene.agent()?;
    let parent = scene.subject("promoted")?;
    scene.checkpoint(&parent, "a/b")?;
    let ranges = anonymous_of(parent.pid())?;
    let which: Vec<&str> = ranges.iter().map(String::as_str).collect();
    let ghost = scene.works(&["ghost", "start", "--image", "a/b", "--memory", "32M"])?;
    let mut command = scene.command(&["restore", "a/b", "--ghost", &ghost])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    let pid = pid_of(&scene)?;
    // All is mapped, since the clone has waited for its start.
    let done = promote(&scene, pid, &which)?;
    demand(number(&done, "promoted_pages")? > 0, format!("no page became local: {done}"))?;
    demand(number(&done, "refused_pages")? > 0, format!("more than there may be: {done}"))?;
    demand(reported(&scene)?["pid"].as_i64() == Some(pid), "the clone was killed")?;
    scene.works(&["ghost", "stop", &ghost])?;
    clone.finish()?;
    scene.strike()
}
