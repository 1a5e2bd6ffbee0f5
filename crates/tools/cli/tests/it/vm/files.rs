//! Snapshots as images: import, export, and what other commands do with them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::bed::{Bed, PATTERN};

#[test]
fn a_snapshot_comes_back_bit_for_bit() {
    let bed = Bed::new("back", "64M");
    let made = bed.json(&["vm", "import", "--name", "a/vm", "state", "memory", "--json"]);
    assert_eq!((&made["name"], &made["monitor"]), (&"a/vm:latest".into(), &"unknown".into()));
    let shown = bed.json(&["vm", "show", "a/vm", "--json"]);
    let bytes = |key: &str| shown[key].as_u64().unwrap();
    assert_eq!(bytes("raw_bytes"), PATTERN.memory_bytes);
    assert_eq!(bytes("zero_bytes") + bytes("cold_bytes") + bytes("hot_bytes"), bytes("raw_bytes"));
    assert!(bytes("zero_bytes") > PATTERN.memory_bytes / 10 * 7);
    assert!(bytes("pool_bytes") < bytes("cold_bytes") + (512 << 10));
    assert_eq!((bytes("shared_bytes"), bytes("far_bytes")), (0, 0));
    bed.done(&["vm", "export", "a/vm", "state.out", "memory.out"]);
    assert!(bed.same("state", "state.out") && bed.same("memory", "memory.out"));
    bed.done(&["vm", "export", "a/vm", "state.alone"]);
    assert!(bed.same("state", "state.alone"));
    assert!(bed.done(&["vm", "show", "a/vm"]).contains("16.0 MiB"));
    // Each of two has its own copy of what both store.
    assert_eq!(bytes("same_bytes"), 0);
    bed.import("a/other");
    let shown = bed.json(&["vm", "show", "a/vm", "--json"]);
    assert_eq!((&shown["same_bytes"], &shown["shared_bytes"]), (&shown["cold_bytes"], &0.into()));
}

/// The name of the base moves on; a damaged base, and a file system that hides holes, are refused.
#[test]
fn a_snapshot_of_changes_is_imported_on_its_base() {
    let bed = Bed::new("base", "64M");
    let cid = bed.import("a/vm");
    let whole = fs::read(bed.path("memory")).unwrap();
    let change = |path: &Path| {
        let changes = File::create(path).unwrap();
        changes.set_len(PATTERN.memory_bytes).unwrap();
        changes.write_all_at(&[7; 4096], 8192).unwrap();
    };
    change(&bed.0.join("changes"));
    let import = ["vm", "import", "--name", "a/vm", "state", "changes", "--base"];
    let stored = bed.json(&["vm", "show", "a/vm", "--json"])["cold_bytes"].as_u64().unwrap();
    let made = bed.json(&[&import[..], &["a/vm", "--json"]].concat());
    let of_base = made["base_bytes"].as_u64().unwrap();
    assert!([0, 4096].contains(&(stored - of_base)), "{made}, {stored} bytes of the base");
    bed.fails(&["vm", "show", &cid], &[&cid]);
    bed.done(&["vm", "export", "a/vm", "state.out", "memory.out"]);
    let mut expected = whole;
    expected[8192..8192 + 4096].fill(7);
    assert!(fs::read(bed.path("memory.out")).unwrap() == expected);

    let huge = bed.0.join("huge");
    fs::create_dir(&huge).unwrap();
    let mount = ["-t", "tmpfs", "-o", "huge=always", "none"];
    let mounted = Command::new("mount").args(mount).arg(&huge).status().unwrap();
    match mounted.success() {
        true => {
            change(&huge.join("changes"));
            let import =
                ["vm", "import", "--name", "a/vm", "state", "huge/changes", "--base", "a/vm"];
            bed.fails(&import, &["does not show which pages are holes"]);
            assert!(Command::new("umount").arg(&huge).status().unwrap().success());
        }
        false => println!("no file system that hides holes: a tmpfs cannot be mounted"),
    }
    let cid = bed.done(&["images", "show", "a/vm", "--json"]);
    let cid: Value = serde_json::from_str(&cid).unwrap();
    let image = bed.path(&format!("pool/images/{}", cid["cid"].as_str().unwrap()));
    let file = File::options().write(true).open(image).unwrap();
    file.write_all_at(&[0xab], (2 << 20) + 5).unwrap();
    bed.fails(&[&import[..], &["a/vm"]].concat(), &["does not match its checksum"]);
    bed.fails(&[&import[..], &["a/none"]].concat(), &["a/none"]);
}

#[test]
fn commands_for_images_take_both_kinds_or_say_why_not() {
    let bed = Bed::new("kinds", "64M");
    let cid = bed.import("a/vm");
    let listed = bed.json(&["images", "list", "--json"]);
    assert_eq!(listed[0]["kind"], "virtual_machine");
    assert!(bed.done(&["images", "list"]).contains("(virtual machine)"));
    assert_eq!(bed.json(&["images", "show", "a/vm", "--json"])["raw_bytes"], PATTERN.memory_bytes);
    let why = ["is a virtual machine snapshot", "farfork vm serve"];
    bed.fails(&["images", "export", "a/vm", "archive"], &why);
    bed.fails(&["hot", "set", "a/vm", "1000-2000"], &why);
    bed.fails(&["images", "profile", "a/vm", "--", "true"], &why);
    bed.done(&["images", "reset-accessed", "a/vm"]);
    assert!(bed.done(&["pool", "check"]).contains("the pool is sound"));
    let info = bed.json(&["pool", "info", "--json"]);
    assert_eq!(info["users"][0]["images"], 1);
    let file = File::options().write(true).open(bed.path(&format!("pool/images/{cid}"))).unwrap();
    file.write_all_at(&[0xab], (2 << 20) + 5).unwrap();
    let check = bed.run(&["pool", "check"]);
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(!check.status.success() && text.contains("wrong checksum of 1 chunks"), "{text}");
    bed.fails(&["vm", "export", "a/vm", "s", "m"], &["does not match its checksum"]);
    let names: Vec<_> = fs::read_dir(&bed.0).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!names.iter().any(|path| path.to_string_lossy().contains("unfinished")), "{names:?}");
    bed.done(&["images", "rm", "a/vm"]);
    assert_eq!(bed.json(&["pool", "info", "--json"])["used_bytes"], 0);
    bed.fails(&["vm", "show", "a/vm"], &["a/vm"]);
}

#[test]
fn wrong_files_and_full_pools_leave_nothing() {
    let bed = Bed::new("wrong", "8M");
    File::create(bed.path("odd")).unwrap().set_len(4097).unwrap();
    let import = |state: &str, memory: &str, words: &[&str]| {
        bed.fails(&["vm", "import", "--name", "a/vm", state, memory], words);
        assert_eq!(bed.json(&["pool", "info", "--json"])["used_bytes"], 0);
    };
    import("state", "odd", &["not a multiple of 4096"]);
    import("state", "pool", &["not a regular file"]);
    import("none", "memory", &["none", "No such file"]);
    bed.fails(&["vm", "export", "a/vm", "x", "./x"], &["give two paths"]);
    bed.import("a/vm");
    // Two do not fit; the first stays.
    bed.fails(&["vm", "import", "--name", "a/vm", "state", "memory"], &["no space for"]);
    bed.done(&["vm", "export", "a/vm", "state.out", "memory.out"]);
    assert!(bed.same("memory", "memory.out"));
}

/// The last of several imports of one name stays, whole, and alone.
#[test]
fn imports_of_one_name_at_once_leave_one_image() {
    let bed = Bed::new("twice", "64M");
    let import = || bed.command(&["vm", "import", "--name", "a/vm", "state", "memory"]).spawn();
    let imports: Vec<Child> = (0..3).map(|_| import().unwrap()).collect();
    for mut import in imports {
        assert!(import.wait().unwrap().success());
    }
    // The check would remove images without a name.
    assert_eq!(bed.json(&["pool", "info", "--json"])["images"].as_array().unwrap().len(), 1);
    assert!(bed.done(&["pool", "check"]).contains("the pool is sound"));
    bed.done(&["vm", "export", "a/vm", "state.out", "memory.out"]);
    assert!(bed.same("memory", "memory.out"));
}

/// Killed at any time, an import is there with its name, or not at all.
#[test]
fn a_killed_import_leaves_nothing() {
    let bed = Bed::new("killed", "64M");
    let mut ends = [0, 0];
    for step in 0..30 {
        let mut import = bed.command(&["vm", "import", "--name", "a/vm", "state", "memory"]);
        let mut import = import.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(step * 1500));
        let _ = import.kill();
        ends[usize::from(import.wait().unwrap().success())] += 1;
        let named = bed.json(&["images", "list", "--json"]).as_array().unwrap().len();
        if named == 1 {
            bed.done(&["vm", "export", "a/vm", "state.out", "memory.out"]);
            assert!(bed.same("memory", "memory.out"));
            bed.done(&["images", "rm", "a/vm"]);
        }
        // An image without a name is what the next check removes.
        assert!(bed.done(&["pool", "check"]).contains("the pool is sound"));
        assert_eq!(bed.json(&["pool", "info", "--json"])["used_bytes"], 0);
    }
    println!("{} imports were killed, {} were faster", ends[0], ends[1]);
    assert!(ends[0] > 0);
}
