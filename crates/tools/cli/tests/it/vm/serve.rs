//! `farfork vm serve`.

use std::fs::{self};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use farfork_minivmm::{Backing, Monitor, Walk};
use farfork_sys::userfault::Userfault;
use serde_json::Value;

use super::bed::{Bed, PATTERN, Serve, server_of};

/// What a server answers.
fn fetch(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: farfork\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_guest_restores_from_serve_and_outlives_its_server() {
    if Userfault::create(0).is_err() {
        return println!("skipped: this process may not create a userfaultfd");
    }
    let bed = Bed::new("serve", "64M");
    bed.import("a/vm");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let serve = Serve::start_with(&bed, "a/vm", &["--metrics", &address.to_string()]);
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
    let metrics = fetch(address, "/metrics");
    assert!(metrics.contains("\nfarfork_vm_machines 1\n"), "{metrics}");
    assert!(metrics.contains("\nfarfork_vm_takeover_seconds_count 2\n"), "{metrics}");
    assert!(metrics.contains("\nfarfork_vm_machines_started_total 2\n"), "{metrics}");
    assert!(fetch(address, "/").starts_with("HTTP/1.1 404 "));
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
    // The server has the image still, and with it the pin.
    bed.done(&["pool", "check"]);
    assert_eq!(pinned_by(&bed), ["server-0"]);
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

/// A guest in a process of its own, if this is one: reads a page, and, after a byte on stdin, all of them.
#[test]
fn process() {
    let Some(directory) = std::env::var_os("FARFORK_TEST_GUEST") else { return };
    let path = |name: &str| Path::new(&directory).join(name);
    let machine = Monitor::restore(&path("state"), Backing::Uffd(&path("socket"))).unwrap();
    machine.load(0);
    fs::write(path("is-running"), "").unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let first: Vec<u64> = (0..PATTERN.pages()).map(|page| machine.load(page * 4096)).collect();
    assert!(first.contains(&0));
    std::process::exit(3);
}

/// When the holder was killed and then its server, the guest is ended, and does not wait for ever.
#[test]
fn a_guest_without_holder_and_server_is_ended() {
    if Userfault::create(0).is_err() {
        return println!("skipped: this process may not create a userfaultfd");
    }
    let bed = Bed::new("guard", "64M");
    bed.import("a/vm");
    let mut serve = Serve::start(&bed, "a/vm");
    let mut guest = std::process::Command::new(std::env::current_exe().unwrap());
    guest.args(["vm::serve::process", "--exact", "--nocapture"]).env("FARFORK_TEST_GUEST", &bed.0);
    let mut guest = guest.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let await_that = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    await_that(&|| bed.0.join("is-running").exists());
    let server = server_of(&serve.0);
    serve.0.kill().unwrap();
    serve.0.wait().unwrap();
    let children = format!("/proc/{server}/task/{server}/children");
    await_that(&|| fs::read_to_string(&children).is_ok_and(|pids| !pids.is_empty()));
    // The guard may not have all of its machines yet.
    std::thread::sleep(Duration::from_millis(100));
    let server = rustix::process::Pid::from_raw(server).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    let killed = Instant::now();
    guest.stdin.take().unwrap().write_all(&[1]).unwrap();
    let status = loop {
        if let Some(status) = guest.try_wait().unwrap() {
            break status;
        }
        if killed.elapsed() > Duration::from_secs(10) {
            guest.kill().unwrap();
            panic!("the guest waits for a page that no process brings");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.signal(), Some(9));
    println!("ended after {:?}", killed.elapsed());
    let mut text = String::new();
    serve.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    for words in ["goes on with 1 machines", "killed the monitor of machine 1"] {
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
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

/// Nodes that pin the image of this name.
fn pinned_by(bed: &Bed) -> Vec<String> {
    let info = bed.json(&["pool", "info", "--json"]);
    let pinned = info["images"][0]["pinned_by"].as_array().unwrap();
    let mut names: Vec<_> = pinned.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// An image that is served is pinned by a node of its own, whose number is used again.
#[test]
fn a_served_image_is_pinned() {
    let bed = Bed::new("pinned", "64M");
    bed.import("a/vm");
    for _ in 0..2 {
        let first = Serve::start(&bed, "a/vm");
        assert_eq!(pinned_by(&bed), ["server-0"]);
        let mut command = bed.command(&["vm", "serve", "a/vm", "--socket", "second"]);
        let mut second = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        BufReader::new(second.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        assert_eq!(pinned_by(&bed), ["server-0", "server-1"]);
        assert_eq!(first.end().0, Some(0));
        assert_eq!(pinned_by(&bed), ["server-1"]);
        second.kill().unwrap();
        second.wait().unwrap();
        // Its own server ends, too, as there is no machine; then a check finds what a killed holder has left.
        let is_clear = || {
            bed.done(&["pool", "check"]);
            pinned_by(&bed).is_empty()
        };
        let until = Instant::now() + Duration::from_secs(30);
        while !is_clear() {
            assert!(Instant::now() < until, "the pin of a killed holder stays");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
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
