//! `farfork vm map`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use farfork_minivmm::{Backing, Monitor, Walk};

use super::bed::{Bed, PATTERN, Serve, server_of};

/// `farfork vm map`, ready, and the path of its file.
fn map(bed: &Bed) -> (Serve, PathBuf) {
    let mut command = bed.command(&["vm", "map", "a/vm", "mapped"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Serve(child), PathBuf::from(line.trim()))
}

/// Pages of a file that lie in the page cache.
fn cached(file: &Path) -> usize {
    let said = Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(file).output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn machines_share_a_mapped_snapshot_whose_server_is_killed() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: mounting needs root");
    }
    let bed = Bed::new("map", "64M");
    bed.import("a/vm");
    fs::create_dir(bed.0.join("mapped")).unwrap();
    let (serve, shown) = map(&bed);
    assert_eq!(shown, bed.0.join("mapped/memory"));
    // Another one has no room.
    bed.fails(&["vm", "map", "a/vm", "mapped"], &["it is not empty"]);
    let memory = bed.0.join("memory");
    let restore =
        |memory: &Path| Monitor::restore(&bed.0.join("state"), Backing::File(memory)).unwrap();
    let (mut original, mut first) = (restore(&memory), restore(&shown));
    let pages = PATTERN.pages();
    let jumping = Walk::jumping(pages, pages / 3);
    assert_eq!(first.walk(&jumping).unwrap(), original.walk(&jumping).unwrap());
    let after_first = cached(&shown);
    assert!(after_first > 0);
    // The second one needs no other pages.
    let mut second = restore(&shown);
    assert_eq!(second.walk(&jumping).unwrap(), first.walk(&jumping).unwrap());
    assert_eq!(cached(&shown), after_first);
    // The next server has the image although it was removed.
    bed.done(&["images", "rm", "a/vm"]);
    let server = rustix::process::Pid::from_raw(server_of(&serve.0)).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    let whole = Walk::whole(pages);
    assert_eq!(second.walk(&whole).unwrap(), original.walk(&whole).unwrap());
    assert!(fs::read(&shown).unwrap() == fs::read(&memory).unwrap(), "other bytes");
    // What a machine writes stays its own: the file is the snapshot's.
    let pid = rustix::process::Pid::from_child(&serve.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(shown.exists(), "machines use it");
    drop((first, second));
    let mut serve = serve;
    assert_eq!(serve.0.wait().unwrap().code(), Some(0));
    let mut text = String::new();
    serve.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(
        text.contains("waiting for machines") && text.contains("the next one goes on"),
        "{text}"
    );
    assert!(!shown.exists());
}

/// Pages that were recorded, and no others, are in the page cache before a machine asks. The state is shown, too.
#[test]
fn recorded_pages_of_a_mapped_snapshot_are_read_in_advance() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: mounting needs root");
    }
    let bed = Bed::new("advance", "64M");
    let cid = bed.import("a/vm").parse().unwrap();
    let pool = farfork_pool::Pool::open(&bed.0.join("pool")).unwrap();
    // 700 pages, more than a batch, in some order, of which the last is not of this memory.
    let needed: Vec<u32> = (0..699).map(|n| (n * 1009) % 4096).chain([5000]).collect();
    let mut bits = farfork_pool::PageBits { accessed: vec![0; 80], ..Default::default() };
    needed.iter().for_each(|page| bits.accessed[*page as usize / 64] |= 1 << (page % 64));
    pool.add_users_bits(cid, &bits).unwrap();
    pool.add_access_order(cid, &needed).unwrap();
    fs::create_dir(bed.0.join("mapped")).unwrap();
    let (mut serve, shown) = map(&bed);
    let mut line = String::new();
    let mut said = BufReader::new(serve.0.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    serve.0.stderr = Some(said.into_inner());
    assert!(
        line.starts_with("699 pages that earlier machines needed are in the page cache"),
        "{line}"
    );
    assert_eq!(cached(&shown), 699);
    assert!(bed.same("state", "mapped/state"));
    assert_eq!(fs::read_dir(bed.0.join("mapped")).unwrap().count(), 2);
    assert!(bed.same("memory", "mapped/memory"));
    assert_eq!(serve.end().0, Some(0));
}

/// A page that is damaged in the pool ends in an error, and is not shown.
#[test]
fn a_damaged_page_of_a_mapped_snapshot_is_an_error() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: mounting needs root");
    }
    let bed = Bed::new("map-damaged", "64M");
    let cid = bed.import("a/vm");
    fs::create_dir(bed.0.join("mapped")).unwrap();
    let image = bed.0.join("pool/images").join(cid.trim());
    let bytes = fs::metadata(&image).unwrap().len();
    let permitted = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&image, permitted).unwrap();
    let damaged = File::options().write(true).open(&image).unwrap();
    damaged.write_all_at(&[0xa5; 64], bytes - 4096).unwrap();
    let (serve, shown) = map(&bed);
    let error = fs::read(&shown).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let (status, text) = serve.end();
    assert_eq!(status, Some(0));
    assert!(text.contains("does not match its checksum"), "{text}");
}
