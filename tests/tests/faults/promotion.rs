//! Pages of running clones become local: no byte changes, whatever the clone does meanwhile.

use std::fs;

use farfork_tests::Outcome;
use farfork_tests::subject::Subject;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("loses_no_write", loses_no_write),
    ("leaves_what_is_not_the_images", leaves_what_is_not_the_images),
    ("is_told_in_words", is_told_in_words),
    ("stops_below_the_limit_of_a_cgroup", stops_below_a_limit),
];

/// How often a clone is promoted while it writes to pages for the first time.
fn rounds() -> u32 {
    if std::env::var_os("FARFORK_TEST_LONG").is_some() { 100 } else { 4 }
}

fn pid_of(scene: &Scene) -> Outcome<i64> {
    let first = || told(scene).ok().and_then(|told| told["pid"].as_i64());
    await_until("a clone runs", || first().is_some())?;
    first().map_or_else(|| fail("no clone"), Ok)
}

/// What `ps` tells of the only clone.
fn told(scene: &Scene) -> Outcome<serde_json::Value> {
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
        let counted = number(&told(&scene)?, "promoted_bytes")?;
        demand(counted == pages << 12, format!("{pages} pages, and {counted} bytes in ps"))?;
        demand(pages > 0, format!("{tiering}, round {round}: no page became local"))?;
        clone.send(b"e");
        clone.must_pass()?;
        await_until("the clone is gone", || told(&scene).is_err())?;
    }
    parent.must_pass()?;
    scene.strike()
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

fn is_told_in_words() -> Outcome {
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
    demand(told(&scene)?["pid"].as_i64() == Some(pid), "the clone was killed")?;
    scene.works(&["ghost", "stop", &ghost])?;
    clone.finish()?;
    scene.strike()
}
