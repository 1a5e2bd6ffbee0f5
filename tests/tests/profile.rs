//! Profiling clones: they report exactly the pages that they touch, and commands show these.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_image::format::Image;
use farfork_image::model::Member;
use farfork_node::profile::Watched;
use farfork_pages::{Access, Observed, place_of};
use farfork_pool::{PageBits, Pool};
use farfork_tests::driver::{self, Tests};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Program, Trouble, compile, farfork, testbed};
use farfork_types::Cid;
use serde_json::Value;

const PAGES: u64 = 2048;
const PAGE: u64 = 4096;

/// Parts of the program's memory, and every which page of them it reads and writes: as in `touch.c`.
const PARTS: [(&str, u64, u64); 5] = [
    ("whole", 17, 23),
    ("readonly", 19, 0),
    ("sparse", 64, 0),
    ("file", 31, 37),
    ("guarded", 41, 43),
];

fn demand(holds: bool, what: &str, seen: &dyn std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(Trouble::Failed(format!("expected {what}, saw {seen:?}"))) }
}

fn during<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Outcome<T> {
    result.map_err(|error| Trouble::during(what, error))
}

/// The program, waiting, and its image.
struct Scene {
    parent: Subject,
    pool: Pool,
    path: &'static Path,
    name: String,
    image: Image,
}

impl Scene {
    fn set(name: &str, is_tree: bool) -> Outcome<Scene> {
        Scene::of("touch", name, is_tree)
    }

    fn of(program: &'static str, name: &str, is_tree: bool) -> Outcome<Scene> {
        let (path, name) = (testbed::pool()?, format!("test/profile:{name}"));
        let mut command = compile::command(&Program::c(program))?;
        command.args(is_tree.then_some("tree"));
        command.current_dir(testbed::work_dir(&name.replace(['/', ':'], "-"))?);
        let mut parent = Subject::start("parent", &mut command, Duration::from_secs(60))?;
        parent.await_ready()?;
        let tree: &[&str] = if is_tree { &["--tree"] } else { &[] };
        let made = farfork::must_run(farfork::checkpoint(path, parent.pid(), &name, tree)?)?;
        let reported: Value = during("checkpoint --json", serde_json::from_slice(&made.stdout))?;
        let cid: Cid = during("the id", reported["cid"].as_str().unwrap_or_default().parse())?;
        let pool = during("opening the pool", Pool::open(path))?;
        let image = during("reading the image", Image::read(&pool, cid))?;
        Ok(Scene { parent, pool, path, name, image })
    }

    /// A clone that is watched, and its pid.
    fn clone(&self) -> Outcome<(Subject, i32)> {
        self.clone_with(&["--profile"])
    }

    fn clone_with(&self, more: &[&str]) -> Outcome<(Subject, i32)> {
        let mut command = farfork::restore(self.path, &self.name, more)?;
        let mut clone = Subject::start("clone", &mut command, Duration::from_secs(60))?;
        clone.await_line("]")?;
        let reported = clone.after("    \"pid\": ").pop().unwrap_or_default();
        let pid = during("the clone's pid", reported.trim_end_matches(',').parse())?;
        Ok((clone, pid))
    }

    fn access(&self) -> Outcome<Access> {
        let bits = during("reading the tables", self.pool.access(self.image.id.cid))?;
        Ok(Access::from(bits))
    }

    /// Where the pages of a part lie in the image, those that lie there.
    fn places(&self, member: &Member, at: u64) -> Vec<Option<u64>> {
        let place = |page| {
            let address = at + page * PAGE;
            place_of(member, address..address + 1)?.runs(0..u64::MAX).next().map(|run| run.start)
        };
        (0..PAGES).map(place).collect()
    }

    /// Demands that nothing is reported that did not happen. Returns the number of reads that are missing.
    fn expect(&self, observed: &Observed, who: usize, has_touched: bool) -> Outcome<u64> {
        let mut lost = 0;
        let (member, label) = (&self.image.model.members[who], ["parent", "child"][who]);
        for (part, read_every, write_every) in PARTS {
            let at = self.parent.after(&format!("NOTE {label} {part} ")).pop().unwrap_or_default();
            let at = during("an address", u64::from_str_radix(&at, 16))?;
            let mut seen = 0;
            for (page, place) in self.places(member, at).into_iter().enumerate() {
                let Some(place) = place else { continue };
                seen += 1;
                let is = |every, rest| has_touched && every != 0 && page as u64 % every == rest;
                let is_written = is(write_every, 3);
                let is_read = is(read_every, 5) && !is_written;
                let reported = (observed.read.contains(place), observed.written.contains(place));
                // The kernel may have unmapped it again: see docs/internals/memory.md#access-patterns.
                if is_read && reported == (false, false) {
                    lost += 1;
                    continue;
                }
                let what = format!("(read, written) of page {page} of {label} {part}");
                demand(
                    reported == (is_read, is_written),
                    &what,
                    &(reported, (is_read, is_written)),
                )?;
            }
            demand(seen >= 32, "pages of each part in the pool", &(part, seen))?;
        }
        Ok(lost)
    }

    fn forget(mut self) -> Outcome {
        self.parent.send(b"ab");
        self.parent.finish()?;
        farfork::forget(self.path, &self.name)
    }
}

fn look(pid: i32, image: &Image) -> Outcome<Observed> {
    during(
        "looking at a clone",
        Watched::open(pid, &image.model).and_then(|watched| watched.look()),
    )
}

fn kill(pid: i32) -> Outcome {
    let mut command = farfork::command(&["kill", "-9"])?;
    command.arg(pid.to_string());
    farfork::must_run(command).map(drop)
}

/// In every kind of mapping, exactly the clone's accesses are reported. Reads are missing if the kernel unmaps a
/// page meanwhile. That is rare, so one of several attempts must be exact.
fn every_page_is_reported(is_tree: bool) -> Outcome {
    for _ in 0..ATTEMPTS {
        match attempt(is_tree)? {
            0 => return Ok(()),
            lost => eprintln!("{lost} pages were read and then unmapped: trying again"),
        }
    }
    Err(Trouble::Failed(format!("expected all reads to be reported once in {ATTEMPTS}")))
}

const ATTEMPTS: u32 = 6;

/// Returns the number of reads that are missing.
fn attempt(is_tree: bool) -> Outcome<u64> {
    let scene = Scene::set(if is_tree { "tree" } else { "single" }, is_tree)?;
    let (mut clone, pid) = scene.clone()?;
    let lost = |observed: &Observed, has_touched| {
        let members = 0..1 + usize::from(is_tree);
        members.map(|who| scene.expect(observed, who, has_touched)).sum::<Outcome<u64>>()
    };
    lost(&look(pid, &scene.image)?, false)?;
    clone.send_byte();
    clone.await_line("NOTE parent TOUCHED")?;
    if is_tree {
        clone.await_line("NOTE child TOUCHED")?;
    }
    let before = lost(&look(pid, &scene.image)?, true)?;
    // To checkpoint a clone is not to touch its pages.
    let again = format!("{}-again", scene.name);
    let tree: &[&str] = if is_tree { &["--tree"] } else { &[] };
    farfork::must_run(farfork::checkpoint(scene.path, pid as u32, &again, tree)?)?;
    farfork::forget(scene.path, &again)?;
    let observed = look(pid, &scene.image)?;
    let after = lost(&observed, true)?;
    kill(pid)?;
    clone.finish()?;
    // The agent has looked before it sent the signal.
    let (access, seen) = (scene.access()?, observed.access());
    let mut missing = seen.accessed.clone();
    missing.subtract(&access.accessed);
    demand(
        missing.is_empty() && access.dirtied == seen.dirtied,
        "the same in the table",
        &missing,
    )?;
    reset(&scene, &observed)?;
    scene.forget()?;
    Ok(before + after)
}

/// By `hybrid`, a page becomes local if it is known or declared to be accessed, when it is touched; any
/// other is read where it is. So are all by `mow`, and none by `moa`.
fn what_is_not_known_stays_in_the_pool() -> Outcome {
    let scene = Scene::set("unknown", false)?;
    let at = scene.parent.after("NOTE parent readonly ").pop().unwrap_or_default();
    let at = during("an address", u64::from_str_radix(&at, 16))?;
    let (half, member) = (PAGES / 2, &scene.image.model.members[0]);
    let (_, every, _) = PARTS[1];
    let is_read =
        |(page, place): &(usize, Option<u64>)| *page as u64 % every == 5 && place.is_some();
    let read: Vec<usize> = scene
        .places(member, at)
        .into_iter()
        .enumerate()
        .filter(is_read)
        .map(|(page, _)| page)
        .collect();
    demand(read.len() >= 32, "pages to be in the pool", &read)?;
    for (tiering, declared, local) in [
        ("mow", 0, 0),
        ("hybrid", 0, 0),
        ("moa", 0, PAGES),
        ("hybrid", half, half),
        ("mow", half, 0),
    ] {
        if declared > 0 {
            let range = format!("{at:x}-{:x}", at + declared * PAGE);
            let mut command = farfork::command(&["hot", "set", "--pool"])?;
            command.arg(scene.path).args([&scene.name, &range]);
            farfork::must_run(command)?;
            // So often the agent looks whether more is known, by the default policy.
            thread::sleep(Duration::from_millis(1100));
        }
        let (mut clone, pid) = scene.clone_with(&["--tiering", tiering])?;
        clone.send_byte();
        clone.await_line("NOTE parent TOUCHED")?;
        let own = are_local(pid, at)?;
        for page in &read {
            let what = format!("whether page {page} is local, by {tiering}, {declared} declared");
            demand(own[*page] == ((*page as u64) < local), &what, &own[*page])?;
        }
        kill(pid)?;
        clone.finish()?;
    }
    scene.forget()
}

/// Which pages of a part are memory of the process's own.
fn are_local(pid: i32, at: u64) -> Outcome<Vec<bool>> {
    let file = during("opening the pagemap", File::open(format!("/proc/{pid}/pagemap")))?;
    let mut bytes = vec![0; PAGES as usize * 8];
    during("reading the pagemap", file.read_exact_at(&mut bytes, at / PAGE * 8))?;
    // Present, and not of a file.
    let is_own = |entry: u64| entry >> 63 == 1 && entry >> 61 & 1 == 0;
    Ok(bytes.as_chunks().0.iter().map(|entry| is_own(u64::from_ne_bytes(*entry))).collect())
}

/// Pages that are made local for a clone were not written by it.
fn promoted_pages_do_not_count_as_written() -> Outcome {
    let scene = Scene::set("promoted", false)?;
    let (mut clone, pid) = scene.clone()?;
    clone.send_byte();
    clone.await_line("NOTE parent TOUCHED")?;
    let before = look(pid, &scene.image)?;
    let ranges = ["whole", "sparse", "file"].map(|part| {
        let at = scene.parent.after(&format!("NOTE parent {part} ")).pop().unwrap_or_default();
        let at = u64::from_str_radix(&at, 16).unwrap_or_default();
        format!("{at:x}-{:x}", at + PAGES * PAGE)
    });
    let mut command = farfork::command(&["promote", "--json", &pid.to_string()])?;
    let reported = farfork::must_run({
        command.args(ranges);
        command
    })?;
    let reported: Value = during("promote --json", serde_json::from_slice(&reported.stdout))?;
    demand(reported["promoted_pages"].as_u64() > Some(100), "pages to become local", &reported)?;
    kill(pid)?;
    clone.finish()?;
    let (access, seen) = (scene.access()?, before.access());
    demand(access.dirtied == seen.dirtied, "what it has written", &access.dirtied.len())?;
    let mut missing = seen.accessed.clone();
    missing.subtract(&access.accessed);
    demand(missing.is_empty(), "what it had accessed by then", &missing.len())?;
    scene.forget()
}

/// After a reset only what later clones do counts; what was written stays, unless that is to go, too.
fn reset(scene: &Scene, before: &Observed) -> Outcome {
    let reset = |more: &[&str]| -> Outcome {
        let mut command = farfork::command(&["images", "reset-accessed", "--pool"])?;
        command.arg(scene.path).arg(&scene.name).args(more);
        farfork::must_run(command).map(drop)
    };
    reset(&[])?;
    let access = scene.access()?;
    demand(access.accessed.is_empty(), "nothing accessed after a reset", &access.accessed.len())?;
    demand(access.dirtied == before.written, "what was written to stay", &access.dirtied.len())?;
    let (mut clone, pid) = scene.clone()?;
    let observed = look(pid, &scene.image)?;
    kill(pid)?;
    clone.finish()?;
    let accessed = scene.access()?.accessed;
    let mut lost = observed.access().accessed;
    lost.subtract(&accessed);
    let is_fresh = accessed.len() < 100 && !accessed.is_empty();
    demand(lost.is_empty() && is_fresh, "what the next clone did", &(accessed.len(), lost.len()))?;
    reset(&["--dirtied"])?;
    let left = scene.access()?;
    let is_empty = left.accessed.is_empty() && left.dirtied.is_empty();
    demand(is_empty, "nothing written after a reset of that", &left.dirtied.len())
}

/// Memory has one watcher, and the program's own comes first.
fn a_clone_with_a_userfaultfd_of_its_own_is_watched_no_longer() -> Outcome {
    let scene = Scene::of("uffd_own", "own", false)?;
    let (mut clone, pid) = scene.clone()?;
    let before = look(pid, &scene.image)?;
    demand(!before.written.is_empty(), "a clone that is watched", &before)?;
    clone.send_byte();
    clone.await_line("NOTE REGISTERED")?;
    let after = look(pid, &scene.image)?;
    demand(after == Observed::default(), "a clone that is watched no longer", &after)?;
    clone.send_byte();
    clone.finish()?;
    demand(clone.said("PASS"), "the program to pass", &clone.transcript())?;
    scene.forget()
}

/// `images profile` runs a command against a clone, exits with its status, and prints counts.
fn a_command_profiles_an_image() -> Outcome {
    let scene = Scene::set("command", false)?;
    let script = "test -d /proc/$FARFORK_CLONE_PID && exit 7";
    let mut command = farfork::command(&["images", "profile", "--json", "--pool"])?;
    command.arg(scene.path).args([&scene.name, "--", "sh", "-c", script]);
    // Kept open: the clone waits for a byte.
    let mut child =
        during("images profile", command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn())?;
    let _input = child.stdin.take();
    let output = during("images profile", child.wait_with_output())?;
    demand(output.status.code() == Some(7), "the command's exit status", &output)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let counts: Value = during("its JSON", serde_json::from_str(&text))?;
    let count = |name: &str| counts[name].as_u64().unwrap_or(0);
    let sum = count("read_pages") + count("written_pages") + count("untouched_pages");
    demand(sum == count("mapped_pages") && count("written_pages") > 0, "counts", &text)?;
    let shown = shown(&scene)?;
    let reported = shown["access"]["accessed_pages"].as_u64();
    let touched = count("read_pages") + count("written_pages");
    let is_reported = reported.is_some_and(|reported| reported >= touched);
    demand(is_reported, "images show to print the same", &(reported, touched))?;
    let node = &shown["access"]["nodes"][0]["node"];
    demand(node.is_string(), "the node that reported it", &shown["access"])?;
    scene.forget()
}

fn shown(scene: &Scene) -> Outcome<Value> {
    shown_of(scene, &scene.name)
}

fn shown_of(scene: &Scene, name: &str) -> Outcome<Value> {
    let mut command = farfork::command(&["images", "show", "--json", "--pool"])?;
    command.arg(scene.path).arg(name);
    during("images show", serde_json::from_slice(&farfork::must_run(command)?.stdout))
}

/// Ranges are declared by the parent's addresses, and refused in words where it has nothing.
fn hot_ranges_are_declared_and_taken_back() -> Outcome {
    let scene = Scene::set("hot", false)?;
    let at = scene.parent.after("NOTE parent whole ").pop().unwrap_or_default();
    let at = during("an address", u64::from_str_radix(&at, 16))?;
    let hot = |what: &str, ranges: &[String]| -> Outcome<(Option<i32>, String, u64)> {
        let mut command = farfork::command(&["hot", what, "--pool"])?;
        command.arg(scene.path).arg(&scene.name).args(ranges);
        let output = farfork::run(command)?;
        let pages = shown(&scene)?["access"]["hot_pages"].as_u64();
        Ok((output.status.code(), farfork::text(&output), pages.unwrap_or(u64::MAX)))
    };
    let range = |from: u64, to: u64| format!("{:x}-{:x}", at + from, at + to);
    let set = hot("set", &[range(0, 3 * PAGE), range(10 * PAGE + 1, 10 * PAGE + 2)])?;
    demand((set.0, set.2) == (Some(0), 4), "4 hot pages", &set)?;
    let cleared = hot("clear", &[range(0, PAGE)])?;
    demand((cleared.0, cleared.2) == (Some(0), 3), "3 hot pages", &cleared)?;
    for (ranges, code, word) in [
        (vec!["10-20".to_owned()], 1, "has no memory at 10-20"),
        (vec![format!("77777777:{}", range(0, 1))], 1, "no process 77777777"),
        (vec!["20-10".to_owned()], 2, "START"),
        (vec![], 2, "START-END"),
    ] {
        let refused = hot("set", &ranges)?;
        let is_reported = refused.1.contains(word) && refused.2 == 3;
        demand(
            refused.0 == Some(code) && is_reported,
            "to be refused in words",
            &(ranges, refused),
        )?;
    }
    let all = hot("clear", &[])?;
    demand((all.0, all.2) == (Some(0), 0), "no hot pages", &all)?;
    with_its_checkpoint(&scene, &range(0, 5 * PAGE))?;
    scene.forget()
}

/// The same with the checkpoint. A wrong range does not prevent the image.
fn with_its_checkpoint(scene: &Scene, range: &str) -> Outcome {
    let name = format!("{}-declared", scene.name);
    for (range, pages, words) in [(range, 5, ""), ("10-20", 0, "has no memory at 10-20")] {
        let pid = scene.parent.pid();
        let output = farfork::run(farfork::checkpoint(scene.path, pid, &name, &["--hot", range])?)?;
        let is_made = output.status.success() && farfork::text(&output).contains(words);
        demand(is_made, "an image, whatever is hot", &output)?;
        let hot = shown_of(scene, &name)?["access"]["hot_pages"].as_u64();
        demand(hot == Some(pages), "hot pages of a checkpoint", &(range, hot))?;
    }
    farfork::forget(scene.path, &name)
}

/// An agent may watch one clone in so many by itself.
fn one_clone_in_two_is_watched() -> Outcome {
    by_itself("every", &["2"], watch_every_other)
}

/// It may then forget what those before have accessed, and nothing else.
fn what_was_accessed_long_ago_is_forgotten() -> Outcome {
    let rule = |name, seconds, is_remembered| {
        let more = ["1", "--reset-accessed-s", seconds];
        by_itself(name, &more, |scene| remember(scene, name, is_remembered))
    };
    rule("remembers", "3600", true)?;
    rule("forgets", "0", false)
}

fn by_itself(name: &str, more: &[&str], work: impl FnOnce(&Scene) -> Outcome) -> Outcome {
    let scene = Scene::set(name, false)?;
    let mut agent = Command::new(farfork::binary()?);
    agent.args(["node", "--name", name, "--profile-every"]).args(more);
    agent.env(farfork::RUN, testbed::run_directory()).stdin(Stdio::null()).stdout(Stdio::null());
    let mut agent = during("an agent", agent.spawn())?;
    let socket = testbed::run_directory().join(format!("{name}.sock"));
    let outcome =
        testbed::eventually("the agent", || Ok(socket.exists())).and_then(|()| work(&scene));
    let _ = agent.kill().and_then(|()| agent.wait());
    outcome?;
    scene.forget()
}

fn remember(scene: &Scene, node: &str, is_remembered: bool) -> Outcome {
    // A page that no clone touches.
    let bits = PageBits { accessed: vec![1], dirtied: vec![1], hot: vec![1] };
    during("adding bits", scene.pool.add_users_bits(scene.image.id.cid, &bits))?;
    // The first learns of the epoch.
    let _clones = [scene.clone_with(&["--node", node])?, scene.clone_with(&["--node", node])?];
    let access = scene.access()?;
    let has = [&access.accessed, &access.dirtied, &access.hot].map(|set| set.contains(0));
    demand(has == [is_remembered, true, true], "what was accessed to be forgotten, or not", &has)
}

fn watch_every_other(scene: &Scene) -> Outcome {
    let restore = |more: &[&str]| -> Outcome<_> {
        let more = [&["--node", "every", "--detach"], more].concat();
        let mut command = farfork::restore(scene.path, &scene.name, &more)?;
        farfork::run({
            command.stdin(Stdio::null());
            command
        })
    };
    let refused = farfork::text(&restore(&["--profile", "--tiering", "moa"])?);
    demand(refused.contains("cannot profile a clone under moa"), "a refusal", &refused)?;
    let turns = [true, false, true, false];
    // Without being asked, the agent looks at them soon.
    let look = || testbed::eventually("a look at a clone", || Ok(!scene.access()?.is_empty()));
    take_turns(scene, ("mow", turns), look)?;
    take_turns(scene, ("hybrid", turns), || Ok(()))?;
    take_turns(scene, ("moa", [false; 4]), || Ok(()))
}

/// Four clones, of which some are watched: those start as `mow` has it. Does something while they live.
fn take_turns(
    scene: &Scene,
    (tiering, turns): (&str, [bool; 4]),
    meanwhile: impl FnOnce() -> Outcome,
) -> Outcome {
    let more = ["--node", "every", "--count", "4", "--tiering", tiering];
    let mut command = farfork::restore(scene.path, &scene.name, &more)?;
    let mut clones = during("clones", command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn())?;
    let reported = four_clones(tiering, turns).and_then(|()| meanwhile());
    let _ = clones.kill().and_then(|()| clones.wait());
    reported.and(testbed::eventually("all to end", || Ok(listed()?.is_empty())))
}

/// The kernel's own `pid_max`, where it is not set otherwise.
const PIDS: i64 = 32_768;

fn four_clones(tiering: &str, turns: [bool; 4]) -> Outcome {
    let mut list = Vec::new();
    testbed::eventually("four clones", || {
        list = listed()?;
        Ok(list.len() == 4)
    })?;
    list.sort_by_key(|clone| clone["pid"].as_i64());
    // In the order of their starts, also where the kernel began anew with small pids in between.
    let pid = |at: usize| list[at]["pid"].as_i64().unwrap_or_default();
    if let Some(at) = (1..list.len()).find(|at| pid(*at) - pid(at - 1) > PIDS / 2) {
        list.rotate_left(at);
    }
    let seen = list.iter().map(|one| (one["is_profiled"].as_bool(), one["tiering"].as_str()));
    let expected = turns.map(|turn| (Some(turn), Some(if turn { "mow" } else { tiering })));
    demand(seen.clone().eq(expected), "every other to be watched", &seen.collect::<Vec<_>>())
}

fn listed() -> Outcome<Vec<Value>> {
    let text = farfork::must_run(farfork::command(&["ps", "--json", "--node", "every"])?)?;
    let reported: Value = during("ps", serde_json::from_slice(&text.stdout))?;
    Ok(reported.as_array().cloned().unwrap_or_default())
}

/// Clones that wait in ghosts have the pages that a watched one wrote before they run, others get them
/// while they run; under the policies that say so, those that it touched become local when they are
/// touched.
fn later_clones_get_what_is_known() -> Outcome {
    let scene = Scene::set("known", false)?;
    let local = |more: &[&str], touches: bool| -> Outcome<u64> {
        let (mut clone, pid) = scene.clone_with(more)?;
        if touches {
            clone.send_byte();
            clone.await_line("NOTE parent TOUCHED")?;
        }
        let pages = own_pages(pid)?;
        kill(pid)?;
        clone.finish()?;
        Ok(pages)
    };
    let (unknown, touched) = (local(&[], false)?, local(&[], true)?);
    let (mut clone, pid) = scene.clone()?;
    clone.send_byte();
    clone.await_line("NOTE parent TOUCHED")?;
    let seen = look(pid, &scene.image)?;
    kill(pid)?;
    clone.finish()?;
    let (read, written) = (seen.read.len(), seen.written.len());
    demand(touched < unknown + written + 50, "read pages to be shared", &(unknown, touched))?;
    thread::sleep(Duration::from_millis(1200)); // what is known is looked at again once a second
    is_not_helped_beyond_a_limit(&scene, unknown)?;
    let pool = scene.path.display().to_string();
    let ghost = farfork::start_ghost(&["--image", &scene.name, "--pool", &pool])?;
    let known = local(&["--ghost", &ghost], false)?;
    demand(known + 50 > touched, "written pages to be local in a ghost", &(known, touched))?;
    for tiering in ["hybrid", "moa"] {
        let own = local(&["--tiering", tiering], true)?;
        demand(own + 50 > touched + read, "touched pages to be local", &(tiering, own, read))?;
    }
    let helped = is_helped(&scene, unknown + written);
    scene.forget().and(helped)
}

/// A clone that does nothing comes to have the pages that others wrote, and no more. The helper takes
/// processors that are free: of several clones that find one, one has to be helped. Asked last: where
/// none is free, this is all that is skipped.
fn is_helped(scene: &Scene, expected: u64) -> Outcome {
    let (mut seen, begun) = (Vec::new(), Instant::now());
    while seen.len() < HELPED_ATTEMPTS {
        if begun.elapsed() > FREE_WITHIN {
            return Err(Trouble::Skipped("no processor was free for a helper".to_owned()));
        }
        if !has_free_processor()? {
            thread::sleep(Duration::from_millis(50));
            continue;
        }
        let (mut clone, pid) = scene.clone_with(&[])?;
        thread::sleep(HELPED_WITHIN);
        let own = own_pages(pid)?;
        kill(pid)?;
        clone.finish()?;
        demand(own < expected + 50, "what others wrote to become local", &(own, expected))?;
        if own + 50 > expected {
            return Ok(());
        }
        seen.push(own);
    }
    Err(Trouble::Failed(format!("expected {expected} pages to become local, saw {seen:?}")))
}

/// Whether no more tasks want to run than there are processors, this one among them.
fn has_free_processor() -> Outcome<bool> {
    let text = during("looking at the load", std::fs::read_to_string("/proc/loadavg"))?;
    let running = text.split([' ', '/']).nth(3).unwrap_or_default();
    let running: usize = during("the load", running.parse())?;
    Ok(thread::available_parallelism().is_ok_and(|processors| running <= processors.get()))
}

const HELPED_ATTEMPTS: usize = 40;
const FREE_WITHIN: Duration = Duration::from_secs(120);
const HELPED_WITHIN: Duration = Duration::from_millis(250);

/// Promotion leaves the memory that a clone may need for other purposes.
fn is_not_helped_beyond_a_limit(scene: &Scene, unknown: u64) -> Outcome {
    let ghost = farfork::start_ghost(&["--user", "test", "--memory", "5M"])?;
    let (mut clone, pid) = scene.clone_with(&["--ghost", &ghost])?;
    thread::sleep(HELPED_WITHIN);
    let own = own_pages(pid)?;
    kill(pid)?;
    clone.finish()?;
    demand(own < unknown + 50, "nothing to be supplied", &(own, unknown))
}

/// The number of pages that a process does not share.
fn own_pages(pid: i32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = during("looking at a clone", std::fs::read_to_string(path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).unwrap_or_default();
    Ok(during("its own memory", kib.parse::<u64>())? * 1024 / PAGE)
}

/// A name, and what to do.
type Test = (&'static str, fn() -> Outcome);

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    let cases: [Test; 10] = [
        ("every_page_of_a_process_is_reported", || every_page_is_reported(false)),
        ("every_page_of_a_tree_is_reported", || every_page_is_reported(true)),
        (
            "a_clone_with_a_userfaultfd_of_its_own_is_watched_no_longer",
            a_clone_with_a_userfaultfd_of_its_own_is_watched_no_longer,
        ),
        ("a_command_profiles_an_image", a_command_profiles_an_image),
        ("hot_ranges_are_declared_and_taken_back", hot_ranges_are_declared_and_taken_back),
        ("what_is_not_known_stays_in_the_pool", what_is_not_known_stays_in_the_pool),
        ("promoted_pages_do_not_count_as_written", promoted_pages_do_not_count_as_written),
        ("one_clone_in_two_is_watched", one_clone_in_two_is_watched),
        ("what_was_accessed_long_ago_is_forgotten", what_was_accessed_long_ago_is_forgotten),
        ("later_clones_get_what_is_known", later_clones_get_what_is_known),
    ];
    for (name, run) in cases {
        tests.add(name, driver::without_clones(), run);
    }
    tests.run()
}
