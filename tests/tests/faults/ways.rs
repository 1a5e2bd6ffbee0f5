//! What goes wrong with a restore, by every policy and in every place where clones begin. Tests are named
//! `MODULE::WHAT::WAY`.

use std::fs;
use std::process::Command;

use farfork_image::format;
use farfork_tests::subject::Subject;
use farfork_tests::way::{Place, Way};
use farfork_tests::{Outcome, farfork};
use farfork_types::CHUNK_BYTES;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::pages::{must_be_killed, parent_of, pid_of};
use crate::restore::{self, copy_of, image, scribble, stage, stage_with_own_file, writable};
use crate::scene::{PATIENCE, Scene, await_until, children, demand, during, fail};

/// A test of each way in which clones begin.
pub struct Crossed {
    /// Its name.
    pub what: &'static str,
    /// What is done.
    pub run: fn(Way) -> Outcome,
    /// Where it makes sense.
    pub only: fn(Way) -> bool,
    /// What stands for the others when time is short.
    pub always: fn(Way) -> bool,
}

pub const CROSSED: &[Crossed] = &[
    everywhere("is_refused_of_a_damaged_image", of_a_damaged_image, |way| {
        way.is("copy", Place::EmptyGhost)
    }),
    everywhere("is_refused_of_a_truncated_image", of_a_truncated_image, |way| {
        way.is("mow", Place::AttachedGhost)
    }),
    everywhere("is_refused_with_a_missing_file", with_a_missing_file, |way| {
        way.is("hybrid", Place::AttachedGhost)
    }),
    everywhere("is_refused_with_a_file_just_written", with_a_file_just_written, |way| {
        way.is("mow", Place::Scratch)
    }),
    everywhere("lives_without_its_agent", lives_without_its_agent, |way| {
        way.is("moa", Place::AttachedGhost) || way.is("copy", Place::Scratch)
    }),
    everywhere("ends_with_its_caller", ends_with_its_caller, |way| {
        way.is("hybrid", Place::AttachedGhost)
    }),
    everywhere("starts_without_a_template", starts_without_a_template, |way| {
        way.is("hybrid", Place::Scratch) || way.is("copy", Place::AttachedGhost)
    }),
    Crossed {
        what: "is_ended_in_time",
        run: is_ended_in_time,
        only: |way| way.place != Place::Scratch, // the tests of `hang` hold those
        always: |way| way.is("moa", Place::EmptyGhost),
    },
];

/// A test that makes sense everywhere.
pub const fn everywhere(
    what: &'static str,
    run: fn(Way) -> Outcome,
    always: fn(Way) -> bool,
) -> Crossed {
    Crossed { what, run, only: |_| true, always }
}

/// A clone that runs.
pub struct Begun {
    /// The client that requested it.
    pub clone: Subject,
    /// Its pid here.
    pub pid: i32,
    /// The ghost that it is in.
    pub ghost: Option<String>,
}

impl Begun {
    /// Demands that nothing is left of its ghost.
    pub fn is_gone(&self, scene: &Scene) -> Outcome {
        self.ghost.as_deref().map_or(Ok(()), |ghost| scene.has_no_ghost(ghost))
    }
}

/// The ghost for a clone of `image`, if it is to be in one.
pub fn place(scene: &Scene, image: &str, way: Way) -> Outcome<Option<String>> {
    let Some(options) = way.ghost(image) else { return Ok(None) };
    farfork::ghosts_possible()?;
    scene.works(&[&["ghost", "start"], &options[..]].concat()).map(Some)
}

/// A clone of `image` that begins like this.
pub fn begin(scene: &Scene, image: &str, way: Way, more: &[&str]) -> Outcome<Begun> {
    let ghost = place(scene, image, way)?;
    begin_in(scene, image, (way, ghost), more)
}

fn begin_in(
    scene: &Scene,
    image: &str,
    (way, ghost): (Way, Option<String>),
    more: &[&str],
) -> Outcome<Begun> {
    let options = way.options(ghost.as_deref());
    let mut command =
        scene.command(&[&["restore", image, "--json"], &options[..], more].concat())?;
    let mut clone = Subject::start(&way.name(), &mut command, PATIENCE)?;
    clone.await_line("]")?;
    let pid = pid_of(&clone)?;
    Ok(Begun { clone, pid, ghost })
}

/// Demands that a clone is right, and ends well.
fn passes(scene: &Scene, mut begun: Begun) -> Outcome {
    begun.clone.send(b"v");
    begun.clone.await_line("OK")?;
    begun.clone.must_pass()?;
    begun.is_gone(scene)
}

fn is_refused(scene: &Scene, (way, ghost): (Way, Option<&str>), words: &[&str]) -> Outcome {
    let options = way.options(ghost);
    scene.fails(&[&["restore", "a/b"], &options[..]].concat(), 1, words)?;
    demand(scene.works(&["ps", "--json"])? == "[]", "a clone is listed")
}

/// Where it has been repaired, a clone begins in the same place. (An image that was sound once is believed.)
fn of_a_damaged_image(way: Way) -> Outcome {
    let (scene, subject, _) = stage(24)?;
    let (_, image) = image(&scene)?;
    let next = (format::VERSION + 1).to_le_bytes();
    let waits = match way.place {
        Place::AttachedGhost => None,
        _ => place(&scene, "a/b", way)?,
    };
    for (at, bytes, words) in [
        (4096 + 200, [0xff; 4], ["is damaged", "take a new checkpoint"]),
        (image.plan_offset + 4000, [0xff; 4], ["is damaged", "take a new checkpoint"]),
        (8, next, ["has format version", "this farfork reads"]),
    ] {
        let before = scribble(&scene, at, &bytes)?;
        match way.place {
            Place::AttachedGhost => waits_not(&scene, way, &words)?,
            _ => is_refused(&scene, (way, waits.as_deref()), &words)?,
        }
        scribble(&scene, at, &before)?;
    }
    let begun = match way.place {
        Place::AttachedGhost => begin(&scene, "a/b", way, &[])?,
        _ => begin_in(&scene, "a/b", (way, waits), &[])?,
    };
    passes(&scene, begun)?;
    restore::finish(scene, subject)
}

/// One that waits with its image does not start, either: what it needs of it is gone.
fn of_a_truncated_image(way: Way) -> Outcome {
    let (scene, subject, _) = stage(24)?;
    let waits = place(&scene, "a/b", way)?;

    let file = writable(&scene)?;
    for bytes in [format::chunk_offset(1), 100, 0] {
        file.set_len(bytes).map_err(during("truncating"))?;
        is_refused(&scene, (way, None), &["take a new checkpoint"])?;
        if way.place == Place::AttachedGhost {
            waits_not(&scene, way, &["take a new checkpoint"])?;
        }
    }
    if let Some(ghost) = &waits {
        let options = way.options(Some(ghost));
        let output = farfork::run(scene.command(&[&["restore", "a/b"], &options[..]].concat())?)?;
        demand(!output.status.success(), farfork::text(&output))?;
        scene.works(&["ghost", "stop", ghost]).ok();
        scene.has_no_ghost(ghost)?;
    }
    scene.works(&["images", "rm", "a/b"])?;
    // The agent serves other images as before.
    scene.checkpoint(&subject, "a/b")?;
    passes(&scene, begin(&scene, "a/b", way, &[])?)?;
    restore::finish(scene, subject)
}

/// No ghost is made with the image.
fn waits_not(scene: &Scene, way: Way, words: &[&str]) -> Outcome {
    farfork::ghosts_possible()?;
    let options = way.ghost("a/b").unwrap_or_default();
    scene.fails(&[&["ghost", "start"], &options[..]].concat(), 1, words)
}

/// Files are looked at before a start, of one that has waited, too.
fn with_a_missing_file(way: Way) -> Outcome {
    let (scene, subject, agent) = stage_with_own_file()?;
    let waits = place(&scene, "a/b", way)?;
    let (copy, aside) = (copy_of(agent), copy_of(agent).with_extension("aside"));
    fs::rename(&copy, &aside).map_err(during("moving a file"))?;
    // Files that were right a moment ago are not looked at again at once.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let path = copy.display().to_string();
    let words = [&*path, "is missing", "put them back"];
    is_refused(&scene, (way, waits.as_deref()), &words)?;
    if way.place == Place::AttachedGhost {
        waits_not(&scene, way, &words)?;
    }
    fs::rename(&aside, &copy).map_err(during("putting a file back"))?;
    // It was asked, and is as it was.
    passes(&scene, begin_in(&scene, "a/b", (way, waits), &[])?)?;
    fs::remove_file(&copy).map_err(during("removing"))?;
    restore::finish(scene, subject)
}

/// The agent has checked the file a moment ago, and does not check again so soon. The process that opens it
/// does. An attached ghost has opened it already: its clone sees later writes.
fn with_a_file_just_written(way: Way) -> Outcome {
    const READS: &str = "import sys; f = open(sys.argv[1]); print('READY', flush=True); input(); \
                         print(f.read()); print('PASS')";
    let mut scene = Scene::set(24)?;
    scene.agent()?;
    let file = scene.directory().join("read");
    fs::write(&file, "before").map_err(during("writing"))?;
    let mut command = Command::new("python3");
    command.args(["-c", READS]).arg(&file).current_dir("/");
    let mut parent = Subject::start("parent", &mut command, PATIENCE)?;
    parent.await_ready()?;
    scene.checkpoint(&parent, "a/b")?;
    let mut first = begin(&scene, "a/b", way, &[])?;
    first.clone.send_byte();
    first.clone.await_line("before")?;
    first.clone.must_pass()?;
    first.is_gone(&scene)?;
    let waits = if way.place == Place::EmptyGhost { place(&scene, "a/b", way)? } else { None };
    fs::write(&file, "behind").map_err(during("writing"))?;
    let words = [&*file.display().to_string(), "make the image again"];
    match way.place {
        Place::AttachedGhost => waits_not(&scene, way, &words)?,
        _ => is_refused(&scene, (way, waits.as_deref()), &words)?,
    }
    parent.send_byte();
    parent.await_line("behind")?;
    parent.must_pass()?;
    scene.strike()
}

/// The chunks that it maps are not reused, also when its image is removed, and another agent reclaims pins.
fn lives_without_its_agent(way: Way) -> Outcome {
    let (mut scene, subject, _) = stage(32)?;
    let mut begun = begin(&scene, "a/b", way, &["--detach"])?;
    demand(begun.clone.leave()?.success(), "expected restore --detach to work")?;
    let held = scene.image_bytes_of(begun.pid)?;
    scene.kill_agent();
    begun.clone.send(b"v");
    begun.clone.await_line("OK")?;
    scene.agent()?;
    scene.works(&["images", "rm", "a/b"])?;
    demand(scene.image_bytes_of(begun.pid)? == held, "chunks of a running clone were given back")?;
    let free = scene.free_bytes()?;
    begun.clone.send(b"v");
    begun.clone.await_line("OK")?;
    begun.clone.send_byte();
    begun.clone.await_line("PASS")?;
    await_until("the new agent lets go", || {
        scene.free_bytes().is_ok_and(|now| now > free && now + CHUNK_BYTES > free + held)
    })?;
    begun.is_gone(&scene)?;
    scene.check()?;
    restore::finish(scene, subject)
}

/// The clone's page service is its init.
pub fn ends_with_its_init(way: Way) -> Outcome {
    let (scene, mut parent) = crate::pages::stage()?;
    let mut begun = begin(&scene, "a/b", way, &[])?;
    kill(parent_of(begun.pid)?, Signal::SIGKILL).map_err(during("killing an init"))?;
    must_be_killed(&mut begun.clone)?;
    begun.is_gone(&scene)?;
    demand(scene.works(&["ps", "--json"])? == "[]", "the clone is still listed")?;
    demand(scene.pins()?.is_empty(), "the image is still pinned")?;
    parent.must_pass()?;
    scene.strike()
}

fn ends_with_its_caller(way: Way) -> Outcome {
    let (scene, subject, _) = stage(24)?;
    let ghost = place(&scene, "a/b", way)?;
    let mut command = Command::new(farfork::binary()?);
    command.args(["restore", "a/b", "--json"]).args(way.options(ghost.as_deref()));
    command.env("FARFORK_POOL", scene.pool_path());
    command.env("FARFORK_RUN", scene.directory().join("run"));
    let mut clone = Subject::start("caller", &mut command, PATIENCE)?;
    clone.await_line("]")?;
    let begun = Begun { pid: pid_of(&clone)?, clone, ghost };
    let caller = Pid::from_raw(begun.clone.pid().cast_signed());
    kill(caller, Signal::SIGKILL).map_err(during("killing a caller"))?;
    let path = format!("/proc/{}", begun.pid);
    await_until("the clone is gone", || fs::metadata(&path).is_err())?;
    begun.is_gone(&scene)?;
    await_until("the image is let go of", || scene.pins().is_ok_and(|pins| pins.is_empty()))?;
    restore::finish(scene, subject)
}

/// Where clones are forked from it, another one is started. Elsewhere it is not needed.
fn starts_without_a_template(way: Way) -> Outcome {
    let (scene, subject, agent) = stage(24)?;
    await_until("the agent has its template", || children(agent).len() == 1)?;
    // One that is stopped is killed when it has been waited for.
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let template = children(agent);
        let ghost = place(&scene, "a/b", way)?;
        for pid in template {
            kill(Pid::from_raw(pid), signal).map_err(during("ending the template"))?;
        }
        passes(&scene, begin_in(&scene, "a/b", (way, ghost), &[])?)?;
    }
    restore::finish(scene, subject)
}

/// The process that creates the clone is stopped. It is killed, and the next clone starts.
fn is_ended_in_time(way: Way) -> Outcome {
    let (scene, subject, _) = stage(24)?;
    let ghost = place(&scene, "a/b", way)?;
    let key = if way.place == Place::AttachedGhost { "pid" } else { "init_pid" };
    let maker = Pid::from_raw(of_the_ghost(&scene, key)?);
    kill(maker, Signal::SIGSTOP).map_err(during("stopping the process that creates the clone"))?;
    let options = [&way.options(ghost.as_deref())[..], &["--timeout", "1"]].concat();
    let words = ["did not start within 1 s", "--timeout"];
    scene.fails(&[&["restore", "a/b"], &options[..]].concat(), 1, &words)?;
    demand(scene.works(&["ps", "--json"])? == "[]", "a clone is listed")?;
    ghost.map_or(Ok(()), |ghost| scene.has_no_ghost(&ghost))?;
    await_until("the image is let go of", || scene.pins().is_ok_and(|pins| pins.is_empty()))?;
    passes(&scene, begin(&scene, "a/b", way, &[])?)?;
    restore::finish(scene, subject)
}

/// A pid in the entry of the only ghost.
fn of_the_ghost(scene: &Scene, key: &str) -> Outcome<i32> {
    let text = scene.works(&["ghost", "list", "--json"])?;
    let list: serde_json::Value = serde_json::from_str(&text).map_err(during("reading a list"))?;
    let pid = list[0][key].as_i64();
    pid.map_or_else(|| fail(format!("no {key} in {text}")), |pid| Ok(pid as i32))
}
