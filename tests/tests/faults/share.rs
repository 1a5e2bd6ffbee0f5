//! Clones with a share of their memory near: as much as was asked for is local, and no byte differs.

use std::fs;
use std::path::Path;

use farfork_sys::numa::{self, MemoryPolicy};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble};
use serde_json::Value;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("is_as_large_as_was_asked_for", is_as_large_as_was_asked_for),
    ("takes_hot_pages_first", takes_hot_pages_first),
    ("is_refused_in_words", is_refused_in_words),
    ("needs_room_in_the_cgroup", needs_room_in_the_cgroup),
    ("rises_while_the_clone_runs", rises_while_the_clone_runs),
    ("is_lowered_only_towards_far_memory", is_lowered_only_towards_far_memory),
    ("counts_before_and_after_a_rebalance", counts_before_and_after_a_rebalance),
    ("counts_new_memory_as_near", counts_new_memory_as_near),
    ("places_memory_before_it_is_touched", places_memory_before_it_is_touched),
    ("says_if_new_memory_stays_near", says_if_new_memory_stays_near),
    ("moves_and_grows_cut_memory", moves_and_grows_cut_memory),
    ("survives_a_kill_of_the_agent", survives_a_kill_of_the_agent),
    (
        "of_a_plain_process_is_the_kernel_s_interleave",
        of_a_plain_process_is_the_kernel_s_interleave,
    ),
];

const PAGE: u64 = 4096;
/// The program `watcher` checks so much memory of its own.
const WATCHED_BYTES: u64 = 12 << 20;

/// The pool lies there, in guests that have two memory nodes.
const FAR_NODE: &str = "FARFORK_TEST_MEDIUM_NODE";

/// Set where each access to far memory is emulated, and with it each instruction of code that lies there: a clone does not get
/// far, and only its pages are counted.
const IS_EMULATED: &str = "FARFORK_TEST_MEDIUM_EMULATED";

fn is_emulated() -> bool {
    std::env::var_os(IS_EMULATED).is_some()
}

fn stage() -> Outcome<(Scene, Subject)> {
    stage_of("watcher")
}

fn stage_of(program: &'static str) -> Outcome<(Scene, Subject)> {
    let mut scene = Scene::set(64)?;
    scene.agent()?;
    let parent = scene.subject(program)?;
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

/// It looks at all its memory once, and ends; or is killed where that takes too long, after a look from outside.
fn ends(scene: &Scene, parent: &Subject, clone: &mut Subject, pid: &Value) -> Outcome {
    if is_emulated() {
        has_bytes_of(parent, pid)?;
        scene.works(&["kill", &pid.to_string()])?;
        clone.finish()?;
    } else {
        clone.send(b"e");
        clone.must_pass()?;
    }
    await_until("the clone is gone", || gone(scene))
}

/// Every so many pages of the memory that the program `watcher` checks.
const SAMPLED_PAGES: usize = 16;

/// Pages of a clone that has not run yet are those of its parent, which checks its own.
fn has_bytes_of(parent: &Subject, pid: &Value) -> Outcome {
    let own = parent.pid();
    let [theirs, expected] = [pid.to_string(), own.to_string()]
        .map(|pid| fs::File::open(format!("/proc/{pid}/mem")).map_err(during("opening memory")));
    let (theirs, expected) = (theirs?, expected?);
    let page = |memory: &fs::File, at: u64| -> Outcome<[u8; PAGE as usize]> {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; PAGE as usize];
        memory.read_exact_at(&mut bytes, at).map_err(during("reading memory"))?;
        Ok(bytes)
    };
    let mut filled_pages = 0;
    for at in watched(parent)?.step_by(SAMPLED_PAGES * PAGE as usize) {
        let bytes = page(&theirs, at)?;
        let is_right = bytes == page(&expected, at)?;
        demand(is_right, format!("the page at {at:x} of clone {pid} differs"))?;
        filled_pages += usize::from(bytes.iter().all(|byte| *byte != 0));
    }
    println!("{filled_pages} pages of clone {pid} are right");
    let least = (WATCHED_BYTES / PAGE) as usize / SAMPLED_PAGES - 2;
    demand(
        filled_pages >= least,
        format!("only {filled_pages} pages that were filled are looked at"),
    )
}

/// Where the memory that the program `watcher` checks lies.
fn watched(parent: &Subject) -> Outcome<std::ops::Range<u64>> {
    let maps =
        fs::read_to_string(format!("/proc/{}/maps", parent.pid())).map_err(during("reading"))?;
    let range = maps.lines().filter_map(|line| line.split_once(' ')).find_map(|(range, rest)| {
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|end| u64::from_str_radix(end, 16).unwrap_or(0));
        (rest.starts_with("rw-p") && end - start >= WATCHED_BYTES).then_some(start..end)
    });
    range.map_or_else(|| fail("no memory of its own"), Ok)
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
        ends(&scene, &parent, &mut clone, &report["pid"])?;
        seen.push((permille, near(&report)));
    }
    let all = seen[3].1;
    demand(all > WATCHED_BYTES, format!("all of the image is less than a part of it: {seen:?}"))?;
    let is_right =
        |(permille, near): &(u64, u64)| near.abs_diff(all * permille / 1000) <= all / 100;
    demand(seen.iter().all(is_right), format!("shares are not met: {seen:?}"))?;
    if !is_emulated() {
        bytes_are_right(&scene, 300)?;
    }
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
    let own = watched(&parent)?;
    let hot = own.end - (1 << 20)..own.end;
    scene.works(&["hot", "set", "a/b", &format!("{:x}-{:x}", hot.start, hot.end)])?;
    let (mut clone, report) = start(&scene, 60)?;
    let pid = report["pid"].as_u64().unwrap_or(0);
    let local = local_pages(pid, own)?;
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

/// Has a share of a running clone near; the answer, which agrees with the list of clones.
fn promote(scene: &Scene, pid: &str, permille: u64) -> Outcome<Value> {
    let text = scene.works(&["promote", pid, "--local-share", &permille.to_string(), "--json"])?;
    let set: Value = serde_json::from_str(&text).map_err(during("reading the answer"))?;
    let list: Value =
        serde_json::from_str(&scene.works(&["ps", "--json"])?).map_err(during("reading ps"))?;
    let clone = &list[0];
    let agrees = |key: &str| clone[key] == set[key];
    let keys = ["near_bytes", "far_bytes", "local_permille"];
    demand(keys.iter().all(|key| agrees(key)), format!("ps differs: {set} and {clone}"))?;
    Ok(set)
}

fn bytes(set: &Value, key: &str) -> u64 {
    set[key].as_u64().unwrap_or(u64::MAX)
}

/// Its pages become local although the clone has not touched them, as many as were asked for, and its bytes stay.
fn rises_while_the_clone_runs() -> Outcome {
    let (scene, mut parent) = stage()?;
    let (mut clone, report) = start(&scene, 0)?;
    let pid = report["pid"].to_string();
    for permille in [300, 800] {
        let set = promote(&scene, &pid, permille)?;
        let [total, near, pool] =
            ["total_bytes", "near_bytes", "pool_bytes"].map(|key| bytes(&set, key));
        let missed = near.abs_diff(total * permille / 1000);
        demand(set["met"] == true && missed <= total / 100, format!("not met: {set}"))?;
        demand(total == near + pool + bytes(&set, "far_bytes"), format!("not the sum: {set}"))?;
        demand(total > WATCHED_BYTES, format!("less than its own memory: {set}"))?;
    }
    // What cannot be written stays in the pool, and the answer says so.
    let all = promote(&scene, &pid, 1000)?;
    demand(all["met"] == (bytes(&all, "pool_bytes") <= bytes(&all, "total_bytes") / 100), &all)?;
    demand(bytes(&all, "near_bytes") > WATCHED_BYTES, format!("not near: {all}"))?;
    looks_at_all(&mut clone)?;
    // The parent has not got less.
    let (mut other, _) = start(&scene, 0)?;
    looks_at_all(&mut other)?;
    parent.must_pass()?;
    scene.strike()
}

/// Without a far node it is refused; with one, the rest is moved there, and comes back.
fn is_lowered_only_towards_far_memory() -> Outcome {
    let (scene, mut parent) = stage()?;
    let (mut clone, report) = start(&scene, 800)?;
    let pid = report["pid"].to_string();
    let Ok(far) = std::env::var(FAR_NODE) else {
        let words = ["from 800 to 300 thousandths", "never given back to the pool"];
        scene.fails(&["promote", &pid, "--local-share", "300"], 1, &words)?;
        // Refused is refused: it still has what it had.
        promote(&scene, &pid, 800)?;
        looks_at_all(&mut clone)?;
        parent.must_pass()?;
        return scene.strike();
    };
    for permille in [300, 0, 800] {
        let set = promote(&scene, &pid, permille)?;
        let (near, far_pages) = nodes_of_copies(&report["pid"], &far)?;
        println!("share {permille}: {near} copies near, {far_pages} far: {set}");
        let counted = near.abs_diff(bytes(&set, "near_bytes") / PAGE);
        demand(counted <= 8, format!("the kernel counts {near} near: {set}"))?;
        let total = bytes(&set, "total_bytes");
        let missed = bytes(&set, "near_bytes").abs_diff(total * permille / 1000);
        demand(set["met"] == true && missed <= total / 100, format!("not met: {set}"))?;
    }
    ends(&scene, &parent, &mut clone, &report["pid"])?;
    parent.must_pass()?;
    scene.strike()
}

/// What a clone takes itself is near, whatever its share, until it is asked for the share again; then it counts.
fn counts_new_memory_as_near() -> Outcome {
    let (scene, mut parent) = stage()?;
    let (mut clone, report) = start(&scene, 300)?;
    let pid = report["pid"].to_string();
    let before = promote(&scene, &pid, 300)?;
    clone.send(b"n");
    clone.await_line("NOTE has new memory")?;
    let list: Value =
        serde_json::from_str(&scene.works(&["ps", "--json"])?).map_err(during("reading ps"))?;
    let grown = bytes(&list[0], "near_bytes").saturating_sub(bytes(&before, "near_bytes"));
    demand(grown >= WATCHED_BYTES / 2, format!("{grown} bytes more are near: {list}, {before}"))?;
    let after = promote(&scene, &pid, 300)?;
    let total = bytes(&after, "total_bytes").saturating_sub(bytes(&before, "total_bytes"));
    demand(total >= WATCHED_BYTES / 2, format!("new memory does not count: {before}, {after}"))?;
    match std::env::var(FAR_NODE) {
        Ok(far) => {
            let is_moved = after["met"] == true && bytes(&after, "moved_bytes") > WATCHED_BYTES / 4;
            demand(is_moved, format!("new memory is not moved: {after}"))?;
            // As the kernel counts, neither more nor less is near than the share.
            let (near, _) = nodes_of_copies(&report["pid"], &far)?;
            let total = bytes(&after, "total_bytes");
            let missed = (near * PAGE).abs_diff(total * 300 / 1000);
            demand(missed <= total / 100, format!("{missed} bytes missed: {near} pages, {after}"))?;
        }
        Err(_) => {
            let says_why = after["reason"].as_str().is_some_and(|why| why.contains("of its own"));
            demand(after["met"] == false && says_why, format!("what is not met: {after}"))?;
        }
    }
    clone.send(b"e");
    clone.must_pass()?;
    parent.must_pass()?;
    scene.strike()
}

/// Memory that nothing had touched before the checkpoint is near by the clone's share when the clone touches it, without
/// another call, and grows as one mapping. Without a far node all of it is near.
fn places_memory_before_it_is_touched() -> Outcome {
    let (scene, mut parent) = stage_of("untouched")?;
    let far = std::env::var(FAR_NODE).ok();
    for permille in [0, 300, 800, 1000] {
        let (mut clone, report) = start(&scene, permille)?;
        clone.send(b"t");
        clone.await_line("NOTE has touched it")?;
        let list: Value =
            serde_json::from_str(&scene.works(&["ps", "--json"])?).map_err(during("reading ps"))?;
        let [near_bytes, far_bytes] = ["near_bytes", "far_bytes"].map(|key| bytes(&list[0], key));
        if let Some(far) = &far {
            let pages = nodes_of_copies(&report["pid"], far)?;
            println!("share {permille}: {pages:?} pages near and far of {report}, touched");
            let counted = pages.0.abs_diff(near_bytes / PAGE);
            demand(counted <= 8, format!("the kernel counts {pages:?}: {list}"))?;
            let set = promote(&scene, &report["pid"].to_string(), permille)?;
            let missed = near_bytes.abs_diff(bytes(&set, "wanted_bytes"));
            let seen = format!("{missed} bytes missed at {permille}: {list}, then {set}");
            demand(missed <= bytes(&set, "total_bytes") / 100, seen)?;
        } else {
            let added = near_bytes.saturating_sub(near(&report));
            let seen = format!("{added} of {WATCHED_BYTES} bytes more are near: {report}, {list}");
            demand(added >= WATCHED_BYTES && far_bytes == 0, seen)?;
        }
        clone.send(b"e");
        clone.must_pass()?;
        await_until("the clone is gone", || gone(&scene))?;
    }
    parent.must_pass()?;
    scene.strike()
}

/// A clone of memory that nothing has touched, on a far node: one of the machine, or one that it seems to have.
fn stage_with_far_memory(program: &'static str) -> Outcome<(Scene, Subject)> {
    let mut scene = Scene::set(64)?;
    match std::env::var(FAR_NODE) {
        Ok(_) => scene.agent()?,
        Err(_) => scene.agent_with_nodes("0", "")?,
    };
    let parent = scene.subject(program)?;
    scene.checkpoint(&parent, "a/b")?;
    Ok((scene, parent))
}

fn mappings(pid: &Value) -> Outcome<usize> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(during("reading"))?;
    Ok(maps.lines().count())
}

/// A program sees nothing of the parts that its memory has been cut into: what was one mapping moves and grows as one,
/// and is not copied.
fn moves_and_grows_cut_memory() -> Outcome {
    let (scene, mut parent) = stage_with_far_memory("remap_parts")?;
    let whole = mappings(&parent.pid().into())?;
    for permille in [0, 300, 800] {
        let (mut clone, report) = start(&scene, permille)?;
        let warnings = clone.after("    \"warnings\"");
        demand(warnings.is_empty(), format!("it starts with {warnings:?}"))?;
        let parts = mappings(&report["pid"])?;
        let is_cut = permille == 0 || parts > whole + 50;
        demand(is_cut, format!("{whole} mappings of the parent are {parts} at {permille}"))?;
        clone.send(b"s");
        clone.must_pass()?;
        await_until("the clone is gone", || gone(&scene))?;
    }
    parent.must_pass()?;
    scene.strike()
}

/// Where the kernel does not take memory from a far node, as from one that is not there, the clone starts, and the agent says so.
fn says_if_new_memory_stays_near() -> Outcome {
    let mut scene = Scene::set(64)?;
    scene.agent_with_nodes("0,7", "0")?;
    let mut parent = scene.subject("untouched")?;
    scene.checkpoint(&parent, "a/b")?;
    for permille in [300, 1000] {
        let (mut clone, report) = start(&scene, permille)?;
        let said = clone.after("      \"taking new memory from far nodes");
        // All near is what the largest share asks for.
        let expected = usize::from(permille == 300);
        demand(said.len() == expected, format!("warnings at {permille}: {said:?}, {report}"))?;
        clone.send(b"t");
        clone.await_line("NOTE has touched it")?;
        clone.must_pass()?;
        await_until("the clone is gone", || gone(&scene))?;
    }
    parent.must_pass()?;
    scene.strike()
}

/// A clone that has started with each share gets another one; what it has of its own lies where both ask for.
fn counts_before_and_after_a_rebalance() -> Outcome {
    let far = std::env::var(FAR_NODE)
        .map_err(|_| Trouble::Skipped("it needs a far memory node, as tests/qemu has".into()))?;
    let (scene, mut parent) = stage()?;
    for (before, after) in [(0, 800), (300, 1000), (800, 300), (1000, 0)] {
        let (mut clone, report) = start(&scene, before)?;
        let pid = &report["pid"];
        let started = nodes_of_copies(pid, &far)?;
        let counted = started.0.abs_diff(near(&report) / PAGE);
        demand(counted <= 8, format!("{started:?} pages near and far: {report}"))?;
        let set = promote(&scene, &pid.to_string(), after)?;
        let pages = nodes_of_copies(pid, &far)?;
        println!("share {before}: {started:?} pages near and far; {after}: {pages:?}: {set}");
        let [total, near, pool] =
            ["total_bytes", "near_bytes", "pool_bytes"].map(|key| bytes(&set, key));
        let counted = pages.0.abs_diff(near / PAGE);
        demand(counted <= 8, format!("{pages:?} pages near and far: {set}"))?;
        // What cannot be written is local only from a start on.
        let wanted = (total * after / 1000).min(total - pool);
        let is_met = near.abs_diff(wanted) <= total / 100;
        demand(is_met && (set["met"] == true || after == 1000), format!("not met: {set}"))?;
        // It looks once: there, the processor is emulated.
        ends(&scene, &parent, &mut clone, pid)?;
    }
    parent.must_pass()?;
    scene.strike()
}

/// Copies of a process on other nodes and on the far one, in pages, as the kernel counts them page by page.
fn nodes_of_copies(pid: &Value, far: &str) -> Outcome<(u64, u64)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps")).map_err(during("reading"))?;
    let (mut near, mut on_far) = (0, 0);
    for line in maps.lines().filter(|line| line.contains("anon=")) {
        let number = |name: &str| -> u64 {
            let found = line.split(' ').find_map(|word| word.strip_prefix(&format!("{name}=")));
            found.and_then(|count| count.parse().ok()).unwrap_or(0)
        };
        let here: u64 = (0..8)
            .filter(|node| node.to_string() != far)
            .map(|node| number(&format!("N{node}")))
            .sum();
        // Pages of the pool lie on the far node, and are counted with the copies of their mapping.
        near += here;
        on_far += number(&format!("N{far}"));
    }
    Ok((near, on_far))
}

/// Whenever the agent dies, a clone has some share and all its bytes.
fn survives_a_kill_of_the_agent() -> Outcome {
    let (mut scene, mut parent) = stage()?;
    for moment_us in [300, 2_000, 8_000] {
        let (mut clone, report) = start(&scene, 0)?;
        let pid = report["pid"].to_string();
        let mut call = scene.command(&["promote", &pid, "--local-share", "1000"])?;
        let mut call =
            call.stderr(std::process::Stdio::null()).spawn().map_err(during("promoting"))?;
        std::thread::sleep(std::time::Duration::from_micros(moment_us));
        scene.kill_agent();
        call.wait().map_err(during("waiting"))?;
        // Its starter has lost the agent, and exits with an error.
        clone.send(b"ve");
        clone.await_line("PASS")?;
        scene.agent()?;
    }
    parent.must_pass()?;
    scene.strike()
}

/// The baseline: a plain process whose new memory the kernel interleaves by weights. They hold for the whole system,
/// and move nothing that is there; moving pages from outside does.
fn of_a_plain_process_is_the_kernel_s_interleave() -> Outcome {
    let far = std::env::var(FAR_NODE)
        .map_err(|_| Trouble::Skipped("it needs a far memory node, as tests/qemu has".into()))?;
    let weights = Path::new("/sys/kernel/mm/mempolicy/weighted_interleave");
    if !weights.exists() {
        return Err(Trouble::Skipped("weighted interleaving needs Linux 6.9".into()));
    }
    let set = |node: &str, weight: &str| fs::write(weights.join(format!("node{node}")), weight);
    for wrong in ["-1", "256"] {
        demand(set("0", wrong).is_err(), format!("the kernel takes the weight {wrong}"))?;
    }
    let huge = "/sys/kernel/mm/transparent_hugepage/enabled";
    fs::write(huge, "never").map_err(during("turning huge pages off"))?;
    let interleave = format!("weighted interleave:0,{far}");
    let ways = [
        (0, format!("bind:{far}"), ["1", "1"]),
        (300, interleave.clone(), ["3", "7"]),
        (800, interleave, ["4", "1"]),
        (1000, "bind:0".to_owned(), ["1", "1"]),
    ];
    for (permille, policy, [near, on_far]) in ways {
        set("0", near).and_then(|()| set(&far, on_far)).map_err(during("setting weights"))?;
        let policy: MemoryPolicy = policy.parse().map_err(during("reading a policy"))?;
        // So large that the allocator gives it back each time, and gets fresh pages.
        let block = std::hint::black_box(vec![0u8; 40 << 20]);
        let pages = placed(&policy, block)?;
        let counted = pages.near_pages()?;
        set("0", "1").and_then(|()| set(&far, "1")).map_err(during("setting weights"))?;
        let later = pages.near_pages()?;
        pages.balance(permille ^ 512, far.parse().map_err(during("reading a node"))?)?;
        let moved = pages.near_pages()?;
        println!(
            "share {permille}: {counted} of 4096 pages near, {later} after other weights, {moved} moved"
        );
        let missed = counted.abs_diff(4096 * permille / 1000);
        demand(missed <= 41, format!("{counted} of 4096 pages are near at {permille}"))?;
        demand(later == counted, "other weights move pages that are there")?;
        let missed = moved.abs_diff(4096 * (permille ^ 512).min(1000) / 1000);
        demand(missed <= 41, format!("{moved} of 4096 pages are near after moving"))?;
    }
    Ok(())
}

/// Memory of this process that was touched under a policy.
struct Placed {
    _block: Vec<u8>,
    pages: Vec<u64>,
}

fn placed(policy: &MemoryPolicy, mut block: Vec<u8>) -> Outcome<Placed> {
    let skipped = (block.as_ptr() as u64).next_multiple_of(1 << 20) - block.as_ptr() as u64;
    let first = block.as_ptr() as u64 + skipped;
    policy.apply(first, 16 << 20).map_err(during("setting a policy"))?;
    let touched = &mut block[skipped as usize..][..16 << 20];
    touched.chunks_exact_mut(PAGE as usize).for_each(|page| page[7] = 1);
    Ok(Placed { _block: block, pages: (0..4096).map(|page| first + page * PAGE).collect() })
}

impl Placed {
    fn near_pages(&self) -> Outcome<u64> {
        let pid = std::process::id() as i32;
        let nodes = numa::nodes_of(pid, &self.pages).map_err(during("asking for nodes"))?;
        Ok(nodes.iter().filter(|node| **node == 0).count() as u64)
    }

    /// Has a share of the pages near, whatever it was.
    fn balance(&self, permille: u64, far: i32) -> Outcome {
        let pid = std::process::id() as i32;
        let (near, rest) = self.pages.split_at((4096 * permille.min(1000) / 1000) as usize);
        for (pages, node) in [(near, 0), (rest, far)] {
            numa::move_pages(pid, pages, node).map_err(during("moving pages"))?;
        }
        Ok(())
    }
}

fn is_refused_in_words() -> Outcome {
    let (scene, mut parent) = stage()?;
    for (arguments, words) in [
        (vec!["1001"], "expected thousandths from 0 to 1000"),
        (vec!["0.3"], "expected thousandths from 0 to 1000"),
        (vec!["300", "--hot"], "cannot be used with"),
        (vec!["300", "1000-2000"], "cannot be used with"),
    ] {
        scene.fails(&[&["promote", "1", "--local-share"], &arguments[..]].concat(), 2, &[words])?;
    }
    scene.fails(&["promote", "1", "--local-share", "300"], 1, &["1"])?;
    let mut command = scene.command(&["restore", "--json", "--tiering", "copy", "a/b"])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.await_line("]")?;
    let pid = clone.after("    \"pid\": ").pop().unwrap_or_default();
    let promote = ["promote", pid.trim_end_matches(','), "--local-share", "300"];
    scene.fails(&promote, 1, &["only clones under mow"])?;
    looks_at_all(&mut clone)?;
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
