//! The contract of [`Ownership`], for each mechanism: the pool's, and a simulated one whose hosts have caches that are
//! not coherent.

mod simulated;

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use farfork_pool::{Host, Ownership, Pool, PoolError};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::child::{Kind, Orders};
use crate::common::{Place, pins, used};
use simulated::Simulated;

/// Chunks of a medium.
const CHUNKS: u64 = 12;

/// A medium, and the hosts that use it.
trait Hosts {
    type Host: Ownership;

    /// A host, as it is when it starts: earlier processes of this name are dead.
    fn host(&self, name: &str) -> Self::Host;
    /// A host that dies while it borrows.
    fn dies_borrowing(&self, name: &str, cid: Cid);
    /// A host that dies while it writes so many bytes.
    fn dies_writing(&self, name: &str, bytes: u64);
    /// Bytes that are taken.
    fn used(&self) -> u64;
    /// Images that are published.
    fn images(&self) -> Vec<Cid>;
}

fn publish(host: &impl Ownership, chunks: u64, fill: u8) -> Result<Cid, PoolError> {
    let mut writer = host.begin(chunks * CHUNK_BYTES)?;
    for chunk in 0..chunks {
        host.write(&mut writer, chunk * CHUNK_BYTES, &vec![fill; CHUNK_BYTES as usize]);
    }
    host.publish(writer)
}

/// Whether every byte is `fill`.
fn reads<H: Ownership>(host: &H, borrowed: &H::Borrowed, chunks: u64, fill: u8) -> bool {
    let mut bytes = vec![!fill; (chunks * CHUNK_BYTES) as usize];
    host.read(borrowed, 0, &mut bytes).unwrap();
    bytes.iter().all(|byte| *byte == fill)
}

/// Waits until so many bytes are taken: a process that another test has just forked has files and locks for a moment,
/// so that a borrow may end later than it was dropped, when its host settles.
fn await_used<H: Hosts>(hosts: &H, bytes: u64, settling: &[&H::Host]) {
    let is_so = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(2));
        settling.iter().for_each(|host| host.settle().unwrap());
        hosts.used() == bytes
    });
    assert!(is_so, "{} bytes are taken, not {bytes}", hosts.used());
}

fn is_missing<T>(done: Result<T, PoolError>) -> bool {
    matches!(done, Err(PoolError::NoImage { .. }))
}

/// The memory of an image becomes that of another one, which hosts that had cached the first read as it is.
fn an_image_is_read_as_it_was_published(hosts: &impl Hosts) {
    let [one, two, three] = ["one", "two", "three"].map(|name| hosts.host(name));
    let empty = hosts.used();
    for fill in 1..=CHUNKS as u8 {
        let writer = if fill.is_multiple_of(2) { &one } else { &two };
        let cid = publish(writer, 3, fill).unwrap();
        for host in [&one, &two, &three] {
            let borrowed = host.borrow(cid).unwrap();
            assert!(reads(host, &borrowed, 3, fill), "image {fill} reads as another one");
        }
        three.reclaim(cid).unwrap();
        await_used(hosts, empty, &[&one, &two, &three]);
        assert!(is_missing(one.borrow(cid)) && is_missing(one.reclaim(cid)));
    }
}

fn an_image_is_there_when_it_is_published(hosts: &impl Hosts) {
    let [one, two] = ["one", "two"].map(|name| hosts.host(name));
    let empty = hosts.used();
    let mut writer = one.begin(2 * CHUNK_BYTES).unwrap();
    one.write(&mut writer, 0, &[7; 4096]);
    assert!(hosts.images().is_empty());
    drop(writer);
    await_used(hosts, empty, &[&one]);
    let too_much = one.begin((CHUNKS + 1) * CHUNK_BYTES);
    assert!(matches!(too_much, Err(PoolError::Full { .. })));
    let cid = publish(&one, 2, 7).unwrap();
    assert_eq!(hosts.images(), [cid]);
    two.borrow(cid).unwrap();
    two.reclaim(cid).unwrap();
}

fn borrowers_keep_a_reclaimed_image(hosts: &impl Hosts) {
    let [one, two, three] = ["one", "two", "three"].map(|name| hosts.host(name));
    let empty = hosts.used();
    let cid = publish(&one, 4, 7).unwrap();
    let borrowed = [&two, &two, &three].map(|host| (host, host.borrow(cid).unwrap()));
    one.reclaim(cid).unwrap();
    assert!(is_missing(two.borrow(cid)) && hosts.images().is_empty());
    // Others take all that is left.
    let mut others = Vec::new();
    let full = loop {
        match publish(&one, 1, 9) {
            Ok(cid) => others.push(cid),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, PoolError::Full { .. }), "{full}");
    assert!((1..=CHUNKS as usize - 4).contains(&others.len()), "{} images", others.len());
    for (host, borrowed) in borrowed {
        assert!(reads(host, &borrowed, 4, 7), "the memory of a borrowed image was reused");
    }
    others.iter().for_each(|cid| one.reclaim(*cid).unwrap());
    await_used(hosts, empty, &[&one, &two, &three]);
}

fn a_dead_host_blocks_no_other(hosts: &impl Hosts) {
    let [one, dead] = ["one", "dead"].map(|name| hosts.host(name));
    drop(dead);
    let empty = hosts.used();
    hosts.dies_writing("dead", 2 * CHUNK_BYTES);
    assert!(hosts.images().is_empty());
    let cid = publish(&one, 3, 7).unwrap();
    hosts.dies_borrowing("dead", cid);
    one.borrow(cid).unwrap();
    one.reclaim(cid).unwrap();
    let other = publish(&one, 3, 9).unwrap();
    assert!(reads(&one, &one.borrow(other).unwrap(), 3, 9));
    one.reclaim(other).unwrap();
    // What it had is there until it is known to be dead.
    assert!(hosts.used() >= empty + 3 * CHUNK_BYTES);
    let again = hosts.host("dead");
    await_used(hosts, empty, &[&one, &again]);
}

fn check_all<H: Hosts>(hosts: impl Fn() -> H) {
    an_image_is_there_when_it_is_published(&hosts());
    an_image_is_read_as_it_was_published(&hosts());
    borrowers_keep_a_reclaimed_image(&hosts());
    a_dead_host_blocks_no_other(&hosts());
}

/// The pool's mechanism, as where several kernels map the medium. Hosts that die are processes.
struct OfPool {
    place: Place,
    pool: Pool,
}

impl OfPool {
    fn new() -> OfPool {
        // And what the directories and tables take.
        let place = Place::of((CHUNKS + 1) * CHUNK_BYTES);
        let pool = Kind::Shared.applied_to(place.small_pool(CHUNKS));
        OfPool { place, pool }
    }

    fn open(&self) -> Pool {
        Kind::Shared.applied_to(Pool::open(&self.place.path()).unwrap())
    }

    fn dies(&self, role: &str, cid: Cid) {
        let path = self.place.path();
        let orders = Orders { kind: Kind::Shared, cid, ..Orders::new(role, &path) };
        let mut process = orders.command().stderr(Stdio::piped()).spawn().unwrap();
        process.stderr.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

impl Hosts for OfPool {
    type Host = Arc<Host>;

    fn host(&self, name: &str) -> Arc<Host> {
        Host::register(self.open(), name, pins(&self.pool, name)).unwrap()
    }

    fn dies_borrowing(&self, name: &str, cid: Cid) {
        assert_eq!(name, "dead");
        self.dies("borrow", cid);
    }

    fn dies_writing(&self, _: &str, bytes: u64) {
        assert_eq!(bytes, 2 * CHUNK_BYTES);
        self.dies("write and wait", Cid::NIL);
    }

    fn used(&self) -> u64 {
        used(&self.pool)
    }

    fn images(&self) -> Vec<Cid> {
        self.pool.images().unwrap()
    }
}

#[test]
fn of_the_pool() {
    check_all(OfPool::new);
}

#[test]
fn of_simulated_hosts_with_caches() {
    check_all(|| Simulated::new(CHUNKS, true));
}

/// The suite finds a mechanism that does not invalidate.
#[test]
#[should_panic(expected = "reads as another one")]
fn of_simulated_hosts_that_do_not_invalidate() {
    an_image_is_read_as_it_was_published(&Simulated::new(CHUNKS, false));
}
