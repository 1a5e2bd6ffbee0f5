//! Clones with a share of their memory near: as much as was asked for is local, and no byte differs.

use std::fs;

use farfork_tests::Outcome;
use farfork_tests::subject::Subject;
use serde_json::Value;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("is_as_large_as_was_asked_for", is_as_large_as_was_asked_for),
    ("takes_hot_pages_first", takes_hot_pages_first),
    ("is_refused_in_words", is_refused_in_words),
    ("needs_room_in_the_cgroup", needs_room_in_the_cgroup),
];

const PAGE: u64 = 4096;
/// The program `watcher` checks so much memory of its own.
const WATCHED_BYTES: u64 = 12 << 20;

/// The pool lies there, in guests that have two memory nodes.
const FAR_NODE: &str = "FARFORK_TEST_MEDIUM_NODE";

fn stage() -> Outcome<(Scene, Subject)> {
    let mut scene = Scene::set(64)?;
    scene.agent()?;
    let parent = scene.subject("watcher")?;
    scene.checkpoint(&parent, "a/b")?;
    Ok((scene, parent))
}

/// A clone that has not looked at its memory yet, and its report.
fn start(scene: &Scene, permille: u64) -> Outcome<(Subject, Value)> {
    let share = permille.to_string();
    let mut command = scene.command(&["restore", "--json", "--local-share", &share, "a/b"])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.await_line("]")?;
    let number = |key: &str| -> Outcome<u64> {
        let text = clone.after(&format!("    \"{key}\": ")).pop().unwrap_or_default();
        text.trim_end_matches(',').parse().map_err(during(key))
    };
    let report = serde_json::json!({
        "pid": number("pid")?, "near": number("near_bytes")?, "far": number("far_bytes")?,
    });
    Ok((clone, report))
}

/// It looks at all its memory.
fn looks_at_all(clone: &mut Subject) -> Outcome {
    clone.send(b"ve");
    clone.must_pass()
}

fn near(report: &Value) -> u64 {
    report["near"].as_u64().unwrap_or(0)
}

/// Of each share, near memory differs by at most one percent of the image.
fn is_as_large_as_was_asked_for() -> Outcome {
    let (scene, mut parent) = stage()?;
    let mut seen = Vec::new();
    for permille in [0, 300, 800, 1000] {
        let (mut clone, report) = start(&scene, permille)?;
        has_no_far_copies(&report)?;
        if let Ok(far) = std::env::var(FAR_NODE) {
            is_where_it_should_be(&report, &far)?;
        }
        clone.send(b"e");
        clone.must_pass()?;
        await_until("the clone is gone", || gone(&scene))?;
        seen.push((permille, near(&report)));
    }
    let all = seen[3].1;
    demand(all > WATCHED_BYTES, format!("all of the image is less than a part of it: {seen:?}"))?;
    let is_right =
        |(permille, near): &(u64, u64)| near.abs_diff(all * permille / 1000) <= all / 100;
    demand(seen[1..].iter().all(is_right), format!("shares are not met: {seen:?}"))?;
    demand(seen[0].1 < all / 20, format!("without a share much is local: {seen:?}"))?;
    bytes_are_right(&scene, 300)?;
    parent.must_pass()?;
    scene.strike()
}

fn bytes_are_right(scene: &Scene, permille: u64) -> Outcome {
    let (mut clone, _) = start(scene, permille)?;
    looks_at_all(&mut clone)
}

fn gone(scene: &Scene) -> bool {
    scene.works(&["ps", "--json"]).is_ok_and(|list| list == "[]")
}

fn has_no_far_copies(report: &Value) -> Outcome {
    let far = report["far"].as_u64();
    demand(far == Some(0), format!("copies lie on a far node: {report}"))
}

/// Counted by the kernel: copies on near nodes, pages of the pool on the far one.
fn is_where_it_should_be(report: &Value, far: &str) -> Outcome {
    let pid = &report["pid"];
    let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps")).map_err(during("reading"))?;
    let words = maps.lines().filter(|line| line.contains("anon=")).flat_map(|line| line.split(' '));
    let (mut anonymous, mut near, mut on_far) = (0, 0, 0);
    for (name, count) in words.filter_map(|word| word.split_once('=')) {
        let Ok(count) = count.parse::<u64>() else { continue };
        match name {
            "anon" => anonymous += count,
            name if name == format!("N{far}") => on_far += count,
            name if name.starts_with('N') => near += count,
            _ => {}
        }
    }
    let seen = format!("{anonymous} copies, {near} pages near, {on_far} far: {report}");
    println!("{seen}");
    // Nothing of the pool is present yet but what the start has touched.
    let counted = near.abs_diff(self::near(report) / PAGE);
    demand(near == anonymous && counted <= anonymous / 100 + 8, seen)
}

/// The only pages that become local are those that were declared hot.
fn takes_hot_pages_first() -> Outcome {
    let (scene, mut parent) = stage()?;
    let maps =
        fs::read_to_string(format!("/proc/{}/maps", parent.pid())).map_err(during("reading"))?;
    let range = maps.lines().filter_map(|line| line.split_once(' ')).find_map(|(range, rest)| {
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|end| u64::from_str_radix(end, 16).unwrap_or(0));
        (rest.starts_with("rw-p") && end - start >= WATCHED_BYTES).then_some((start, end))
    });
    let Some((start_at, end)) = range else { return fail("no memory of its own") };
    let hot = end - (1 << 20)..end;
    scene.works(&["hot", "set", "a/b", &format!("{:x}-{:x}", hot.start, hot.end)])?;
    let (mut clone, report) = start(&scene, 60)?;
    let pid = report["pid"].as_u64().unwrap_or(0);
    let local = local_pages(pid, start_at..end)?;
    let is_hot = |page: &u64| hot.contains(page);
    let wrong = local.iter().filter(|page| !is_hot(page)).count();
    demand(
        wrong == 0 && local.len() > 100,
        format!("{wrong} of {} local pages are not the hot ones", local.len()),
    )?;
    looks_at_all(&mut clone)?;
    parent.must_pass()?;
    scene.strike()
}

/// Pages of a process in `range` that are copies, from `pagemap`.
fn local_pages(pid: u64, range: std::ops::Range<u64>) -> Outcome<Vec<u64>> {
    use std::os::unix::fs::FileExt;
    let pagemap = fs::File::open(format!("/proc/{pid}/pagemap")).map_err(during("opening"))?;
    let mut entries = vec![0; ((range.end - range.start) / PAGE * 8) as usize];
    pagemap.read_exact_at(&mut entries, range.start / PAGE * 8).map_err(during("reading"))?;
    let words = entries.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    // Bit 63: present. Bit 61: a page of a file, or shared.
    let pages = range.step_by(PAGE as usize).zip(words);
    Ok(pages.filter(|(_, word)| word >> 63 == 1 && word >> 61 & 1 == 0).map(|(at, _)| at).collect())
}

fn is_refused_in_words() -> Outcome {
    let (scene, mut parent) = stage()?;
    for (arguments, words) in [
        (vec!["--local-share", "1001"], "expected thousandths from 0 to 1000"),
        (vec!["--local-share", "0.3"], "expected thousandths from 0 to 1000"),
        (vec!["--local-share", "300", "--tiering", "moa"], "--local-share excludes"),
        (vec!["--local-share", "300", "--profile"], "--local-share excludes"),
    ] {
        scene.fails(&[&["restore", "a/b"], &arguments[..]].concat(), 2, &[words])?;
    }
    parent.must_pass()?;
    scene.strike()
}

/// What does not fit is refused before anything of the clone is made, and a smaller share fits.
fn needs_room_in_the_cgroup() -> Outcome {
    farfork_tests::farfork::ghosts_possible()?;
    let (scene, mut parent) = stage()?;
    let ghost = || scene.works(&["ghost", "start", "--memory", "16M"]);
    let full = ghost()?;
    let all = ["restore", "a/b", "--local-share", "1000", "--ghost", &full];
    scene.fails(&all, 1, &["bytes of the image local", "smaller --local-share"])?;
    let small = ghost()?;
    let mut command =
        scene.command(&["restore", "a/b", "--local-share", "300", "--ghost", &small])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    looks_at_all(&mut clone)?;
    parent.must_pass()?;
    await_until("the clone is gone", || gone(&scene))?;
    for ghost in [full, small] {
        let _ = scene.command(&["ghost", "stop", &ghost])?.output();
    }
    scene.strike()
}
