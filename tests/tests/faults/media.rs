//! What differs with what a pool lies on. `FARFORK_TEST_MEDIUM` names the directory, which
//! `tests/qemu/run.sh` does in guests that have other media than this machine.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use farfork_pool::{Medium, Pool, PoolError};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, testbed};
use farfork_types::CHUNK_BYTES;

use crate::Case;
use crate::restore::image_file;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("is_what_it_should_be", is_what_it_should_be),
    ("tells_of_no_faults", tells_of_no_faults),
    ("tells_what_is_only_read", tells_what_is_only_read),
    ("is_smaller_than_its_pool", is_smaller_than_its_pool),
    ("is_mapped_by_whole_chunks", is_mapped_by_whole_chunks),
    ("lies_on_its_node", lies_on_its_node),
];

/// The variable with the medium's name, as in `pool info`.
const NAME: &str = "FARFORK_TEST_MEDIUM_NAME";
/// The variable with the NUMA node that the medium lies on.
const NODE: &str = "FARFORK_TEST_MEDIUM_NODE";
/// Chunks of the program `watcher`'s own memory.
const WATCHED_CHUNKS: u64 = 6;

/// Whether there is a medium to be looked at.
pub fn is_named() -> bool {
    std::env::var_os(NAME).is_some()
}

fn setting(name: &str) -> Outcome<String> {
    std::env::var(name).map_err(|_| Trouble::Skipped(format!("{name} is not set")))
}

fn is_what_it_should_be() -> Outcome {
    let expected = setting(NAME)?;
    let scene = Scene::set(16)?;
    let reported = scene.works(&["pool", "info", "--json"])?;
    let line = format!("\"medium\": \"{expected}\"");
    demand(reported.contains(&line), format!("expected {line}, saw {reported}"))?;
    scene.strike()
}

/// A clone of `watcher` that has looked at its memory, and its pid.
fn watching(scene: &Scene, more: &[&str]) -> Outcome<(Subject, u32)> {
    let mut command = scene.command(&[&["restore", "--json"], more, &["a/b"]].concat())?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.send(b"v");
    clone.await_line("]")?;
    let reported = clone.after("    \"pid\": ").pop().unwrap_or_default();
    let pid = reported.trim_end_matches(',').parse().map_err(during("the clone's pid"))?;
    // It looks again and again, and on tmpfs has its pages dropped in between.
    let mut before = u64::MAX;
    for _ in 0..5 {
        std::thread::sleep(Duration::from_secs(1));
        let now = faults(pid);
        if before == now {
            break;
        }
        before = now;
    }
    Ok((clone, pid))
}

/// Faults without reading a disk, as proc(5) counts them.
fn faults(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    fields.split(' ').nth(7).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// A pool on this medium, with an image of a program that looks at its memory.
fn stage() -> Outcome<(Scene, Subject)> {
    setting(testbed::MEDIUM)?;
    let mut scene = Scene::set(48)?;
    scene.agent()?;
    let parent = scene.subject("watcher")?;
    scene.checkpoint(&parent, "a/b")?;
    Ok((scene, parent))
}

fn end(scene: Scene, mut parent: Subject, mut clone: Subject) -> Outcome {
    clone.must_pass()?;
    parent.must_pass()?;
    scene.works(&["images", "rm", "a/b"])?;
    scene.check()?;
    scene.strike()
}

/// Policies that supply pages are refused before anything is made; the one that does not works.
fn tells_of_no_faults() -> Outcome {
    let (scene, parent) = stage()?;
    let medium = scene.pool()?.medium();
    if medium.tells_of_faults() {
        let why = "on tmpfs there are faults of kind MINOR";
        return Err(Trouble::Skipped(why.into()));
    }
    for tiering in ["moa", "hybrid", "copy"] {
        let words = [tiering, "lies on tmpfs", "use mow"];
        scene.fails(&["restore", "--tiering", tiering, "a/b"], 1, &words)?;
    }
    let (clone, _) = watching(&scene, &["--tiering", "mow"])?;
    end(scene, parent, clone)
}

/// Where the kernel does not distinguish read and written pages, a profile would be wrong: it is refused.
fn tells_what_is_only_read() -> Outcome {
    let (scene, parent) = stage()?;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next(), numbers.next());
    if scene.pool()?.medium() == Medium::Dax && version < (Some(6), Some(15)) {
        let words = ["cannot be profiled", "DAX", "Linux 6.15"];
        scene.fails(&["restore", "--profile", "a/b"], 1, &words)?;
        let (clone, _) = watching(&scene, &[])?;
        return end(scene, parent, clone);
    }
    let (clone, _) = watching(&scene, &["--profile"])?;
    let mut reported = String::new();
    await_until("all reads are reported", || {
        reported = scene.works(&["images", "show", "--json", "a/b"]).unwrap_or_default();
        number(&reported, "accessed_pages") >= WATCHED_CHUNKS * 512
    })
    .map_err(|_| Trouble::Failed(format!("the reads are not reported: {reported}")))?;
    let written = number(&reported, "dirtied_pages");
    demand(written < 512, format!("memory that is only read counts as written: {reported}"))?;
    end(scene, parent, clone)
}

/// The number at a key of a document.
fn number(json: &str, key: &str) -> u64 {
    let rest = json.split_once(&format!("\"{key}\": ")).map_or("", |(_, rest)| rest);
    rest.split(|c: char| !c.is_ascii_digit())
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

/// What the medium has no room for is an error in words, and nothing is lost.
fn is_smaller_than_its_pool() -> Outcome {
    let Some(place) = testbed::medium() else {
        return Err(Trouble::Skipped("a test of the pool's own does this on tmpfs".into()));
    };
    let room = rustix::fs::statvfs(&place).map_err(during("looking at the medium"))?;
    let chunks = room.f_bavail * room.f_frsize / CHUNK_BYTES;
    let path = place.join(format!("large-{}", std::process::id()));
    let pool = Pool::create(&path, (chunks + 64) * CHUNK_BYTES).map_err(during("making a pool"))?;
    let outcome = overfill(&pool, chunks);
    drop(pool);
    Pool::destroy(&path).map_err(during("destroying the pool"))?;
    outcome
}

fn overfill(pool: &Pool, chunks: u64) -> Outcome {
    let mut writer = pool.begin(None).map_err(during("beginning an image"))?;
    match writer.reserve((chunks + 32) * CHUNK_BYTES) {
        Err(PoolError::Full { .. } | PoolError::MediumFull { .. }) => {}
        other => return fail(format!("expected a full medium, saw {other:?}")),
    }
    let info = pool.info().map_err(during("looking at the pool"))?;
    demand(info.images.is_empty(), format!("there is an image: {info:?}"))?;
    demand(info.free_bytes > (chunks - 1) * CHUNK_BYTES, format!("space is lost: {info:?}"))?;
    writer.reserve(2 * CHUNK_BYTES).map_err(during("taking two chunks"))?;
    drop(writer);
    let report = pool.check().map_err(during("checking the pool"))?;
    demand(report.findings.is_empty(), format!("{report:?}"))
}

/// To map the memory page by page would take 512 faults for each chunk.
fn is_mapped_by_whole_chunks() -> Outcome {
    let (scene, parent) = stage()?;
    if scene.pool()?.medium() != Medium::Dax {
        return Err(Trouble::Skipped("`farfork doctor` looks at this on tmpfs".into()));
    }
    let (clone, pid) = watching(&scene, &[])?;
    let faults = faults(pid);
    let most = WATCHED_CHUNKS * 512 / 4;
    demand(faults < most, format!("expected fewer than {most} faults, saw {faults}"))?;
    end(scene, parent, clone)
}

/// Pages of the pool that a clone maps lie on the pool's NUMA node. Its local copies do not: they are not
/// bound.
fn lies_on_its_node() -> Outcome {
    let far = format!("N{}", setting(NODE)?);
    let (scene, parent) = stage()?;
    let (clone, pid) = watching(&scene, &[])?;
    let (_, file) = image_file(&scene)?;
    let file = format!("file={}", file.display());
    let mut pages = BTreeMap::new();
    // It has its pages dropped now and then.
    await_until("a chunk is mapped", || {
        let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap_or_default();
        pages = pages_by_node(&maps, &file);
        pages.get(&far).is_some_and(|there| *there >= 512)
    })?;
    let own = pages.remove("anon").unwrap_or_default();
    let near: u64 = pages.iter().filter(|(node, _)| **node != far).map(|(_, count)| count).sum();
    demand(own > 0 && near == own, format!("expected {own} pages elsewhere, saw {pages:?}"))?;
    end(scene, parent, clone)
}

/// Pages of the mappings of a file, from `numa_maps`: by node, and `anon`, those that are copies.
fn pages_by_node(maps: &str, file: &str) -> BTreeMap<String, u64> {
    let mut pages = BTreeMap::new();
    let of_file = maps.lines().filter(|line| line.split(' ').any(|word| word == file));
    for (node, count) in of_file.flat_map(|line| line.split(' ').filter_map(on_node)) {
        *pages.entry(node.to_owned()).or_default() += count;
    }
    pages
}

/// `N1=512`: pages on a node. `anon=3`: pages that are copies.
fn on_node(word: &str) -> Option<(&str, u64)> {
    let (node, pages) = word.split_once('=')?;
    let is_node = || node.strip_prefix('N').is_some_and(|number| number.parse::<u32>().is_ok());
    (node == "anon" || is_node()).then_some(())?;
    Some((node, pages.parse().ok()?))
}
