//! Clients that do not keep to the rules: what the device of the server refuses. They need a device.

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::wire::Window;
use super::{Device, Rdma, examine, lanes};
use crate::error::{FabricError, Refusal};
use crate::fabric::{Fabric, Segment};
use crate::key::SharedKey;
use crate::region::{FileRegion, RegionKey, Regions};
use crate::tcp::{ClientSettings, Connection, Server, ServerSettings};

const BYTES: u64 = 64 << 10;

/// A server with a region of a file, and what it takes to connect to it.
struct Bed {
    regions: Arc<Regions>,
    region: RegionKey,
    file: File,
    key: SharedKey,
    server: Server,
}

/// `None` without a device: the test then shows nothing.
fn bed() -> Option<Bed> {
    let found = examine();
    let name = match &found {
        Ok(found) => found[0].split(' ').next()?.to_owned(),
        Err(why) => {
            println!("skipped: reads by RDMA: {why}");
            return None;
        }
    };
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[1; BYTES as usize]).unwrap();
    let (regions, key) = (Arc::new(Regions::new()), SharedKey::random().unwrap());
    let served = FileRegion::new(file.try_clone().unwrap()).unwrap();
    let region = regions.register(Arc::new(served)).unwrap();
    let mut settings = ServerSettings::new(Arc::clone(&regions), key.clone().alone());
    settings.lanes = Some(lanes(Device::named(&name).unwrap(), &regions, 4 * BYTES));
    // The address of the device, where it is one of this machine.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, settings).unwrap();
    Some(Bed { regions, region, file, key, server })
}

impl Bed {
    fn connect(&self) -> Rdma {
        let (address, settings) = (self.server.address().to_string(), ClientSettings::default());
        let control = Connection::connect(&address, &self.key, settings.clone()).unwrap();
        let connected = Rdma::beside(control, &settings, soon());
        connected.map_err(|without| without.1).unwrap()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

impl Rdma {
    fn at(&self, key: RegionKey, offset: u64, bytes: u32) -> Result<Vec<u8>, FabricError> {
        let segment = Segment { key, offset, bytes };
        self.submit(&[segment], soon())?.wait().map(|mut read| read.remove(0))
    }

    /// The window that it was given.
    fn known(&self, key: RegionKey) -> Window {
        self.at(key, 0, 1).unwrap();
        self.inner.windows.known(&key).unwrap()
    }

    /// Takes something else for the window.
    fn pretend(&self, key: RegionKey, window: Window) {
        self.inner.windows.pretend(&key, window);
    }

    /// Reads in a window that was made up, which the device must refuse; then the one that the server gives.
    fn is_refused(&self, key: RegionKey, window: Window, offset: u64) {
        let before = self.refused_by_device();
        self.pretend(key, window);
        let _ = self.at(key, offset, 4096);
        assert!(self.refused_by_device() > before, "the device read {window:?} at {offset}");
        assert_eq!(self.at(key, 0, 4096).unwrap(), [1; 4096]);
    }
}

#[test]
fn the_device_refuses_what_was_not_given() {
    let Some(bed) = bed() else { return };
    let client = bed.connect();
    let window = client.known(bed.region);
    assert_eq!(window.bytes, BYTES);
    // Beyond its end, before its beginning, and by a key that was not given.
    let large = Window { bytes: 2 * BYTES, ..window };
    client.is_refused(bed.region, large, BYTES - 4095);
    let before = Window { address: window.address - 4096, bytes: 2 * BYTES, ..window };
    client.is_refused(bed.region, before, 0);
    for guess in [window.key + 1, window.key ^ 0x100, window.key ^ 0x80, 0] {
        client.is_refused(bed.region, Window { key: guess, ..window }, 0);
    }
}

#[test]
fn a_window_of_another_connection_is_of_no_use() {
    let Some(bed) = bed() else { return };
    let (one, other) = (bed.connect(), bed.connect());
    let (window, own) = (one.known(bed.region), other.known(bed.region));
    assert_ne!((window.key, window.address), (own.key, own.address));
    other.is_refused(bed.region, window, 0);
    assert_eq!(one.at(bed.region, 0, 4096).unwrap(), [1; 4096]);
    // The window goes with its connection.
    drop(one);
    other.is_refused(bed.region, window, 0);
}

#[test]
fn the_device_refuses_a_revoked_window() {
    let Some(bed) = bed() else { return };
    let client = bed.connect();
    let window = client.known(bed.region);
    let new = bed.regions.revoke(bed.region.id).unwrap().unwrap();
    let error = client.at(bed.region, 0, 4096).unwrap_err();
    assert!(matches!(error, FabricError::Refused { refusal: Refusal::StaleKey, .. }), "{error:?}");
    assert_eq!(client.refused_by_device(), 1);
    // A client that has the new key does not get the old window by that.
    client.known(new);
    client.is_refused(new, window, 0);
    assert!(bed.regions.remove(new.id));
    let error = client.at(new, 0, 4096).unwrap_err();
    let unknown = Refusal::UnknownRegion;
    assert!(matches!(error, FabricError::Refused { refusal, .. } if refusal == unknown));
}

/// A client that has given the device up keeps nothing pinned, though its connection goes on.
#[test]
fn a_client_that_leaves_pins_nothing() {
    let Some(bed) = bed() else { return };
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[3; 4 * BYTES as usize]).unwrap();
    let large = bed.regions.register(Arc::new(FileRegion::new(file).unwrap())).unwrap();
    let first = bed.connect();
    first.known(bed.region);
    let other = bed.connect();
    assert_eq!(other.at(large, 0, 1).unwrap(), [3]);
    let why = other.detour_for(&large).unwrap();
    assert!(why.contains("cannot pin") && other.detour_for(&bed.region).is_none(), "{why}");
    first.inner.leave("the test says so".to_owned(), Vec::new());
    assert_eq!(first.at(bed.region, 0, 4096).unwrap(), [1; 4096]);
    assert_eq!((first.name(), first.is_one_sided_for(&bed.region)), ("tcp", false));
    let end = soon();
    loop {
        let third = bed.connect();
        assert_eq!(third.at(large, 0, 1).unwrap(), [3]);
        if third.is_one_sided_for(&large) {
            return;
        }
        assert!(Instant::now() < end, "{:?}", third.detour_for(&large));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Reads whose time is too short for the device say nothing about it.
#[test]
fn reads_with_little_time_keep_the_device() {
    let Some(bed) = bed() else { return };
    let client = bed.connect();
    client.known(bed.region);
    let all = [Segment { key: bed.region, offset: 0, bytes: BYTES as u32 }; 16];
    let mut late = 0;
    for micros in [1, 100, 300, 1_000, 3_000, 10_000, 30_000] {
        let deadline = Instant::now() + Duration::from_micros(micros);
        let Ok(mut batch) = client.submit(&all, deadline) else { continue };
        while let Some(read) = batch.next() {
            match read.result {
                Ok(bytes) => assert!(bytes.iter().all(|byte| *byte == 1)),
                Err(error) => {
                    assert!(matches!(error, FabricError::DeadlinePassed { .. }), "{error:?}");
                    late += 1;
                }
            }
        }
    }
    assert!(late > 0, "no read was late");
    assert!(bed.server.served_bytes() > 0, "the connection was asked for nothing");
    let many = client.submit(&all, soon()).unwrap().wait().unwrap();
    assert!(many.iter().flatten().all(|byte| *byte == 1));
    assert_eq!((client.name(), client.is_one_sided()), ("rdma", true));
}

/// What is written after a revocation is never read by an older key.
#[test]
fn no_read_outlives_a_revocation() {
    let Some(bed) = bed() else { return };
    let client = bed.connect();
    client.known(bed.region);
    let segment = |i: u64| Segment { key: bed.region, offset: i % 8 * 4096, bytes: 16 << 10 };
    let reading = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut right = 0;
                loop {
                    let many: Vec<Segment> = (0..16).map(segment).collect();
                    let mut batch = client.submit(&many, soon()).unwrap();
                    let mut refused = 0;
                    while let Some(read) = batch.next() {
                        match read.result {
                            Ok(bytes) => {
                                assert!(bytes.iter().all(|byte| *byte == 1), "read too late");
                                right += 1;
                                if right == 1 {
                                    reading.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                            Err(FabricError::Refused { refusal: Refusal::StaleKey, .. }) => {
                                refused += 1;
                            }
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    if refused > 0 {
                        return right;
                    }
                }
            })
        });
        while reading.load(Ordering::Relaxed) < 2 {
            assert!(readers.iter().all(|reader| !reader.is_finished()), "a reader has failed");
            std::thread::sleep(Duration::from_millis(5));
        }
        bed.regions.revoke(bed.region.id).unwrap();
        bed.file.write_all_at(&[2; BYTES as usize], 0).unwrap();
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
}

#[test]
fn a_server_that_ends_breaks_the_connection() {
    let Some(mut bed) = bed() else { return };
    let client = bed.connect();
    let window = client.known(bed.region);
    bed.server.stop();
    // Its threads end a while later, and with them the window.
    let end = soon();
    while bed.server.connections() > 0 {
        assert!(Instant::now() < end, "the connection does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The window is gone with the connection; nothing is read after that, at the latest when the deadline passes.
    let many = [Segment { key: bed.region, offset: 0, bytes: 4096 }; 50];
    if let Ok(mut batch) = client.submit(&many, soon()) {
        while let Some(read) = batch.next() {
            let error = read.result.unwrap_err();
            assert!(matches!(error, FabricError::Broken { .. }), "{error:?}");
        }
    }
    assert!(client.broken().is_some());
    client.pretend(bed.region, window);
    assert!(client.submit(&many, soon()).is_err());
    assert!(client.call(b"anything", soon()).is_err());
}
