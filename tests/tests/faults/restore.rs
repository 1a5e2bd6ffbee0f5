//! Images that cannot be restored here, or not like this.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use farfork_image::format::{self, Image};
use farfork_image::model::Model;
use farfork_image::stamp;
use farfork_image::store::Draft;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, farfork, program::Program};
use farfork_types::{CHUNK_BYTES, Cid};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, children, demand, during, fail};

pub const CASES: &[Case] = &[
    ("of_no_image", of_no_image),
    ("two_with_the_same_pid", two_with_the_same_pid),
    ("with_a_taken_pid", with_a_taken_pid),
    ("of_several_is_of_all_or_none", of_several_is_of_all_or_none),
    ("of_damaged_metadata", of_damaged_metadata),
    ("of_damaged_pages", of_damaged_pages),
    ("of_another_version", of_another_version),
    ("made_on_another_kernel", made_on_another_kernel),
    ("made_on_another_file_system", made_on_another_file_system),
    ("made_on_another_processor", made_on_another_processor),
    ("with_a_missing_file", with_a_missing_file),
    ("with_a_changed_file", with_a_changed_file),
    ("with_a_reinstalled_program", with_a_reinstalled_program),
    ("with_another_build_of_the_program", with_another_build_of_the_program),
    ("on_a_node_with_lower_limits", on_a_node_with_lower_limits),
    ("import_of_damaged_files", import_of_damaged_files),
    ("beside_a_parent_that_sends_to_itself", beside_a_parent_that_sends_to_itself),
];

/// A place with an agent and an image `a/b` of a program that goes on.
pub fn stage(chunks: u64) -> Outcome<(Scene, Subject, u32)> {
    let mut scene = Scene::set(chunks)?;
    let agent = scene.agent()?;
    let subject = scene.subject("steady")?;
    scene.checkpoint(&subject, "a/b")?;
    Ok((scene, subject, agent))
}

/// Ends the test: a clone of a sound image still passes, the parent too, nothing is left.
pub fn finish(scene: Scene, mut subject: Subject) -> Outcome {
    subject.must_pass()?;
    scene.strike()
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Fails several times, and the agent has as many descriptors as before.
fn refused(scene: &Scene, agent: u32, image: &str, words: &[&str]) -> Outcome {
    let call = ["restore", image];
    scene.fails(&call, 1, words)?;
    let before = descriptors(agent);
    for _ in 0..3 {
        scene.fails(&call, 1, words)?;
    }
    // Sessions end a moment after their clients.
    await_until("the agent closes its descriptors", || descriptors(agent) <= before)?;
    let clones = scene.works(&["ps", "--json"])?;
    demand(clones == "[]", format!("expected no clones, saw {clones}"))
}

fn may_raise_limits() -> Outcome<bool> {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").map_err(during("reading the status"))?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = u64::from_str_radix(held.unwrap_or_default().trim(), 16).unwrap_or(0);
    Ok(held >> CAP_SYS_RESOURCE & 1 != 0)
}

/// An attribute that the node does not permit is reported, and the clone runs without it.
fn on_a_node_with_lower_limits() -> Outcome {
    if may_raise_limits()? {
        return Err(Trouble::Skipped("CAP_SYS_RESOURCE lifts every limit".into()));
    }
    let (scene, subject, agent) = stage(24)?;
    // It listens before it has one.
    await_until("the agent has its template", || children(agent).len() == 1)?;
    let template = children(agent).first().copied().and_then(Pid::from_raw);
    demand(template.is_some(), "no template")?;
    let lower = Rlimit { current: Some(7), maximum: Some(7) };
    prlimit(template, Resource::Locks, lower).map_err(during("lowering a limit"))?;
    let output = farfork::run(scene.command(&["restore", "a/b", "--detach", "--json"])?)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let words = "runs without: restoring an attribute failed for resource limit LOCKS";
    demand(output.status.success() && said.contains(words), farfork::text(&output))?;
    // The clone prints there as well.
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    demand(printed.contains("\"warnings\": ["), format!("expected a warning, saw {printed}"))?;
    finish(scene, subject)
}

fn of_no_image() -> Outcome {
    let (scene, subject, _) = stage(24)?;
    scene.fails(&["restore", "a/nothing"], 1, &["there is no image a/nothing", "images list"])?;
    let cid = "00112233445566778899aabbccddeeff";
    scene.fails(&["restore", cid], 1, &["no image", cid])?;
    scene.fails(&["restore", "nonsense"], 1, &["nonsense"])?;
    scene.fails(&["images", "show", "a/nothing"], 1, &["a/nothing"])?;
    scene.fails(&["images", "rm", "a/nothing"], 1, &["a/nothing"])?;
    scene.fails(&["images", "export", "a/nothing", "/tmp/x"], 1, &["a/nothing"])?;
    scene.fails(&["restore"], 2, &["IMAGE"])?;
    scene.fails(&["restore", "a/b", "--count", "x"], 2, &["invalid value"])?;
    finish(scene, subject)
}

/// The caller would not know the pids of the others.
fn of_several_is_of_all_or_none() -> Outcome {
    let (scene, subject, _) = stage(24)?;
    for number in 0..2 {
        let path = scene.directory().join(format!("in-{number}"));
        farfork::must_run({
            let mut make = Command::new("mkfifo");
            make.arg(path);
            make
        })?;
    }
    let input = format!("0={}/in-%i", scene.directory().display());
    for more in [&["--detach"][..], &[]] {
        let call = [&["restore", "a/b", "--count", "3", "--inherit-fd", &input], more].concat();
        scene.fails(
            &call,
            1,
            &["cannot open", "in-2", "2 of 3 clones had started and were killed"],
        )?;
        demand(scene.works(&["ps", "--json"])? == "[]", "clones go on")?;
    }
    finish(scene, subject)
}

fn two_with_the_same_pid() -> Outcome {
    let (scene, subject, _) = stage(24)?;
    let call = ["restore", "a/b", "--pid-mode", "same", "--count", "2"];
    scene.fails(&call, 2, &["only one clone"])?;
    finish(scene, subject)
}

fn with_a_taken_pid() -> Outcome {
    let (scene, subject, _) = stage(24)?;
    for _ in 0..3 {
        let call = ["restore", "a/b", "--pid-mode", "same"];
        scene.fails(&call, 1, &["pid is taken", "--pid-mode new"])?;
    }
    demand(scene.works(&["ps", "--json"])? == "[]", "a clone is left")?;
    finish(scene, subject)
}

pub fn image(scene: &Scene) -> Outcome<(Cid, Image)> {
    let shown = scene.works(&["images", "list"])?;
    let cid = shown.split_whitespace().next().unwrap_or_default();
    let cid = cid.parse().map_err(during("reading an id"))?;
    let image = Image::read(&scene.pool()?, cid).map_err(during("reading the image"))?;
    Ok((cid, image))
}

/// The only image of the pool, and its file.
pub fn image_file(scene: &Scene) -> Outcome<(Cid, PathBuf)> {
    let (cid, _) = image(scene)?;
    Ok((cid, scene.image_path(cid)))
}

/// The file of the only image, open for what nothing of farfork's does to it.
pub fn writable(scene: &Scene) -> Outcome<File> {
    let images = fs::read_dir(scene.pool_path().join("images")).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = images.map(|entry| entry.path()).collect();
    let [path] = &paths[..] else { return fail(format!("expected one image, saw {paths:?}")) };
    OpenOptions::new().read(true).write(true).open(path).map_err(during("opening an image"))
}

/// Overwrites bytes of the image's file, which no process notices; what was there.
pub fn scribble(scene: &Scene, offset: u64, bytes: &[u8]) -> Outcome<Vec<u8>> {
    let file = writable(scene)?;
    let mut before = vec![0; bytes.len()];
    file.read_exact_at(&mut before, offset).map_err(during("reading an image"))?;
    file.write_all_at(bytes, offset).map_err(during("writing to an image"))?;
    Ok(before)
}

/// Turns all bits of a byte around.
pub fn flip(scene: &Scene, offset: u64) -> Outcome {
    let before = scribble(scene, offset, &[0])?;
    scribble(scene, offset, &[!before[0]]).map(drop)
}

fn of_damaged_metadata() -> Outcome {
    let (scene, subject, agent) = stage(24)?;
    let (_, image) = image(&scene)?;
    // In the header of the file, that of the metadata, the model, the plan.
    for offset in [30, 4096 + 20, 4096 + 200, image.plan_offset + 4000] {
        flip(&scene, offset)?;
        refused(&scene, agent, "a/b", &["is damaged", "take a new checkpoint"])?;
        scene.fails(&["images", "export", "a/b", "/tmp/farfork-x"], 1, &["is damaged"])?;
        let output = farfork::run(scene.command(&["pool", "check"])?)?;
        demand(output.status.code() == Some(1), "pool check found nothing")?;
        flip(&scene, offset)?;
    }
    scene.check()?;
    finish(scene, subject)
}

/// Chunks are verified by `pool check` and `export`, not by each restore.
fn of_damaged_pages() -> Outcome {
    let (scene, subject, _) = stage(24)?;
    image(&scene)?;
    scribble(&scene, format::chunk_offset(1) + 12_345, b"!")?;
    scene.fails(&["images", "export", "a/b", "/tmp/farfork-x"], 1, &["does not match its sum"])?;
    let leftover = fs::read_dir("/tmp").into_iter().flatten().flatten();
    let mut leftover = leftover.filter(|e| e.file_name().to_string_lossy().contains("farfork-x"));
    demand(leftover.next().is_none(), "an unfinished export is left")?;
    let output = farfork::run(scene.command(&["pool", "check"])?)?;
    let said = farfork::text(&output);
    demand(output.status.code() == Some(1) && said.contains("wrong checksum of 1 chunks"), said)?;
    scene.works(&["images", "rm", "a/b"])?;
    scene.check()?;
    finish(scene, subject)
}

fn of_another_version() -> Outcome {
    let (scene, subject, agent) = stage(24)?;
    scribble(&scene, 8, &(format::VERSION + 1).to_le_bytes())?;
    refused(&scene, agent, "a/b", &["has format version", "this farfork reads"])?;
    finish(scene, subject)
}

/// Publishes the image once more with another model, under another name.
fn with_model(scene: &Scene, change: impl FnOnce(&mut Model)) -> Outcome {
    let (_, image) = image(scene)?;
    let pool = scene.pool()?;
    let mut model = image.model.clone();
    change(&mut model);
    let mut draft = Draft::begin(&pool, None).map_err(during("drafting"))?;
    draft.fit(&model).map_err(during("drafting"))?;
    let file = pool.find(image.id.cid).map_err(during("opening the image"))?;
    for (chunk, to) in draft.data().chunks_mut(CHUNK_BYTES as usize).enumerate() {
        let is_sound = image.read_chunk(&file, chunk, to).map_err(during("reading"))?;
        demand(is_sound, format!("chunk {chunk} is damaged"))?;
    }
    let cid = draft.publish(&model).map_err(during("publishing"))?.cid;
    let name = "a/other".parse().map_err(during("naming"))?;
    let catalog = farfork_image::catalog::Catalog::of(&pool);
    catalog.set(&name, cid).map_err(during("naming")).map(drop)
}

fn made_on_another_kernel() -> Outcome {
    let (scene, subject, agent) = stage(40)?;
    with_model(&scene, |model| model.made_on.kernel = "5.4.0-other".into())?;
    refused(&scene, agent, "a/other", &["cannot run here", "Linux 5.4.0-other"])?;
    finish(scene, subject)
}

fn made_on_another_processor() -> Outcome {
    let (scene, subject, agent) = stage(40)?;
    with_model(&scene, |model| model.made_on.cpu_flags.push("avx1024".into()))?;
    refused(&scene, agent, "a/other", &["cannot run here", "lacks avx1024"])?;
    finish(scene, subject)
}

fn made_on_another_file_system() -> Outcome {
    let (scene, subject, agent) = stage(40)?;
    with_model(&scene, |model| model.mounts[0].fs_type = "bcachefs".into())?;
    refused(&scene, agent, "a/other", &["was on bcachefs and is on", "put them back"])?;
    finish(scene, subject)
}

/// The program runs from a copy of itself, which is a file that its clones need.
pub fn stage_with_own_file() -> Outcome<(Scene, Subject, u32)> {
    let mut scene = Scene::set(24)?;
    let agent = scene.agent()?;
    let built = compile::command(&Program::c("steady"))?;
    let copy = std::env::temp_dir().join(format!("farfork-steady-{agent}"));
    // Not by this process: a child that another test forks would have it open for writing (ETXTBSY).
    let mut copying = Command::new("cp");
    copying.arg(built.get_program()).arg(&copy);
    farfork::must_run(copying)?;
    let mut command = Command::new(&copy);
    let mut subject = Subject::start("steady", command.current_dir("/"), PATIENCE)?;
    subject.await_ready()?;
    scene.checkpoint(&subject, "a/b")?;
    Ok((scene, subject, agent))
}

pub fn copy_of(agent: u32) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("farfork-steady-{agent}"))
}

fn with_a_missing_file() -> Outcome {
    let (scene, subject, agent) = stage_with_own_file()?;
    let copy = copy_of(agent);
    fs::remove_file(&copy).map_err(during("removing"))?;
    let path = copy.display().to_string();
    refused(&scene, agent, "a/b", &[&path, "is missing", "put them back"])?;
    finish(scene, subject)
}

fn with_a_changed_file() -> Outcome {
    let (scene, mut subject, agent) = stage_with_own_file()?;
    subject.must_pass()?;
    let copy = copy_of(agent);
    let file = OpenOptions::new().append(true).open(&copy).map_err(during("opening"))?;
    file.write_at(b"!", 0).map_err(during("changing"))?;
    let path = copy.display().to_string();
    refused(&scene, agent, "a/b", &[&path, "put them back"])?;
    fs::remove_file(&copy).map_err(during("removing"))?;
    scene.strike()
}

/// Puts another file in the place of the program's, as an installer does.
fn install(agent: u32, bytes: &[u8], modified: SystemTime) -> Outcome {
    let (copy, fresh) = (copy_of(agent), copy_of(agent).with_extension("fresh"));
    fs::copy(&copy, &fresh).map_err(during("copying"))?; // with its mode
    fs::write(&fresh, bytes).map_err(during("writing"))?;
    let file = OpenOptions::new().write(true).open(&fresh).map_err(during("opening"))?;
    file.set_modified(modified).map_err(during("setting a time"))?;
    fs::rename(&fresh, &copy).map_err(during("renaming"))
}

fn with_a_reinstalled_program() -> Outcome {
    let (scene, subject, agent) = stage_with_own_file()?;
    let bytes = fs::read(copy_of(agent)).map_err(during("reading"))?;
    install(agent, &bytes, SystemTime::now() + Duration::from_secs(100))?;
    Subject::start("clone", &mut scene.command(&["restore", "a/b"])?, PATIENCE)?.must_pass()?;
    fs::remove_file(copy_of(agent)).map_err(during("removing"))?;
    finish(scene, subject)
}

/// Size and time are those of the first build.
fn with_another_build_of_the_program() -> Outcome {
    let (scene, subject, agent) = stage_with_own_file()?;
    Subject::start("clone", &mut scene.command(&["restore", "a/b"])?, PATIENCE)?.must_pass()?;
    let copy = copy_of(agent);
    let modified = fs::metadata(&copy).and_then(|found| found.modified());
    let build_id = stamp::build_id(&copy);
    let build_id = build_id.map_or_else(|| fail("cc links without a build-id"), Ok)?;
    let mut bytes = fs::read(&copy).map_err(during("reading"))?;
    let at = bytes.windows(build_id.len()).position(|part| part == build_id).unwrap_or_default();
    bytes[at] ^= 1;
    install(agent, &bytes, modified.map_err(during("looking at a file"))?)?;
    let path = copy.display().to_string();
    // Files that were right a moment ago are not looked at again at once.
    std::thread::sleep(Duration::from_secs(3));
    refused(&scene, agent, "a/b", &[&path, "another build", "put them back"])?;
    fs::remove_file(&copy).map_err(during("removing"))?;
    finish(scene, subject)
}

fn import_of_damaged_files() -> Outcome {
    let (scene, subject, _) = stage(40)?;
    let file = scene.directory().join("a.ff");
    let path = file.display().to_string();
    scene.works(&["images", "export", "a/b", &path])?;
    let whole = fs::read(&file).map_err(during("reading"))?;
    scene.works(&["images", "import", &path, "--name", "c/d"])?;
    scene.works(&["images", "rm", "c/d"])?;
    let free = scene.free_bytes()?;
    let call = ["images", "import", &path, "--name", "c/d"];
    for (bytes, words) in [
        (whole[..whole.len() / 2].to_vec(), "is truncated"),
        (b"hello".to_vec(), "not an archive"),
        (Vec::new(), "not an archive"),
        (changed(&whole, whole.len() / 2), "is damaged"),
        (changed(&whole, 9), "has format version"),
    ] {
        fs::write(&file, bytes).map_err(during("writing"))?;
        scene.fails(&call, 1, &[&path, words])?;
        demand(scene.free_bytes()? == free, "space is lost")?;
    }
    scene.check()?;
    finish(scene, subject)
}

fn changed(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1;
    bytes
}

/// With another address, the clone's datagrams would reach the parent.
fn beside_a_parent_that_sends_to_itself() -> Outcome {
    let mut scene = Scene::set(32)?;
    let agent = scene.agent()?;
    let mut subject = scene.subject("udp_within")?;
    scene.checkpoint(&subject, "a/b")?;
    let words = ["Address already in use", "which a socket of the process sends to", "--node"];
    refused(&scene, agent, "a/b", &words)?;
    let other = ["restore", "a/b", "--inherit-fd", "3=udp:127.0.0.1:0"];
    scene.fails(&other, 1, &["descriptor 3"])?;
    subject.must_pass()?;
    scene.strike()
}
