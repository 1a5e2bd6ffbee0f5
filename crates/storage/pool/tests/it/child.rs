//! What a process of its own does in a pool; it may be killed anywhere within.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use farfork_pool::{Epochs, FarParts, Host, Medium, Ownership, Pool, Quota, failpoint};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::common::{bits, pins, publish, register};

/// The user whose images are written.
pub const USER: &str = "amy";
/// The name that is moved.
pub const NAME: [&str; 3] = ["amy", "resize", "live"];

/// How the pool behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Usual,
    /// As on a medium that has no files without a name.
    Named,
    /// As where several kernels share the medium.
    Shared,
}

pub const KINDS: [Kind; 3] = [Kind::Usual, Kind::Named, Kind::Shared];

impl Kind {
    pub fn applied_to(self, pool: Pool) -> Pool {
        match self {
            Kind::Usual => pool,
            Kind::Named => pool.with_named_files(),
            Kind::Shared => pool.as_on(Medium::Dax),
        }
    }
}

/// What a child is to do.
#[derive(Debug, Clone, Copy)]
pub struct Orders<'a> {
    pub role: &'a str,
    pub kind: Kind,
    pub pool: &'a Path,
    pub cid: Cid,
}

impl<'a> Orders<'a> {
    pub fn new(role: &'a str, pool: &'a Path) -> Orders<'a> {
        Orders { role, kind: Kind::Usual, pool, cid: Cid::NIL }
    }

    /// Lets a command that ends in this program do it.
    pub fn given_to(self, mut command: Command) -> Command {
        command
            .args(["--exact", "child::acts", "--test-threads=1"])
            .env("ROLE", self.role)
            .env("KIND", format!("{:?}", self.kind))
            .env("POOL", self.pool)
            .env("CID", self.cid.to_string())
            .stdout(Stdio::null())
            .stdin(Stdio::piped());
        command
    }

    pub fn command(self) -> Command {
        self.given_to(Command::new(std::env::current_exe().unwrap()))
    }

    pub fn start(self) -> Child {
        self.command().spawn().unwrap()
    }

    /// Runs it to its end, or to the step at which it is killed; whether it was.
    pub fn is_killed_at(self, step: u64) -> bool {
        let mut command = self.command();
        was_killed(command.env("FARFORK_KILL_AT_STEP", step.to_string()).status().unwrap())
    }
}

/// Whether the process was killed; panics if it failed in another way.
pub fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    match status.signal() {
        Some(9) => true,
        _ => {
            assert!(status.success(), "the child failed: {status}");
            false
        }
    }
}

#[test]
fn acts() {
    let Ok(role) = std::env::var("ROLE") else {
        println!("nothing to do: the other tests run this one in processes of its own");
        return;
    };
    let var = |name| std::env::var(name).unwrap();
    let path = var("POOL");
    let kind = KINDS.into_iter().find(|kind| format!("{kind:?}") == var("KIND")).unwrap();
    if role == "create" {
        failpoint::arm();
        Pool::create(Path::new(&path), 4 * CHUNK_BYTES).unwrap();
        return;
    }
    let pool = kind.applied_to(Pool::open(Path::new(&path)).unwrap());
    failpoint::arm();
    act(&role, &pool, var("CID").parse().unwrap());
}

fn act(role: &str, pool: &Pool, cid: Cid) {
    match role {
        "checkpoint" => checkpoint(pool),
        "give up" => {
            let mut writer = pool.begin(Some(USER)).unwrap();
            writer.reserve(2 * CHUNK_BYTES).unwrap();
            writer.bytes_mut(0..CHUNK_BYTES).fill(7);
        }
        "region" => {
            let mut writer = pool.begin(Some(USER)).unwrap();
            let file = writer.reserve_region(CHUNK_BYTES).unwrap();
            std::os::unix::fs::FileExt::write_all_at(file, b"region", 0).unwrap();
            writer.publish_region("points").unwrap();
        }
        "remove" => pool.remove(cid).unwrap(),
        "replace" => replace(pool, cid),
        "name" => {
            pool.set_name(NAME, cid).unwrap();
            pool.remove_name(NAME).unwrap();
            pool.set_name(NAME, cid).unwrap();
        }
        "limit" => {
            for images in [1, 2] {
                pool.set_quota(USER, Quota { bytes: u64::MAX, images }).unwrap();
            }
        }
        "pin" => {
            let row = register(pool, "child");
            pool.pin(&row, cid).unwrap();
            pool.remove(cid).unwrap();
            pool.unpin(&row, cid).unwrap();
        }
        "note" => {
            let node = register(pool, "child").id();
            let first = bits(&[1], &[1], &[]);
            pool.add_access(node, cid, Epochs::default(), &first).unwrap();
            pool.reset_access(cid, true).unwrap();
            let epochs = pool.epochs(cid).unwrap();
            pool.add_access(node, cid, epochs, &bits(&[4], &[4], &[])).unwrap();
        }
        "heat" => {
            pool.add_users_bits(cid, &bits(&[], &[], &[1, 6])).unwrap();
            pool.clear_hot(cid, &[1, 2]).unwrap();
            pool.reset_access(cid, false).unwrap();
        }
        "check" => {
            assert!(pool.check().unwrap().is_sound());
            drop(pool.begin(None).unwrap());
        }
        "publish and find" => {
            let cid = publish(pool, 1, 7);
            pool.find(cid).unwrap();
            pool.set_quota(USER, Quota { bytes: 1 << 40, images: 1 }).unwrap();
        }
        "loop" => loop {
            let cid = publish(pool, 3, 7);
            pool.remove(cid).unwrap();
        },
        _ => act_on_word(role, pool, cid),
    }
}

/// What begins when the parent says go, and says before whose thread does it.
fn act_on_word(role: &str, pool: &Pool, cid: Cid) {
    let mut words = std::io::stdin().lock();
    match role {
        "hold" => {
            let mut writer = pool.begin(None).unwrap();
            writer.reserve(2 * CHUNK_BYTES).unwrap();
            words.read_line(&mut String::new()).unwrap();
            panic!("to be killed before");
        }
        "borrow" => {
            let host = Host::register(
                Kind::Shared.applied_to(Pool::open(pool.path()).unwrap()),
                "dead",
                pins(pool, "dead"),
            )
            .unwrap();
            let _borrowed = host.borrow(cid).unwrap();
            std::io::stderr().write_all(b"up\n").unwrap();
            words.read_line(&mut String::new()).unwrap();
            panic!("to be killed before");
        }
        "write and wait" => {
            let mut writer = pool.begin(None).unwrap();
            writer.reserve(2 * CHUNK_BYTES).unwrap();
            writer.bytes_mut(0..CHUNK_BYTES).fill(5);
            std::io::stderr().write_all(b"up\n").unwrap();
            words.read_line(&mut String::new()).unwrap();
            panic!("to be killed before");
        }
        "write" => {
            words.read_line(&mut String::new()).unwrap();
            publish(pool, 16, 7);
        }
        "write without children" => {
            ignore_children();
            publish(pool, 16, 7);
        }
        "find and publish" => {
            // Past what a test shows only if it fails.
            let thread = rustix::thread::gettid().as_raw_nonzero();
            std::io::stderr().write_all(format!("{thread}\n").as_bytes()).unwrap();
            words.read_line(&mut String::new()).unwrap();
            pool.find(cid).unwrap();
            let mut writer = pool.begin(None).unwrap();
            writer.reserve(1).unwrap();
            writer.keep(std::slice::from_ref(&(0..1))).unwrap();
            writer.publish().unwrap();
            std::process::exit(0);
        }
        _ => panic!("no such role: {role}"),
    }
}

fn checkpoint(pool: &Pool) {
    let mut writer = pool.begin(Some(USER)).unwrap();
    writer.reserve(2 * CHUNK_BYTES).unwrap();
    writer.populate();
    writer.reserve(4 * CHUNK_BYTES).unwrap();
    writer.bytes_mut(0..3 * CHUNK_BYTES).fill(7);
    let kept = 0..3 * CHUNK_BYTES;
    writer.keep(std::slice::from_ref(&kept)).unwrap();
    writer.publish().unwrap();
}

/// Writes an image of three chunks anew, the second of which lies far.
fn replace(pool: &Pool, cid: Cid) {
    let c = CHUNK_BYTES;
    let mut writer = pool.begin_as(cid, None).unwrap();
    let near = [0..c, 2 * c..3 * c + 4096];
    writer.reserve_parts(4 * c, &near).unwrap();
    near.iter().for_each(|range| writer.bytes_mut(range.start..range.start + c).fill(7));
    let (source, key) = ("a:1".to_owned(), "/k".into());
    let parts = std::iter::once(c..2 * c).collect();
    let far = FarParts { source, key, tls: None, deadline_ms: 1, parts };
    let table = writer.put_far_parts(&far, 3 * c);
    writer.keep(&[0..c, 2 * c..3 * c, table]).unwrap();
    writer.replace().unwrap();
}

/// From now on the kernel reaps what `wait` would wait for.
#[allow(unsafe_code)] // reason: see SAFETY
fn ignore_children() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: installs no handler.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }.unwrap();
}
