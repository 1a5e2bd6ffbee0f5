//! Errors of `farfork` that need no process, image or platform.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use farfork_pool::{PinFile, Pool};

/// A directory for agents and pools of one test. Dropped, it is removed.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn create(name: &str) -> TestDirectory {
        let path =
            std::env::temp_dir().join(format!("farfork-errors-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        TestDirectory(path)
    }

    fn farfork(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
        command.args(arguments).env("FARFORK_RUN", self.0.join("run"));
        command.env("FARFORK_POOL", self.0.join("none")).env_remove("FARFORK_NODE");
        command.output().expect("farfork starts")
    }

    fn fails(&self, arguments: &[&str], status: i32, words: &[&str]) -> String {
        let output = self.farfork(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?}: no '{word}' in: {message}");
        }
        message
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = fs::read("/proc/self/mounts").expect("mounts");
    String::from_utf8_lossy(&mounts).contains(&format!(" {} ", directory.display()))
}

#[test]
fn a_pool_of_an_impossible_size_leaves_nothing() {
    let place = TestDirectory::create("size");
    let pool = place.path("new/deep/pool");
    for (size, bytes) in [("9999999999G", "10737418238926258176 bytes"), ("1M", "2097152 bytes")] {
        let words = ["cannot make a pool of", bytes, "at least 8388608"];
        place.fails(&["pool", "create", &pool, "--size", size], 1, &words);
        assert!(!place.0.join("new").exists(), "a directory stays behind");
    }
}

#[test]
fn a_tmpfs_is_mounted_where_it_hides_nothing() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root mounts anything");
    }
    let place = TestDirectory::create("mount");
    let (empty, new) = (place.0.join("empty"), place.0.join("new"));
    fs::create_dir(&empty).expect("a directory");
    let create = |path: &str, more: &[&str]| {
        place.farfork(&[&["pool", "create", path, "--size", "8M"], more].concat())
    };
    let destroy = |path: &Path| {
        let output = place.farfork(&["pool", "destroy", &path.display().to_string()]);
        assert!(output.status.success() && !is_mounted(path) && !path.exists(), "{output:?}");
    };
    let made = create(&place.path("empty"), &[]);
    assert!(made.status.success() && !is_mounted(&empty), "{made:?}");
    assert!(String::from_utf8_lossy(&made.stderr).contains("--mount"), "{made:?}");
    place.fails(
        &["pool", "create", &place.path("empty"), "--size", "8M", "--mount"],
        1,
        &["it is not empty"],
    );
    destroy(&empty);
    fs::create_dir(&empty).expect("a directory");
    let made = create(&place.path("empty"), &["--mount"]);
    assert!(made.status.success() && is_mounted(&empty), "{made:?}");
    destroy(&empty);
    let made = create(&place.path("new"), &[]);
    assert!(made.status.success() && is_mounted(&new), "{made:?}");
    destroy(&new);
}

/// `/dev/shm` is a mount point. A mount on it would hide what other processes put there.
#[test]
fn nothing_is_mounted_on_a_mount_point() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root mounts anything");
    }
    let place = TestDirectory::create("point");
    let point = place.0.join("point");
    fs::create_dir(&point).expect("a directory");
    let mount = |arguments: &[&str]| {
        let status = Command::new(arguments[0]).args(&arguments[1..]).arg(&point).status();
        assert!(status.is_ok_and(|status| status.success()), "{arguments:?}");
    };
    mount(&["mount", "-t", "tmpfs", "-o", "mode=1777", "test"]);
    let create = ["pool", "create", &place.path("point"), "--size", "8M", "--mount"];
    let message = place.fails(&create, 1, &["a file system is mounted there"]);
    let output = place.farfork(&create[..5]);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let count = mounts.matches(&format!(" {} ", point.display())).count();
    mount(&["umount"]);
    assert!(output.status.success() && count == 1, "{message} {output:?}");
}

#[test]
fn invalid_names_of_nodes_are_refused() {
    let place = TestDirectory::create("names");
    let victim = place.0.join("victim.sock");
    fs::write(&victim, "something").expect("a file");
    for name in ["../victim", "", ".", "a/b"] {
        place.fails(&["node", "--name", name, "--idle-exit-s", "0"], 2, &["invalid node name"]);
        place.fails(&["ps", "--node", name], 2, &["invalid node name"]);
    }
    assert_eq!(fs::read_to_string(&victim).expect("the file"), "something");
}

#[test]
fn an_unknown_node_cannot_be_listed() {
    let place = TestDirectory::create("ps");
    place.fails(&["ps", "--node", "nothere"], 1, &["no node nothere"]);
    for arguments in [&["ps"][..], &["ps", "--node", "local"]] {
        assert!(place.farfork(arguments).status.success(), "{arguments:?}");
    }
}

#[test]
fn kill_takes_a_signal_before_the_pid_or_as_an_option() {
    let place = TestDirectory::create("kill");
    // There is no agent, so a valid call fails, too.
    for arguments in [&["kill", "-9", "77"][..], &["kill", "77"], &["kill", "77", "--signal", "9"]]
    {
        place.fails(arguments, 1, &["cannot reach the node agent"]);
    }
    for arguments in [&["kill"][..], &["kill", "-9"], &["kill", "5", "6"]] {
        place.fails(arguments, 2, &["kill"]);
    }
    place.fails(&["kill", "-9", "77", "--signal", "9"], 2, &["at most one signal"]);
}

#[test]
fn a_node_is_removed_unless_it_is_alive_or_unknown() {
    let place = TestDirectory::create("forget");
    let (path, pins) = (place.path("pool"), place.0.join("pins"));
    let pool = Pool::create(Path::new(&path), 8 << 20).expect("a pool");
    let row = pool.register_node("gone", &PinFile::open(&pins).expect("a pin file"));
    let call = ["pool", "forget-node", "gone", &path];
    place.fails(&["pool", "forget-node", "other", &path], 1, &["has no node other"]);
    place.fails(&call, 1, &["node gone", "are running"]);
    drop(row);
    let output = place.farfork(&call);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let removed = format!("removed node gone from the pool at {path}: 1 rows with 0 pins");
    assert!(text.contains(&removed), "{text}");
    place.fails(&call, 1, &["has no node gone"]);
    drop(pool);
    Pool::destroy(Path::new(&path)).expect("it is unused");
}

/// In `/dev/shm` any user can create the directory of another user's pool and agents.
#[test]
fn directories_created_by_another_user_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root creates files of another user");
    }
    let place = TestDirectory::create("stranger");
    let user = 300_000 + std::process::id();
    let own = SharedDirectory(PathBuf::from(format!("/dev/shm/farfork-{user}")));
    fs::create_dir_all(own.0.join("run")).expect("a directory");
    let pool = own.0.join("embedded");
    drop(Pool::create(&pool, 8 << 20).expect("a pool"));
    give_away(&pool, user);
    let binary = place.0.join("farfork");
    copy_program(Path::new(env!("CARGO_BIN_EXE_farfork")), &binary);
    let farfork = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        for variable in ["FARFORK_RUN", "FARFORK_POOL", "FARFORK_NODE", "XDG_RUNTIME_DIR"] {
            command.env_remove(variable);
        }
        command.args(arguments).uid(user).gid(user).current_dir("/");
        command.output().expect("farfork starts")
    };
    fs::set_permissions(&own.0, fs::Permissions::from_mode(0o777)).expect("a trap");
    let another = own.0.join("another").display().to_string();
    let create = ["pool", "create", &another, "--size", "8M"];
    for arguments in [&["pool", "info"][..], &["pool", "check"], &["kill", "-9", "77"], &create] {
        let output = farfork(arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(message.contains("or is open to others"), "{arguments:?}: {message}");
    }
    std::os::unix::fs::chown(&own.0, Some(user), Some(user)).expect("a directory given away");
    let opened = fs::Permissions::from_mode(0o770);
    fs::set_permissions(&own.0, opened).expect("a directory opened to a group");
    assert_eq!(farfork(&["pool", "info"]).status.code(), Some(1));
    fs::set_permissions(&own.0, fs::Permissions::from_mode(0o700)).expect("a private directory");
    let output = farfork(&["pool", "info"]);
    assert!(output.status.success(), "{output:?}");
    let output = farfork(&["pool", "destroy", &pool.display().to_string()]);
    assert!(output.status.success() && !pool.exists(), "{output:?}");
}

/// Another process copies: a child that another test forks would inherit a descriptor that is open for
/// writing, and the program could not be executed (ETXTBSY) before the child executes its own.
fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("cp starts");
    assert!(copied.success(), "{copied}");
}

/// Makes `user` the owner of a file, or of a directory and what lies in it.
fn give_away(path: &Path, user: u32) {
    std::os::unix::fs::chown(path, Some(user), Some(user)).expect("a file given away");
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a directory");
        entries.for_each(|entry| give_away(&entry.expect("an entry").path(), user));
    }
}

/// A directory in shared memory. Dropped, it is removed.
struct SharedDirectory(PathBuf);

impl Drop for SharedDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A stopped agent accepts connections (the kernel does) and never answers.
#[test]
fn queries_of_a_stopped_agent_time_out() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let place = TestDirectory::create("silent");
    fs::create_dir(place.0.join("run")).expect("a directory");
    let agent = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(place.0.join("run/stands.sock")).expect("an address");
    bind(&agent, &address).and_then(|()| listen(&agent, 8)).expect("an address");
    let (place, words) = (&place, ["node stands", "does not answer within 10 s"]);
    std::thread::scope(|scope| {
        for call in [&["ps"][..], &["ghost", "list"]] {
            scope.spawn(move || place.fails(call, 1, &words));
        }
    });
    assert!(place.farfork(&["ps", "--node", "local"]).status.success());
}

#[test]
fn errors_of_usage_name_the_missing_option() {
    let place = TestDirectory::create("usage");
    let message = place.fails(&["checkpoint", "--pid", "77"], 2, &["--name <NAME>"]);
    assert!(!message.contains("--pool <"), "{message}");
    place.fails(&["restore", "a/b", "--count", "0"], 2, &["--count"]);
}

#[test]
fn regions_are_made_shown_checked_and_destroyed() {
    let place = TestDirectory::create("region");
    let path = place.path("region");
    let call = |arguments: &[&str]| {
        let output = place.farfork(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&call(arguments)).expect("one JSON document")
    };
    place.fails(&["region", "create", &path, "--size", "4K"], 1, &["4096 bytes", "from 1048576"]);
    place.fails(&["region", "create", &path], 2, &["--size"]);
    assert_eq!(call(&["region", "create", &path, "--size", "2M"]).trim(), path);
    place.fails(&["region", "create", &path, "--size", "2M"], 1, &["File exists"]);
    let info = json(&["region", "info", &path, "--json"]);
    assert_eq!((&info["bytes"], &info["objects"]), (&(2 << 20).into(), &0.into()));
    assert_eq!(info["data_bytes"], info["free_bytes"]);
    let mut client = farfork::Client::open(Path::new(&path)).expect("a client");
    client.allocate(64).expect("an object");
    client.mailbox("m", 4).expect("a mailbox");
    let info = json(&["region", "info", &path, "--json"]);
    assert_eq!(info["clients"][0]["pid"], std::process::id());
    assert_eq!(
        (&info["clients"][0]["objects"], &info["mailboxes"][0]["slots"]),
        (&1.into(), &4.into())
    );
    let check = json(&["region", "check", &path, "--json"]);
    assert_eq!((&check["owned"], &check["lost"]), (&1.into(), &0.into()));
    place.fails(&["region", "destroy", &path], 1, &["1 clients use it"]);
    drop(client);
    assert!(call(&["region", "info", &path]).contains("mailbox m: 0 of 4 slots full"));
    assert!(call(&["region", "check", &path]).contains("0 lost, 0 double, 0 foreign"));
    call(&["region", "destroy", &path]);
    place.fails(&["region", "check", &path], 1, &["No such file"]);
}

/// What is behind standard output is gone, or full: an end, and no panic.
#[test]
fn output_that_cannot_be_written_ends_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let ps = |output: std::process::Stdio| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_farfork"));
        command.arg("ps").env("FARFORK_RUN", directory.path()).stdout(output).output().unwrap()
    };
    let full = ps(std::fs::File::options().write(true).open("/dev/full").unwrap().into());
    let words = String::from_utf8_lossy(&full.stderr).into_owned();
    assert_eq!(full.status.code(), Some(1), "{words}");
    assert!(words.contains("cannot write its output: No space left on device"), "{words}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let closed = ps(writer.into());
    assert_eq!((closed.status.code(), closed.stderr.as_slice()), (Some(0), &b""[..]));
}
