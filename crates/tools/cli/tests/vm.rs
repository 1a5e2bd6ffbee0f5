//! `farfork vm`, and what other commands do with its images.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use farfork_minivmm::{Backing, Monitor, Pattern, Walk};
use farfork_sys::userfault::Userfault;
use serde_json::Value;

const PATTERN: Pattern =
    Pattern { memory_bytes: 16 << 20, zero_permille: 800, group_pages: 7, seed: 9 };

/// A pool, and the files of a snapshot. Dropped, all is removed.
struct Bed(PathBuf);

impl Bed {
    fn new(name: &str, size: &str) -> Bed {
        let path = std::env::temp_dir().join(format!("farfork-vm-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let bed = Bed(path);
        // An empty directory is not mounted on.
        fs::create_dir(bed.0.join("pool")).unwrap();
        bed.done(&["pool", "create", &bed.path("pool"), "--size", size]);
        let monitor = Monitor::start(&PATTERN, 1).unwrap();
        monitor.snapshot(&bed.0.join("state"), &bed.0.join("memory")).unwrap();
        bed
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
        command.args(arguments).current_dir(&self.0).env_remove("FARFORK_NODE");
        command.env("FARFORK_RUN", self.0.join("run")).env("FARFORK_POOL", self.0.join("pool"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.done(arguments)).unwrap()
    }

    fn fails(&self, arguments: &[&str], words: &[&str]) {
        let output = self.run(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?}: no '{word}' in: {message}");
        }
    }

    fn import(&self, name: &str) -> String {
        self.done(&["vm", "import", "--name", name, "state", "memory"]).trim().to_owned()
    }

    fn same(&self, one: &str, other: &str) -> bool {
        fs::read(self.0.join(one)).unwrap() == fs::read(self.0.join(other)).unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.run(&["pool", "destroy", "--force", &self.path("pool")]);
        let _ = fs::remove_dir_all(&self.0);
    }
}

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
    assert!(bed.done(&["vm", "show", "a/vm"]).contains("16.0 MiB"));
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
    assert!(bed.done(&["pool", "check"]).contains("the pool is sound"));
    assert_eq!(bed.json(&["pool", "info", "--json"])["images"].as_array().unwrap().len(), 1);
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

/// `farfork vm serve`, ready.
struct Serve(Child);

impl Serve {
    fn start(bed: &Bed, image: &str) -> Serve {
        let mut command = bed.command(&["vm", "serve", image, "--socket", "socket"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "socket");
        Serve(child)
    }

    /// Interrupts it; what it has reported.
    fn end(mut self) -> (Option<i32>, String) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let status = self.0.wait().unwrap().code();
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status, text)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process that serves for a holder.
fn server_of(holder: &Child) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", holder.id());
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(pid) = fs::read_to_string(&children).unwrap().split_whitespace().next() {
            return pid.parse().unwrap();
        }
        assert!(Instant::now() < until, "there is no server");
    }
}

#[test]
fn a_guest_restores_from_serve_and_outlives_its_server() {
    if Userfault::create(0).is_err() {
        return println!("skipped: this process may not create a userfaultfd");
    }
    let bed = Bed::new("serve", "64M");
    bed.import("a/vm");
    let serve = Serve::start(&bed, "a/vm");
    let [memory, socket] = ["memory", "socket"].map(|name| bed.0.join(name));
    let restore = |backing| Monitor::restore(&bed.0.join("state"), backing).unwrap();
    let mut mapped = restore(Backing::File(&memory));
    let mut served = restore(Backing::Uffd(&socket));
    let pages = PATTERN.pages();
    for walk in [Walk::jumping(pages, pages / 3), Walk::whole(pages)] {
        assert_eq!(served.walk(&walk).unwrap(), mapped.walk(&walk).unwrap());
        let server = rustix::process::Pid::from_raw(server_of(&serve.0)).unwrap();
        rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    }
    drop(served);
    let mut another = restore(Backing::Uffd(&socket));
    let walk = Walk::whole(pages);
    assert_eq!(another.walk(&walk).unwrap(), mapped.walk(&walk).unwrap());
    drop(another);
    let (status, text) = serve.end();
    assert_eq!(status, Some(0), "{text}");
    for words in ["machine 1", "the server died", "machine 2", "ended: "] {
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
    assert!(!Path::new(&bed.path("socket")).exists());
    // The first machine has touched everything; what is recorded stays with the image.
    let shown = |key: &str| bed.json(&["vm", "show", "a/vm", "--json"])[key].as_u64().unwrap();
    assert_eq!(
        (shown("cold_bytes"), shown("hot_bytes") + shown("zero_bytes")),
        (0, shown("raw_bytes"))
    );
    bed.done(&["images", "reset-accessed", "a/vm"]);
    assert_eq!(shown("hot_bytes"), 0);
}

/// The server of a holder that was killed serves the machines that it has, and ends after them.
#[test]
fn a_guest_outlives_its_holder() {
    if Userfault::create(0).is_err() {
        return println!("skipped: this process may not create a userfaultfd");
    }
    let bed = Bed::new("holder", "64M");
    bed.import("a/vm");
    let mut serve = Serve::start(&bed, "a/vm");
    let [memory, socket] = ["memory", "socket"].map(|name| bed.0.join(name));
    let restore = |backing| Monitor::restore(&bed.0.join("state"), backing).unwrap();
    let (mut mapped, mut served) =
        (restore(Backing::File(&memory)), restore(Backing::Uffd(&socket)));
    served.load(0);
    let server = server_of(&serve.0);
    serve.0.kill().unwrap();
    serve.0.wait().unwrap();
    let walk = Walk::whole(PATTERN.pages());
    assert_eq!(served.walk(&walk).unwrap(), mapped.walk(&walk).unwrap());
    drop(served);
    let until = Instant::now() + Duration::from_secs(20);
    // A process that has ended and was not waited for has no command line.
    let is_alive =
        || fs::read(format!("/proc/{server}/cmdline")).is_ok_and(|line| !line.is_empty());
    while is_alive() {
        assert!(Instant::now() < until, "the server goes on without machines");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The socket that is left is replaced.
    let again = Serve::start(&bed, "a/vm");
    let mut served = restore(Backing::Uffd(&socket));
    assert_eq!(served.walk(&walk).unwrap(), mapped.walk(&walk).unwrap());
    drop(served);
    assert_eq!(again.end().0, Some(0));
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
}

#[test]
fn serve_refuses_what_it_cannot_serve() {
    let bed = Bed::new("refuse", "64M");
    bed.import("a/vm");
    bed.fails(&["vm", "serve", "a/none", "--socket", "s"], &["a/none"]);
    bed.fails(&["vm", "serve", "a/vm", "--socket", "no/such/s"], &["cannot listen at no/such/s"]);
    fs::write(bed.path("text"), "mine").unwrap();
    bed.fails(&["vm", "serve", "a/vm", "--socket", "text"], &["it is in use"]);
    assert_eq!(fs::read(bed.path("text")).unwrap(), b"mine");
}

/// What one server has recorded, the next one fills before its machines run, and says so.
#[test]
fn serve_reports_events_as_json_and_fills_what_was_recorded() {
    if Userfault::create(0).is_err() {
        return println!("skipped: this process may not create a userfaultfd");
    }
    let bed = Bed::new("json", "64M");
    let cid = bed.import("a/vm");
    let pages = PATTERN.pages();
    let walk = Walk::jumping(pages, pages / 5);
    let mut filled = Vec::new();
    for _ in 0..2 {
        let mut command = bed.command(&["vm", "serve", "a/vm", "--socket", "socket", "--json"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let serve = Serve(child);
        let mut wait = |name: &str| loop {
            let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            if event["event"] == name {
                return event;
            }
        };
        assert_eq!(wait("listening")["path"], "socket");
        let socket = bed.0.join("socket");
        let state = bed.0.join("state");
        let mut machine = Monitor::restore(&state, Backing::Uffd(&socket)).unwrap();
        assert_eq!(wait("started")["pid"], std::process::id());
        filled.push(wait("filled")["pages"].as_u64().unwrap());
        machine.walk(&walk).unwrap();
        drop(machine);
        let ended = wait("ended");
        assert_eq!((&ended["machine"], &ended["poisoned_pages"]), (&1.into(), &0.into()));
        assert_eq!(ended["faults"] == 0, filled.len() == 2, "{ended}");
        drop(serve);
    }
    let pool = farfork_pool::Pool::open(&bed.0.join("pool")).unwrap();
    let order = pool.access_order(cid.parse().unwrap()).unwrap();
    assert_eq!(filled, [0, order.len() as u64]);
    let walked: Vec<u32> = walk.pages(pages).map(|page| page as u32).collect();
    let in_order = order.iter().filter(|page| **page >= 32 && walked.contains(page));
    assert!(in_order.eq(walked.iter().filter(|page| **page >= 32)));
}
