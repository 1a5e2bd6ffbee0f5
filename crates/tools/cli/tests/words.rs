//! What people are told who call `farfork` in a way that it cannot follow.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use farfork_pool::{PinFile, Pool};

/// A directory for agents of nobody else's. Dropped, it is removed.
struct Place(PathBuf);

impl Place {
    fn make(name: &str) -> Place {
        let place =
            std::env::temp_dir().join(format!("farfork-words-{name}-{}", std::process::id()));
        fs::create_dir_all(&place).expect("a directory");
        Place(place)
    }

    fn farfork(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
        command.args(arguments).env("FARFORK_RUN", self.0.join("run"));
        command.env("FARFORK_POOL", self.0.join("none")).env_remove("FARFORK_NODE");
        command.output().expect("farfork starts")
    }

    fn fails(&self, arguments: &[&str], status: i32, words: &[&str]) -> String {
        let output = self.farfork(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments:?}: no '{word}' in: {said}");
        }
        said
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Place {
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
    let place = Place::make("size");
    let pool = place.path("new/deep/pool");
    for (size, bytes) in [("99999999G", "107374181326258176 bytes"), ("1M", "2097152 bytes")] {
        let words = ["cannot make a pool of", bytes, "at least 6291456 and less than"];
        place.fails(&["pool", "create", &pool, "--size", size], 1, &words);
        assert!(!place.0.join("new").exists(), "a directory stays behind");
    }
}

#[test]
fn a_pool_is_made_where_it_hides_nothing() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root mounts anything");
    }
    let place = Place::make("mount");
    let (empty, new) = (place.0.join("empty"), place.0.join("new"));
    fs::create_dir(&empty).expect("a directory");
    let create = |path: &str, more: &[&str]| {
        place.farfork(&[&["pool", "create", path, "--size", "8M"], more].concat())
    };
    let made = create(&place.path("empty/pool"), &[]);
    assert!(made.status.success() && !is_mounted(&empty), "{made:?}");
    assert!(String::from_utf8_lossy(&made.stderr).contains("--mount"), "{made:?}");
    place.fails(
        &["pool", "create", &place.path("empty/two"), "--size", "8M", "--mount"],
        1,
        &["it is not empty"],
    );
    place.farfork(&["pool", "destroy", &place.path("empty/pool")]);
    let made = create(&place.path("empty/pool"), &["--mount"]);
    assert!(made.status.success() && is_mounted(&empty), "{made:?}");
    place.farfork(&["pool", "destroy", &place.path("empty/pool")]);
    let made = create(&place.path("new/pool"), &[]);
    assert!(made.status.success() && is_mounted(&new), "{made:?}");
    place.farfork(&["pool", "destroy", &place.path("new/pool")]);
    assert!(!is_mounted(&empty) && !is_mounted(&new));
}

/// As `/dev/shm` is: what others put there later would be in the pool's file system.
#[test]
fn nothing_is_mounted_on_a_mount_point() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root mounts anything");
    }
    let place = Place::make("point");
    let point = place.0.join("point");
    fs::create_dir(&point).expect("a directory");
    let mount = |arguments: &[&str]| {
        let status = Command::new(arguments[0]).args(&arguments[1..]).arg(&point).status();
        assert!(status.is_ok_and(|status| status.success()), "{arguments:?}");
    };
    mount(&["mount", "-t", "tmpfs", "-o", "mode=1777", "test"]);
    let create = ["pool", "create", &place.path("point/pool"), "--size", "8M", "--mount"];
    let said = place.fails(&create, 1, &["a file system is mounted there"]);
    let output = place.farfork(&create[..5]);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let count = mounts.matches(&format!(" {} ", point.display())).count();
    mount(&["umount"]);
    assert!(output.status.success() && count == 1, "{said} {output:?}");
}

#[test]
fn a_node_has_a_name_that_leads_nowhere_else() {
    let place = Place::make("names");
    let victim = place.0.join("victim.sock");
    fs::write(&victim, "something").expect("a file");
    for name in ["../victim", "", ".", "a/b"] {
        place.fails(&["node", "--name", name, "--idle-exit-s", "0"], 2, &["invalid node name"]);
        place.fails(&["ps", "--node", name], 2, &["invalid node name"]);
    }
    assert_eq!(fs::read_to_string(&victim).expect("the file"), "something");
}

#[test]
fn nobody_is_listed_of_a_node_that_is_not_there() {
    let place = Place::make("ps");
    place.fails(&["ps", "--node", "nothere"], 1, &["no node nothere"]);
    for arguments in [&["ps"][..], &["ps", "--node", "local"]] {
        assert!(place.farfork(arguments).status.success(), "{arguments:?}");
    }
}

#[test]
fn a_signal_is_given_as_to_kill() {
    let place = Place::make("kill");
    // There is no agent: the call itself was right.
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
fn a_node_is_forgotten_unless_it_lives_or_never_was() {
    let place = Place::make("forget");
    let (path, pins) = (place.path("pool"), place.0.join("pins"));
    let pool = Pool::create(Path::new(&path), 8 << 20).expect("a pool");
    let row = pool.register_node("gone", &PinFile::open(&pins).expect("a pin file"));
    let call = ["pool", "forget-node", "gone", &path];
    place.fails(&["pool", "forget-node", "other", &path], 1, &["has no node other"]);
    place.fails(&call, 1, &["node gone", "lives"]);
    drop(row);
    let output = place.farfork(&call);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("has forgotten node gone: 1 rows with 0 pins"), "{said}");
    place.fails(&call, 1, &["has no node gone"]);
    drop(pool);
    Pool::destroy(Path::new(&path)).expect("nobody uses it");
}

/// Where everybody may make the directory that a user's pool and agents are looked for in.
#[test]
fn what_a_stranger_made_is_not_believed() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root makes something in the name of another user");
    }
    let place = Place::make("stranger");
    let user = 300_000 + std::process::id();
    let own = Stranger(PathBuf::from(format!("/dev/shm/farfork-{user}")));
    fs::create_dir_all(own.0.join("run")).expect("a directory");
    let pool = own.0.join("embedded");
    drop(Pool::create(&pool, 8 << 20).expect("a pool"));
    std::os::unix::fs::chown(&pool, Some(user), Some(user)).expect("a pool given away");
    let binary = place.0.join("farfork");
    fs::copy(env!("CARGO_BIN_EXE_farfork"), &binary).expect("a copy that everybody can execute");
    let farfork = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        for variable in ["FARFORK_RUN", "FARFORK_POOL", "FARFORK_NODE", "XDG_RUNTIME_DIR"] {
            command.env_remove(variable);
        }
        command.args(arguments).uid(user).gid(user).current_dir("/");
        command.output().expect("farfork starts")
    };
    for arguments in [&["pool", "info"][..], &["pool", "check"], &["kill", "-9", "77"]] {
        let output = farfork(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(
            said.contains("belongs to another user, or is open to others"),
            "{arguments:?}: {said}"
        );
    }
    std::os::unix::fs::chown(&own.0, Some(user), Some(user)).expect("a directory given away");
    let opened = fs::Permissions::from_mode(0o770);
    fs::set_permissions(&own.0, opened).expect("a directory opened to a group");
    assert_eq!(farfork(&["pool", "info"]).status.code(), Some(1));
    fs::set_permissions(&own.0, fs::Permissions::from_mode(0o700)).expect("a private directory");
    let output = farfork(&["pool", "info"]);
    assert!(output.status.success(), "{output:?}");
    Pool::destroy(&pool).expect("nobody uses it");
}

/// A directory in shared memory. Dropped, it is removed.
struct Stranger(PathBuf);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// As of an agent that somebody has stopped: it takes connections, and says nothing.
#[test]
fn an_agent_that_says_nothing_is_not_waited_for_without_end() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let place = Place::make("silent");
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
fn only_what_is_missing_is_asked_for() {
    let place = Place::make("usage");
    let said = place.fails(&["checkpoint", "--pid", "77"], 2, &["--name <NAME>"]);
    assert!(!said.contains("--pool <"), "{said}");
    place.fails(&["restore", "a/b", "--count", "0"], 2, &["--count"]);
}
