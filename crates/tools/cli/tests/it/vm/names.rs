//! Names that other commands change while a snapshot is imported or written anew.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farfork_pool::{PageBits, Pool};

use super::bed::Bed;

/// Waits until the pool has so many images: one that has no name yet among them.
fn await_images(pool: &Pool, count: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    while pool.images().unwrap().len() != count {
        assert!(Instant::now() < until, "the pool has {:?}", pool.images());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// While names are locked, a repack has made its image. What another command has imported meanwhile stays.
#[test]
fn a_repack_does_not_replace_a_newer_image() {
    let bed = Bed::new("newer", "64M");
    let old = bed.import("a/vm").parse().unwrap();
    let newer = bed.import("a/newer").parse().unwrap();
    let pool = Pool::open(&bed.0.join("pool")).unwrap();
    pool.add_users_bits(old, &PageBits { accessed: vec![2], ..PageBits::default() }).unwrap();
    let names = pool.lock_names().unwrap();
    let repack = bed.command(&["vm", "repack", "a/vm"]).stderr(Stdio::piped()).spawn().unwrap();
    await_images(&pool, 3);
    assert_eq!(names.set(["a", "vm", "latest"], newer).unwrap(), Some(old));
    drop(names);
    let ended = repack.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{message}");
    assert!(message.contains("another command has changed what the name means"), "{message}");
    assert_eq!(pool.named(["a", "vm", "latest"]).unwrap(), Some(newer));
    let mut images = pool.images().unwrap();
    images.sort();
    let mut expected = [old, newer];
    expected.sort();
    assert_eq!(images, expected);
}

#[test]
fn a_name_of_processes_is_not_taken_over() {
    let bed = Bed::new("names", "64M");
    let mut sleeper = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let pid = sleeper.id().to_string();
    let made = bed.run(&["checkpoint", "--pid", &pid, "--name", "a/sleep"]);
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    if !made.status.success() {
        return println!("skipped: {}", String::from_utf8_lossy(&made.stderr));
    }
    let words = ["cannot import a virtual machine as a/sleep:latest", "checkpoint of processes"];
    bed.fails(&["vm", "import", "--name", "a/sleep", "state", "memory"], &words);
    let words = ["is a checkpoint of processes", "farfork restore"];
    for command in [&["vm", "show", "a/sleep"][..], &["vm", "serve", "a/sleep", "--socket", "s"]] {
        bed.fails(command, &words);
    }
    assert_eq!(bed.json(&["images", "list", "--json"])[0]["kind"], "processes");
    assert_eq!(bed.json(&["pool", "info", "--json"])["images"].as_array().unwrap().len(), 1);
    // The name comes to mean the checkpoint when the new image is there, and has no name yet.
    let pool = Pool::open(&bed.0.join("pool")).unwrap();
    let sleeping = pool.images().unwrap()[0];
    let names = pool.lock_names().unwrap();
    let mut import = bed.command(&["vm", "import", "--name", "a/new", "state", "memory"]);
    let import = import.stderr(Stdio::piped()).spawn().unwrap();
    await_images(&pool, 2);
    names.set(["a", "new", "latest"], sleeping).unwrap();
    drop(names);
    let ended = import.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("checkpoint of processes"));
    assert_eq!(pool.images().unwrap(), [sleeping]);
}
