//! What others do to the files of a pool while it is in use: they are refused in words, and the agent goes
//! on with what is sound.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_pool::{Pool, mount_tmpfs};
use farfork_tests::subject::Subject;
use farfork_tests::way::POLICIES;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use farfork_types::CHUNK_BYTES;
use rustix::mount::{UnmountFlags, unmount};

use crate::Case;
use crate::restore::{finish, image, image_file, stage};
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("of_an_image_under_running_clones", of_an_image_under_running_clones),
    ("of_an_image_under_clones_that_start", of_an_image_under_clones_that_start),
    ("is_refused_of_images_that_others_can_reach", of_images_that_others_can_reach),
    ("is_refused_of_what_is_no_image", of_what_is_no_image),
    ("of_the_superblock", of_the_superblock),
    ("of_names", of_names),
    ("of_tables", of_tables),
    ("is_that_it_is_unmounted", is_that_it_is_unmounted),
];

/// A clone that runs, of the image `name`.
fn clone(scene: &Scene, name: &str, more: &[&str]) -> Outcome<Subject> {
    let call = [&["restore", name, "--json"], more].concat();
    let mut clone = Subject::start("clone", &mut scene.command(&call)?, PATIENCE)?;
    clone.await_line("]")?;
    Ok(clone)
}

fn goes_on(clone: &mut Subject) -> Outcome {
    clone.send(b"v");
    clone.await_line("OK")
}

/// Demands that the same agent lives, and that a clone of the image `name` passes.
fn serves(scene: &Scene, agent: u32, name: &str) -> Outcome {
    let exe = fs::read_link(format!("/proc/{agent}/exe"));
    demand(exe.is_ok(), "the agent is gone")?;
    let mut clone = clone(scene, name, &[])?;
    goes_on(&mut clone)?;
    clone.must_pass()
}

/// Demands that no clone is left, nor a pin.
fn is_at_rest(scene: &Scene) -> Outcome {
    await_until("no clone is left", || {
        scene.works(&["ps", "--json"]).is_ok_and(|said| said == "[]")
    })?;
    await_until("no image is pinned", || scene.pins().is_ok_and(|pins| pins.is_empty()))
}

/// A place with an agent, and images `a/b` and `a/sound` of a program that goes on; the file of the first.
fn stage_two() -> Outcome<(Scene, Subject, u32, PathBuf)> {
    let (scene, subject, agent) = stage(48)?;
    let (_, path) = image_file(&scene)?;
    scene.checkpoint(&subject, "a/sound")?;
    serves(&scene, agent, "a/sound")?;
    Ok((scene, subject, agent, path))
}

fn truncate(path: &Path, bytes: u64) -> Outcome {
    let file = fs::OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(bytes)).map_err(during("truncating an image"))
}

/// Clones that reach what is gone are killed, as by a disk that fails. No other process is.
fn of_an_image_under_running_clones() -> Outcome {
    let (scene, subject, agent, path) = stage_two()?;
    let whole = fs::read(&path).map_err(during("reading an image"))?;
    let mut sound = clone(&scene, "a/sound", &[])?;
    for tiering in POLICIES {
        let mut struck = clone(&scene, "a/b", &["--tiering", tiering])?;
        goes_on(&mut struck)?;
        truncate(&path, 3 * CHUNK_BYTES / 2)?;
        struck.send(b"v");
        struck.hear(Duration::from_millis(200));
        struck.send_byte();
        let status = struck.finish()?;
        // With copies of all its pages it has missed nothing.
        let is_right =
            if struck.said("PASS") { status.success() } else { status.code() >= Some(128) };
        demand(is_right, format!("{tiering}: {status}\n{}", struck.transcript()))?;
        goes_on(&mut sound)?;
        let words = ["is damaged", "take a new checkpoint"];
        scene.fails(&["restore", "a/b", "--tiering", tiering], 1, &words)?;
        serves(&scene, agent, "a/sound")?;
        fs::write(&path, &whole).map_err(during("putting the image back"))?;
    }
    sound.must_pass()?;
    serves(&scene, agent, "a/b")?;
    is_at_rest(&scene)?;
    finish(scene, subject)
}

/// At whatever moment: there is a clone, or an error, and never an agent that is gone or hangs.
fn of_an_image_under_clones_that_start() -> Outcome {
    let (scene, subject, agent, path) = stage_two()?;
    let whole = fs::read(&path).map_err(during("reading an image"))?;
    let (mut started, mut refused) = (0, 0);
    for round in 0..60u64 {
        let tiering = POLICIES[round as usize % POLICIES.len()];
        let call = ["restore", "a/b", "--tiering", tiering];
        let mut client = Subject::start("clone", &mut scene.command(&call)?, PATIENCE)?;
        std::thread::sleep(Duration::from_micros(round * 1_777 % 60_000));
        truncate(&path, [0, 4096, CHUNK_BYTES, 3 * CHUNK_BYTES / 2][round as usize / 4 % 4])?;
        client.send(b"v");
        client.send_byte();
        let status = client.finish()?;
        let said = client.transcript();
        let is_right = match status.code() {
            Some(0) => client.said("PASS"),
            Some(1) => said.contains("(stderr) farfork: "),
            code => code >= Some(128),
        };
        demand(is_right, format!("round {round}, {tiering}: {status}\n{said}"))?;
        *(if status.code() == Some(1) { &mut refused } else { &mut started }) += 1;
        fs::write(&path, &whole).map_err(during("putting the image back"))?;
        demand(Path::new(&format!("/proc/{agent}/exe")).exists(), "the agent is gone")?;
    }
    println!("{started} started, {refused} were refused");
    serves(&scene, agent, "a/sound")?;
    serves(&scene, agent, "a/b")?;
    is_at_rest(&scene)?;
    scene.check()?;
    finish(scene, subject)
}

/// Demands that there are no clones of `a/b`, for this reason, and others of the other image.
fn refuses(scene: &Scene, agent: u32, words: &[&str]) -> Outcome {
    for _ in 0..2 {
        scene.fails(&["restore", "a/b"], 1, words)?;
    }
    scene.fails(&["images", "export", "a/b", "/tmp/farfork-x"], 1, words)?;
    demand(!Path::new("/tmp/farfork-x").exists(), "an export is left")?;
    let output = farfork::run(scene.command(&["pool", "check"])?)?;
    let said = farfork::text(&output);
    let is_found = said.contains("cannot be used") && said.ends_with("the pool is damaged\n");
    demand(output.status.code() == Some(1) && is_found, said)?;
    serves(scene, agent, "a/sound")?;
    is_at_rest(scene)
}

/// Who could have written to an image could have any user of it run anything.
fn of_images_that_others_can_reach() -> Outcome {
    let (scene, subject, agent, path) = stage_two()?;
    let other = scene.pool_path().join("other-name");
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode));
    let mut running = clone(&scene, "a/b", &[])?;

    fs::hard_link(&path, &other).map_err(during("linking an image"))?;
    running.must_pass()?;
    refuses(&scene, agent, &["has another name beside its own", "take a new checkpoint"])?;
    fs::remove_file(&other).map_err(during("removing a link"))?;
    serves(&scene, agent, "a/b")?;

    for open_to_others in [0o444, 0o440, 0o402] {
        mode(open_to_others).map_err(during("changing a mode"))?;
        refuses(&scene, agent, &["other users may read or write it", "take a new checkpoint"])?;
    }
    mode(0o400).map_err(during("changing a mode"))?;

    chown(&path, Some(65534), None).map_err(during("giving an image away"))?;
    refuses(&scene, agent, &["belongs to another user", "take a new checkpoint"])?;
    chown(&path, Some(0), None).map_err(during("taking an image back"))?;
    serves(&scene, agent, "a/b")?;

    // What is refused can be removed.
    mode(0o444).map_err(during("changing a mode"))?;
    scene.works(&["images", "rm", "a/b"])?;
    scene.check()?;
    finish(scene, subject)
}

fn of_what_is_no_image() -> Outcome {
    let (scene, subject, agent, path) = stage_two()?;
    let aside = scene.pool_path().join("aside");
    fs::rename(&path, &aside).map_err(during("moving an image"))?;
    let put_back = || fs::remove_file(&path).and_then(|()| fs::rename(&aside, &path));

    symlink(&aside, &path).map_err(during("making a link"))?;
    scene.fails(&["restore", "a/b"], 1, &["symbolic link", "images/"])?;
    serves(&scene, agent, "a/sound")?;
    put_back().map_err(during("putting an image back"))?;
    serves(&scene, agent, "a/b")?;

    // An image under the id of another is not taken for that.
    fs::rename(&path, &aside).map_err(during("moving an image"))?;
    let others = fs::read_dir(scene.pool_path().join("images")).into_iter().flatten().flatten();
    let [other] = &others.map(|entry| entry.path()).collect::<Vec<_>>()[..] else {
        return fail("expected one image");
    };
    fs::copy(other, &path).map_err(during("copying an image"))?;
    scene.fails(&["restore", "a/b"], 1, &["is that of another image", "take a new checkpoint"])?;
    serves(&scene, agent, "a/sound")?;
    put_back().map_err(during("putting an image back"))?;

    // Nor is a pipe, which nothing waits for.
    fs::rename(&path, &aside).map_err(during("moving an image"))?;
    let mut pipe = std::process::Command::new("mkfifo");
    pipe.arg(&path);
    farfork::must_run(pipe)?;
    scene.fails(&["restore", "a/b"], 1, &["it is a pipe", "images/"])?;
    serves(&scene, agent, "a/sound")?;
    put_back().map_err(during("putting an image back"))?;

    serves(&scene, agent, "a/b")?;
    is_at_rest(&scene)?;
    scene.check()?;
    finish(scene, subject)
}

/// What is running does not need it; all commands do.
fn of_the_superblock() -> Outcome {
    let (scene, subject, agent, _) = stage_two()?;
    let path = scene.pool_path().join("superblock");
    let whole = fs::read(&path).map_err(during("reading the superblock"))?;
    let mut running = clone(&scene, "a/b", &[])?;
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (bytes, words) in [
        (changed(16), "the superblock of the pool at"),
        (changed(12), "the superblock of the pool at"),
        (whole[..20].to_vec(), "the superblock of the pool at"),
        (Vec::new(), "the superblock of the pool at"),
        (changed(0), "is not a farfork pool"),
        (changed(8), "format version"),
    ] {
        fs::write(&path, bytes).map_err(during("writing the superblock"))?;
        for call in
            [&["restore", "a/b"][..], &["pool", "check"], &["pool", "info"], &["images", "list"]]
        {
            scene.fails(call, 1, &[words])?;
        }
        goes_on(&mut running)?;
    }
    fs::write(&path, &whole).map_err(during("writing the superblock"))?;
    serves(&scene, agent, "a/b")?;
    running.must_pass()?;
    finish(scene, subject)
}

/// A name is nothing but the link that farfork makes. The images stay when a name is lost.
fn of_names() -> Outcome {
    let (scene, subject, agent, image) = stage_two()?;
    let name = scene.pool_path().join("names/a/b/latest");
    let link = fs::read_link(&name).map_err(during("reading a name"))?;
    let cid = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let put_back = || fs::remove_file(&name).and_then(|()| symlink(&link, &name));
    let elsewhere = format!("../../../../images/{cid}");
    for target in ["../../../images/nothing", "/etc/passwd", &elsewhere] {
        fs::remove_file(&name).and_then(|()| symlink(target, &name)).map_err(during("linking"))?;
        scene.fails(&["restore", "a/b"], 1, &["not one that farfork made", "pool check"])?;
        serves(&scene, agent, "a/sound")?;
    }
    // A name of an image that is not there.
    let gone = "../../../images/00112233445566778899aabbccddeeff";
    fs::remove_file(&name).and_then(|()| symlink(gone, &name)).map_err(during("linking"))?;
    scene.fails(&["restore", "a/b"], 1, &["no image 00112233445566778899aabbccddeeff"])?;
    put_back().map_err(during("putting a name back"))?;
    serves(&scene, agent, "a/b")?;

    fs::remove_file(&name).and_then(|()| fs::write(&name, &cid)).map_err(during("writing"))?;
    scene.fails(&["restore", "a/b"], 1, &["not one that farfork made", "pool check"])?;
    let output = farfork::run(scene.command(&["pool", "check"])?)?;
    let said = farfork::text(&output);
    let is_told = said.contains("removed 1 names") && said.ends_with("the pool is damaged\n");
    demand(output.status.code() == Some(1) && is_told, said)?;
    scene.fails(&["restore", "a/b"], 1, &["there is no image a/b"])?;
    // Its image is still there, so that it can be named again.
    let mut clone = clone(&scene, &cid, &[])?;
    goes_on(&mut clone)?;
    clone.must_pass()?;
    finish(scene, subject)
}

/// What is known of pages is lost. Clones start all the same.
fn of_tables() -> Outcome {
    let (scene, subject, agent) = stage(48)?;
    let (cid, _) = image(&scene)?;
    scene.declare_all_hot(&subject, "a/b")?;
    let table = scene.pool_path().join(format!("tables/{cid}/users"));
    let whole = fs::read(&table).map_err(during("reading a table"))?;
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    for bytes in [changed, whole[..100].to_vec(), Vec::new()] {
        fs::write(&table, bytes).map_err(during("writing a table"))?;
        scene.fails(&["images", "show", "a/b"], 1, &["access tables", "pool check"])?;
        serves(&scene, agent, "a/b")?;
        let output = farfork::run(scene.command(&["pool", "check"])?)?;
        let said = farfork::text(&output);
        let is_told = said.contains("were damaged: dropped") && said.contains("pool is damaged");
        demand(output.status.code() == Some(1) && is_told, said)?;
        scene.check()?;
        scene.works(&["images", "show", "a/b"])?;
        let directory = table.parent().unwrap_or(&table);
        fs::create_dir_all(directory).map_err(during("making a directory"))?;
    }
    fs::write(&table, &whole).map_err(during("putting a table back"))?;
    serves(&scene, agent, "a/b")?;
    scene.check()?;
    finish(scene, subject)
}

/// Whatever is running goes on, and the agent serves the pool that is mounted in its place.
fn is_that_it_is_unmounted() -> Outcome {
    if testbed::medium().is_some() {
        return Err(Trouble::Skipped("the pool is not a mount of its own".into()));
    }
    let mut scene = Scene::set(32)?;
    let agent = scene.agent_among_mounts()?;
    let mut subject = scene.subject("steady")?;
    scene.checkpoint(&subject, "a/b")?;
    let mut running = clone(&scene, "a/b", &[])?;
    goes_on(&mut running)?;
    unmount(scene.pool_path(), UnmountFlags::DETACH).map_err(during("unmounting the pool"))?;
    goes_on(&mut running)?;
    let pid = subject.pid().to_string();
    scene.fails(&["restore", "a/b"], 1, &["is not a farfork pool"])?;
    scene.fails(&["checkpoint", "--pid", &pid, "--name", "a/b"], 1, &["is not a farfork pool"])?;
    demand(scene.works(&["ps"])?.contains("a/b"), "the clone is no longer listed")?;
    mount_tmpfs(&scene.pool_path(), 32 * CHUNK_BYTES).map_err(during("mounting"))?;
    Pool::create(&scene.pool_path(), 32 * CHUNK_BYTES).map_err(during("making a pool"))?;
    scene.fails(&["restore", "a/b"], 1, &["there is no image a/b"])?;
    scene.checkpoint(&subject, "a/b")?;
    serves(&scene, agent, "a/b")?;
    goes_on(&mut running)?;
    running.must_pass()?;
    is_at_rest(&scene)?;
    scene.check()?;
    subject.must_pass()?;
    scene.strike()
}
